//! Rows that a join shows by themselves: found at the end of an epoch, and again after a restore.

use std::cmp::Reverse;

use millpond_core::limits::BATCH_ROWS_MAX;
use millpond_core::{ChangelogBatch, Error, Result, RowKind, Timestamp, Watermark};
use millpond_state::multimap_table::{Pairs, ProbeCursor, RowId};

use super::kind::Lone;
use super::output::Said;
use super::side::Side;
use super::{Closing, Join};
use crate::operator::{InputIndex, OperatorContext};

impl Join {
    /// A scalar subquery has given each row at most one value.
    pub(super) fn check_scalar(&self) -> Result<()> {
        let partners = |id: &RowId| self.left.table.partners(*id).map_or(0, |partners| partners.count);
        match self.at_most_one && self.left.touched.iter().any(|id| partners(id) > 1) {
            true => Err(Error::data("a scalar subquery gives more than one row")
                .with_hint("make it an aggregate, such as MAX(…), or let its WHERE choose one row")),
            false => Ok(()),
        }
    }

    /// Rows of this epoch that have no partner wait until they are final, where that will be.
    pub(super) fn await_finality(&mut self) -> Result<()> {
        for side in [&mut self.left, &mut self.right] {
            if side.lone == Lone::UnmatchedForEver {
                let touched = std::mem::take(&mut side.touched);
                side.wait(touched)?;
            }
        }
        Ok(())
    }

    /// Emits the next rows that have become alone, or ceased to be; then drops what is not needed
    /// any more.
    pub(super) fn close(&mut self, ctx: &mut OperatorContext, mut closing: Closing) -> Result<()> {
        while closing.side < 2 {
            let (side, other) = self.sides(closing.side);
            let mut said = Said::default();
            side.say_touched(&mut closing.row, &mut said);
            let other = other.retention;
            let through = closing.watermark.and_then(|watermark| side.final_through(watermark, other));
            side.say_final(through, &mut said);
            let complete = said.len() < BATCH_ROWS_MAX;
            let batch = (!said.is_empty()).then(|| self.batch(None, closing.side, said)).transpose()?;
            if complete {
                let (side, _) = self.sides(closing.side);
                side.touched.clear();
                side.table.settle()?;
                closing = Closing { side: closing.side + 1, row: 0, ..closing };
            }
            if let Some(batch) = batch {
                ctx.emit(batch);
                self.closing = Some(closing);
                return Ok(());
            }
        }
        if let Some(watermark) = closing.watermark {
            self.left.expire(watermark, &self.right)?;
            self.right.expire(watermark, &self.left)?;
        }
        // Rows of a key are forgotten only once all is said of them.
        self.forget_keys(ctx.time)
    }

    /// Counts all partners; for a join whose state has just been loaded.
    pub(super) fn count_partners(&mut self) -> Result<()> {
        let input: InputIndex = if self.left.counts() { 0 } else { 1 };
        if !self.sides(input).0.counts() {
            return Ok(());
        }
        for chunk in self.sides(input).0.table.chunks() {
            let (own, _) = self.sides(input);
            let places = own.table.places(chunk);
            let rows = own.table.rows_at(&places)?;
            let keys = own.table.keys(&rows, None)?;
            let batch = ChangelogBatch::append(rows);
            let mut cursor = ProbeCursor::default();
            let mut done = false;
            while !done {
                let mut pairs = Pairs::default();
                done = self.sides(input).1.table.probe(&keys, &mut cursor, BATCH_ROWS_MAX, &mut pairs);
                let pairs = self.filtered(input, &batch, pairs)?;
                let (own, other) = self.sides(input);
                for (row, stored) in pairs.probing.iter().zip(&pairs.stored) {
                    own.add_partner(places[*row as usize]);
                    other.add_partner(*stored);
                }
            }
        }
        Ok(())
    }

    /// What the output held after the epoch of the checkpoint.
    pub(super) fn show_as_before(&mut self, watermark: Option<Watermark>) -> Result<()> {
        for input in 0..2 {
            let (side, other) = self.sides(input);
            let other = other.retention;
            let through = watermark.and_then(|watermark| side.final_through(watermark, other));
            let chunks = if side.counts() { side.table.chunks() } else { Vec::new() };
            for chunk in chunks {
                let places = side.table.places(chunk);
                match side.lone {
                    Lone::Never => {}
                    Lone::Matched | Lone::Unmatched => side.show(&places),
                    Lone::UnmatchedForEver => side.wait(places)?,
                }
            }
            // Those that were final have been said.
            while side.waiting.peek().is_some_and(|Reverse((time, _))| Some(*time) <= through) {
                side.say_final(through, &mut Said::default());
            }
        }
        Ok(())
    }
}

impl Side {
    fn add_partner(&mut self, id: RowId) {
        if let Some(partners) = self.table.partners_mut(id) {
            partners.count += 1;
        }
    }

    fn show(&mut self, places: &[RowId]) {
        let lone = self.lone;
        for place in places {
            if let Some(partners) = self.table.partners_mut(*place) {
                partners.shown = lone.wants(partners.count);
            }
        }
    }

    /// Lets the rows without a partner wait for the watermark.
    fn wait(&mut self, mut rows: Vec<RowId>) -> Result<()> {
        rows.retain(|id| self.table.partners(*id).is_some_and(|partners| partners.count == 0));
        let times = self.times(&rows)?;
        self.waiting.extend(times.into_iter().zip(rows).map(Reverse));
        Ok(())
    }

    /// Says of touched rows what has changed, until a batch is full.
    fn say_touched(&mut self, next: &mut usize, said: &mut Said) {
        while *next < self.touched.len() && said.len() < BATCH_ROWS_MAX {
            let id = self.touched[*next];
            *next += 1;
            let lone = self.lone;
            let Some(partners) = self.table.partners_mut(id) else { continue };
            let wanted = lone.wants(partners.count);
            if wanted != partners.shown {
                partners.shown = wanted;
                said.say(None, Some(id), if wanted { RowKind::Insert } else { RowKind::Delete });
            }
        }
    }

    /// Says the rows that will have no partner any more, until a batch is full.
    fn say_final(&mut self, through: Option<Timestamp>, said: &mut Said) {
        while said.len() < BATCH_ROWS_MAX
            && self.waiting.peek().is_some_and(|Reverse((time, _))| Some(*time) <= through)
        {
            let Some(Reverse((_, id))) = self.waiting.pop() else { return };
            if let Some(partners) = self.table.partners_mut(id)
                && partners.count == 0
            {
                partners.shown = true;
                said.say(None, Some(id), RowKind::Insert);
            }
        }
    }
}
