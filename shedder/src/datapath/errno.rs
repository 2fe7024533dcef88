//! What the kernel answered, out of what the library makes of it.

use std::error::Error;
use std::io;

use aya::programs::ProgramError;
use aya::programs::tc::TcError;
use aya::programs::xdp::XdpError;

/// The kernel's error in a chain of errors, where there is one.
pub(super) fn errno<'a>(chain: impl IntoIterator<Item = &'a (dyn Error + 'static)>) -> Option<i32> {
    chain.into_iter().find_map(own_errno)
}

/// Of one error. Those that only stand for another one show that one's source, and never itself.
fn own_errno(error: &(dyn Error + 'static)) -> Option<i32> {
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return error.raw_os_error();
    }
    if let Some(error) = error.downcast_ref::<TcError>() {
        return of_tc(error);
    }
    match error.downcast_ref::<ProgramError>()? {
        ProgramError::TcError(error) => of_tc(error),
        ProgramError::XdpError(XdpError::NetlinkError(error)) | ProgramError::NetlinkError(error) => {
            error.raw_os_error()
        }
        ProgramError::IOError(error) => error.raw_os_error(),
        _ => None,
    }
}

fn of_tc(error: &TcError) -> Option<i32> {
    match error {
        TcError::IoError(error) => error.raw_os_error(),
        TcError::NetlinkError(error) => error.raw_os_error(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn it_is_found_wherever_the_library_puts_it() {
        let gone = || io::Error::from_raw_os_error(libc::ENODEV);
        let errors: [anyhow::Error; 4] = [
            gone().into(),
            TcError::IoError(gone()).into(),
            ProgramError::TcError(TcError::IoError(gone())).into(),
            ProgramError::IOError(gone()).into(),
        ];
        for error in errors {
            assert_eq!(errno(error.context("while working").chain()), Some(libc::ENODEV));
        }
        let other: anyhow::Result<()> = Err(ProgramError::NotLoaded).context("while working");
        assert_eq!(errno(other.unwrap_err().chain()), None);
    }
}
