//! The batch that a join is pairing: kept first, then paired with the other side, a batch of
//! output at a time.

use std::collections::VecDeque;

use arrow::array::{ArrayRef, BooleanArray, UInt32Array, new_null_array};
use arrow::compute::take;
use millpond_core::limits::BATCH_ROWS_MAX;
use millpond_core::{ChangelogBatch, EpochTime, Error, Result, RowKind, RowKinds};
use millpond_state::multimap_table::{Keys, Pairs, ProbeCursor, RowId};

use super::output::{Said, batch_of};
use super::side::Side;
use super::{Join, retention};
use crate::expression::evaluate_predicate;
use crate::operator::{InputIndex, OperatorContext};

/// A batch that has been kept and is being paired.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) input: InputIndex,
    pub(super) batch: ChangelogBatch,
    /// The rows of the batch to which the keys belong; `None`: all.
    with_key: Option<Vec<u32>>,
    keys: Keys,
    cursor: ProbeCursor,
    /// Per row of the batch, where it is kept; empty if partners are not counted.
    places: Vec<RowId>,
    /// Rows that are said by themselves, in order.
    alone: VecDeque<u32>,
    /// Rows that were left out: they take back what is not there.
    strays: u64,
}

impl Join {
    /// Keeps the acceptable rows of a batch.
    pub(super) fn pend(
        &mut self,
        ctx: &OperatorContext,
        input: InputIndex,
        mut batch: ChangelogBatch,
    ) -> Result<Option<Pending>> {
        let nulls_match = self.null_equals_null;
        let (own, other) = self.sides(input);
        if let Some(in_time) = retention::in_time(&batch, own.retention, other.retention, ctx.watermark)? {
            ctx.metrics.late.add((in_time.len() - in_time.true_count()) as u64);
            batch = batch.filter(&in_time)?;
        }
        let with_key = if nulls_match { None } else { own.rows_with_key(&batch.rows)? };
        let shows_all = own.lone.shows_unmatched();
        if let Some(with_key) = &with_key
            && !shows_all
        {
            ctx.metrics.filtered.add((with_key.len() - with_key.true_count()) as u64);
            batch = batch.filter(with_key)?;
        }
        if batch.is_empty() {
            return Ok(None);
        }
        let rows = batch.num_rows() as u64;
        let pending = Pending::new(own, input, batch, with_key.filter(|_| shows_all), ctx.time)?;
        ctx.metrics.rejected.add(pending.strays);
        ctx.metrics.accepted.add(rows - pending.strays);
        if let Some(times) = &mut self.key_times {
            let keyed = pending.keyed_rows()?;
            let own = if input == 0 { &self.left } else { &self.right };
            times.touch(&own.key_columns(&keyed.rows), &own.hashes(&keyed)?, ctx.time)?;
        }
        Ok((!pending.batch.is_empty()).then_some(pending))
    }

    /// Emits the next pairs of the pending batch.
    pub(super) fn emit_pairs(&mut self, ctx: &mut OperatorContext, mut pending: Pending) -> Result<()> {
        let counts = self.left.counts() || self.right.counts();
        // A pair may have the lone row of its partner before it.
        let pairs_max = if counts { BATCH_ROWS_MAX / 2 } else { BATCH_ROWS_MAX };
        let mut pairs = Pairs::default();
        let (_, other) = self.sides(pending.input);
        let done = other.table.probe(&pending.keys, &mut pending.cursor, pairs_max, &mut pairs);
        if let Some(rows) = &pending.with_key {
            pairs.probing.iter_mut().for_each(|row| *row = rows[*row as usize]);
        }
        let pairs = self.filtered(pending.input, &pending.batch, pairs)?;
        if counts {
            let said = self.said(&mut pending, &pairs, done)?;
            let mut batches = self.batches(&pending, said)?;
            batches.pop_front().into_iter().for_each(|batch| ctx.emit(batch));
            self.ready = batches;
        } else if !pairs.is_empty() {
            ctx.emit(self.joined(&pending, &pairs)?);
        }
        self.pending = (!done).then_some(pending);
        Ok(())
    }

    /// The pairs for which the rest of the condition holds.
    pub(super) fn filtered(
        &mut self,
        input: InputIndex,
        batch: &ChangelogBatch,
        pairs: Pairs,
    ) -> Result<Pairs> {
        let Some(filter) = &self.filter else { return Ok(pairs) };
        if pairs.is_empty() {
            return Ok(pairs);
        }
        let (columns, schema, predicate) =
            (filter.columns.clone(), filter.schema.clone(), filter.predicate.clone());
        let rows = batch_of(schema, self.paired_columns(input, batch, &pairs, &columns)?, pairs.len())?;
        let kept = evaluate_predicate(&predicate, &rows)?;
        if kept.true_count() == kept.len() {
            return Ok(pairs);
        }
        let holds = |pair: &usize| arrow::array::Array::is_valid(&kept, *pair) && kept.value(*pair);
        let kept: Vec<usize> = (0..kept.len()).filter(holds).collect();
        Ok(pairs.take(&kept))
    }

    fn joined(&mut self, pending: &Pending, pairs: &Pairs) -> Result<ChangelogBatch> {
        let output = self.output.clone();
        let columns = self.paired_columns(pending.input, &pending.batch, pairs, &output)?;
        let rows = batch_of(self.schema.clone(), columns, pairs.len())?;
        Ok(ChangelogBatch { rows, kinds: joined_kinds(&pending.batch, pairs), late: None, hashes: None })
    }

    /// Columns of the pairs, by their indices into the left columns followed by the right ones.
    fn paired_columns(
        &mut self,
        input: InputIndex,
        batch: &ChangelogBatch,
        pairs: &Pairs,
        columns: &[usize],
    ) -> Result<Vec<ArrayRef>> {
        let places: Vec<(InputIndex, usize)> = columns.iter().map(|column| self.place(*column)).collect();
        let (_, other) = self.sides(input);
        let stored: Vec<usize> = places.iter().filter(|(side, _)| *side != input).map(|(_, c)| *c).collect();
        let mut stored = other.table.gather(&pairs.stored, &stored)?.into_iter();
        let probing = UInt32Array::from(pairs.probing.clone());
        let column = |(side, column): (InputIndex, usize)| -> Result<ArrayRef> {
            if side == input {
                return Ok(take(batch.rows.column(column), &probing, None)?);
            }
            Ok(stored.next().expect("as many columns as were asked for"))
        };
        places.into_iter().map(column).collect()
    }

    /// The input of a joined column, and its place there.
    fn place(&self, column: usize) -> (InputIndex, usize) {
        let split = self.left_columns;
        if column < split { (0, column) } else { (1, column - split) }
    }

    /// Counts the partners that `pairs` make and unmake; what is to be said of them, and of the
    /// lone rows among them.
    fn said(&mut self, pending: &mut Pending, pairs: &Pairs, done: bool) -> Result<Said> {
        let shows_pairs = self.kind.shows_pairs();
        let (own, other) = self.sides(pending.input);
        let mut said = Said::default();
        for (row, stored) in pairs.probing.iter().zip(&pairs.stored) {
            pending.say_alone_through(*row, &mut said);
            let addition = pending.batch.kind(*row as usize).is_addition();
            if other.counts() && other.count(*stored, addition)? && shows_pairs && other.unshow(*stored) {
                said.say(None, Some(*stored), RowKind::Delete);
            }
            if own.counts()
                && addition
                && let Some(partners) = own.table.partners_mut(pending.places[*row as usize])
            {
                partners.count += 1;
            }
            if shows_pairs {
                let kind = if addition { RowKind::Insert } else { RowKind::Delete };
                said.say(Some(*row), Some(*stored), kind);
            }
        }
        if done {
            pending.say_alone_through(u32::MAX, &mut said);
        }
        Ok(said)
    }

    /// What has been said about a pending batch, as batches.
    fn batches(&mut self, pending: &Pending, said: Said) -> Result<VecDeque<ChangelogBatch>> {
        if said.is_empty() {
            return Ok(VecDeque::new());
        }
        let batch = self.batch(Some(&pending.batch), 1 - pending.input, said)?;
        let starts = (0..batch.num_rows()).step_by(BATCH_ROWS_MAX);
        Ok(starts.map(|start| batch.slice(start, BATCH_ROWS_MAX.min(batch.num_rows() - start))).collect())
    }

    /// The columns of what is said of the stored rows of one side, and of probing rows of the other.
    pub(super) fn batch(
        &mut self,
        probing: Option<&ChangelogBatch>,
        stored_side: InputIndex,
        said: Said,
    ) -> Result<ChangelogBatch> {
        let places: Vec<(InputIndex, usize)> = self.output.iter().map(|c| self.place(*c)).collect();
        let wanted: Vec<usize> =
            places.iter().filter(|(side, _)| *side == stored_side).map(|(_, column)| *column).collect();
        let (own, _) = self.sides(stored_side);
        let mut stored = said.stored(&mut own.table, &wanted)?.into_iter();
        let mut columns = Vec::with_capacity(places.len());
        for (place, (side, column)) in places.into_iter().enumerate() {
            columns.push(match probing {
                _ if side == stored_side => stored.next().expect("as many columns as were asked for"),
                Some(probing) => said.probing(&probing.rows, column)?,
                None => new_null_array(self.schema.field(place).data_type(), said.len()),
            });
        }
        let rows = batch_of(self.schema.clone(), columns, said.len())?;
        let appends = said.kinds.iter().all(|kind| *kind == RowKind::Insert);
        Ok(if appends { ChangelogBatch::append(rows) } else { ChangelogBatch::with_kinds(rows, said.kinds) })
    }
}

impl Pending {
    /// Keeps a batch; of rows without a key nothing is kept, but they are shown by themselves.
    fn new(
        own: &mut Side,
        input: InputIndex,
        batch: ChangelogBatch,
        with_key: Option<BooleanArray>,
        now: EpochTime,
    ) -> Result<Self> {
        let cursor = ProbeCursor::default();
        let mut with_key: Option<Vec<u32>> =
            with_key.map(|mask| mask.values().set_indices().map(|row| row as u32).collect());
        let keyed = match &with_key {
            None => batch.clone(),
            Some(rows) => batch.take(&UInt32Array::from(rows.clone()))?,
        };
        let mut keys = own.table.keys(&keyed.rows, keyed.hashes.clone())?;
        let kept = own.keep(&keyed, &keys, now)?;
        let in_batch = |row: u32| with_key.as_ref().map_or(row, |rows| rows[row as usize]);
        let mut alone: Vec<u32> = kept.shown.iter().map(|row| in_batch(*row)).collect();
        let mut places = kept.places;
        if let Some(rows) = &with_key {
            let of_keyed = std::mem::replace(&mut places, vec![RowId::NONE; batch.num_rows()]);
            rows.iter().zip(of_keyed).for_each(|(row, place)| places[*row as usize] = place);
            let mut has_key = vec![false; batch.num_rows()];
            rows.iter().for_each(|row| has_key[*row as usize] = true);
            alone.extend((0..batch.num_rows() as u32).filter(|row| !has_key[*row as usize]));
            alone.sort_unstable();
        }
        let strays: Vec<u32> = kept.strays.iter().map(|row| in_batch(*row)).collect();
        let mut batch = batch;
        if !strays.is_empty() {
            let mut is_known = vec![true; batch.num_rows()];
            strays.iter().for_each(|row| is_known[*row as usize] = false);
            let moved = |row: &u32| row - strays.partition_point(|stray| stray < row) as u32;
            alone = alone.iter().map(moved).collect();
            with_key = with_key.map(|rows| {
                rows.iter().filter(|row| is_known[**row as usize]).map(moved).collect::<Vec<u32>>()
            });
            let mut known = is_known.iter();
            places.retain(|_| known.next().is_none_or(|known| *known));
            batch = batch.filter(&BooleanArray::from(is_known))?;
            let keyed = match &with_key {
                None => batch.clone(),
                Some(rows) => batch.take(&UInt32Array::from(rows.clone()))?,
            };
            keys = own.table.keys(&keyed.rows, keyed.hashes)?;
        }
        let strays = strays.len() as u64;
        Ok(Self { input, batch, with_key, keys, cursor, places, alone: alone.into(), strays })
    }

    /// The rows that have a key.
    fn keyed_rows(&self) -> Result<ChangelogBatch> {
        match &self.with_key {
            None => Ok(self.batch.clone()),
            Some(rows) => self.batch.take(&UInt32Array::from(rows.clone())),
        }
    }

    /// Says the lone rows up to this one.
    fn say_alone_through(&mut self, row: u32, said: &mut Said) {
        while let Some(alone) = self.alone.front().copied().filter(|alone| *alone <= row) {
            self.alone.pop_front();
            let addition = self.batch.kind(alone as usize).is_addition();
            said.say(Some(alone), None, if addition { RowKind::Insert } else { RowKind::Delete });
        }
    }
}

impl Side {
    /// Counts a partner more or less; whether it is the row's first.
    fn count(&mut self, id: RowId, more: bool) -> Result<bool> {
        let Some(partners) = self.table.partners_mut(id) else { return Ok(false) };
        let count = if more { partners.count.checked_add(1) } else { partners.count.checked_sub(1) };
        partners.count =
            count.ok_or_else(|| Error::internal("invariant 4: a pair of a join that was never made"))?;
        let first = more && partners.count == 1;
        if first || partners.count == 0 || partners.count == 2 {
            self.touched.push(id);
        }
        Ok(first)
    }

    /// Whether a row was shown alone; it is not any more.
    fn unshow(&mut self, id: RowId) -> bool {
        self.table.partners_mut(id).is_some_and(|partners| std::mem::take(&mut partners.shown))
    }
}

/// `None` while the probing rows are all additions; pairs of rows taken back are deletes.
fn joined_kinds(batch: &ChangelogBatch, pairs: &Pairs) -> Option<RowKinds> {
    let kinds = batch.kinds.as_ref()?;
    let kind = |row: &u32| if kinds[*row as usize].is_addition() { RowKind::Insert } else { RowKind::Delete };
    Some(pairs.probing.iter().map(kind).collect())
}
