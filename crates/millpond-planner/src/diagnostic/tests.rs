//! Tests of `diagnostic`.

use super::*;

fn check(sql: &str, line: u64, column: u64, expected: &str) {
    let error = Error::invalid("wrong").with_location(Some(Location { line, column }));
    let rendered = render(&error, Some("a.sql"), sql, 0);
    let shown: Vec<&str> = rendered.lines().skip(3).collect();
    assert_eq!(shown.join("\n"), expected);
}

#[test]
fn all_parts_are_shown() {
    let error = Error::invalid("table \"bidd\" does not exist")
        .with_detail("one\ntwo")
        .with_hint("did you mean \"bid\"?")
        .with_location(Some(Location { line: 12, column: 15 }));
    let expected = "\
error: table \"bidd\" does not exist
  --> <command>:12:15
   |
12 | SELECT * FROM bidd
   |               ^^^^
   detail: one
           two
   hint: did you mean \"bid\"?
";
    assert_eq!(render(&error, Some("<command>"), "SELECT 1;\nSELECT * FROM bidd", 10), expected);
}

#[test]
fn what_is_not_known_is_left_out() {
    assert_eq!(render(&Error::internal("lost"), None, "SELECT 1", 0), "internal error: lost\n");
    let beyond = Error::invalid("wrong").with_location(Some(Location { line: 9, column: 1 }));
    assert_eq!(render(&beyond, None, "SELECT 1", 0), "error: wrong\n --> 9:1\n");
    assert_eq!(render(&beyond, None, "SELECT 1", 9), "error: wrong\n --> 9:1\n");
}

#[test]
fn carets_stand_below_the_word() {
    check("SELECT abc", 1, 8, "1 | SELECT abc\n  |        ^^^");
    check("SELECT 'a b'", 1, 8, "1 | SELECT 'a b'\n  |        ^^^^^");
    check("SELECT (", 1, 8, "1 | SELECT (\n  |        ^");
    check("SELECT", 1, 7, "1 | SELECT\n  |       ^");
    check("SELECT", 1, 99, "1 | SELECT\n  |       ^");
    check("", 1, 1, "");
}

#[test]
fn tabs_and_wide_characters_are_aligned() {
    check("\tSELECT\ta", 1, 9, "1 |     SELECT    a\n  |               ^");
    check("SELECT '日本', x", 1, 14, "1 | SELECT '日本', x\n  |                ^");
    check("日本", 1, 1, "1 | 日本\n  | ^^^^");
}

#[test]
fn long_lines_are_cut_around_the_place() {
    let sql = format!("SELECT {}bad, {}", "a, ".repeat(1_000), "b, ".repeat(1_000));
    let error = Error::invalid("wrong").with_location(Some(Location { line: 1, column: 3_008 }));
    let rendered = render(&error, None, &sql, 0);
    let lines: Vec<&str> = rendered.lines().collect();
    assert!(lines.iter().all(|line| width(line) <= LINE_CELLS_MAX + 4), "{rendered}");
    let caret = lines[4].find('^').expect("a caret");
    let cells: String = lines[3].chars().skip(caret).take(3).collect();
    assert_eq!((cells.as_str(), lines[4].trim_end().ends_with("^^^")), ("bad", true));
}
