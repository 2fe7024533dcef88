//! Reading files.

use crate::config::{Position, load};

#[test]
fn a_file_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shedder.toml");
    std::fs::write(&path, "version = 1\n[[port]]\nport = 80\n").unwrap();
    let config = load(&path).unwrap();
    assert_eq!(config.ports.len(), 1);
    assert!(!config.follow_listeners);
}

#[test]
fn what_cannot_be_read_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let absent = dir.path().join("absent.toml");
    let error = load(&absent).unwrap_err();
    assert_eq!(error.problems[0].position, None);
    let shown = error.to_string();
    assert!(shown.starts_with(&format!("{}: cannot be read: ", absent.display())), "{shown}");
    assert!(load(dir.path()).unwrap_err().to_string().contains("cannot be read"));
    assert!(load("/dev/zero".as_ref()).unwrap_err().to_string().contains("is larger than"));
}

#[test]
fn the_first_byte_that_is_no_text_has_a_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("latin1.toml");
    std::fs::write(&path, b"version = 1\n# na\xefve\n").unwrap();
    let error = load(&path).unwrap_err();
    assert_eq!(error.problems[0].position, Some(Position { line: 2, column: 5 }));
    assert!(error.to_string().contains("no UTF-8"));
}
