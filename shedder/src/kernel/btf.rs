//! Where the running kernel keeps its fields: a reader of BTF (the kernel's own type information).
//!
//! It finds the byte offset of a field and nothing else. Every read is bounded by the file, every walk by a
//! budget, so that no content can make it fail otherwise than by an error.

use std::collections::HashMap;
use std::ops::Range;

/// Magic of BTF in the byte order of its writer.
const MAGIC: u16 = 0xeb9f;

/// Bytes of the header that are used.
const HEADER_BYTES: usize = 24;

/// Bytes of `struct btf_type`.
const TYPE_BYTES: usize = 12;

/// Bytes of `struct btf_member`.
const MEMBER_BYTES: usize = 12;

/// Typedefs and qualifiers that may stand in front of one type.
const MAX_MODIFIERS: u32 = 32;

/// Anonymous structs within each other.
const MAX_NESTING: u32 = 16;

/// Members that one look-up may visit.
const MAX_VISITS: u32 = 100_000;

/// Bytes of a pointer of this kernel; shedder runs on the kernel that it reads.
const POINTER_BYTES: u32 = usize::BITS / 8;

/// Why BTF as a whole cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BtfError {
    /// It ends before it should.
    #[error("it is cut short")]
    Short,
    /// It is not BTF.
    #[error("it does not begin with the magic number of BTF in this machine's byte order")]
    Magic,
    /// It holds a kind of type whose length is not known.
    #[error("it holds types of kind {0}, which this version of shedder does not know")]
    Kind(u32),
}

/// Why a field has no offset.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// There is no such struct.
    #[error("the kernel has no struct {0}")]
    NoStruct(String),
    /// The struct has no such field.
    #[error("struct {0} has no field {1}")]
    NoField(String, String),
    /// The field is a bitfield.
    #[error("field {1} of struct {0} is a bitfield")]
    Bitfield(String, String),
    /// The field has another size.
    #[error("field {1} of struct {0} has {2} bytes instead of {3}")]
    Size(String, String, u32, u32),
    /// The type information contradicts itself.
    #[error("the description of field {1} of struct {0} makes no sense")]
    Broken(String, String),
}

/// Kinds of types, as the kernel numbers them.
mod kind {
    pub(super) const INT: u32 = 1;
    pub(super) const PTR: u32 = 2;
    pub(super) const ARRAY: u32 = 3;
    pub(super) const STRUCT: u32 = 4;
    pub(super) const UNION: u32 = 5;
    pub(super) const ENUM: u32 = 6;
    pub(super) const FWD: u32 = 7;
    pub(super) const TYPEDEF: u32 = 8;
    pub(super) const VOLATILE: u32 = 9;
    pub(super) const CONST: u32 = 10;
    pub(super) const RESTRICT: u32 = 11;
    pub(super) const FUNC: u32 = 12;
    pub(super) const FUNC_PROTO: u32 = 13;
    pub(super) const VAR: u32 = 14;
    pub(super) const DATASEC: u32 = 15;
    pub(super) const FLOAT: u32 = 16;
    pub(super) const DECL_TAG: u32 = 17;
    pub(super) const TYPE_TAG: u32 = 18;
    pub(super) const ENUM64: u32 = 19;
}

/// Type information that was read, with an index of its types.
#[derive(Debug)]
pub struct Btf {
    bytes: Vec<u8>,
    strings: Range<usize>,
    /// Where each type begins; type 1 is the first.
    types: Vec<usize>,
    /// Structs by name; several where the kernel's own merging of equal types failed.
    structs: HashMap<Vec<u8>, Vec<u32>>,
}

/// A `struct btf_type`.
#[derive(Clone, Copy, Debug)]
struct Type {
    name: u32,
    /// Where what follows it begins.
    rest: usize,
    info: u32,
    /// Size, or the type that it refers to.
    size_or_type: u32,
}

impl Type {
    const fn kind(self) -> u32 {
        (self.info >> 24) & 0x1f
    }

    const fn entries(self) -> u32 {
        self.info & 0xffff
    }

    /// Member offsets carry the width of bitfields.
    const fn has_bitfields(self) -> bool {
        self.info >> 31 == 1
    }
}

/// A member that was found.
#[derive(Clone, Copy, Debug)]
struct Member {
    offset_bits: u32,
    bitfield_bits: u32,
    type_id: u32,
}

impl Btf {
    /// Reads type information as `/sys/kernel/btf/vmlinux` holds it.
    ///
    /// # Errors
    ///
    /// It is not BTF, or BTF of a later format.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, BtfError> {
        let magic = bytes.first_chunk().map(|chunk| u16::from_ne_bytes(*chunk)).ok_or(BtfError::Short)?;
        if magic != MAGIC {
            return Err(BtfError::Magic);
        }
        let header = usize_at(&bytes, 4).filter(|length| *length >= HEADER_BYTES).ok_or(BtfError::Short)?;
        let section = |at: usize| -> Option<Range<usize>> {
            let start = header.checked_add(usize_at(&bytes, at)?)?;
            let end = start.checked_add(usize_at(&bytes, at + 4)?)?;
            (end <= bytes.len()).then_some(start..end)
        };
        let types = section(8).ok_or(BtfError::Short)?;
        let strings = section(16).ok_or(BtfError::Short)?;
        let mut btf = Self { bytes, strings, types: Vec::new(), structs: HashMap::new() };
        btf.index(types)?;
        Ok(btf)
    }

    /// Notes where each type begins and which of them are structs with a name.
    fn index(&mut self, section: Range<usize>) -> Result<(), BtfError> {
        let mut at = section.start;
        while at < section.end {
            let this = self.type_at(at).ok_or(BtfError::Short)?;
            self.types.push(at);
            at = this
                .rest
                .checked_add(extra_bytes(this)?)
                .filter(|end| *end <= section.end)
                .ok_or(BtfError::Short)?;
            if this.kind() == kind::STRUCT
                && let Some(name) = self.string(this.name).filter(|name| !name.is_empty()).map(<[u8]>::to_vec)
                && let Ok(id) = u32::try_from(self.types.len())
            {
                self.structs.entry(name).or_default().push(id);
            }
        }
        Ok(())
    }

    fn type_at(&self, at: usize) -> Option<Type> {
        Some(Type {
            name: u32_at(&self.bytes, at)?,
            info: u32_at(&self.bytes, at.checked_add(4)?)?,
            size_or_type: u32_at(&self.bytes, at.checked_add(8)?)?,
            rest: at.checked_add(TYPE_BYTES)?,
        })
    }

    /// The type of that number; 0 is `void` and none.
    fn type_of(&self, id: u32) -> Option<Type> {
        let index = usize::try_from(id.checked_sub(1)?).ok()?;
        self.type_at(*self.types.get(index)?)
    }

    fn string(&self, offset: u32) -> Option<&[u8]> {
        let strings = self.bytes.get(self.strings.clone())?;
        strings.get(usize::try_from(offset).ok()?..)?.split(|byte| *byte == 0).next()
    }

    /// Byte offset of a field from the start of a struct. The path leads through structs within structs
    /// (`a.b.c`); anonymous structs and unions are looked through, as the C compiler does.
    ///
    /// # Errors
    ///
    /// There is no such field, it is a bitfield, or its size is not `size` bytes.
    pub fn field_offset(&self, of: &str, path: &str, size: u32) -> Result<u32, FieldError> {
        let candidates =
            self.structs.get(of.as_bytes()).ok_or_else(|| FieldError::NoStruct(of.to_owned()))?;
        let mut first_error = None;
        for id in candidates {
            match self.field_offset_in(*id, of, path, size) {
                Ok(offset) => return Ok(offset),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(first_error.unwrap_or_else(|| FieldError::NoStruct(of.to_owned())))
    }

    /// Number of the only struct of that name.
    #[must_use]
    pub fn structure(&self, name: &str) -> Option<u32> {
        match self.structs.get(name.as_bytes())?.as_slice() {
            [id] => Some(*id),
            _ => None,
        }
    }

    /// Number of the function of that name.
    #[must_use]
    pub fn function(&self, name: &str) -> Option<u32> {
        let index = self.types.iter().position(|at| {
            self.type_at(*at).is_some_and(|this| {
                this.kind() == kind::FUNC && self.string(this.name) == Some(name.as_bytes())
            })
        })?;
        u32::try_from(index).ok()?.checked_add(1)
    }

    fn field_offset_in(&self, id: u32, of: &str, path: &str, size: u32) -> Result<u32, FieldError> {
        let names = || (of.to_owned(), path.to_owned());
        let broken = || FieldError::Broken(of.to_owned(), path.to_owned());
        let mut visits = MAX_VISITS;
        let mut within = id;
        let mut bits = 0_u32;
        let mut bitfield = false;
        for name in path.split('.') {
            let member = self
                .member(within, name.as_bytes(), 0, &mut visits)
                .ok_or_else(|| FieldError::NoField(names().0, names().1))?;
            bits = bits.checked_add(member.offset_bits).ok_or_else(broken)?;
            bitfield |= member.bitfield_bits != 0;
            within = self.resolve(member.type_id).ok_or_else(broken)?.0;
        }
        let (actual, partial) = self.size(within).ok_or_else(broken)?;
        if bitfield || partial || !bits.is_multiple_of(8) {
            return Err(FieldError::Bitfield(names().0, names().1));
        }
        if actual != size {
            return Err(FieldError::Size(names().0, names().1, actual, size));
        }
        Ok(bits / 8)
    }

    /// The member of that name of a struct or union, or of an anonymous one within it.
    fn member(&self, id: u32, name: &[u8], nesting: u32, visits: &mut u32) -> Option<Member> {
        let (_, this) = self.resolve(id)?;
        if nesting > MAX_NESTING || !matches!(this.kind(), kind::STRUCT | kind::UNION) {
            return None;
        }
        let mut at = this.rest;
        for _ in 0..this.entries() {
            *visits = visits.checked_sub(1)?;
            // A member has the layout of a type: name, type, offset.
            let raw = self.type_at(at)?;
            at = at.checked_add(MEMBER_BYTES)?;
            let (offset_bits, bitfield_bits) = if this.has_bitfields() {
                (raw.size_or_type & 0x00ff_ffff, raw.size_or_type >> 24)
            } else {
                (raw.size_or_type, 0)
            };
            let member = Member { offset_bits, bitfield_bits, type_id: raw.info };
            let member_name = self.string(raw.name)?;
            if member_name == name {
                return Some(member);
            }
            if member_name.is_empty()
                && let Some(inner) = self.member(member.type_id, name, nesting + 1, visits)
            {
                return Some(Member { offset_bits: offset_bits.checked_add(inner.offset_bits)?, ..inner });
            }
        }
        None
    }

    /// The type behind typedefs and qualifiers.
    fn resolve(&self, mut id: u32) -> Option<(u32, Type)> {
        for _ in 0..MAX_MODIFIERS {
            let this = self.type_of(id)?;
            match this.kind() {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                    id = this.size_or_type;
                }
                _ => return Some((id, this)),
            }
        }
        None
    }

    /// Size of a type in bytes, and whether it fills them only in part.
    fn size(&self, mut id: u32) -> Option<(u32, bool)> {
        let mut elements = 1_u32;
        for _ in 0..MAX_MODIFIERS {
            let (_, this) = self.resolve(id)?;
            let (size, partial) = match this.kind() {
                kind::ARRAY => {
                    elements = elements.checked_mul(u32_at(&self.bytes, this.rest.checked_add(8)?)?)?;
                    id = u32_at(&self.bytes, this.rest)?;
                    continue;
                }
                kind::PTR => (POINTER_BYTES, false),
                kind::INT => {
                    // Encoding, offset and width in bits.
                    let integer = u32_at(&self.bytes, this.rest)?;
                    let (offset, width) = ((integer >> 16) & 0xff, integer & 0xff);
                    (this.size_or_type, offset != 0 || this.size_or_type.checked_mul(8)? != width)
                }
                kind::STRUCT | kind::UNION | kind::ENUM | kind::ENUM64 | kind::FLOAT => {
                    (this.size_or_type, false)
                }
                _ => return None,
            };
            return Some((size.checked_mul(elements)?, partial));
        }
        None
    }
}

/// Bytes that follow a type of that kind.
fn extra_bytes(this: Type) -> Result<usize, BtfError> {
    let entries = usize::try_from(this.entries()).map_err(|_| BtfError::Short)?;
    Ok(match this.kind() {
        kind::PTR
        | kind::FWD
        | kind::TYPEDEF
        | kind::VOLATILE
        | kind::CONST
        | kind::RESTRICT
        | kind::FUNC
        | kind::FLOAT
        | kind::TYPE_TAG => 0,
        kind::INT | kind::VAR | kind::DECL_TAG => 4,
        kind::ARRAY => 12,
        kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => entries * 12,
        kind::ENUM | kind::FUNC_PROTO => entries * 8,
        other => return Err(BtfError::Kind(other)),
    })
}

fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().map(|chunk| u32::from_ne_bytes(*chunk))
}

fn usize_at(bytes: &[u8], offset: usize) -> Option<usize> {
    usize::try_from(u32_at(bytes, offset)?).ok()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Writes BTF, for tests.
    #[derive(Default)]
    pub(crate) struct Writer {
        types: Vec<u32>,
        strings: Vec<u8>,
        count: u32,
    }

    impl Writer {
        fn name(&mut self, name: &str) -> u32 {
            if self.strings.is_empty() {
                self.strings.push(0);
            }
            if name.is_empty() {
                return 0;
            }
            let offset = self.strings.len();
            self.strings.extend_from_slice(name.as_bytes());
            self.strings.push(0);
            u32::try_from(offset).unwrap()
        }

        /// Adds a type and returns its number.
        pub(crate) fn add(&mut self, name: &str, info: u32, size_or_type: u32, rest: &[u32]) -> u32 {
            let name = self.name(name);
            self.types.extend([name, info, size_or_type]);
            self.types.extend(rest);
            self.count += 1;
            self.count
        }

        pub(crate) fn int(&mut self, bytes: u32) -> u32 {
            self.add("int", kind::INT << 24, bytes, &[bytes * 8])
        }

        /// Adds a struct of members (name, type, offset in bits).
        pub(crate) fn structure(&mut self, name: &str, size: u32, members: &[(&str, u32, u32)]) -> u32 {
            self.aggregate(kind::STRUCT << 24, name, size, members)
        }

        fn aggregate(&mut self, info: u32, name: &str, size: u32, members: &[(&str, u32, u32)]) -> u32 {
            let rest: Vec<u32> =
                members.iter().flat_map(|(name, id, bits)| [self.name(name), *id, *bits]).collect();
            self.add(name, info | u32::try_from(members.len()).unwrap(), size, &rest)
        }

        pub(crate) fn bytes(mut self) -> Vec<u8> {
            self.name("");
            let types = u32::try_from(self.types.len() * 4).unwrap();
            let strings = u32::try_from(self.strings.len()).unwrap();
            let mut bytes = MAGIC.to_ne_bytes().to_vec();
            bytes.extend([1, 0]);
            for word in [24, 0, types, types, strings].iter().chain(&self.types) {
                bytes.extend(word.to_ne_bytes());
            }
            bytes.extend(self.strings);
            bytes
        }
    }

    fn sample() -> Vec<u8> {
        let mut writer = Writer::default();
        let (u16_, u32_, u64_) = (writer.int(2), writer.int(4), writer.int(8));
        let alias = writer.add("alias_t", kind::TYPEDEF << 24, u16_, &[]);
        let constant = writer.add("", kind::CONST << 24, alias, &[]);
        let pointer = writer.add("", kind::PTR << 24, u32_, &[]);
        let array = writer.add("", kind::ARRAY << 24, 0, &[u32_, u32_, 4]);
        let half = writer.structure("", 8, &[("low", u16_, 0), ("high", u32_, 32)]);
        let either = writer.aggregate(kind::UNION << 24, "", 8, &[("whole", u64_, 0), ("", half, 0)]);
        let inner =
            writer.structure("inner", 24, &[("head", u64_, 0), ("", either, 64), ("words", array, 128)]);
        let bits = (kind::STRUCT << 24) | (1 << 31);
        let flags =
            writer.aggregate(bits, "flags", 8, &[("eight", u32_, (8 << 24) | 8), ("plain", u32_, 32)]);
        writer.structure(
            "outer",
            64,
            &[
                ("first", inner, 0),
                ("second", inner, 256),
                ("pointer", pointer, 512),
                ("short", constant, 576),
                ("flags", flags, 608),
                ("odd", u16_, 609),
            ],
        );
        writer.bytes()
    }

    fn offset(path: &str, size: u32) -> Result<u32, FieldError> {
        Btf::parse(sample()).unwrap().field_offset("outer", path, size)
    }

    #[test]
    fn fields_are_found_through_structs_unions_and_typedefs() {
        assert_eq!(offset("first.head", 8), Ok(0));
        assert_eq!(offset("second.head", 8), Ok(32));
        assert_eq!(offset("second.whole", 8), Ok(40));
        assert_eq!(offset("second.high", 4), Ok(44));
        assert_eq!(offset("first.words", 16), Ok(16));
        assert_eq!(offset("pointer", POINTER_BYTES), Ok(64));
        assert_eq!(offset("short", 2), Ok(72));
        assert_eq!(offset("flags.plain", 4), Ok(80));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let names = |path: &str| ("outer".to_owned(), path.to_owned());
        let error = |path: &str, size| offset(path, size).unwrap_err();
        assert_eq!(error("third", 8), FieldError::NoField(names("third").0, names("third").1));
        assert!(matches!(error("pointer.head", 8), FieldError::NoField(..)), "pointers are not followed");
        assert!(matches!(error("flags.eight", 4), FieldError::Bitfield(..)));
        assert!(matches!(error("odd", 2), FieldError::Bitfield(..)));
        assert!(matches!(error("short", 4), FieldError::Size(_, _, 2, 4)));
        let btf = Btf::parse(sample()).unwrap();
        assert_eq!(btf.field_offset("none", "x", 4), Err(FieldError::NoStruct("none".into())));
    }

    #[test]
    fn of_two_structs_of_one_name_the_one_that_has_the_field_is_used() {
        let mut writer = Writer::default();
        let int = writer.int(4);
        writer.structure("twin", 4, &[("a", int, 0)]);
        writer.structure("twin", 8, &[("a", int, 0), ("b", int, 32)]);
        let btf = Btf::parse(writer.bytes()).unwrap();
        assert_eq!(btf.field_offset("twin", "b", 4), Ok(4));
    }

    #[test]
    fn structs_that_hold_themselves_end_the_search() {
        let mut writer = Writer::default();
        let members = vec![("", 1, 0); 200];
        writer.structure("loop", 8, &members);
        writer.add("typedef_of_itself", kind::TYPEDEF << 24, 2, &[]);
        writer.structure("outer", 8, &[("field", 2, 0)]);
        let btf = Btf::parse(writer.bytes()).unwrap();
        assert!(matches!(btf.field_offset("loop", "x", 4), Err(FieldError::NoField(..))));
        assert!(matches!(btf.field_offset("outer", "field", 4), Err(FieldError::Broken(..))));
    }

    #[test]
    fn what_is_not_btf_is_refused() {
        assert_eq!(Btf::parse(Vec::new()).unwrap_err(), BtfError::Short);
        assert_eq!(Btf::parse(vec![0; 64]).unwrap_err(), BtfError::Magic);
        let mut writer = Writer::default();
        writer.add("", 31 << 24, 0, &[]);
        assert_eq!(Btf::parse(writer.bytes()).unwrap_err(), BtfError::Kind(31));
    }

    fn walk(bytes: Vec<u8>) {
        if let Ok(btf) = Btf::parse(bytes) {
            for path in ["first.head", "second.high", "flags.eight", "first.words", "odd", "x"] {
                drop(btf.field_offset("outer", path, 4));
            }
        }
    }

    proptest! {
        #[test]
        fn random_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let mut framed = sample()[..24].to_vec();
            framed.extend(&bytes);
            walk(bytes);
            walk(framed);
        }

        #[test]
        fn damaged_btf_does_no_harm(
            cut in 0_usize..2000,
            flips in proptest::collection::vec((0_usize..2000, any::<u8>()), 0..8),
        ) {
            let mut bytes = sample();
            for (place, value) in flips {
                let place = place % bytes.len();
                bytes[place] = value;
            }
            bytes.truncate(cut.max(2));
            walk(bytes);
        }
    }
}
