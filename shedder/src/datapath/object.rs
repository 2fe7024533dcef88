//! The compiled kernel side.

use std::borrow::Cow;

use aya_obj::Object;
use shedder_common::abi::CAST_CALL;

/// The ELF object, aligned as its parser needs.
pub(super) static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/shedder.bpf.o"));

/// What a map must look like to be one of this build's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MapShape {
    pub(super) map_type: u32,
    pub(super) key_size: u32,
    pub(super) value_size: u32,
    pub(super) max_entries: u32,
    pub(super) flags: u32,
}

/// The shape of a map in the object.
pub(super) fn map_shape(object: &Object, name: &str) -> Option<MapShape> {
    let map = object.maps.get(name)?;
    Some(MapShape {
        map_type: map.map_type(),
        key_size: map.key_size(),
        value_size: map.value_size(),
        max_entries: map.max_entries(),
        flags: map.map_flags(),
    })
}

/// The object, in which the kernel function with that number in the kernel's BTF is called where it is meant to be.
pub(super) fn object(cast_function: Option<u32>) -> Cow<'static, [u8]> {
    let Some(function) = cast_function else { return Cow::Borrowed(OBJECT) };
    let placeholder = instruction(MOVE_IMMEDIATE, 0, CAST_CALL);
    let call = instruction(CALL, KERNEL_FUNCTION, function);
    let mut object = OBJECT.to_vec();
    for bytes in object.chunks_exact_mut(placeholder.len()).filter(|bytes| **bytes == placeholder) {
        bytes.copy_from_slice(&call);
    }
    Cow::Owned(object)
}

/// `BPF_ALU64 | BPF_MOV | BPF_K`.
const MOVE_IMMEDIATE: u8 = 0xb7;
/// `BPF_JMP | BPF_CALL`.
const CALL: u8 = 0x85;
/// `BPF_PSEUDO_KFUNC_CALL` as the source register.
const KERNEL_FUNCTION: u8 = if cfg!(target_endian = "big") { 2 } else { 2 << 4 };

/// A `struct bpf_insn`.
fn instruction(code: u8, registers: u8, immediate: u32) -> [u8; 8] {
    let [a, b, c, d] = immediate.to_ne_bytes();
    [code, registers, 0, 0, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_call_is_written_where_it_is_meant_to_be_and_nowhere_else() {
        assert!(matches!(object(None), Cow::Borrowed(bytes) if bytes == OBJECT));
        let object = object(Some(0x0123_4567));
        let changed: Vec<&[u8]> = object
            .chunks_exact(8)
            .zip(OBJECT.chunks_exact(8))
            .filter(|(after, before)| after != before)
            .map(|(after, _)| after)
            .collect();
        // The listener and the head of its queue, on XDP and on TC; in each maybe more than once.
        assert!(changed.len() >= 4, "{}", changed.len());
        let [a, b, c, d] = 0x0123_4567_u32.to_ne_bytes();
        assert!(changed.iter().all(|bytes| **bytes == [0x85, 0x20, 0, 0, a, b, c, d]));
    }
}
