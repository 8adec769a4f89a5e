//! JSON and query text into checked values; what is wrong with them, by code and field. HTTP bodies
//! and MCP arguments both go through here, so the same mistake gets the same code on both.

use lazaret_domain::{Denial, DenialClass, DenialCode};
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
        let fault = error.inner();
        let (line, column) = (fault.line(), fault.column());
        if !fault.is_data() {
            return Denial::new(
                DenialCode::InvalidRequest,
                format!("not JSON (line {line}, column {column})"),
            );
        }
        let message = fault.to_string();
        let place = format!(" at line {line} column {column}");
        denial_of(message.strip_suffix(&place).unwrap_or(&message), &path)
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
pub(crate) fn query_denial(error: &(dyn Error + 'static)) -> Denial {
    // The rejection wraps the reader's error; the innermost one has the words without the frame.
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    match innermost.downcast_ref::<serde_path_to_error::Error<serde::de::value::Error>>() {
        Some(error) => denial_of(&error.inner().to_string(), &error.path().to_string()),
        None => denial_of(&innermost.to_string(), ""),
    }
}

/// The denial that a checked type failed with: such a message ends in the code, in brackets.
///
/// What else a message holds may be the caller's own words, so they must not pass for a code: only
/// the very end counts (readers quote input in the middle), and only a code about input.
fn checked(message: &str) -> Option<Denial> {
    let (text, code) = message.strip_suffix(')')?.rsplit_once(" (")?;
    let code = code.parse::<DenialCode>().ok()?;
    matches!(code.class(), DenialClass::Invalid | DenialClass::TooLarge)
        .then(|| Denial::new(code, text))
}

/// Finds the denial in a reader's message, which has no place in it any more.
fn denial_of(message: &str, path: &str) -> Denial {
    let with_field = |denial: Denial| {
        if path.is_empty() || path == "." {
            denial
        } else {
            denial.at(path)
        }
    };
    if let Some(denial) = checked(message) {
        return with_field(denial);
    }
    if let Some(rest) = message.strip_prefix("unknown field `") {
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
    use serde_json::json;

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
    fn no_words_of_the_caller_pass_for_a_code() {
        let codes = ["internal", "unauthenticated", "too_large", "invalid_id"];
        let tails = ["", " at line 1 column 1", " at line "];
        for (code, tail) in codes.into_iter().flat_map(|c| tails.map(|t| (c, t))) {
            let said = format!("x ({code}){tail}");
            let agent = json!({ "agent": said }).to_string();
            let found = code_of(&agent);
            assert_eq!(found, (DenialCode::UnknownAgent, Some("agent".into())));
            let field = json!({ said.clone(): 1 }).to_string();
            assert_eq!(
                code_of(&field),
                (DenialCode::UnknownField, Some(said.clone()))
            );
            let typed = json!({ "task": { said: 1 } }).to_string();
            assert_eq!(code_of(&typed).0, DenialCode::InvalidRequest);
        }
        // Nor for an unknown field.
        let agent = json!({ "agent": "unknown field `task`" }).to_string();
        assert_eq!(code_of(&agent).0, DenialCode::UnknownAgent);
        // A type that failed with a code about something else than its input has none.
        assert_eq!(checked("a fault (internal)"), None);
        assert!(checked("a run id is 17 characters (invalid_id)").is_some());
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
