//! From a TOML value, or the text of an environment variable, to a value of the domain.

use std::fmt::Display;
use std::str::FromStr;
use toml::Value;

/// Text.
pub(super) fn text(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) if text.is_empty() => Err("it is empty".into()),
        Value::String(text) if text.chars().any(char::is_control) => {
            Err("it holds a control character".into())
        }
        Value::String(text) => Ok(text.clone()),
        _ => Err("it is text, in quotes".into()),
    }
}

/// Something that is written as text.
pub(super) fn parsed<T: FromStr>(value: &Value) -> Result<T, String>
where
    T::Err: Display,
{
    text(value)?
        .parse()
        .map_err(|error: T::Err| error.to_string())
}

/// A whole number.
pub(super) fn number(value: &Value) -> Result<u64, String> {
    let refuse = || "it is a whole number".to_owned();
    match value {
        Value::Integer(number) => u64::try_from(*number).map_err(|_| refuse()),
        Value::String(text) => text.parse().map_err(|_| refuse()),
        _ => Err(refuse()),
    }
}

/// Yes or no.
pub(super) fn flag(value: &Value) -> Result<bool, String> {
    match value {
        Value::Boolean(flag) => Ok(*flag),
        Value::String(text) if text == "true" => Ok(true),
        Value::String(text) if text == "false" => Ok(false),
        _ => Err("it is true or false".into()),
    }
}

/// A list of texts; in the environment they are separated by commas.
pub(super) fn list<T: FromStr>(value: &Value) -> Result<Vec<T>, String>
where
    T::Err: Display,
{
    let one = |text: &str| {
        text.parse()
            .map_err(|error: T::Err| format!("'{text}': {error}"))
    };
    match value {
        Value::Array(items) => items
            .iter()
            .map(|item| {
                item.as_str()
                    .ok_or_else(|| "it is a list of texts".to_owned())
                    .and_then(one)
            })
            .collect(),
        Value::String(text) if text.trim().is_empty() => Ok(Vec::new()),
        Value::String(text) => text.split(',').map(|item| one(item.trim())).collect(),
        _ => Err("it is a list of texts".into()),
    }
}

/// A structure; in the environment it is written as in TOML.
pub(super) fn structure<T: serde::de::DeserializeOwned>(value: &Value) -> Result<T, String> {
    let value = match value {
        Value::String(text) => {
            let table: toml::Table = format!("value = {text}")
                .parse()
                .map_err(|_| "it is not written as in TOML".to_owned())?;
            table
                .get("value")
                .cloned()
                .ok_or_else(|| "it is empty".to_owned())?
        }
        other => other.clone(),
    };
    value
        .try_into()
        .map_err(|error: toml::de::Error| error.message().to_owned())
}
