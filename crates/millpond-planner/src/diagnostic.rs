//! An error as a person reads it: message, place, the line with a caret, detail and hint.
//!
//! ```text
//! error: table "bidd" does not exist
//!  --> script.sql:5:15
//!   |
//! 5 | SELECT * FROM bidd
//!   |               ^^^^
//!   detail: …
//!   hint: did you mean "bid"?
//! ```

use millpond_core::{Error, ErrorKind, Location};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Cells of a source line that are shown; of a longer one, the part around the place.
const LINE_CELLS_MAX: usize = 120;
/// Cells shown before the place in a line that is cut.
const CELLS_BEFORE: usize = 60;
/// What a tab becomes, since where it ends depends on the terminal.
const TAB: &str = "    ";

/// Renders an error of a script.
///
/// `source_name` is the file, `<command>` for text of the command line, `None` in a shell. `sql`
/// holds the script from line `lines_before + 1` on; the error's place counts from the script's
/// beginning.
pub fn render(error: &Error, source_name: Option<&str>, sql: &str, lines_before: u64) -> String {
    let mut text = format!("{}: {}\n", title(error.kind()), error.message());
    let digits = error.location().map_or(0, |place| place.line.to_string().len());
    if let Some(place) = error.location() {
        write_place(&mut text, source_name, place, digits);
        let line =
            place.line.checked_sub(lines_before + 1).and_then(|skipped| sql.lines().nth(skipped as usize));
        if let Some(line) = line {
            write_line(&mut text, line, place, digits);
        }
    }
    write_note(&mut text, digits, "detail", error.detail());
    write_note(&mut text, digits, "hint", error.hint());
    text
}

fn title(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid | ErrorKind::Data | ErrorKind::Unavailable | ErrorKind::Corrupt => "error",
        ErrorKind::Cancelled => "cancelled",
        ErrorKind::Internal => "internal error",
    }
}

fn write_place(text: &mut String, source_name: Option<&str>, place: Location, digits: usize) {
    let indent = " ".repeat(digits);
    let (name, colon) = source_name.map_or(("", ""), |name| (name, ":"));
    text.push_str(&format!("{indent}--> {name}{colon}{}:{}\n", place.line, place.column));
}

fn write_note(text: &mut String, digits: usize, label: &str, note: Option<&str>) {
    let Some(note) = note else { return };
    let indent = " ".repeat(digits + 1);
    let continued = format!("\n{indent}{}", " ".repeat(label.len() + 2));
    text.push_str(&format!("{indent}{label}: {}\n", note.replace('\n', &continued)));
}

fn write_line(text: &mut String, line: &str, place: Location, digits: usize) {
    let chars = line.chars().count();
    let at = (place.column.saturating_sub(1) as usize).min(chars);
    let marked = marked_chars(line, at);
    let before: String = line.chars().take(at).map(shown).collect();
    let word: String = line.chars().skip(at).take(marked).map(shown).collect();
    let after: String = line.chars().skip(at + marked).map(shown).collect();
    let before = if width(&before) + width(&word) + width(&after) > LINE_CELLS_MAX {
        cut_front(&before, CELLS_BEFORE)
    } else {
        before
    };
    let rest_cells = LINE_CELLS_MAX.saturating_sub(width(&before));
    let rest = cut_back(&format!("{word}{after}"), rest_cells);
    let carets = "^".repeat(width(&word).clamp(1, rest_cells.max(1)));
    let (indent, number, space) = (" ".repeat(digits), place.line, " ".repeat(width(&before)));
    text.push_str(&format!("{indent} |\n{number} | {before}{rest}\n{indent} | {space}{carets}\n"));
}

/// How many characters the carets are under: a word, a string or name in quotes, or one symbol.
fn marked_chars(line: &str, at: usize) -> usize {
    let rest = || line.chars().skip(at);
    let is_word = |ch: &char| ch.is_alphanumeric() || matches!(ch, '_' | '$');
    match rest().next() {
        Some(quote @ ('\'' | '"' | '`')) => {
            rest().skip(1).position(|ch| ch == quote).map_or(1, |inside| inside + 2)
        }
        Some(first) if is_word(&first) => rest().take_while(is_word).count(),
        Some(_) => 1,
        None => 0,
    }
}

/// A character as it is shown: tabs have a fixed width, other control characters are invisible.
fn shown(ch: char) -> String {
    match ch {
        '\t' => TAB.into(),
        ch if ch.is_control() => " ".into(),
        ch => ch.into(),
    }
}

fn width(text: &str) -> usize {
    UnicodeWidthStr::width(text)
}

/// The last cells of a text, with `…` for what is missing.
fn cut_front(text: &str, cells_max: usize) -> String {
    if width(text) <= cells_max {
        return text.into();
    }
    let mut cells = 1;
    let kept = text.char_indices().rev().take_while(|(_, ch)| {
        cells += ch.width().unwrap_or(0);
        cells <= cells_max
    });
    let start = kept.last().map_or(text.len(), |(offset, _)| offset);
    format!("…{}", &text[start..])
}

/// The first cells of a text, with `…` for what is missing.
fn cut_back(text: &str, cells_max: usize) -> String {
    if width(text) <= cells_max {
        return text.into();
    }
    let mut cells = 1;
    let kept: String = text
        .chars()
        .take_while(|ch| {
            cells += ch.width().unwrap_or(0);
            cells <= cells_max
        })
        .collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests;
