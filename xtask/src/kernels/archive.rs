//! A file system for a kernel to start with: an archive in cpio's `newc` format.

use std::path::Path;

const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_755;

/// An archive that grows.
#[derive(Debug, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    pub(super) fn directory(&mut self, name: &str) {
        self.entry(name, DIRECTORY, &[]);
    }

    /// A file that may be executed.
    pub(super) fn file(&mut self, name: &str, content: &[u8]) {
        self.entry(name, FILE, content);
    }

    /// The same at an absolute path. Directories may come more than once.
    pub(super) fn file_with_parents(&mut self, path: &Path, content: &[u8]) {
        let name = |path: &Path| path.to_string_lossy().trim_start_matches('/').to_owned();
        let parents: Vec<_> = path.ancestors().skip(1).map(name).filter(|name| !name.is_empty()).collect();
        for parent in parents.iter().rev() {
            self.directory(parent);
        }
        self.file(&name(path), content);
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        self.bytes.extend(b"070701");
        // Inode, mode, owner, group, links, time, size, device, device of a special file, length of the name, sum.
        let fields = [self.entries, mode, 0, 0, 1, 0, length(content), 0, 0, 0, 0, length(name) + 1, 0];
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// No file here comes near 4 GiB.
fn length(content: impl AsRef<[u8]>) -> u32 {
    u32::try_from(content.as_ref().len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_where_a_kernel_looks_for_them() {
        let mut archive = Archive::default();
        archive.file_with_parents(Path::new("/lib/x"), b"abcde");
        let bytes = archive.finish();
        let text = String::from_utf8(bytes.clone()).unwrap();
        let starts: Vec<_> = text.match_indices("070701").map(|(at, _)| at).collect();
        assert_eq!(starts.len(), 3);
        assert!(starts.iter().all(|at| at % 4 == 0) && bytes.len().is_multiple_of(4));
        // Header of 110, name, end of the name.
        assert_eq!(&text[starts[0] + 110..starts[0] + 114], "lib\0");
        assert_eq!(&text[starts[1] + 110..starts[1] + 116], "lib/x\0");
        assert_eq!(&text[starts[1] + 54..starts[1] + 62], "00000005");
        assert_eq!(&text[starts[1] + 116..starts[1] + 121], "abcde");
        assert!(text[starts[2]..].contains("TRAILER!!!"));
    }
}
