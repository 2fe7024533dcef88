//! Comparison with a file in the source tree, for tests.

use std::path::Path;

/// Panics where `text` differs from the file, a path below the crate's `src`. With `UPDATE_GOLDEN=1` in the
/// environment it writes the file instead: look at the difference before it is committed.
pub(crate) fn check(path: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(path);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&file, text).expect("writes the golden file");
        return;
    }
    let golden = std::fs::read_to_string(&file).expect("reads the golden file");
    let first = text.lines().zip(golden.lines()).find(|(new, old)| new != old);
    assert!(text == golden, "{path} differs, first in (new, old): {first:?}\nthe whole new text:\n{text}");
}
