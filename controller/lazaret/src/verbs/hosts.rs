//! Verbs about hosts: `host enroll`, `ls`, `drain`, `retire`.

use crate::cli::host::Enroll;
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::output::table::{pairs, table};
use lazaret_api::host::Accel;
use lazaret_api::public::{EnrollHost, Host, HostAdmission};
use lazaret_domain::HostName;
use lazaret_domain::sandbox::Reach;

/// Lists hosts.
///
/// # Errors
/// As the controller refuses, or where it cannot be reached; so for every verb here.
pub async fn ls(client: &Client, out: &mut Output) -> Result<Exit, Failure> {
    let list = client.hosts().await?;
    if out.json {
        out.document(&list)?;
        return Ok(Exit::Done);
    }
    if list.hosts.is_empty() {
        out.note("No hosts. Enrol one with: lazaret host enroll USER@HOST --host-key SHA256:…")?;
        return Ok(Exit::Done);
    }
    let rows: Vec<Vec<String>> = list
        .hosts
        .iter()
        .map(|host| {
            vec![
                host.name.to_string(),
                host.address.clone(),
                admission(host.admission).to_owned(),
                reach(host),
                accel(host).to_owned(),
                host.sandboxes.to_string(),
            ]
        })
        .collect();
    out.line(table(
        &[
            "NAME",
            "ADDRESS",
            "ADMISSION",
            "REACH",
            "ACCEL",
            "SANDBOXES",
        ],
        &rows,
    ))?;
    for host in &list.hosts {
        if let Some(problem) = &host.problem {
            out.note(crate::output::inert::inert_line(&format!(
                "{}: {} ({})",
                host.name, problem.message, problem.code
            )))?;
        }
    }
    Ok(Exit::Done)
}

/// Enrols a host.
///
/// # Errors
/// As [`ls`].
pub async fn enroll(args: &Enroll, client: &Client, out: &mut Output) -> Result<Exit, Failure> {
    let request = EnrollHost {
        name: args.name.clone(),
        address: args.address.clone(),
        host_key: args.host_key.clone(),
    };
    let host = client.enroll(&request).await?;
    show(&host, out)
}

/// Drains a host.
///
/// # Errors
/// As [`ls`].
pub async fn drain(name: &HostName, client: &Client, out: &mut Output) -> Result<Exit, Failure> {
    let host = client.set_admission(name, HostAdmission::Drained).await?;
    show(&host, out)
}

/// Retires a host.
///
/// # Errors
/// As [`ls`].
pub async fn retire(name: &HostName, client: &Client, out: &mut Output) -> Result<Exit, Failure> {
    let host = client.set_admission(name, HostAdmission::Retired).await?;
    show(&host, out)
}

fn show(host: &Host, out: &mut Output) -> Result<Exit, Failure> {
    if out.json {
        out.document(host)?;
        return Ok(Exit::Done);
    }
    out.line(pairs(&[
        ("host", Some(host.name.to_string())),
        ("address", Some(host.address.clone())),
        ("host key", Some(host.host_key.clone())),
        ("admission", Some(admission(host.admission).to_owned())),
        ("reach", Some(reach(host))),
        (
            "problem",
            host.problem
                .as_ref()
                .map(|problem| format!("{} ({})", problem.message, problem.code)),
        ),
        ("accelerator", host.accel.map(|_| accel(host).to_owned())),
        ("qemu", host.vmm.clone()),
        ("image", host.image.clone()),
        ("sandboxes", Some(host.sandboxes.to_string())),
    ]))?;
    Ok(Exit::Done)
}

fn admission(admission: HostAdmission) -> &'static str {
    match admission {
        HostAdmission::Active => "active",
        HostAdmission::Drained => "drained",
        HostAdmission::Retired => "retired",
    }
}

fn reach(host: &Host) -> String {
    match host.reach {
        Reach::Reachable => "reachable".to_owned(),
        Reach::Unreachable { since } => {
            format!("unreachable since {}", since.strftime("%F %T UTC"))
        }
    }
}

fn accel(host: &Host) -> &'static str {
    match host.accel {
        Some(Accel::Kvm) => "kvm",
        Some(Accel::Tcg) => "tcg",
        None => "-",
    }
}
