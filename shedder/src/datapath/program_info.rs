//! What a loaded program is called.

use aya::programs::loaded_programs;

/// The name of a loaded program, for telling whose it is.
#[must_use]
pub fn xdp_program_name(id: u32) -> Option<String> {
    let info = loaded_programs().filter_map(Result::ok).find(|info| info.id() == id)?;
    info.name_as_str().map(str::to_owned)
}
