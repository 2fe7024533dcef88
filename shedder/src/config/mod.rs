//! The configuration file: read whole, checked whole, with every problem at its place.
//!
//! One way: text → `section` (tables with places) → `sections` (one file each) → [`model::Config`]; and back,
//! [`effective()`].

pub mod assignments;
mod builtin;
pub mod cidr;
mod defaults;
mod effective;
mod error;
pub(crate) mod limits;
pub mod model;
pub mod range;
pub(crate) mod scope;
mod section;
mod sections;
pub mod suggest;
mod syntax;
pub mod units;
mod value;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

pub use self::effective::effective;
use self::error::Problems;
pub use self::error::{ConfigError, Position, Problem};
use self::model::Config;
use self::section::Section;

/// Largest file that is read, in bytes. The kernel's tables are full long before.
const LARGEST_FILE: u64 = 8 << 20;

/// Reads and checks a configuration file.
///
/// # Errors
///
/// Every independent problem that was found, in the order of the file; or why the file cannot be read.
pub fn load(path: &Path) -> Result<Config, ConfigError> {
    let file_name = path.display().to_string();
    let bytes = read(path).map_err(|why| ConfigError::unreadable(file_name.clone(), why))?;
    match String::from_utf8(bytes) {
        Ok(text) => parse(&text, &file_name),
        Err(error) => {
            let start = error.utf8_error().valid_up_to();
            let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
            let mut problems = Problems::new(&text);
            problems.at(start..start + 1, "this is no UTF-8 text: save the file as UTF-8");
            Err(problems.into_error(&file_name))
        }
    }
}

/// Checks a configuration; `file_name` is what errors call it.
///
/// # Errors
///
/// Every independent problem that was found, in the order of the text.
pub fn parse(text: &str, file_name: &str) -> Result<Config, ConfigError> {
    let mut problems = Problems::new(text);
    let table = syntax::read(text, &mut problems);
    let config = table.map(|table| sections::read(&Section::root(&table), &mut problems));
    match config {
        Some(config) if problems.count() == 0 => Ok(config),
        _ => Err(problems.into_error(file_name)),
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let cannot = |why: std::io::Error| format!("cannot be read: {why}");
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(cannot)?;
    file.take(LARGEST_FILE + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if u64::try_from(bytes.len()).is_ok_and(|size| size > LARGEST_FILE) {
        return Err(format!("is larger than {LARGEST_FILE} bytes: this is no configuration of shedder"));
    }
    Ok(bytes)
}
