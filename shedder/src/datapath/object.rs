//! The compiled kernel side.

use aya_obj::Object;

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
