//! How shared types cross into the kernel.

use shedder_common::abi::Plain;

/// A shared type as a map value or key.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Wire<T: Plain>(pub(super) T);

// SAFETY: `Plain` promises what `Pod` asks: no padding, every bit pattern valid, no reference.
#[expect(unsafe_code, reason = "joins the promise of Plain to that of Pod, which are the same")]
unsafe impl<T: Plain> aya::Pod for Wire<T> {}
