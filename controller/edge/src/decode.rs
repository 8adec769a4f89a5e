//! JSON and query text into checked values; what is wrong with them, by code and field. HTTP bodies
//! and MCP arguments both go through here, so the same mistake gets the same code on both.

use lazaret_domain::{Denial, DenialCode};
use serde::de::DeserializeOwned;
use std::error::Error;

/// Reads a value from the text of a JSON object. (An array would be read as an object's fields in
/// the order of their declaration.)
pub(crate) fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Denial> {
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(Denial::new(DenialCode::InvalidRequest, "not a JSON object"));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let syntax = !error.inner().is_data();
        if syntax {
            let (line, column) = (error.inner().line(), error.inner().column());
            return Denial::new(
                DenialCode::InvalidRequest,
                format!("not JSON (line {line}, column {column})"),
            );
        }
        denial_of(&error.inner().to_string(), &path)
    })?;
    json.end().map_err(|_| {
        Denial::new(
            DenialCode::InvalidRequest,
            "not JSON: something follows the value",
        )
    })?;
    Ok(value)
}

/// Reads a value from parsed JSON.
pub(crate) fn from_value<T: DeserializeOwned>(value: serde_json::Value) -> Result<T, Denial> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        denial_of(&error.into_inner().to_string(), &path)
    })
}

/// A denial for a query that was not understood.
pub(crate) fn query_denial(error: &dyn Error) -> Denial {
    // The rejection wraps the reader's error; the innermost one has the words without the frame.
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    denial_of(&innermost.to_string(), "")
}

/// Finds the denial in a reader's message. Checked types fail with the text of their [`Denial`],
/// which ends in its code in brackets.
fn denial_of(message: &str, path: &str) -> Denial {
    let message = message.split(" at line ").next().unwrap_or(message);
    let field = (!path.is_empty() && path != ".").then(|| path.to_owned());
    let with_field = |denial: Denial| match field.clone() {
        Some(field) => denial.at(field),
        None => denial,
    };
    let inner = message.rsplit_once(" (").and_then(|(text, code)| {
        let code = code.split(')').next()?.parse::<DenialCode>().ok()?;
        // Readers of queries put the field before the text: `before: a run id is …`.
        Some(with_field(Denial::new(code, text)))
    });
    if let Some(denial) = inner {
        return denial;
    }
    if let Some(rest) = message.split_once("unknown field `").map(|(_, rest)| rest) {
        let name: String = rest
            .chars()
            .take_while(|c| *c != '`')
            .take(64)
            .filter(|c| !c.is_control())
            .collect();
        return Denial::new(
            DenialCode::UnknownField,
            format!("there is no field '{name}'"),
        )
        .at(name);
    }
    let code = match path.split(['.', '[']).next() {
        Some("egress") => DenialCode::InvalidEgress,
        Some("agent") => DenialCode::UnknownAgent,
        Some("command") => DenialCode::InvalidCommand,
        _ => DenialCode::InvalidRequest,
    };
    let text: String = message
        .chars()
        .filter(|c| !c.is_control())
        .take(200)
        .collect();
    with_field(Denial::new(code, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lazaret_api::public::CreateRun;

    fn code_of(body: &str) -> (DenialCode, Option<String>) {
        let denial = from_slice::<CreateRun>(body.as_bytes()).unwrap_err();
        if let Ok(object @ serde_json::Value::Object(_)) = serde_json::from_str(body) {
            let parsed = from_value::<CreateRun>(object).unwrap_err();
            assert_eq!(parsed.code, denial.code, "{body}");
        }
        (denial.code, denial.field)
    }

    #[test]
    fn what_is_wrong_has_a_code_and_a_field() {
        let cases = [
            (r#"{bad"#, DenialCode::InvalidRequest, None),
            (r#"{} {}"#, DenialCode::InvalidRequest, None),
            (r#"[]"#, DenialCode::InvalidRequest, None),
            (r#"{"repo":"/etc"}"#, DenialCode::InvalidRepo, Some("repo")),
            (
                r#"{"ref":"--upload-pack=x"}"#,
                DenialCode::InvalidRef,
                Some("ref"),
            ),
            (
                r#"{"memory":"lots"}"#,
                DenialCode::InvalidSize,
                Some("memory"),
            ),
            (
                r#"{"max_duration":"-1s"}"#,
                DenialCode::InvalidDuration,
                Some("max_duration"),
            ),
            (
                r#"{"command":[]}"#,
                DenialCode::InvalidCommand,
                Some("command"),
            ),
            (
                r#"{"command":"make test"}"#,
                DenialCode::InvalidCommand,
                Some("command"),
            ),
            (
                r#"{"agent":"gremlin"}"#,
                DenialCode::UnknownAgent,
                Some("agent"),
            ),
            (
                r#"{"egress":"everything"}"#,
                DenialCode::InvalidEgress,
                Some("egress"),
            ),
            (
                r#"{"source":"local"}"#,
                DenialCode::UnknownField,
                Some("source"),
            ),
        ];
        for (body, code, field) in cases {
            assert_eq!(code_of(body), (code, field.map(str::to_owned)), "{body}");
        }
    }

    #[test]
    fn deep_json_is_refused_and_not_followed() {
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(
            from_slice::<serde_json::Value>(deep.as_bytes())
                .unwrap_err()
                .code,
            DenialCode::InvalidRequest
        );
    }
}
