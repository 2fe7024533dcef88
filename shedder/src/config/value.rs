//! Readers of single values. Each error is the end of a sentence that begins with the key.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use shedder_common::class::Class;
use shedder_common::control::Mode;
use toml::de::{DeInteger, DeValue};

use super::model::{Action, OnLoss, RateLimit};
use super::section::type_name;
use super::suggest::{choose, show};
use super::units::{self, UNLIMITED};
use super::{cidr, limits};

pub(super) type Read<T> = Result<T, String>;

/// A string; `example` is shown where something else is found.
pub(super) fn text<'t>(value: &'t DeValue<'_>, example: &str) -> Read<&'t str> {
    value
        .as_str()
        .ok_or_else(|| format!("expected a string such as \"{example}\", found {}", type_name(value)))
}

pub(super) fn boolean(value: &DeValue<'_>) -> Read<bool> {
    value.as_bool().ok_or_else(|| format!("expected true or false, found {}", type_name(value)))
}

pub(super) fn integer(value: &DeValue<'_>) -> Read<i64> {
    let integer =
        value.as_integer().ok_or_else(|| format!("expected an integer, found {}", type_name(value)))?;
    whole(integer)
}

/// A finite number, integer or not.
pub(super) fn number(value: &DeValue<'_>) -> Read<f64> {
    let number = match value {
        DeValue::Integer(integer) => whole(integer)?.to_string().parse(),
        DeValue::Float(float) => float.as_str().parse(),
        _ => return Err(format!("expected a number, found {}", type_name(value))),
    };
    number.ok().filter(|number: &f64| number.is_finite()).ok_or_else(|| "expected a finite number".to_owned())
}

/// A part of a whole.
pub(super) fn ratio(value: &DeValue<'_>) -> Read<f64> {
    let ratio = number(value)?;
    if (0.0..=1.0).contains(&ratio) {
        Ok(ratio)
    } else {
        Err(format!("{ratio} is outside of 0..1: write a part of the whole, such as 0.5"))
    }
}

pub(super) fn duration(value: &DeValue<'_>) -> Read<Duration> {
    match value {
        DeValue::Integer(integer) => {
            let number = whole(integer)?.to_string();
            Err(units::duration_lacks_unit(&number, &number))
        }
        _ => units::duration(text(value, "100ms")?),
    }
}

pub(super) fn rate(value: &DeValue<'_>) -> Read<RateLimit> {
    let lacks_unit = match value {
        DeValue::Integer(integer) => units::rate_lacks_unit(&whole(integer)?.to_string()),
        DeValue::Float(number) => units::rate_lacks_unit(number.as_str()),
        _ => None,
    };
    match lacks_unit {
        Some(lacks_unit) => Err(lacks_unit),
        None => units::rate(text(value, "5000/s")?),
    }
}

/// A number from 1 to 65535.
pub(super) fn port(value: &DeValue<'_>) -> Read<u16> {
    limits::port(integer(value)?)
}

pub(super) fn cidr(value: &DeValue<'_>) -> Read<IpNet> {
    cidr::cidr(text(value, "10.20.0.0/16")?)
}

pub(super) fn class(value: &DeValue<'_>) -> Read<Class> {
    limits::class(text(value, "interactive")?)
}

pub(super) fn action(value: &DeValue<'_>) -> Read<Action> {
    limits::action(text(value, "reset")?)
}

pub(super) fn mode(value: &DeValue<'_>) -> Read<Mode> {
    choose("mode", text(value, "observe")?, &Mode::ALL.map(|mode| (mode.name(), mode)))
}

pub(super) fn on_loss(value: &DeValue<'_>) -> Read<OnLoss> {
    choose("on_loss", text(value, "ignore")?, &[("ignore", OnLoss::Ignore), ("hold", OnLoss::Hold)])
}

pub(super) fn burst(value: &DeValue<'_>) -> Read<u32> {
    limits::burst(&integer(value)?.to_string())
}

pub(super) fn connections(value: &DeValue<'_>) -> Read<Option<u32>> {
    match value {
        DeValue::String(word) => unlimited(word, "20000"),
        _ => limits::connections(&integer(value)?.to_string()),
    }
}

pub(super) fn queue_depth(value: &DeValue<'_>) -> Read<Option<f64>> {
    match value {
        DeValue::String(word) => unlimited(word, "0.9"),
        _ => ratio(value).map(Some),
    }
}

pub(super) fn queue_wait(value: &DeValue<'_>) -> Read<Option<Duration>> {
    match value {
        DeValue::String(text) => limits::queue_wait(text),
        _ => duration(value).map(Some),
    }
}

/// An absolute path.
pub(super) fn absolute_path(value: &DeValue<'_>, example: &str) -> Read<PathBuf> {
    let path = text(value, example)?;
    if !path.starts_with('/') {
        Err(format!("`{}` is no absolute path: write one such as \"{example}\"", show(path)))
    } else if path.contains('\0') {
        Err("a path cannot hold the character NUL".to_owned())
    } else {
        Ok(PathBuf::from(path))
    }
}

/// An address to listen at; `None` for `off`.
pub(super) fn listen(value: &DeValue<'_>) -> Read<Option<SocketAddr>> {
    const EXAMPLE: &str = "127.0.0.1:9464";
    let address = text(value, EXAMPLE)?;
    if address == "off" {
        return Ok(None);
    }
    let shown = show(address);
    match address.parse::<SocketAddr>() {
        Ok(address) if address.port() == 0 => {
            Err(format!("`{shown}` has port 0, which cannot be guarded: choose 1 to 65535"))
        }
        Ok(address) => Ok(Some(address)),
        Err(_) => Err(format!("`{shown}` is no IP address with port: write \"{EXAMPLE}\", or \"off\"")),
    }
}

fn unlimited<T>(word: &str, example: &str) -> Read<Option<T>> {
    if word == UNLIMITED {
        return Ok(None);
    }
    Err(match super::suggest::did_you_mean(word, [UNLIMITED]) {
        Some(near) => format!("unknown limit `{}`, did you mean `{near}`?", show(word)),
        None => format!("expected a number or \"unlimited\", found a string: write {example}"),
    })
}

fn whole(integer: &DeInteger<'_>) -> Read<i64> {
    i64::from_str_radix(integer.as_str(), integer.radix())
        .map_err(|_| format!("{} is too large for a number", show(&integer.to_string())))
}
