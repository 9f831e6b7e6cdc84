//! Deduplicate: the first row of each key, by arrival.
//!
//! State table: `keys` (the keys that have had their row).
//! Bound: by keys.
//! Emission: at once; a row that was the first to come stays the first, so that the output only
//! appends, and times, late tags and the watermark pass unchanged.
//!
//! Keeping the last row, or the first by a time that is not that of arrival, is a Top-N of one
//! row: what it has said may change.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, SchemaRef};
use millpond_core::key::stable_hashes;
use millpond_core::{ChangelogBatch, EpochTime, KeyHashes, Result, Watermark};
use millpond_state::{Evicted, NO_SLOT, StateTable, TableKind, ValueTable};

use crate::aggregate::state_table;
use crate::operator::*;
use crate::ttl::{TOUCHED, TimeToLive};

/// The physical description of a deduplication that keeps the first row.
#[derive(Debug, Clone)]
pub struct DeduplicateFactory {
    /// The key's columns; NULL is a value like others.
    pub key: Vec<usize>,
    /// Columns of the input and the output.
    pub schema: SchemaRef,
    /// How long a key is known after its row came, in microseconds; `None`: for ever.
    pub ttl: Option<i64>,
}

impl OperatorFactory for DeduplicateFactory {
    fn name(&self) -> &'static str {
        "Deduplicate"
    }

    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn build(&self, context: BuildContext) -> Result<Box<dyn Operator>> {
        let field = |column: &usize| {
            let field = self.schema.field(*column);
            Arc::new(Field::new(field.name(), field.data_type().clone(), true))
        };
        let keys: Vec<_> = self.key.iter().map(field).collect();
        let mut values = vec![Arc::new(Field::new("seen", DataType::Boolean, false))];
        if self.ttl.is_some() {
            values.push(Arc::new(Field::new(TOUCHED, DataType::Int64, false)));
        }
        let def = state_table("keys", TableKind::Value, &keys, &[], &values);
        let keys = ValueTable::new(def, context.max_parallelism)?;
        let ttl = self.ttl.map(TimeToLive::new);
        Ok(Box::new(Deduplicate { key: self.key.clone(), keys, slots: Vec::new(), ttl }))
    }

    fn describe(&self) -> String {
        let names: Vec<&str> =
            self.key.iter().map(|column| self.schema.field(*column).name().as_str()).collect();
        format!("keep=first key=[{}]", names.join(", "))
    }
}

/// One task's instance of a deduplication.
struct Deduplicate {
    key: Vec<usize>,
    keys: ValueTable,
    slots: Vec<u32>,
    ttl: Option<TimeToLive>,
}

impl Deduplicate {
    fn key_columns(&self, batch: &ChangelogBatch) -> Vec<ArrayRef> {
        self.key.iter().map(|column| batch.rows.column(*column).clone()).collect()
    }

    fn hashes(&self, batch: &ChangelogBatch) -> Result<KeyHashes> {
        match &batch.hashes {
            Some(hashes) => Ok(hashes.clone()),
            None => stable_hashes(&self.key_columns(batch), batch.num_rows()),
        }
    }

    /// Forgets the keys whose time is over.
    fn expire(&mut self, now: EpochTime) -> Result<()> {
        match &mut self.ttl {
            Some(ttl) => self.keys.remove(&ttl.expired(now)),
            None => Ok(()),
        }
    }

    /// The rows whose key has not come before; known keys stay as they are in the state.
    fn first_rows(&mut self, batch: &ChangelogBatch, now: EpochTime) -> Result<Vec<u32>> {
        let keys = self.key_columns(batch);
        let hashes = self.hashes(batch)?;
        self.keys.find(&keys, &hashes, &mut self.slots)?;
        let unknown: Vec<u32> =
            (0..batch.num_rows() as u32).filter(|row| self.slots[*row as usize] == NO_SLOT).collect();
        if unknown.is_empty() {
            return Ok(unknown);
        }
        let rows = UInt32Array::from(unknown);
        let keys = keys.iter().map(|key| Ok(take(key, &rows, None)?)).collect::<Result<Vec<_>>>()?;
        let hashes: Vec<u64> = rows.values().iter().map(|row| hashes[*row as usize]).collect();
        self.keys.slots_for(&keys, &hashes, &mut self.slots)?;
        if let Some(ttl) = &mut self.ttl {
            let step = ttl.step(now);
            let touched = self.keys.columns_mut()[1].i64s_mut();
            for slot in &self.slots {
                touched[*slot as usize] = step;
                ttl.touch(*slot, step);
            }
        }
        let seen = self.keys.columns_mut()[0].bools_mut();
        let first = rows.values().iter().zip(&self.slots);
        Ok(first
            .filter(|(_, slot)| !std::mem::replace(&mut seen[**slot as usize], true))
            .map(|(row, _)| *row)
            .collect())
    }
}

impl Operator for Deduplicate {
    fn touches(&self, _input: InputIndex, batch: &ChangelogBatch) -> Result<KeySets> {
        Ok(vec![KeySet { table: 0, hashes: self.hashes(batch)? }])
    }

    fn process(
        &mut self,
        ctx: &mut OperatorContext,
        _input: InputIndex,
        batch: ChangelogBatch,
    ) -> Result<Progress> {
        self.expire(ctx.time)?;
        let first = self.first_rows(&batch, ctx.time)?;
        ctx.metrics.accepted.add(first.len() as u64);
        ctx.metrics.filtered.add((batch.num_rows() - first.len()) as u64);
        let mut is_first = vec![false; batch.num_rows()];
        first.iter().for_each(|row| is_first[*row as usize] = true);
        ctx.emit(batch.filter(&BooleanArray::from(is_first))?);
        Ok(Progress::Done)
    }

    fn end_epoch(
        &mut self,
        _ctx: &mut OperatorContext,
        watermark: Option<Watermark>,
        time: EpochTime,
    ) -> Result<EpochOutcome> {
        self.expire(time)?;
        let wake_at = self.ttl.as_ref().and_then(|ttl| ttl.wake_after(time));
        Ok(EpochOutcome { watermark, wake_at, progress: Progress::Done })
    }

    fn resume(&mut self, _ctx: &mut OperatorContext) -> Result<Progress> {
        Ok(Progress::Done)
    }

    fn residency(&mut self) -> Residency<'_> {
        match self.ttl {
            // Its clock goes by the slots of keys that are in memory.
            Some(_) => Residency::Resident(0),
            None => Residency::Spilling(self),
        }
    }

    fn tables(&mut self) -> Vec<&mut dyn StateTable> {
        vec![&mut self.keys]
    }

    fn restored(&mut self, _watermark: Option<Watermark>) -> Result<()> {
        let Some(ttl) = &mut self.ttl else { return Ok(()) };
        let slots = self.keys.keyed_rows_mut().live_slots(0, usize::MAX);
        let touched = self.keys.columns()[1].i64s();
        slots.into_iter().for_each(|slot| {
            ttl.touch(slot, touched[slot as usize]);
        });
        Ok(())
    }
}

impl Spilling for Deduplicate {
    fn evict(&mut self, keep: f64) -> Result<Vec<Evicted>> {
        let count = surplus(self.keys.rows(), keep);
        let cold = self.keys.keyed_rows_mut().cold_slots(count, |_| false);
        Ok(vec![self.keys.evict(&cold)?])
    }

    fn admit(&mut self, tables: Vec<Evicted>) -> Result<()> {
        tables.iter().try_for_each(|keys| self.keys.admit(keys).map(|_| ()))
    }

    fn beside(&self) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use arrow::array::{AsArray, Int64Array, RecordBatch};
    use arrow::datatypes::{Int64Type, Schema};
    use millpond_core::{KeyGroupRange, OperatorMetrics, Timestamp};

    const ALL: KeyGroupRange = KeyGroupRange { start: 0, end: 256 };

    fn task() -> (Box<dyn Operator>, OperatorContext) {
        let fields = ["k", "v"].map(|name| Field::new(name, DataType::Int64, true));
        let factory =
            DeduplicateFactory { key: vec![0], schema: Arc::new(Schema::new(fields.to_vec())), ttl: None };
        let context = BuildContext { index: 0, parallelism: 1, max_parallelism: 256, key_groups: ALL };
        (factory.build(context).unwrap(), OperatorContext::new(Arc::new(OperatorMetrics::default())))
    }

    /// The values of the rows that pass, with their late tags.
    fn pass(
        operator: &mut dyn Operator,
        ctx: &mut OperatorContext,
        rows: &[(Option<i64>, i64)],
    ) -> Vec<(i64, i64)> {
        let keys = Int64Array::from_iter(rows.iter().map(|row| row.0));
        let values = Int64Array::from_iter_values(rows.iter().map(|row| row.1));
        let fields = ["k", "v"].map(|name| Field::new(name, DataType::Int64, true));
        let schema = Arc::new(Schema::new(fields.to_vec()));
        let rows = RecordBatch::try_new(schema, vec![Arc::new(keys), Arc::new(values)]).unwrap();
        let mut batch = ChangelogBatch::append(rows);
        batch.late = Some((0..batch.num_rows() as i64).map(Timestamp).collect());
        operator.process(ctx, 0, batch).unwrap();
        let Some(batch) = ctx.take_output() else { return Vec::new() };
        let values = batch.rows.column(1).as_primitive::<Int64Type>();
        (0..batch.num_rows()).map(|row| (values.value(row), batch.late_tag(row).0)).collect()
    }

    #[test]
    fn the_first_row_of_a_key_passes() {
        let (mut operator, mut ctx) = task();
        let rows = [(Some(1), 10), (Some(2), 20), (Some(1), 11), (None, 30), (None, 31)];
        assert_eq!(pass(operator.as_mut(), &mut ctx, &rows), [(10, 0), (20, 1), (30, 3)]);
        assert_eq!(pass(operator.as_mut(), &mut ctx, &[(Some(2), 21), (Some(3), 40)]), [(40, 1)]);
        assert!(pass(operator.as_mut(), &mut ctx, &[(Some(3), 41)]).is_empty());
        assert_eq!((ctx.metrics.accepted.value(), ctx.metrics.filtered.value()), (4, 4));
    }

    #[test]
    fn keys_are_known_after_a_restart_and_are_written_once() {
        let (mut operator, mut ctx) = task();
        pass(operator.as_mut(), &mut ctx, &[(Some(1), 10)]);
        let freeze = |operator: &mut dyn Operator| {
            operator.tables()[0].freeze().unwrap().into_delta().unwrap().upserts
        };
        let rows = freeze(operator.as_mut());
        pass(operator.as_mut(), &mut ctx, &[(Some(1), 11)]);
        assert_eq!(freeze(operator.as_mut()).num_rows(), 0);
        let (mut operator, mut ctx) = task();
        operator.tables()[0].load(&rows, ALL).unwrap();
        operator.restored(None).unwrap();
        assert!(pass(operator.as_mut(), &mut ctx, &[(Some(1), 12)]).is_empty());
    }
}
