//! Requests are taken whole, once, and only if their rows are good.

use super::*;

#[test]
fn arrays_become_lines() {
    let lines = |text: &str| lines_of_array(text.as_bytes()).map(|lines| String::from_utf8(lines).unwrap());
    assert_eq!(
        lines(" [{\"a\": \"x,]\"}, {\"b\": [1, 2]}]\n").unwrap(),
        "{\"a\": \"x,]\"}\n {\"b\": [1, 2]}"
    );
    assert_eq!(lines("[{\"a\": \"\\\"\"},\n{}]").unwrap(), "{\"a\": \"\\\"\"}\n {}");
    assert_eq!((lines("[]").unwrap().as_str(), lines("{\"a\": 1}")), ("", None));
}

#[test]
fn names_are_remembered_up_to_a_number() {
    let mut names = Names::default();
    (0..=NAMES_MAX).for_each(|n| names.remember(n.to_string().as_bytes()));
    names.remember(b"");
    assert_eq!((names.known.len(), names.order.len()), (NAMES_MAX, NAMES_MAX));
    assert!(!names.known.contains(b"0".as_slice()) && names.known.contains(b"1".as_slice()));
}
