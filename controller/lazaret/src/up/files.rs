//! The settings file of `lazaret up`: written the first time, and afterwards the operator's. Only
//! what the command line asks for is written into it again, so that it holds the next time too; all
//! else in the file stays as it is, letter by letter.

use crate::accel;
use crate::cli;
use crate::client::file::write_private;
use crate::failure::Failure;
use crate::paths::Paths;
use lazaret_api::host::AccelChoice;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The settings file with what was asked for in it.
///
/// # Errors
/// Where it cannot be read or written, or has a form in which the key is not found.
pub(super) fn settings(paths: &Paths, args: &cli::Up) -> Result<PathBuf, Failure> {
    let file = paths.settings();
    if !file.exists() {
        let text = format!(
            "# Written by 'lazaret up'; yours to change. Each key is also LAZARET_SECTION_KEY.\n\n\
             [server]\nlisten = \"127.0.0.1:{}\"\n\n\
             [host]\n# kvm; tcg is software emulation and no security boundary; auto takes what a probe boot proves\n\
             accel = \"{}\"\n",
            args.port.unwrap_or(7717),
            accel::word(args.accel.unwrap_or(AccelChoice::Auto))
        );
        write_private(&file, &text)?;
        return Ok(file);
    }
    if let Some(port) = args.port {
        change(&file, "server", "listen", |now| {
            let mut listen = now
                .and_then(|now| now.parse().ok())
                .unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], port)));
            listen.set_port(port);
            listen.to_string()
        })?;
    }
    if let Some(choice) = args.accel {
        change(&file, "host", "accel", |_| accel::word(choice).to_owned())?;
    }
    Ok(file)
}

/// Gives a key of the file another value, made from the present one.
fn change(
    file: &Path,
    section: &str,
    key: &str,
    value: impl FnOnce(Option<&str>) -> String,
) -> Result<(), Failure> {
    let name = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| {
        Failure::Usage(format!("cannot read the settings file {name}: {error}"))
    })?;
    let before: Table = text
        .parse()
        .map_err(|error: toml::de::Error| Failure::Usage(format!("settings in {name}: {error}")))?;
    let now = before
        .get(section)
        .and_then(|section| section.get(key))
        .and_then(Value::as_str);
    let value = value(now);
    if now == Some(value.as_str()) {
        return Ok(());
    }
    let mut wanted = before.clone();
    let place = wanted
        .entry(section)
        .or_insert_with(|| Value::Table(Table::new()));
    if let Value::Table(keys) = place {
        keys.insert(key.to_owned(), Value::String(value.clone()));
    }
    let text = with_key(&text, section, key, &value);
    // TOML has more ways to write a key than are looked for; nothing else may have changed.
    if text.parse::<Table>().ok().as_ref() != Some(&wanted) {
        return Err(Failure::Usage(format!(
            "cannot tell where {section}.{key} is written in {name}; write there: \
             {section}.{key} = \"{value}\", and leave out the option"
        )));
    }
    write_private(file, &text)
}

/// The text with this value for a key: in its line, else below its section's heading, else in a new
/// section at the end.
fn with_key(text: &str, section: &str, key: &str, value: &str) -> String {
    let line = format!("{key} = \"{value}\"");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let heading = lines
        .iter()
        .position(|line| without_comment(line) == format!("[{section}]"));
    let Some(heading) = heading else {
        return format!("{}\n\n[{section}]\n{line}\n", text.trim_end());
    };
    let found = lines[heading + 1..]
        .iter()
        .take_while(|line| !line.trim_start().starts_with('['))
        .position(|line| line.split('=').next().map(str::trim) == Some(key));
    match found {
        Some(offset) => {
            let old = &mut lines[heading + 1 + offset];
            let comment = old
                .find(" #")
                .map(|at| old[at..].to_owned())
                .unwrap_or_default();
            *old = line + &comment;
        }
        None => lines.insert(heading + 1, line),
    }
    lines.join("\n") + "\n"
}

fn without_comment(line: &str) -> &str {
    line.split('#').next().unwrap_or_default().trim()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    struct Place {
        _dir: tempfile::TempDir,
        paths: Paths,
    }

    fn place() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::find(Some(dir.path())).unwrap();
        Place { _dir: dir, paths }
    }

    impl Place {
        fn write(&self, text: &str) {
            std::fs::write(self.paths.settings(), text).unwrap();
        }

        fn text(&self) -> String {
            std::fs::read_to_string(self.paths.settings()).unwrap()
        }

        /// What a start with these options leaves to the next one without any.
        fn start(
            &self,
            port: Option<u16>,
            accel: Option<AccelChoice>,
        ) -> Result<(String, AccelChoice), Failure> {
            let args = cli::Up {
                data: None,
                port,
                accel,
                no_demo: true,
            };
            settings(&self.paths, &args)?;
            let none = std::collections::BTreeMap::new();
            let read = Settings::load(&self.paths.settings(), &none)?;
            Ok((read.listen.to_string(), read.services.accel))
        }
    }

    #[test]
    fn what_was_asked_for_holds_the_next_time_too() {
        let place = place();
        let first = ("127.0.0.1:7717".to_owned(), AccelChoice::Auto);
        assert_eq!(place.start(None, None).unwrap(), first);
        let second = ("127.0.0.1:7719".to_owned(), AccelChoice::Tcg);
        assert_eq!(
            place.start(Some(7719), Some(AccelChoice::Tcg)).unwrap(),
            second
        );
        let written = place.text();
        assert_eq!(place.start(None, None).unwrap(), second);
        assert_eq!(place.text(), written);
    }

    #[test]
    fn the_rest_of_the_file_stays_as_it_is() {
        let place = place();
        place.write(
            "# mine\n[egress] # strict\ndomains = []\n[server] # here\nlisten = \"127.0.0.2:1\" # why\n",
        );
        place.start(Some(2), Some(AccelChoice::Kvm)).unwrap();
        assert_eq!(
            place.text(),
            "# mine\n[egress] # strict\ndomains = []\n[server] # here\nlisten = \"127.0.0.2:2\" # why\n\n\
             [host]\naccel = \"kvm\"\n"
        );
        place.write("[server]\n# listen = \"x\"\nstop_grace = \"5s\"");
        place.start(Some(3), None).unwrap();
        assert_eq!(
            place.text(),
            "[server]\nlisten = \"127.0.0.1:3\"\n# listen = \"x\"\nstop_grace = \"5s\"\n"
        );
    }

    #[test]
    fn a_form_that_is_not_understood_is_not_touched() {
        let place = place();
        for text in [
            "server.listen = \"127.0.0.1:1\"\n",
            "server = { listen = \"127.0.0.1:1\" }\n",
            "[server]\n\"listen\" = \"127.0.0.1:1\"\n",
            "[log]\nfilter = '''\n[server]\nlisten = 1'''\n",
        ] {
            place.write(text);
            let failure = place.start(Some(2), None).unwrap_err().to_string();
            assert!(failure.contains("server.listen"), "{text}: {failure}");
            assert_eq!(place.text(), text);
        }
    }
}
