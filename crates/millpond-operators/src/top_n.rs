//! TopN: the first rows of each partition in some order, kept up to date.
//!
//! State table: `rows` (partition key, `_row` → the other columns).
//! Bound: over appended rows, as many rows per partition key as ranks are wanted; over rows that
//! change, all of them.
//! Emission: at the end of an epoch, the net change of each partition that it touched. With the
//! rank among the columns, rows replace each other by rank (`-U` `+U`); without it, those that
//! left are taken back (`-D`) before those that came are given (`+I`).
//!
//! ```text
//! rank   before   after       with the rank      without it
//!  1       a        b         -U a1  +U b1       -D c
//!  2       c        a         -U c2  +U a2       +I b
//! ```
//!
//! After an epoch the consumer has just the rows that rank within the range, so a snapshot need
//! not say which they are. The output has no time attribute: the watermark passes unchanged.

pub(crate) mod order;
pub(crate) mod rankings;
pub(crate) mod said;

use arrow::datatypes::SchemaRef;
use millpond_core::limits::BATCH_ROWS_MAX;
use millpond_core::{ChangelogBatch, EpochTime, Result, RowKind, Watermark};
use millpond_state::StateTable;

use self::rankings::{Ranked, Rankings};
use self::said::Said;
use crate::operator::*;

pub use self::order::SortColumn;
pub use self::rankings::{RankFunction, RankRange, RankSpec};
pub use self::said::RankOutput;

/// The physical description of a Top-N.
#[derive(Debug, Clone)]
pub struct TopNFactory {
    /// What is ranked, and how.
    pub spec: RankSpec,
    /// What is emitted of a ranked row.
    pub output: RankOutput,
}

impl OperatorFactory for TopNFactory {
    fn name(&self) -> &'static str {
        "TopN"
    }

    fn schema(&self) -> SchemaRef {
        self.output.schema.clone()
    }

    fn build(&self, context: BuildContext) -> Result<Box<dyn Operator>> {
        Ok(Box::new(TopN::new(self.clone(), context)?))
    }

    fn describe(&self) -> String {
        self.spec.describe()
    }
}

/// How the rows before and after an epoch are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pairing {
    /// A row replaces the one that had its rank.
    ByRank,
    /// A row comes or goes, or changes its rank.
    ByRow,
}

/// One task's instance of a Top-N.
struct TopN {
    factory: TopNFactory,
    rankings: Rankings,
    pairing: Pairing,
    /// Partitions that the epoch touched, each once, in order of arrival.
    touched: Vec<u32>,
    /// How many of `touched` have been compared.
    compared: usize,
    said: Said,
    /// By slot: the new rank of the rows of the partition that is being compared.
    marks: Vec<u64>,
}

impl TopN {
    fn new(factory: TopNFactory, context: BuildContext) -> Result<Self> {
        let single = factory.spec.range.last == Some(factory.spec.range.first);
        let by_rank =
            factory.spec.function == RankFunction::RowNumber && (factory.output.emit_rank || single);
        Ok(Self {
            rankings: Rankings::new(factory.spec.clone(), context)?,
            pairing: if by_rank { Pairing::ByRank } else { Pairing::ByRow },
            factory,
            touched: Vec::new(),
            compared: 0,
            said: Said::default(),
            marks: Vec::new(),
        })
    }

    fn emit_next(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        while self.said.pending() < BATCH_ROWS_MAX && self.compared < self.touched.len() {
            let number = self.touched[self.compared];
            self.compared += 1;
            self.compare(number);
        }
        let changes = self.said.next_batch();
        if changes.is_empty() {
            self.rankings.free(&std::mem::take(&mut self.said.free))?;
            self.touched.clear();
            self.compared = 0;
            self.rankings.expire(ctx.time)?;
            return Ok(Progress::Done);
        }
        ctx.emit(self.factory.output.batch(&self.rankings, &changes)?);
        Ok(Progress::More)
    }

    /// Says what has changed in a partition.
    fn compare(&mut self, number: u32) {
        let after = self.rankings.ranked(number);
        let before = std::mem::take(&mut self.rankings.partition(number).shown);
        match self.pairing {
            Pairing::ByRank => self.said.by_rank(&before, &after),
            Pairing::ByRow => self.compare_rows(&before, &after),
        }
        self.rankings.partition(number).shown = before;
        let gone = self.rankings.settle(number, after);
        self.said.free.extend(gone);
    }

    fn compare_rows(&mut self, before: &[Ranked], after: &[Ranked]) {
        let slots = before.iter().chain(after).map(|ranked| ranked.slot as usize + 1).max().unwrap_or(0);
        if slots > self.marks.len() {
            self.marks.resize(slots, 0);
        }
        after.iter().for_each(|ranked| self.marks[ranked.slot as usize] = ranked.rank);
        for ranked in before {
            let rank = std::mem::take(&mut self.marks[ranked.slot as usize]);
            if rank == 0 {
                self.said.say(RowKind::Delete, *ranked);
            } else if rank != ranked.rank && self.factory.output.emit_rank {
                self.said.say(RowKind::UpdateBefore, *ranked);
                self.said.say(RowKind::UpdateAfter, Ranked { rank, ..*ranked });
            }
        }
        // What is still marked is new.
        for ranked in after {
            if std::mem::take(&mut self.marks[ranked.slot as usize]) != 0 {
                self.said.say(RowKind::Insert, *ranked);
            }
        }
    }
}

impl Operator for TopN {
    fn touches(&self, _input: InputIndex, batch: &ChangelogBatch) -> Result<KeySets> {
        Ok(vec![KeySet { table: 0, hashes: self.rankings.hashes(batch)? }])
    }

    fn process(
        &mut self,
        ctx: &mut OperatorContext,
        _input: InputIndex,
        batch: ChangelogBatch,
    ) -> Result<Progress> {
        self.rankings.expire(ctx.time)?;
        let touched = self.rankings.add(&batch, ctx.time)?;
        self.touched.extend(touched);
        let strays = std::mem::take(&mut self.rankings.strays);
        ctx.metrics.rejected.add(strays);
        ctx.metrics.accepted.add(batch.num_rows() as u64 - strays);
        Ok(Progress::Done)
    }

    fn end_epoch(
        &mut self,
        ctx: &mut OperatorContext,
        watermark: Option<Watermark>,
        time: EpochTime,
    ) -> Result<EpochOutcome> {
        let progress = self.emit_next(ctx)?;
        Ok(EpochOutcome { watermark, wake_at: self.rankings.wake_after(time), progress })
    }

    fn resume(&mut self, ctx: &mut OperatorContext) -> Result<Progress> {
        self.emit_next(ctx)
    }

    fn residency(&mut self) -> Residency<'_> {
        Residency::Resident(self.rankings.beside())
    }

    fn tables(&mut self) -> Vec<&mut dyn StateTable> {
        vec![self.rankings.table()]
    }

    fn restored(&mut self, _watermark: Option<Watermark>) -> Result<()> {
        for number in self.rankings.restored()? {
            let shown = self.rankings.ranked(number);
            self.rankings.settle(number, shown);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
