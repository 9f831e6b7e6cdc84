//! The list of parts that a task's table consists of, and when its parts are merged.
//!
//! ```text
//! base(100k) delta(60k)            → one base: the deltas outweigh half of the base
//! base(9M) d(800k) d(90k) … d(1k)  → the newest, small ones become one delta
//! ```
//!
//! Merging like this keeps sizes growing geometrically towards the base, so that a row is
//! rewritten a number of times that grows with the logarithm of the table, not with its age.

use crate::files;
use crate::snapshot::PartRows;
use crate::store::{FileHandle, TablePart};
use crate::table::TableDef;
use millpond_core::CheckpointId;

/// More parts than this are merged: reading a table opens every one of them.
pub(crate) const PARTS_MAX: usize = 8;
/// Deltas with fewer rows than this are not merged into a base for their size: reading the base
/// and one more sync cost more than they save.
pub(crate) const MERGE_ROWS_MIN: u64 = 4096;

/// The part that rows became.
pub(crate) fn part_of(
    def: &TableDef,
    rows: &PartRows,
    checkpoint: CheckpointId,
    file: Option<FileHandle>,
) -> TablePart {
    TablePart {
        file,
        checkpoint,
        base: rows.base,
        rows: rows.rows(),
        expired_through: rows.expired_through,
        window_max: rows.window_max(def),
        key_groups: rows.key_groups(),
    }
}

/// From which part on the list should be merged with `rows` new ones; `None` for not at all.
pub(crate) fn merge_from(parts: &[TablePart], rows: u64) -> Option<usize> {
    let base = parts.first().filter(|part| part.base)?.rows;
    let deltas: u64 = parts[1..].iter().map(|part| part.rows).sum::<u64>() + rows;
    (deltas >= MERGE_ROWS_MIN && deltas.saturating_mul(2) > base).then_some(0)
}

/// From which part on the list must be merged with `rows` new ones because it is too long.
pub(crate) fn shorten_from(parts: &[TablePart], rows: u64) -> Option<usize> {
    if parts.len() < PARTS_MAX {
        return None;
    }
    let mut start = parts.len() - 1;
    let mut total = rows + parts[start].rows;
    while start > 0 && parts[start - 1].rows <= total.saturating_mul(2) {
        start -= 1;
        total += parts[start].rows;
    }
    Some(start)
}

/// Drops parts whose every window is gone, and expiries that nothing needs any more.
pub(crate) fn drop_expired(parts: &mut Vec<TablePart>) {
    let mut expired: Option<i64> = None;
    let mut kept: Vec<TablePart> = Vec::with_capacity(parts.len());
    for mut part in parts.drain(..).rev() {
        let gone = part.window_max.is_some() && part.window_max <= expired;
        if gone {
            part = TablePart { file: None, rows: 0, window_max: None, key_groups: None, base: false, ..part };
        }
        let needed = part.file.is_some() || part.expired_through > expired;
        expired = expired.max(part.expired_through);
        if needed {
            kept.push(part);
        }
    }
    while kept.last().is_some_and(|oldest| oldest.file.is_none()) {
        kept.pop();
    }
    kept.reverse();
    *parts = kept;
}

/// The parts that count: from the newest base on.
pub(crate) fn from_base(parts: &[TablePart]) -> &[TablePart] {
    &parts[parts.iter().rposition(|part| part.base).unwrap_or(0)..]
}

/// The paths of the files of a list.
pub(crate) fn paths(parts: &[TablePart]) -> Vec<String> {
    parts.iter().filter_map(|part| part.file.as_ref()).map(|file| file.path.clone()).collect()
}

/// The name of a task's part.
pub(crate) fn name(base: bool, task: usize, checkpoint: CheckpointId, generation: u64) -> files::PartName {
    files::PartName { base, task, checkpoint, generation }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(base: bool, rows: u64, expired_through: Option<i64>, window_max: Option<i64>) -> TablePart {
        let file = FileHandle { path: format!("{rows}"), bytes: 1, crc32c: String::new() };
        let file = (rows > 0).then_some(file);
        TablePart {
            file,
            checkpoint: CheckpointId(1),
            base,
            rows,
            expired_through,
            window_max,
            key_groups: None,
        }
    }

    fn rows(parts: &[TablePart]) -> Vec<u64> {
        parts.iter().map(|part| part.rows).collect()
    }

    #[test]
    fn deltas_that_outweigh_half_of_the_base_become_a_base() {
        let parts = [part(true, 100_000, None, None), part(false, 30_000, None, None)];
        assert_eq!(merge_from(&parts, 20_000), None);
        assert_eq!(merge_from(&parts, 20_001), Some(0));
        assert_eq!(merge_from(&[part(true, 10, None, None)], 100), None, "too few to be worth it");
    }

    #[test]
    fn a_long_list_is_shortened_at_its_small_end() {
        let sizes = [9_000_000, 800_000, 200_000, 50_000, 10_000, 2_000, 500];
        let mut parts: Vec<TablePart> = sizes.iter().map(|rows| part(false, *rows, None, None)).collect();
        assert_eq!(shorten_from(&parts, 100), None);
        parts.push(part(false, 100, None, None));
        assert_eq!(shorten_from(&parts, 100), Some(7));
        assert_eq!(shorten_from(&parts, 1_000), Some(5));
        assert_eq!(shorten_from(&parts, 5_000_000), Some(0));
    }

    #[test]
    fn parts_of_expired_windows_are_dropped() {
        let mut parts = vec![
            part(true, 1, None, Some(10)),
            part(false, 2, None, Some(30)),
            part(false, 3, Some(10), Some(20)),
            part(false, 0, Some(20), None),
        ];
        drop_expired(&mut parts);
        assert_eq!(rows(&parts), [2, 0]);
        assert_eq!(parts[1].expired_through, Some(20));
        parts.push(part(false, 0, Some(30), None));
        drop_expired(&mut parts);
        assert_eq!(rows(&parts), [] as [u64; 0]);
    }

    #[test]
    fn a_row_of_a_window_that_was_expired_before_stays() {
        let mut parts = vec![part(false, 0, Some(50), None), part(false, 5, None, Some(40))];
        drop_expired(&mut parts);
        assert_eq!(rows(&parts), [5]);
    }
}
