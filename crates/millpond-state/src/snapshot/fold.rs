//! Folding parts: of every identity the newest row wins, deletes drop, expired windows are left
//! out.
//!
//! ```text
//! base   a=1 b=1 c=1          fold:  a=1 b=2 d=3
//! delta      b=2 −c
//! delta          d=3
//! ```
//!
//! All rows are sorted by (key group, identity, newest first) by a stable sort that finds the
//! sorted runs which the parts are; the order within a file is therefore used but not trusted.
//! What is compared stands in the entry itself: the key group and the first bytes of the identity,
//! which are all of it for the commonest keys. Comparing encoded rows through their offsets took a
//! third of the time of a checkpoint.

use arrow::array::RecordBatch;
use arrow::compute::interleave_record_batch;
use arrow::datatypes::DataType;
use arrow::row::{RowConverter, Rows, SortField};
use millpond_core::{KeyGroupRange, Result};

use super::{Op, PartRows, ROWS_MAX, identity, key_groups, ops, window_ends};
use crate::table::{TableDef, TableKind};

/// Folds parts, oldest first, into one. The result is a base when the first part is one or
/// `whole` says that nothing precedes it; else deletes stay in it, for the parts before.
pub(crate) fn fold(
    def: &TableDef,
    parts: &[PartRows],
    whole: bool,
    range: Option<KeyGroupRange>,
) -> Result<PartRows> {
    let base = whole || parts.first().is_some_and(|part| part.base);
    let mut expired = None;
    let mut sources = Vec::with_capacity(parts.len());
    for part in parts.iter().rev() {
        sources.push(Source { batches: &part.batches, expired });
        expired = expired.max(part.expired_through);
    }
    let batches = arrange(def, &sources, !base, range)?;
    Ok(PartRows { batches, base, expired_through: expired.filter(|_| !base) })
}

/// Cuts sorted rows to a key-group range without copying them.
pub(crate) fn restrict(part: PartRows, range: KeyGroupRange) -> PartRows {
    let cut = |batch: RecordBatch| {
        let groups = key_groups(&batch).values();
        let start = groups.partition_point(|group| *group < range.start);
        let end = groups.partition_point(|group| *group < range.end);
        batch.slice(start, end.saturating_sub(start))
    };
    let batches = part.batches.into_iter().map(cut).filter(|batch| batch.num_rows() > 0);
    PartRows { batches: batches.collect(), ..part }
}

/// Rows to arrange, and the window end at or below which they are gone.
pub(super) struct Source<'a> {
    pub(super) batches: &'a [RecordBatch],
    pub(super) expired: Option<i64>,
}

/// Bytes of an identity that an entry holds, behind the two of the key group.
const PREFIX_BYTES: usize = 14;

#[derive(Clone, Copy)]
struct Entry {
    /// The key group and the beginning of the identity, so that entries sort by it.
    place: u128,
    batch: u32,
    row: u32,
}

/// Sorts the rows of sources, newest first, by (key group, identity) and keeps the newest of each.
pub(super) fn arrange(
    def: &TableDef,
    sources: &[Source<'_>],
    keep_deletes: bool,
    range: Option<KeyGroupRange>,
) -> Result<Vec<RecordBatch>> {
    let batches: Vec<&RecordBatch> = sources.iter().flat_map(|source| source.batches).collect();
    let identities: Vec<Identities> =
        batches.iter().map(|batch| Identities::encode(identity(def, batch))).collect::<Result<_>>()?;
    let key = |entry: &Entry| identities[entry.batch as usize].key(entry.row as usize);
    let mut entries = live_entries(def, sources, &identities, range);
    if prefix_is_all(def) {
        entries.sort_by_key(|entry| entry.place);
        entries.dedup_by_key(|entry| entry.place);
    } else {
        entries.sort_by(|a, b| a.place.cmp(&b.place).then_with(|| key(a).cmp(key(b))));
        entries.dedup_by(|later, first| later.place == first.place && key(later) == key(first));
    }
    if !keep_deletes {
        entries
            .retain(|entry| ops(batches[entry.batch as usize]).value(entry.row as usize) == Op::Upsert as i8);
    }
    gather(&batches, &entries)
}

/// Whether an identity's encoding, a byte before each value, always fits into the prefix. Then equal
/// prefixes are equal identities, since the encoding has a length that depends on the types alone.
fn prefix_is_all(def: &TableDef) -> bool {
    let width = |data_type: &DataType| match data_type {
        DataType::Boolean => Some(1),
        other => other.primitive_width(),
    };
    let identity = &def.schema.fields()[..def.identity_columns];
    let widths = identity.iter().map(|field| width(field.data_type()).map(|width| width + 1));
    widths.sum::<Option<usize>>().is_some_and(|width| width <= PREFIX_BYTES)
}

fn live_entries(
    def: &TableDef,
    sources: &[Source<'_>],
    identities: &[Identities],
    range: Option<KeyGroupRange>,
) -> Vec<Entry> {
    let all = sources.iter().flat_map(|source| source.batches.iter().map(|batch| (batch, source.expired)));
    let mut entries = Vec::with_capacity(all.clone().map(|(batch, _)| batch.num_rows()).sum());
    for (index, (batch, expired)) in all.enumerate() {
        let groups = key_groups(batch).values();
        let expired = expired.filter(|_| def.kind == TableKind::Window);
        let windows = expired.map(|through| (window_ends(batch), through));
        for (row, group) in groups.iter().enumerate() {
            let gone = windows.is_some_and(|(ends, through)| ends.value(row) <= through);
            if !gone && range.is_none_or(|range| range.contains(*group)) {
                let place = u128::from(*group) << (8 * PREFIX_BYTES) | identities[index].prefix(row);
                entries.push(Entry { place, batch: index as u32, row: row as u32 });
            }
        }
    }
    entries
}

fn gather(batches: &[&RecordBatch], entries: &[Entry]) -> Result<Vec<RecordBatch>> {
    let mut gathered = Vec::with_capacity(entries.len().div_ceil(ROWS_MAX));
    for chunk in entries.chunks(ROWS_MAX) {
        let indices: Vec<(usize, usize)> =
            chunk.iter().map(|entry| (entry.batch as usize, entry.row as usize)).collect();
        gathered.push(interleave_record_batch(batches, &indices)?);
    }
    Ok(gathered)
}

/// The identities of a batch's rows as comparable bytes; empty bytes when there are no columns
/// (the one row of a global aggregate).
pub(crate) struct Identities(Option<Rows>);

impl Identities {
    /// Encodes columns.
    pub(crate) fn encode(columns: &[arrow::array::ArrayRef]) -> Result<Self> {
        if columns.is_empty() {
            return Ok(Self(None));
        }
        let fields = columns.iter().map(|column| SortField::new(column.data_type().clone())).collect();
        Ok(Self(Some(RowConverter::new(fields)?.convert_columns(columns)?)))
    }
    /// The first bytes of a row, as a number that sorts like them.
    fn prefix(&self, row: usize) -> u128 {
        let key = self.key(row);
        let mut bytes = [0; 16];
        let length = key.len().min(PREFIX_BYTES);
        bytes[16 - PREFIX_BYTES..][..length].copy_from_slice(&key[..length]);
        u128::from_be_bytes(bytes)
    }
    /// The bytes of a row.
    pub(crate) fn key(&self, row: usize) -> &[u8] {
        self.0.as_ref().map_or(&[], |rows| rows.row(row).data())
    }
}
