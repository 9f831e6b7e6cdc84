//! WindowTopN: the first rows of each partition of a window, once the window is final.
//!
//! State table: `rows` (partition key, `_row` → the other columns); the window is part of the key.
//! Bound: by the watermark, and within a window by as many rows per key as ranks are wanted.
//! Emission: when the watermark has reached the last unit of a window, the ranked rows of its
//! partitions are appended, in the order of windows, and their state is dropped. A row that comes
//! after that is late, and counted.
//!
//! Rows that are emitted carry a window that ends behind the previous watermark, and reach the
//! consumer before the mark with the next one: they are not late there (invariant 3).

use std::collections::{BTreeMap, VecDeque};

use arrow::array::{Array, BooleanArray};
use arrow::datatypes::SchemaRef;
use chrono_tz::Tz;
use millpond_core::limits::BATCH_ROWS_MAX;
use millpond_core::time::timestamp_values;
use millpond_core::{ChangelogBatch, EpochTime, Result, RowKind, TimePrecision, Timestamp, Watermark};
use millpond_state::StateTable;

use crate::operator::*;
use crate::top_n::rankings::Rankings;
use crate::top_n::said::Said;
use crate::top_n::{RankOutput, RankSpec};
use crate::window::instant_of;

/// By what a window's end is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowBound {
    /// The column is the end, in the local time of a zone (`None`: UTC).
    End(Option<Tz>),
    /// The column is the last unit of the window.
    Time,
}

/// The physical description of a window Top-N.
#[derive(Debug, Clone)]
pub struct WindowTopNFactory {
    /// What is ranked, and how; the window is part of the partition key.
    pub spec: RankSpec,
    /// What is emitted of a ranked row.
    pub output: RankOutput,
    /// The column of the window.
    pub window_column: usize,
    /// What it says of the window.
    pub bound: WindowBound,
    /// Of the windows' time column: they are final one unit before their end.
    pub precision: TimePrecision,
}

impl OperatorFactory for WindowTopNFactory {
    fn name(&self) -> &'static str {
        "WindowTopN"
    }

    fn schema(&self) -> SchemaRef {
        self.output.schema.clone()
    }

    fn build(&self, context: BuildContext) -> Result<Box<dyn Operator>> {
        Ok(Box::new(WindowTopN {
            rankings: Rankings::new(self.spec.clone(), context)?,
            factory: self.clone(),
            due: BTreeMap::new(),
            is_due: Vec::new(),
            watermark: Timestamp::MIN,
            said: Said::default(),
        }))
    }

    fn describe(&self) -> String {
        self.spec.describe()
    }
}

impl WindowTopNFactory {
    /// From which watermark on each row's window is final; `None` for a row without a window.
    fn finals(&self, column: &arrow::array::ArrayRef) -> Result<Vec<Option<Timestamp>>> {
        let (values, precision) = timestamp_values(column)?;
        let finals = values.iter().enumerate().map(|(row, value)| {
            let time = precision.to_timestamp(*value);
            column.is_valid(row).then(|| match self.bound {
                WindowBound::End(zone) => self.precision.last_instant(instant_of(time, zone)),
                WindowBound::Time => time,
            })
        });
        Ok(finals.collect())
    }
}

/// One task's instance of a window Top-N.
struct WindowTopN {
    factory: WindowTopNFactory,
    rankings: Rankings,
    /// Partitions by the watermark at which their windows are final.
    due: BTreeMap<Timestamp, VecDeque<u32>>,
    /// Whether a partition is in `due`.
    is_due: Vec<bool>,
    /// The watermark up to which windows are being emitted.
    watermark: Watermark,
    said: Said,
}

impl WindowTopN {
    /// The rows whose windows are still open, and when these are final.
    fn in_time(
        &self,
        ctx: &OperatorContext,
        batch: ChangelogBatch,
    ) -> Result<(ChangelogBatch, Vec<Timestamp>)> {
        let finals = self.factory.finals(batch.rows.column(self.factory.window_column))?;
        let watermark = ctx.watermark.unwrap_or(Timestamp::MIN);
        let open = |(row, last): (usize, &Option<Timestamp>)| {
            last.is_some_and(|last| last > watermark.max(batch.late_tag(row)))
        };
        let open: BooleanArray = finals.iter().enumerate().map(open).map(Some).collect();
        let rejected = finals.iter().filter(|last| last.is_none()).count();
        ctx.metrics.accepted.add(open.true_count() as u64);
        ctx.metrics.rejected.add(rejected as u64);
        ctx.metrics.late.add((finals.len() - rejected - open.true_count()) as u64);
        if open.true_count() == finals.len() {
            return Ok((batch, finals.into_iter().flatten().collect()));
        }
        let kept = finals.into_iter().enumerate().filter(|(row, _)| open.value(*row));
        Ok((batch.filter(&open)?, kept.filter_map(|(_, last)| last).collect()))
    }

    fn remember(&mut self, number: u32, last: Timestamp) {
        if number as usize >= self.is_due.len() {
            self.is_due.resize(number as usize + 1, false);
        }
        if !std::mem::replace(&mut self.is_due[number as usize], true) {
            self.due.entry(last).or_default().push_back(number);
        }
    }

    fn emit_next(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        while self.said.pending() < BATCH_ROWS_MAX
            && let Some(mut entry) = self.due.first_entry().filter(|entry| *entry.key() <= self.watermark)
        {
            match entry.get_mut().pop_front() {
                Some(number) => self.close(number),
                None => drop(entry.remove()),
            }
        }
        let changes = self.said.next_batch();
        if changes.is_empty() {
            self.rankings.free(&std::mem::take(&mut self.said.free))?;
            return Ok(Progress::Done);
        }
        ctx.emit(self.factory.output.batch(&self.rankings, &changes)?);
        Ok(Progress::More)
    }

    /// Says the ranked rows of a partition, whose state is not needed any more.
    fn close(&mut self, number: u32) {
        for row in self.rankings.ranked(number) {
            self.said.say(RowKind::Insert, row);
        }
        self.said.free.extend(self.rankings.drop_partition(number));
        self.is_due[number as usize] = false;
    }
}

impl Operator for WindowTopN {
    fn touches(&self, _input: InputIndex, batch: &ChangelogBatch) -> Result<KeySets> {
        Ok(vec![KeySet { table: 0, hashes: self.rankings.hashes(batch)? }])
    }

    fn process(
        &mut self,
        ctx: &mut OperatorContext,
        _input: InputIndex,
        batch: ChangelogBatch,
    ) -> Result<Progress> {
        let (batch, finals) = self.in_time(ctx, batch)?;
        if batch.is_empty() {
            return Ok(Progress::Done);
        }
        self.rankings.add(&batch, ctx.time)?;
        for (row, last) in finals.into_iter().enumerate() {
            self.remember(self.rankings.number(row), last);
        }
        Ok(Progress::Done)
    }

    fn end_epoch(
        &mut self,
        ctx: &mut OperatorContext,
        watermark: Option<Watermark>,
        _time: EpochTime,
    ) -> Result<EpochOutcome> {
        self.watermark = watermark.unwrap_or(Timestamp::MIN);
        let progress = self.emit_next(ctx)?;
        Ok(EpochOutcome { watermark, wake_at: None, progress })
    }

    fn resume(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        self.emit_next(ctx)
    }

    fn residency(&mut self) -> Residency<'_> {
        Residency::Resident(0)
    }

    fn tables(&mut self) -> Vec<&mut dyn StateTable> {
        vec![self.rankings.table()]
    }

    fn restored(&mut self, _watermark: Option<Watermark>) -> Result<()> {
        let numbers = self.rankings.restored()?;
        let slots: Vec<u32> = numbers.iter().filter_map(|number| self.rankings.some_slot(*number)).collect();
        let columns = self.rankings.gather(&slots, &[self.factory.window_column])?;
        let finals = self.factory.finals(&columns[0])?;
        for (number, last) in numbers.into_iter().zip(finals) {
            if let Some(last) = last {
                self.remember(number, last);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
