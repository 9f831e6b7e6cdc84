//! A side of a join: its rows by key, and what is known of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, UInt32Array};
use arrow::compute::{and, is_not_null};
use arrow::datatypes::SchemaRef;
use millpond_core::key::stable_hashes;
use millpond_core::time::timestamp_values;
use millpond_core::{
    ChangelogBatch, ChangelogMode, Error, KeyHashes, Result, TimePrecision, Timestamp, Watermark,
};
use millpond_state::multimap_table::{Keys, Partners, RowId};
use millpond_state::{MultimapSpec, MultimapTable};

use super::JoinFactory;
use super::kind::Lone;
use super::retention::SideRetention;
use crate::operator::BuildContext;

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
}

/// What became of the rows of a batch.
#[derive(Debug)]
pub(super) struct Kept {
    /// Where each added row is; none for a row taken back.
    pub(super) places: Vec<RowId>,
    /// Rows taken back that the output has by themselves.
    pub(super) shown: Vec<u32>,
}

impl Side {
    pub(super) fn new(
        factory: &JoinFactory,
        context: BuildContext,
        name: &str,
        rows: &SchemaRef,
        keys: &[usize],
        mode: ChangelogMode,
        (retention, lone): (Option<SideRetention>, Lone),
    ) -> Result<Self> {
        let retracts = match mode {
            ChangelogMode::Append => false,
            ChangelogMode::Retract => true,
            ChangelogMode::Upsert => {
                return Err(Error::internal(format!("the {name} input of a join is in upsert mode")));
            }
        };
        let table = MultimapTable::new(MultimapSpec {
            name: name.into(),
            rows: rows.clone(),
            keys: keys.to_vec(),
            null_keys: factory.null_equals_null,
            time_column: retention.map(SideRetention::column),
            retracts,
            counts_partners: lone != Lone::Never,
            max_parallelism: context.max_parallelism,
        })?;
        Ok(Self {
            table,
            keys: keys.to_vec(),
            precision: precision_of(rows, retention)?,
            retention,
            lone,
            touched: Vec::new(),
            waiting: BinaryHeap::new(),
        })
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
    pub(super) fn keep(&mut self, batch: &ChangelogBatch, keys: &Keys) -> Result<Kept> {
        let Some(kinds) = &batch.kinds else {
            let first = self.table.append(batch.rows.clone(), keys)?;
            return Ok(self.kept(batch.num_rows(), 0..batch.num_rows(), first));
        };
        let rows_that = |addition: bool| -> Vec<u32> {
            let rows = kinds.iter().enumerate().filter(|(_, kind)| kind.is_addition() == addition);
            rows.map(|(row, _)| row as u32).collect()
        };
        let (added, removed) = (rows_that(true), rows_that(false));
        let (places, partners) = (self.add(batch, &added)?, self.remove(batch, &removed)?);
        let mut kept = self.kept(batch.num_rows(), added.iter().map(|row| *row as usize), places);
        let shown = removed.iter().zip(partners).filter(|(_, partners)| partners.shown);
        kept.shown = shown.map(|(row, _)| *row).collect();
        Ok(kept)
    }

    fn kept(&mut self, rows: usize, added: impl Iterator<Item = usize>, first: RowId) -> Kept {
        if !self.counts() {
            return Kept { places: Vec::new(), shown: Vec::new() };
        }
        let mut places = vec![RowId::NONE; rows];
        for (number, row) in added.enumerate() {
            places[row] = first.plus(number);
            self.touched.push(first.plus(number));
        }
        Kept { places, shown: Vec::new() }
    }

    fn add(&mut self, batch: &ChangelogBatch, rows: &[u32]) -> Result<RowId> {
        let added = batch.take(&UInt32Array::from(rows.to_vec()))?;
        let keys = self.table.keys(&added.rows, added.hashes)?;
        self.table.append(added.rows, &keys)
    }

    fn remove(&mut self, batch: &ChangelogBatch, rows: &[u32]) -> Result<Vec<Partners>> {
        let removed = batch.take(&UInt32Array::from(rows.to_vec()))?;
        let keys = self.table.keys(&removed.rows, removed.hashes)?;
        self.table.remove(&removed.rows, &keys)
    }

    pub(super) fn hashes(&self, batch: &ChangelogBatch) -> Result<KeyHashes> {
        match &batch.hashes {
            Some(hashes) => Ok(hashes.clone()),
            None => {
                let columns: Vec<ArrayRef> =
                    self.keys.iter().map(|k| batch.rows.column(*k).clone()).collect();
                stable_hashes(&columns, batch.num_rows())
            }
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
