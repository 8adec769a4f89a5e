//! Each key, good and bad, in the file and in the environment.

use super::*;
use lazaret_api::host::AccelChoice;
use lazaret_api::public::EgressMode;

fn read(text: &str, environment: &[(&str, &str)]) -> Result<Settings, String> {
    let environment = environment
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    Settings::read(text, Path::new("/data"), &environment)
}

/// For each key: a good value, a bad one as TOML, and a bad one as the environment has it.
const TABLE: &[(&str, &str, &str, &str)] = &[
    ("server.listen", "\"192.0.2.1:80\"", "\"localhost\"", "80"),
    (
        "server.public_url",
        "\"https://lazaret.example.com/\"",
        "\"https://example.com/lazaret\"",
        "https://user:pw@x",
    ),
    (
        "server.trusted_proxies",
        "[\"10.0.0.1\", \"192.0.2.0/24\"]",
        "[\"nowhere\"]",
        "10.0.0.0/99",
    ),
    ("server.stop_grace", "\"5s\"", "5", "soon"),
    (
        "store.url",
        "\"sqlite:/x/y.db\"",
        "\"sqlite:x.db?mode=ro\"",
        "mysql://x",
    ),
    ("host.accel", "\"tcg\"", "\"hvf\"", "yes"),
    ("host.ssh_key", "\"/etc/lazaret/key\"", "7", ""),
    ("host.boot_deadline", "\"90s\"", "\"0s\"", "-1s"),
    ("host.boot_tries", "2", "0", "many"),
    ("sandbox.memory", "\"2G\"", "\"lots\"", "1M"),
    ("sandbox.cpus", "2", "0", "65"),
    ("sandbox.disk", "\"20G\"", "\"1.5G\"", "1K"),
    ("sandbox.max_duration", "\"30m\"", "\"30\"", "1w"),
    ("sandbox.idle_sleep", "\"never\"", "\"0s\"", "soon"),
    ("sandbox.sleep_ttl", "\"12h\"", "\"-1h\"", "ever"),
    ("sandbox.max_sandboxes", "20", "-1", "0"),
    ("egress.default", "\"sealed\"", "\"wide\"", "OPEN"),
    (
        "egress.domains",
        "[\"example.com\", \"*.example.org:8443\"]",
        "[\"*.*.com\"]",
        "a b",
    ),
    (
        "egress.pinned",
        "[{ host = \"mirror.example\", addresses = [\"10.1.2.3\"] }]",
        "[{ host = \"m.example\", addresses = [\"169.254.169.254\"] }]",
        "mirror",
    ),
    ("egress.allow_open", "true", "\"yes\"", "1"),
    (
        "github.git_url",
        "\"http://127.0.0.1:3000/git\"",
        "\"git@github.com:\"",
        "ssh://x",
    ),
    ("auth.mode", "\"operator\"", "\"users\"", "none"),
    ("log.format", "\"json\"", "\"xml\"", "pretty"),
    ("log.filter", "\"lazaret=debug\"", "\"a=b=c\"", "x=loud"),
];

fn as_toml(key: &str, value: &str) -> String {
    let (section, key) = key.split_once('.').unwrap();
    format!("[{section}]\n{key} = {value}\n")
}

fn as_variable(key: &str) -> String {
    format!("LAZARET_{}", key.to_uppercase().replace('.', "_"))
}

#[test]
fn the_table_has_every_key() {
    let known: Vec<&str> = KEYS.iter().map(|(key, _)| *key).collect();
    let tested: Vec<&str> = TABLE.iter().map(|(key, ..)| *key).collect();
    assert_eq!(known, tested);
}

#[test]
fn every_key_takes_a_good_value() {
    for (key, good, ..) in TABLE {
        assert!(
            read(&as_toml(key, good), &[]).is_ok(),
            "{key} = {good}: {:?}",
            read(&as_toml(key, good), &[]).err()
        );
    }
}

#[test]
fn every_malformed_key_names_itself() {
    for (key, _, bad, in_environment) in TABLE {
        let error = read(&as_toml(key, bad), &[]).unwrap_err();
        assert!(
            error.starts_with(&format!("{key}: ")),
            "{key} = {bad}: {error}"
        );
        let variable = as_variable(key);
        let error = read("", &[(&variable, in_environment)]).unwrap_err();
        assert!(
            error.contains(&variable) && error.contains(key),
            "{variable}={in_environment}: {error}"
        );
    }
}

#[test]
fn an_unknown_key_names_itself_wherever_it_is() {
    for (text, name) in [
        ("[server]\nlistn = \"127.0.0.1:1\"\n", "server.listn"),
        ("[sever]\nlisten = \"127.0.0.1:1\"\n", "sever.listen"),
        ("listen = \"127.0.0.1:1\"\n", "listen"),
    ] {
        let error = read(text, &[]).unwrap_err();
        assert!(error.contains(name), "{error}");
    }
    for name in [
        "LAZARET_SERVER_LISTN",
        "LAZARET_SEVER_LISTEN",
        "LAZARET_LISTEN",
    ] {
        let error = read("", &[(name, "x")]).unwrap_err();
        assert!(error.contains(name), "{error}");
    }
    assert!(
        read("[server]\nlistn = \"x\"", &[])
            .unwrap_err()
            .contains("is server.listen meant?")
    );
    assert!(read("not toml", &[]).is_err());
}

#[test]
fn variables_of_the_client_and_of_others_are_no_settings() {
    let environment = [
        ("LAZARET_URL", "http://x"),
        ("LAZARET_TOKEN", "t"),
        ("LAZARET_TEST_DIR", "/x"),
        ("PATH", "/bin"),
    ];
    assert!(read("", &environment).is_ok());
}

#[test]
fn the_environment_wins_over_the_file() {
    let settings = read(
        "[server]\nlisten = \"127.0.0.1:1\"\n",
        &[("LAZARET_SERVER_LISTEN", "127.0.0.1:2")],
    )
    .unwrap();
    assert_eq!(settings.listen.port(), 2);
    assert_eq!(settings.url(), "http://127.0.0.1:2");
}

#[test]
fn the_defaults_are_the_documented_ones() {
    let settings = read("", &[]).unwrap();
    assert_eq!(settings.listen.to_string(), "127.0.0.1:7717");
    assert_eq!(settings.store, Path::new("/data/lazaret.db"));
    let services = settings.services;
    assert_eq!(services.accel, AccelChoice::Kvm);
    assert_eq!(
        (services.memory.to_string(), services.disk.to_string()),
        ("1G".into(), "8G".into())
    );
    assert_eq!(
        (services.cpus.get(), services.max_duration.to_string()),
        (1, "1h".into())
    );
    assert_eq!(services.max_sandboxes, 5);
    assert_eq!(services.egress.default, EgressMode::Sealed);
    assert!(services.egress.domains.is_empty() && !services.egress.open_allowed);
    assert_eq!(services.git_base_url, "https://github.com/");
}

#[test]
fn the_file_is_named_where_it_is_missing_or_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lazaret.toml");
    let failure = Settings::load(&file, &BTreeMap::new()).unwrap_err();
    assert!(
        failure.to_string().contains("lazaret.toml")
            && failure.exit() == crate::failure::Exit::Usage
    );
    std::fs::write(&file, "[host]\naccel = \"hvf\"\n").unwrap();
    let failure = Settings::load(&file, &BTreeMap::new()).unwrap_err();
    assert!(
        failure.to_string().contains("lazaret.toml") && failure.to_string().contains("host.accel")
    );
}

#[test]
fn relative_paths_are_below_the_directory_of_the_settings() {
    for (url, file) in [
        ("sqlite:x/y.db", "/data/x/y.db"),
        ("sqlite://y.db", "/data/y.db"),
        ("sqlite:/y.db", "/y.db"),
        ("sqlite:///y.db", "/y.db"),
    ] {
        let settings = read("", &[("LAZARET_STORE_URL", url)]).unwrap();
        assert_eq!(settings.store, Path::new(file), "{url}");
    }
    let settings = read("[host]\nssh_key = \"key\"\n", &[]).unwrap();
    assert_eq!(settings.ssh_key, Path::new("/data/key"));
    for url in ["sqlite::memory:", "sqlite:", "sqlite:///", "postgres://x"] {
        let error = read("", &[("LAZARET_STORE_URL", url)]).unwrap_err();
        assert!(error.contains("store.url"), "{url}: {error}");
    }
}

#[test]
fn an_address_that_stands_for_all_needs_a_name_for_callers() {
    for listen in ["0.0.0.0:7717", "[::]:7717"] {
        let listen = [("LAZARET_SERVER_LISTEN", listen)];
        let error = read("", &listen).unwrap_err();
        assert!(error.starts_with("server.public_url: "), "{error}");
        let named = "[server]\npublic_url = \"https://lazaret.example.com\"\n";
        assert_eq!(
            read(named, &listen).unwrap().url(),
            "https://lazaret.example.com"
        );
    }
}

#[test]
fn egress_that_would_end_every_run_is_refused() {
    let addresses: Vec<String> = (1..=17).map(|n| format!("\"10.0.0.{n}\"")).collect();
    for addresses in ["", "\"169.254.169.254\"", &addresses.join(", ")] {
        let text =
            format!("[egress]\npinned = [{{ host = \"m.example\", addresses = [{addresses}] }}]\n");
        let error = read(&text, &[]).unwrap_err();
        assert!(
            error.starts_with("egress.pinned: ") && error.contains("m.example"),
            "{error}"
        );
    }
    let domains: Vec<String> = (0..=1000).map(|n| format!("\"h{n}.example\"")).collect();
    let text = format!("[egress]\ndomains = [{}]\n", domains.join(", "));
    let error = read(&text, &[]).unwrap_err();
    assert!(error.starts_with("egress.domains: "), "{error}");
}
