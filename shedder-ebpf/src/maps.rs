//! The maps. Names are those of `shedder_common::abi::map`.

use aya_ebpf::btf_maps::{Array, LpmTrie, PerCpuArray, SkStorage};
use aya_ebpf::macros::btf_map;
use shedder_common::abi::{ADDRESS_BUCKETS, BANKS, FINGERPRINT_SLOTS, MAX_CIDRS, MAX_POLICIES, PORT_SLOTS};
use shedder_common::address::Address;
use shedder_common::control::Control;
use shedder_common::counters::{GlobalCounters, PolicyCounters};
use shedder_common::limits::{PolicyAddress, PolicyLimits, PolicyState, SocketRecord};
use shedder_common::local_addresses::AddressBucket;

#[btf_map]
pub static CONTROL: Array<Control, 1> = Array::new();

#[btf_map]
pub static PORTS: Array<u32, { PORT_SLOTS as usize }> = Array::new();

#[btf_map]
pub static LIMITS: Array<PolicyLimits, { (BANKS * MAX_POLICIES) as usize }> = Array::new();

#[btf_map]
pub static STATE: Array<PolicyState, { MAX_POLICIES as usize }> = Array::new();

#[btf_map]
pub static CORRECTIONS: Array<i64, { MAX_POLICIES as usize }> = Array::new();

#[btf_map]
pub static COUNTERS: PerCpuArray<PolicyCounters, { MAX_POLICIES as usize }> = PerCpuArray::new();

#[btf_map]
pub static GLOBAL_COUNTERS: PerCpuArray<GlobalCounters, 1> = PerCpuArray::new();

#[btf_map]
pub static LOCAL_ADDRESSES: Array<AddressBucket, { ADDRESS_BUCKETS as usize }> = Array::new();

#[btf_map]
pub static SOURCES: LpmTrie<Address, u32, { MAX_CIDRS as usize }> = LpmTrie::new();

#[btf_map]
pub static DESTINATIONS: LpmTrie<PolicyAddress, u32, { MAX_CIDRS as usize }> = LpmTrie::new();

#[btf_map]
pub static FINGERPRINTS: Array<u64, { FINGERPRINT_SLOTS as usize }> = Array::new();

#[btf_map]
pub static SOCKETS: SkStorage<SocketRecord> = SkStorage::new();
