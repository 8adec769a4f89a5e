//! `lazaret egress explain`: what a policy answers, without dialling and without a controller.

use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::output::table::table;
use lazaret_domain::egress::{EgressPolicy, Explanation};
use serde_json::json;
use std::path::Path;

/// The longest policy file that is read.
const MAX_POLICY: u64 = 4 << 20;

/// Says for each destination whether the policy allows it, by which rule, and why.
///
/// # Errors
/// Where the policy cannot be read or is out of form.
pub fn explain(file: &Path, destinations: &[String], out: &mut Output) -> Result<Exit, Failure> {
    let policy = read_policy(file)?;
    let answers: Vec<Explanation> = destinations
        .iter()
        .map(|destination| policy.explain(destination))
        .collect();
    if out.json {
        out.document(&json!({ "destinations": answers }))?;
        return Ok(Exit::Done);
    }
    let rows: Vec<Vec<String>> = answers
        .into_iter()
        .map(|answer| {
            let verdict = if answer.allowed { "allow" } else { "deny" };
            let rule = answer.rule.unwrap_or_else(|| "-".to_owned());
            vec![answer.destination, verdict.to_owned(), rule, answer.reason]
        })
        .collect();
    out.line(table(&["DESTINATION", "VERDICT", "RULE", "REASON"], &rows))?;
    Ok(Exit::Done)
}

/// A policy is JSON where its file's name says so, else TOML.
fn read_policy(file: &Path) -> Result<EgressPolicy, Failure> {
    let name = file.display();
    let size = std::fs::metadata(file)
        .map_err(|error| Failure::Usage(format!("cannot read {name}: {error}")))?
        .len();
    if size > MAX_POLICY {
        return Err(Failure::Usage(format!("{name} is longer than 4 MiB")));
    }
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::Usage(format!("cannot read {name}: {error}")))?;
    let policy: EgressPolicy = if file
        .extension()
        .is_some_and(|extension| extension == "json")
    {
        serde_json::from_str(&text).map_err(|error| Failure::Usage(format!("{name}: {error}")))?
    } else {
        toml::from_str(&text).map_err(|error| Failure::Usage(format!("{name}: {error}")))?
    };
    policy
        .check()
        .map_err(|denial| Failure::Usage(format!("{name}: {denial}")))?;
    Ok(policy)
}
