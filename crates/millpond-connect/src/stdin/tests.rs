//! Records of the pipe hold whole rows.

use super::*;

#[test]
fn a_record_ends_with_a_row() {
    assert_eq!(whole_rows(b"a\nb\nc", false), 4);
    assert_eq!(whole_rows(b"abc", false), 0);
    assert_eq!(whole_rows(b"1,\"a\nb\"\n2,\"c\nd", true), 8);
    assert_eq!(whole_rows(b"1,\"a\"\"\n\"\n", true), 9);
}
