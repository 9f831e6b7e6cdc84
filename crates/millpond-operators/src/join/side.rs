//! A side of a join: its rows by key, and what is known of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, TimestampMicrosecondArray, UInt32Array};
use arrow::compute::{and, is_not_null};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use millpond_core::key::stable_hashes;
use millpond_core::time::timestamp_values;
use millpond_core::{
    ChangelogBatch, ChangelogMode, EpochTime, Error, KeyHashes, Result, TimePrecision, Timestamp, Watermark,
};
use millpond_state::multimap_table::{Keys, Partners, RowId};
use millpond_state::{MultimapSpec, MultimapTable};

use super::JoinFactory;
use super::kind::Lone;
use super::retention::SideRetention;
use crate::operator::{BuildContext, InputIndex};
use crate::ttl::end_of_step;

#[derive(Debug)]
pub(super) struct Side {
    pub(super) table: MultimapTable,
    keys: Vec<usize>,
    pub(super) retention: Option<SideRetention>,
    precision: TimePrecision,
    pub(super) lone: Lone,
    /// Rows whose partners changed in this epoch, in order; a row may be there twice.
    pub(super) touched: Vec<RowId>,
    /// Rows that have no partner yet, by their time.
    pub(super) waiting: BinaryHeap<Reverse<(Timestamp, RowId)>>,
    /// In microseconds, how long a row is kept; `None`: for ever.
    ttl: Option<i64>,
}

/// What became of the rows of a batch.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Where each added row is; none for a row taken back.
    pub(super) places: Vec<RowId>,
    /// Rows taken back that the output has by themselves.
    pub(super) shown: Vec<u32>,
    /// Rows taken back that are not there: they may have been forgotten.
    pub(super) strays: Vec<u32>,
}

impl Side {
    /// The side of an input, without rows.
    pub(super) fn new(factory: &JoinFactory, context: BuildContext, input: InputIndex) -> Result<Self> {
        let (name, rows, keys, mode) = match input {
            0 => ("left", &factory.left_schema, &factory.left_keys, factory.left_mode),
            _ => ("right", &factory.right_schema, &factory.right_keys, factory.right_mode),
        };
        let retention = [factory.retention.left, factory.retention.right][input];
        let lone = <[Lone; 2]>::from(factory.kind.lone(factory.retention))[input];
        let ttl = factory.ttl[input];
        let retracts = match mode {
            ChangelogMode::Append => false,
            ChangelogMode::Retract => true,
            ChangelogMode::Upsert => {
                return Err(Error::internal(format!("the {name} input of a join is in upsert mode")));
            }
        };
        let stored = match ttl {
            Some(_) => with_column(rows, kept_since()),
            None => rows.clone(),
        };
        let age = ttl.map(|_| rows.fields().len());
        let table = MultimapTable::new(MultimapSpec {
            name: name.into(),
            rows: stored,
            compared: rows.fields().len(),
            keys: keys.clone(),
            null_keys: factory.null_equals_null,
            time_column: retention.map(SideRetention::column).or(age),
            retracts,
            counts_partners: lone != Lone::Never,
            max_parallelism: context.max_parallelism,
        })?;
        Ok(Self {
            table,
            keys: keys.clone(),
            precision: precision_of(rows, retention)?,
            retention,
            lone,
            touched: Vec::new(),
            waiting: BinaryHeap::new(),
            ttl,
        })
    }

    /// Rows as the table keeps them: with a time to live, beside the time from which it counts.
    fn stored(&self, rows: &RecordBatch, now: EpochTime) -> Result<RecordBatch> {
        let Some(ttl) = self.ttl else { return Ok(rows.clone()) };
        let since = end_of_step(ttl, now).0;
        let mut columns = rows.columns().to_vec();
        columns.push(Arc::new(TimestampMicrosecondArray::from(vec![since; rows.num_rows()])));
        Ok(RecordBatch::try_new(with_column(rows.schema_ref(), kept_since()), columns)?)
    }

    /// The key of each row.
    pub(super) fn key_columns(&self, rows: &RecordBatch) -> Vec<ArrayRef> {
        self.keys.iter().map(|key| rows.column(*key).clone()).collect()
    }

    /// Forgets the rows whose time to live is over.
    pub(super) fn forget(&mut self, now: EpochTime) -> Result<()> {
        match self.ttl {
            Some(ttl) => self.table.expire_rows(Timestamp(now.0.saturating_sub(ttl))).map(|_| ()),
            None => Ok(()),
        }
    }

    /// When a row may have to be forgotten next.
    pub(super) fn forgets_at(&self) -> Option<EpochTime> {
        Some(self.table.oldest()?.saturating_add(self.ttl?))
    }

    /// Whether partners of its rows are counted.
    pub(super) fn counts(&self) -> bool {
        self.lone != Lone::Never
    }

    /// Which rows have no NULL in their key; `None`: all.
    pub(super) fn rows_with_key(&self, rows: &RecordBatch) -> Result<Option<BooleanArray>> {
        let mut with_key: Option<BooleanArray> = None;
        for column in self.keys.iter().map(|k| rows.column(*k)).filter(|column| column.null_count() > 0) {
            let valid = is_not_null(column)?;
            with_key = Some(match with_key {
                None => valid,
                Some(others) => and(&others, &valid)?,
            });
        }
        Ok(with_key)
    }

    /// Adds the added rows, then takes back the others: a row may come and go in one batch.
    pub(super) fn keep(&mut self, batch: &ChangelogBatch, keys: &Keys, now: EpochTime) -> Result<Kept> {
        let Some(kinds) = &batch.kinds else {
            let first = self.table.append(self.stored(&batch.rows, now)?, keys)?;
            return Ok(self.kept(batch.num_rows(), 0..batch.num_rows(), first));
        };
        let rows_that = |addition: bool| -> Vec<u32> {
            let rows = kinds.iter().enumerate().filter(|(_, kind)| kind.is_addition() == addition);
            rows.map(|(row, _)| row as u32).collect()
        };
        let (added, removed) = (rows_that(true), rows_that(false));
        if self.ttl.is_some() {
            return self.keep_in_order(batch, added, removed, now);
        }
        let places = self.add(batch, &added, now)?;
        let mut kept = self.kept(batch.num_rows(), added.iter().map(|row| *row as usize), places);
        kept.strays = self.take_back(batch, removed, &mut kept)?;
        Ok(kept)
    }

    /// With a time to live: a row that is taken back was there before the batch, or came earlier in it;
    /// one that comes later does not make up for a forgotten one.
    fn keep_in_order(
        &mut self,
        batch: &ChangelogBatch,
        added: Vec<u32>,
        removed: Vec<u32>,
        now: EpochTime,
    ) -> Result<Kept> {
        let mut kept = self.kept(batch.num_rows(), std::iter::empty(), RowId::NONE);
        let missing = self.take_back(batch, removed, &mut kept)?;
        let mut rest: Vec<(u32, bool)> = missing.into_iter().map(|row| (row, false)).collect();
        rest.extend(added.into_iter().map(|row| (row, true)));
        rest.sort_unstable();
        for run in rest.chunk_by(|a, b| a.1 == b.1) {
            let rows: Vec<u32> = run.iter().map(|(row, _)| *row).collect();
            match run[0].1 {
                true => {
                    let first = self.add(batch, &rows, now)?;
                    let added = self.kept(batch.num_rows(), rows.iter().map(|row| *row as usize), first);
                    for (place, added) in kept.places.iter_mut().zip(added.places) {
                        *place = if added == RowId::NONE { *place } else { added };
                    }
                }
                false => {
                    let strays = self.take_back(batch, rows, &mut kept)?;
                    kept.strays.extend(strays);
                }
            }
        }
        kept.shown.sort_unstable();
        kept.strays.sort_unstable();
        Ok(kept)
    }

    /// Takes rows back; gives those that are not there.
    fn take_back(&mut self, batch: &ChangelogBatch, rows: Vec<u32>, kept: &mut Kept) -> Result<Vec<u32>> {
        let partners = self.remove(batch, &rows)?;
        let mut missing = Vec::new();
        for (row, partners) in rows.into_iter().zip(partners) {
            match partners {
                None => missing.push(row),
                Some(partners) if partners.shown && self.counts() => kept.shown.push(row),
                Some(_) => {}
            }
        }
        Ok(missing)
    }

    fn kept(&mut self, rows: usize, added: impl Iterator<Item = usize>, first: RowId) -> Kept {
        if !self.counts() {
            return Kept::default();
        }
        let mut places = vec![RowId::NONE; rows];
        for (number, row) in added.enumerate() {
            places[row] = first.plus(number);
            self.touched.push(first.plus(number));
        }
        Kept { places, ..Kept::default() }
    }

    fn add(&mut self, batch: &ChangelogBatch, rows: &[u32], now: EpochTime) -> Result<RowId> {
        let added = batch.take(&UInt32Array::from(rows.to_vec()))?;
        let keys = self.table.keys(&added.rows, added.hashes)?;
        self.table.append(self.stored(&added.rows, now)?, &keys)
    }

    /// Gives the partners of each row, if they are counted; with a time to live, `None` where it is not
    /// there.
    ///
    /// Errors: *Internal* (invariant 4) for such a row, if none is forgotten.
    fn remove(&mut self, batch: &ChangelogBatch, rows: &[u32]) -> Result<Vec<Option<Partners>>> {
        let removed = batch.take(&UInt32Array::from(rows.to_vec()))?;
        let keys = self.table.keys(&removed.rows, removed.hashes)?;
        match self.ttl {
            Some(_) => self.table.remove_known(&removed.rows, &keys),
            None => Ok(self.table.remove(&removed.rows, &keys)?.into_iter().map(Some).collect()),
        }
    }

    pub(super) fn hashes(&self, batch: &ChangelogBatch) -> Result<KeyHashes> {
        match &batch.hashes {
            Some(hashes) => Ok(hashes.clone()),
            None => stable_hashes(&self.key_columns(&batch.rows), batch.num_rows()),
        }
    }

    /// The largest time of rows that will find no further partner at a watermark.
    pub(super) fn final_through(
        &self,
        watermark: Watermark,
        other: Option<SideRetention>,
    ) -> Option<Timestamp> {
        let slack = other.map_or(0, SideRetention::slack);
        self.retention.map(|retention| retention.expired_through(watermark, self.precision, slack))
    }

    /// Drops rows that no row, and no count of partners, will need again.
    pub(super) fn expire(&mut self, watermark: Watermark, other: &Side) -> Result<()> {
        let Some(through) = self.final_through(watermark, other.retention) else { return Ok(()) };
        // The partners of a row are counted anew after a restore, so they stay as long as it does.
        let longer = if other.counts() { self.retention.map_or(0, SideRetention::slack) } else { 0 };
        let through = match watermark {
            Timestamp::MAX => through,
            _ => Timestamp(through.0.saturating_sub(longer)),
        };
        self.table.expire(through).map(|_| ())
    }

    /// The times by which rows become final; NULL, which matches nothing, is final at once.
    pub(super) fn times(&mut self, rows: &[RowId]) -> Result<Vec<Timestamp>> {
        let Some(retention) = self.retention else { return Ok(Vec::new()) };
        let column = self.table.gather(rows, &[retention.column()])?.remove(0);
        let (values, precision) = timestamp_values(&column)?;
        let time = |row: usize| match column.is_valid(row) {
            true => precision.to_timestamp(values[row]),
            false => Timestamp::MIN,
        };
        Ok((0..rows.len()).map(time).collect())
    }
}

/// The column of a row that is kept for a time.
fn kept_since() -> Field {
    Field::new("_kept_since", DataType::Timestamp(TimeUnit::Microsecond, None), false)
}

fn with_column(rows: &SchemaRef, column: Field) -> SchemaRef {
    let fields = rows.fields().iter().cloned().chain([Arc::new(column)]);
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

fn precision_of(rows: &SchemaRef, retention: Option<SideRetention>) -> Result<TimePrecision> {
    let Some(retention) = retention else { return Ok(TimePrecision::Microsecond) };
    let field = rows.field(retention.column());
    TimePrecision::of(field.data_type()).ok_or_else(|| {
        Error::internal(format!(
            "column {:?} of type {} bounds the state of a join",
            field.name(),
            field.data_type()
        ))
    })
}
