//! ChangelogNormalize: makes a right changelog of rows that replace each other by key.
//!
//! What comes in may lack old images, come twice, or delete what is not there; what goes out is
//! a retract changelog in which every retraction meets its row.
//!
//! State tables: `rows` (key → the other columns of its row).
//! Bound: by keys; one row per key that is there.
//! Emission: at the end of an epoch, the net change of each key that it touched, once: `+I`, `-U`
//! `+U` when the row is another one, nothing when it is the same, `-D`. The last change of a key
//! within an epoch wins; a delete of a key that is not there says nothing.
//!
//! Time attributes stay what they are, and late rows are rows like others: a key's row may be
//! older than the watermark. The watermark passes unchanged.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::{concat, interleave, take};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use millpond_core::key::stable_hashes;
use millpond_core::limits::BATCH_ROWS_MAX;
use millpond_core::{ChangelogBatch, EpochTime, KeyHashes, Result, RowKind, Watermark};
use millpond_state::{Evicted, StateTable, TableDef, TableKind, ValueTable};

use crate::operator::*;

/// Describes a ChangelogNormalize. The exchange in front of it, if any, hashes by exactly the key
/// columns in their order.
#[derive(Debug, Clone)]
pub struct ChangelogNormalizeFactory {
    /// Columns of the output. The input has their types, but all columns may be NULL in a
    /// deleted row, except the key.
    pub schema: SchemaRef,
    /// The key.
    pub keys: Vec<usize>,
}

impl OperatorFactory for ChangelogNormalizeFactory {
    fn name(&self) -> &'static str {
        "ChangelogNormalize"
    }
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
    fn build(&self, context: BuildContext) -> Result<Box<dyn Operator>> {
        Ok(Box::new(ChangelogNormalize::new(self, context)?))
    }
    fn describe(&self) -> String {
        let keys: Vec<&str> = self.keys.iter().map(|key| self.schema.field(*key).name().as_str()).collect();
        format!("keys=[{}]", keys.join(", "))
    }
}

/// The first value column: whether the key has a row (always true in a snapshot).
const PRESENT: usize = 0;
const FIRST_VALUE: usize = 1;

/// Keys whose change fits one output batch, pairs included.
const KEYS_MAX: usize = BATCH_ROWS_MAX / 2;

/// One task's instance.
struct ChangelogNormalize {
    schema: SchemaRef,
    keys: Vec<usize>,
    /// The other columns.
    values: Vec<usize>,
    rows: ValueTable,
    touched: Touched,
    /// The images of `touched` before the epoch: `PRESENT`, then values.
    before: Vec<ArrayRef>,
    emitted: usize,
    slots: Vec<u32>,
    /// Per slot, its last row in the batch at hand.
    last: Vec<usize>,
}

/// The slots that the epoch has touched, each once, in order of arrival, with images of their
/// rows from before.
#[derive(Default)]
struct Touched {
    slots: Vec<u32>,
    is_touched: Vec<bool>,
    images: Vec<Vec<ArrayRef>>,
}

impl ChangelogNormalize {
    fn new(factory: &ChangelogNormalizeFactory, context: BuildContext) -> Result<Self> {
        let schema = factory.schema.clone();
        let columns = 0..schema.fields().len();
        let values: Vec<usize> = columns.filter(|column| !factory.keys.contains(column)).collect();
        let present = Arc::new(Field::new("present", DataType::Boolean, false));
        let fields: Vec<FieldRef> = factory
            .keys
            .iter()
            .map(|key| schema.fields()[*key].clone())
            .chain([present])
            .chain(values.iter().map(|value| schema.fields()[*value].clone()))
            .collect();
        let def = TableDef {
            name: "rows".into(),
            kind: TableKind::Value,
            schema: Arc::new(Schema::new(fields)),
            identity_columns: factory.keys.len(),
            partition_columns: (0..factory.keys.len()).collect(),
        };
        Ok(Self {
            schema,
            keys: factory.keys.clone(),
            values,
            rows: ValueTable::new(def, context.max_parallelism)?,
            touched: Touched::default(),
            before: Vec::new(),
            emitted: 0,
            slots: Vec::new(),
            last: Vec::new(),
        })
    }

    fn key_columns(&self, batch: &ChangelogBatch) -> Vec<ArrayRef> {
        self.keys.iter().map(|key| batch.rows.column(*key).clone()).collect()
    }

    fn hashes(&self, batch: &ChangelogBatch) -> Result<KeyHashes> {
        match &batch.hashes {
            Some(hashes) => Ok(hashes.clone()),
            None => stable_hashes(&self.key_columns(batch), batch.num_rows()),
        }
    }

    /// Keeps the images of rows that the epoch touches for the first time.
    fn touch(&mut self) -> Result<()> {
        let new = self.touched.add(&self.slots);
        if !new.is_empty() {
            let columns = self.rows.columns().iter().map(|column| column.gather(&new));
            self.touched.images.push(columns.collect::<Result<_>>()?);
            self.touched.slots.extend(new);
        }
        Ok(())
    }

    /// Of each key the last row of the batch, in order of arrival.
    fn last_rows(&mut self) -> Vec<usize> {
        self.last.resize(self.touched.is_touched.len(), 0);
        for (row, slot) in self.slots.iter().enumerate() {
            self.last[*slot as usize] = row;
        }
        let is_last = |(row, slot): &(usize, &u32)| self.last[**slot as usize] == *row;
        self.slots.iter().enumerate().filter(is_last).map(|(row, _)| row).collect()
    }

    /// Writes the last row of each key.
    fn write(&mut self, batch: &ChangelogBatch) -> Result<()> {
        let (mut added, mut slots) = (Vec::new(), Vec::new());
        for row in self.last_rows() {
            let (slot, addition) = (self.slots[row], batch.kind(row).is_addition());
            self.rows.columns_mut()[PRESENT].bools_mut()[slot as usize] = addition;
            if addition {
                added.push(row as u32);
                slots.push(slot);
            }
        }
        let added = UInt32Array::from(added);
        for (place, value) in self.values.iter().enumerate() {
            let column = take(batch.rows.column(*value), &added, None)?;
            self.rows.columns_mut()[FIRST_VALUE + place].store(&slots, &column)?;
        }
        Ok(())
    }

    /// Emits the changes of the next keys.
    fn emit_next(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        let total = self.touched.slots.len();
        while self.emitted < total {
            let length = KEYS_MAX.min(total - self.emitted);
            let start = self.emitted;
            self.emitted += length;
            if let Some(batch) = self.changes(start, length)? {
                ctx.emit(batch);
                break;
            }
        }
        if self.emitted < total {
            return Ok(Progress::More);
        }
        self.touched.clear();
        self.before.clear();
        self.emitted = 0;
        Ok(Progress::Done)
    }

    fn changes(&mut self, start: usize, length: usize) -> Result<Option<ChangelogBatch>> {
        let slots: Vec<u32> = self.touched.slots[start..start + length].to_vec();
        let before: Vec<ArrayRef> = self.before.iter().map(|column| column.slice(start, length)).collect();
        let after: Vec<ArrayRef> =
            self.rows.columns().iter().map(|column| column.gather(&slots)).collect::<Result<_>>()?;
        let keys = self.rows.keys(&slots)?;
        let (mut kinds, mut rows, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        let mut say = |kind: RowKind, row: usize| {
            kinds.push(kind);
            rows.push((usize::from(kind.is_addition()), row));
        };
        let (was, is) = (present(&before), present(&after));
        let changed = changed_rows(&before[FIRST_VALUE..], &after[FIRST_VALUE..], length)?;
        for (row, slot) in slots.iter().enumerate() {
            match (was.value(row), is.value(row)) {
                (false, true) => say(RowKind::Insert, row),
                (true, true) if changed.value(row) => {
                    say(RowKind::UpdateBefore, row);
                    say(RowKind::UpdateAfter, row);
                }
                (true, true) => {}
                (true, false) => {
                    say(RowKind::Delete, row);
                    gone.push(*slot);
                }
                (false, false) => gone.push(*slot),
            }
        }
        self.rows.remove(&gone)?;
        if rows.is_empty() {
            return Ok(None);
        }
        let mut columns: Vec<Option<ArrayRef>> = vec![None; self.schema.fields().len()];
        for (place, key) in self.keys.iter().zip(&keys) {
            columns[*place] = Some(interleave(&[key, key], &rows)?);
        }
        for (number, place) in self.values.iter().enumerate() {
            let (old, new) = (&before[FIRST_VALUE + number], &after[FIRST_VALUE + number]);
            columns[*place] = Some(interleave(&[old, new], &rows)?);
        }
        let columns = columns.into_iter().flatten().collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        let rows = RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?;
        Ok(Some(ChangelogBatch::with_kinds(rows, kinds)))
    }
}

impl Touched {
    /// Of the slots, those that were not touched before, each once.
    fn add(&mut self, slots: &[u32]) -> Vec<u32> {
        let largest = slots.iter().max().map_or(0, |slot| *slot as usize + 1);
        if largest > self.is_touched.len() {
            self.is_touched.resize(largest, false);
        }
        let is_new = |slot: &u32| !std::mem::replace(&mut self.is_touched[*slot as usize], true);
        slots.iter().copied().filter(is_new).collect()
    }

    /// All images, column by column.
    fn take_images(&mut self) -> Result<Vec<ArrayRef>> {
        let images = std::mem::take(&mut self.images);
        let columns = images.first().map_or(0, Vec::len);
        let column = |at: usize| -> Result<ArrayRef> {
            let parts: Vec<&dyn Array> = images.iter().map(|image| image[at].as_ref()).collect();
            Ok(concat(&parts)?)
        };
        (0..columns).map(column).collect()
    }

    fn clear(&mut self) {
        self.slots.iter().for_each(|slot| self.is_touched[*slot as usize] = false);
        self.slots.clear();
    }
}

fn present(image: &[ArrayRef]) -> BooleanArray {
    arrow::array::AsArray::as_boolean(&image[PRESENT]).clone()
}

/// Which rows differ in any column; NULL is like NULL.
pub(crate) fn changed_rows(old: &[ArrayRef], new: &[ArrayRef], rows: usize) -> Result<BooleanArray> {
    let mut changed = BooleanArray::from(vec![false; rows]);
    for (old, new) in old.iter().zip(new) {
        let differs = if old.data_type().is_nested() {
            (0..rows).map(|row| Some(old.slice(row, 1).as_ref() != new.slice(row, 1).as_ref())).collect()
        } else {
            arrow::compute::kernels::cmp::distinct(old, new)?
        };
        changed = arrow::compute::or(&changed, &differs)?;
    }
    Ok(changed)
}

impl Operator for ChangelogNormalize {
    fn touches(&self, _input: InputIndex, batch: &ChangelogBatch) -> Result<KeySets> {
        Ok(vec![KeySet { table: 0, hashes: self.hashes(batch)? }])
    }

    fn process(
        &mut self,
        ctx: &mut OperatorContext,
        _input: InputIndex,
        batch: ChangelogBatch,
    ) -> Result<Progress> {
        let hashes = self.hashes(&batch)?;
        self.rows.slots_for(&self.key_columns(&batch), &hashes, &mut self.slots)?;
        self.touch()?;
        self.write(&batch)?;
        ctx.metrics.accepted.add(batch.num_rows() as u64);
        Ok(Progress::Done)
    }

    fn end_epoch(
        &mut self,
        ctx: &mut OperatorContext,
        watermark: Option<Watermark>,
        _time: EpochTime,
    ) -> Result<EpochOutcome> {
        self.before = self.touched.take_images()?;
        let progress = self.emit_next(ctx)?;
        Ok(EpochOutcome { watermark, wake_at: None, progress })
    }

    fn resume(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        self.emit_next(ctx)
    }

    fn residency(&mut self) -> Residency<'_> {
        Residency::Spilling(self)
    }

    fn tables(&mut self) -> Vec<&mut dyn StateTable> {
        vec![&mut self.rows]
    }

    fn restored(&mut self, _watermark: Option<Watermark>) -> Result<()> {
        Ok(())
    }
}

impl Spilling for ChangelogNormalize {
    fn evict(&mut self, keep: f64) -> Result<Vec<Evicted>> {
        let touched = &self.touched.is_touched;
        let count = surplus(self.rows.rows(), keep);
        let is_pinned = |slot: u32| touched.get(slot as usize) == Some(&true);
        let cold = self.rows.keyed_rows_mut().cold_slots(count, is_pinned);
        Ok(vec![self.rows.evict(&cold)?])
    }

    fn admit(&mut self, tables: Vec<Evicted>) -> Result<()> {
        tables.iter().try_for_each(|rows| self.rows.admit(rows).map(|_| ()))
    }

    fn beside(&self) -> usize {
        0
    }
}

#[cfg(test)]
mod tests;
