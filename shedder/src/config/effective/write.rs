//! TOML values.

use toml::Value;

/// A TOML string.
pub(super) fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

/// A TOML float, read back as the same number.
pub(super) fn float(number: f64) -> String {
    Value::Float(number).to_string()
}

pub(super) fn floats(numbers: &[f64]) -> String {
    list(numbers.iter().map(|number| float(*number)))
}

pub(super) fn strings(texts: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    list(texts.into_iter().map(|text| quoted(text.as_ref())))
}

fn list(values: impl Iterator<Item = String>) -> String {
    format!("[{}]", values.collect::<Vec<_>>().join(", "))
}
