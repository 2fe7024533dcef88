//! Tests of the whole way from text to configuration and back.

mod arbitrary;
mod example;
mod load;
mod problems;
mod round_trip;
mod values;

use super::model::Config;
use super::{ConfigError, parse};

/// The configuration of a text that must be right.
fn read(text: &str) -> Config {
    parse(text, "f.toml").unwrap_or_else(|error| panic!("{error}\n---\n{text}"))
}

/// The problems of a text that must be wrong.
fn refuse(text: &str) -> ConfigError {
    match parse(text, "f.toml") {
        Ok(config) => panic!("accepted as {config:?}\n---\n{text}"),
        Err(error) => error,
    }
}
