//! The network namespace that the daemon lives in.

use super::NetError;

/// Inode number of the calling thread's network namespace: what the kernel calls `net.ns.inum`.
///
/// # Errors
///
/// `/proc` is not mounted.
pub fn inode() -> Result<u32, NetError> {
    let doing = "read the inode of /proc/thread-self/ns/net (is /proc mounted?)";
    let stat = rustix::fs::stat("/proc/thread-self/ns/net")
        .map_err(|errno| NetError::while_doing(doing)(errno.into()))?;
    u32::try_from(stat.st_ino).map_err(|error| NetError::while_doing(doing)(std::io::Error::other(error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::sandbox::in_namespace;

    #[test]
    fn every_namespace_has_its_own_number() {
        let outside = inode().unwrap();
        let inside = in_namespace(|| {
            let link = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
            let inode = inode().unwrap();
            assert_eq!(link.to_str(), Some(format!("net:[{inode}]").as_str()));
            inode
        });
        assert_ne!(outside, inside);
    }
}
