//! Verbs about what is in a run's sandbox: `diff`, `files`, `get`, `put`, `exec`.

use crate::cli::{Exec, Files, Get, Put};
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::output::table::table;
use lazaret_api::guest::{FileEntry, FileKind};
use lazaret_api::public::ExecRun;
use lazaret_domain::{RunId, UploadName};
use serde_json::json;
use std::io::Write;
use std::path::Path;

/// The largest file that the controller takes.
const MAX_UPLOAD: u64 = 96 << 20;

/// Prints what a run changed.
///
/// # Errors
/// As the controller refuses, or where it cannot be reached; so for every verb here.
pub async fn diff(run: &RunId, client: &Client, out: &mut Output) -> Result<Exit, Failure> {
    let diff = client.diff(run).await?;
    if out.json {
        out.document(&diff)?;
        return Ok(Exit::Done);
    }
    out.guest(&diff.diff)?;
    out.note(format!("{} against {}", diff.branch, diff.base))?;
    if diff.truncated {
        out.note("The diff is longer than allowed and was cut.")?;
    }
    Ok(Exit::Done)
}

/// Lists a directory of the workspace.
///
/// # Errors
/// As [`diff`].
pub async fn files(args: &Files, client: &Client, out: &mut Output) -> Result<Exit, Failure> {
    let list = client.files(&args.run, &args.path).await?;
    if out.json {
        out.document(&list)?;
        return Ok(Exit::Done);
    }
    let rows: Vec<Vec<String>> = list.entries.iter().map(row).collect();
    out.line(table(&["MODE", "SIZE", "MODIFIED", "NAME"], &rows))?;
    if list.truncated {
        out.note("There are more entries than are listed.")?;
    }
    Ok(Exit::Done)
}

fn row(entry: &FileEntry) -> Vec<String> {
    let (kind, mark) = match entry.kind {
        FileKind::File => ('-', ""),
        FileKind::Directory => ('d', "/"),
        FileKind::Symlink => ('l', "@"),
        FileKind::Other => ('?', ""),
    };
    let mut mode = String::from(kind);
    for (index, letter) in "rwxrwxrwx".chars().enumerate() {
        mode.push(if entry.mode & (0o400 >> index) == 0 {
            '-'
        } else {
            letter
        });
    }
    let modified = jiff::Timestamp::from_second(entry.modified).map_or_else(
        |_| "-".to_owned(),
        |at| at.strftime("%Y-%m-%d %H:%M").to_string(),
    );
    vec![
        mode,
        entry.size.to_string(),
        modified,
        format!("{}{mark}", entry.name),
    ]
}

/// Fetches a file.
///
/// # Errors
/// As [`diff`].
pub async fn get(args: &Get, client: &Client, out: &mut Output) -> Result<Exit, Failure> {
    let bytes = client.artifact(&args.run, &args.path).await?;
    match &args.output {
        None => out.guest_bytes(&bytes)?,
        Some(path) => {
            let doing = |error: std::io::Error| {
                Failure::doing(format!("cannot write {}", path.display()), error)
            };
            let mut file = std::fs::File::create(path).map_err(doing)?;
            file.write_all(&bytes).map_err(doing)?;
            out.note(format!("{} bytes in {}", bytes.len(), path.display()))?;
        }
    }
    Ok(Exit::Done)
}

/// Uploads a file.
///
/// # Errors
/// As [`diff`], and where the file cannot be read or its name cannot be an upload's.
pub async fn put(args: &Put, client: &Client, out: &mut Output) -> Result<Exit, Failure> {
    let (name, body, size) = open(&args.file).await?;
    client.upload(&args.run, &name, body).await?;
    let path = format!("{}/{name}", lazaret_api::guest::UPLOADS);
    if out.json {
        out.document(&json!({ "run": args.run, "path": path, "size": size }))?;
    } else {
        out.line(path)?;
    }
    Ok(Exit::Done)
}

async fn open(path: &Path) -> Result<(UploadName, reqwest::Body, u64), Failure> {
    let shown = path.display();
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let name = name
        .parse::<UploadName>()
        .map_err(|denial| Failure::Usage(format!("{shown}: {denial}")))?;
    let size = tokio::fs::metadata(path)
        .await
        .map_err(|error| Failure::Usage(format!("cannot read {shown}: {error}")))?
        .len();
    if size > MAX_UPLOAD {
        return Err(Failure::Usage(format!("{shown} is larger than 96 MiB")));
    }
    let bytes = tokio::fs::read(path)
        .await
        .map_err(|error| Failure::Usage(format!("cannot read {shown}: {error}")))?;
    Ok((name, bytes.into(), size))
}

/// Runs a command beside a run; 0 only where it exited 0.
///
/// # Errors
/// As [`diff`].
pub async fn exec(args: &Exec, client: &Client, out: &mut Output) -> Result<Exit, Failure> {
    let command = args
        .argv()
        .map_err(|denial| Failure::Usage(denial.to_string()))?;
    let request = ExecRun {
        command,
        stdin: None,
        max_duration: args.max_duration,
    };
    // The exit status is the command's, even where nobody reads its output any more.
    out.outlive_readers();
    let result = client.exec(&args.run, &request).await?;
    let exit = if result.exit_code == Some(0) && !result.timed_out {
        Exit::Done
    } else {
        Exit::Failed
    };
    if out.json {
        out.document(&result)?;
        return Ok(exit);
    }
    out.guest(&result.stdout)?;
    out.guest_error(&result.stderr)?;
    if result.truncated {
        out.note("Output was cut at 1 MiB.")?;
    }
    match (result.exit_code, result.signal) {
        _ if result.timed_out => out.note("It ran over its longest duration and was ended.")?,
        (Some(0), _) => {}
        (Some(code), _) => out.note(format!("exit status {code}"))?,
        (None, Some(signal)) => out.note(format!("ended by signal {signal}"))?,
        (None, None) => out.note("It did not run to its end.")?,
    }
    Ok(exit)
}
