//! Sharing: how the groups of a window come from panes.
//!
//! ```text
//! TUMBLE     the pane is the window
//! HOP        a sum over panes that slides: + the panes that come, − the panes that go
//! CUMULATE   a total: + the pane that ends with the window
//! ```
//!
//! The sum of a HOP is not state: it is made anew after a restore, after a row for a pane that is
//! in it, and at every window if an aggregate cannot be taken back (MIN, MAX, sums of floats, lists).

use arrow::datatypes::FieldRef;
use millpond_core::Result;
use millpond_state::{KeyedRows, StateTable};

use super::groups::{Groups, Part, indexes};
use crate::aggregate::{AggregateSet, OrderIndex};
use crate::operator::BuildContext;
use crate::window::{WindowKind, WindowSpec};

/// What the windows of an operator have besides panes.
#[allow(clippy::large_enum_variant, reason = "there is one per operator")]
pub(super) enum Sharing {
    /// Nothing.
    None,
    /// Rows that count in some windows of their pane only, and the sum of the panes.
    Sliding { overlay: Groups, sum: Option<PaneSum> },
    /// The totals of the steps that have fired, by the end of their longest window.
    Cumulative { totals: Groups },
}

/// The sum of the panes of a window.
pub(super) struct PaneSum {
    rows: KeyedRows,
    sides: Vec<KeyedRows>,
    /// In how many of the panes a group appears, by its slot.
    appearances: Vec<u32>,
    /// The panes whose end is above `after` and at most `through`.
    after: i64,
    through: i64,
    slots: Vec<u32>,
}

impl Sharing {
    pub(super) fn new(
        window: &WindowSpec,
        keys: &[FieldRef],
        set: &AggregateSet,
        context: BuildContext,
    ) -> Result<Self> {
        Ok(match window.kind {
            WindowKind::Tumble { .. } => Self::None,
            WindowKind::Hop { size, .. } if window.pane() == size => Self::None,
            WindowKind::Hop { .. } => {
                Self::Sliding { overlay: Groups::new("overlay", keys, set, context)?, sum: None }
            }
            WindowKind::Cumulate { .. } => {
                Self::Cumulative { totals: Groups::new("totals", keys, set, context)? }
            }
        })
    }

    /// Brings the groups of a window together.
    pub(super) fn gather(
        &mut self,
        window: &WindowSpec,
        set: &AggregateSet,
        panes: &mut Groups,
        end: i64,
    ) -> Result<()> {
        match self {
            Self::None => {}
            Self::Sliding { overlay, sum } => {
                let start = window.start(end);
                let mut gathered = match sum.take() {
                    Some(mut gathered) => {
                        gathered.leave(set, panes, start)?;
                        gathered
                    }
                    None => PaneSum::new(panes, start)?,
                };
                gathered.come(set, panes, end)?;
                for part in overlay.parts(end - 1, end) {
                    gathered.add(set, &part)?;
                }
                *sum = Some(gathered);
            }
            Self::Cumulative { totals } => {
                let last = window.start(end) + window.size();
                for part in panes.parts(window.start(end), end) {
                    totals.merge(last, set, &part)?;
                }
                panes.drop_through(end);
            }
        }
        Ok(())
    }

    /// The groups of a window that was gathered.
    pub(super) fn groups<'a>(
        &'a self,
        window: &WindowSpec,
        panes: &'a Groups,
        end: i64,
    ) -> Option<&'a KeyedRows> {
        match self {
            Self::None => panes.rows.window(end),
            Self::Sliding { sum, .. } => sum.as_ref().map(|sum| &sum.rows),
            Self::Cumulative { totals } => totals.rows.window(window.start(end) + window.size()),
        }
    }

    /// The side tables of a window that was gathered; `None` where no row has come.
    pub(super) fn sides<'a>(
        &'a self,
        window: &WindowSpec,
        panes: &'a Groups,
        end: i64,
    ) -> Vec<Option<&'a KeyedRows>> {
        match self {
            Self::None => panes.sides(end),
            Self::Sliding { sum, .. } => sum.iter().flat_map(|sum| sum.sides.iter().map(Some)).collect(),
            Self::Cumulative { totals } => totals.sides(window.start(end) + window.size()),
        }
    }

    /// The orders of the side tables of a window that was gathered.
    pub(super) fn indexes(
        &mut self,
        window: &WindowSpec,
        set: &AggregateSet,
        panes: &mut Groups,
        end: i64,
    ) -> Result<Vec<Option<OrderIndex>>> {
        match self {
            Self::None => panes.indexes(set, end),
            Self::Sliding { sum: None, .. } => Ok(Vec::new()),
            Self::Sliding { sum: Some(sum), .. } => {
                let sides: Vec<_> = sum.sides.iter().map(Some).collect();
                indexes(set, &mut sum.rows, &sides)
            }
            Self::Cumulative { totals } => totals.indexes(set, window.start(end) + window.size()),
        }
    }

    /// The last arrival of any row that is not in a pane, or 0.
    pub(super) fn last_arrival(&self, set: &AggregateSet) -> Result<i64> {
        match self {
            Self::None => Ok(0),
            Self::Sliding { overlay, .. } => overlay.last_arrival(set),
            Self::Cumulative { totals } => totals.last_arrival(set),
        }
    }

    /// Drops what no window after this one has part in.
    pub(super) fn finish(
        &mut self,
        window: &WindowSpec,
        set: &AggregateSet,
        panes: &mut Groups,
        end: i64,
    ) -> Result<()> {
        match self {
            Self::None => panes.drop_through(end),
            Self::Sliding { overlay, sum } => {
                // Panes at or before the start of the next window are part of no other.
                let spent = end + window.slide() - window.size();
                if overlay.rows.window(end).is_some() || !set.can_take_back() {
                    *sum = None;
                }
                if let Some(sum) = sum {
                    sum.leave(set, panes, spent)?;
                }
                panes.drop_through(spent);
                overlay.drop_through(end);
            }
            Self::Cumulative { totals } => totals.drop_through(end),
        }
        Ok(())
    }

    /// A row has come to a pane.
    pub(super) fn pane_changed(&mut self, end: i64) {
        if let Self::Sliding { sum, .. } = self
            && sum.as_ref().is_some_and(|sum| sum.after < end && end <= sum.through)
        {
            *sum = None;
        }
    }

    pub(super) fn tables(&mut self) -> Box<dyn Iterator<Item = &mut dyn StateTable> + '_> {
        match self {
            Self::None => Box::new(std::iter::empty()),
            Self::Sliding { overlay, .. } => Box::new(overlay.tables()),
            Self::Cumulative { totals } => Box::new(totals.tables()),
        }
    }
}

impl PaneSum {
    /// Of no pane yet.
    fn new(panes: &Groups, after: i64) -> Result<Self> {
        let (rows, sides) = panes.empty()?;
        let (appearances, slots) = (Vec::new(), Vec::new());
        Ok(Self { rows, sides, appearances, after, through: after, slots })
    }

    /// Adds the panes that end behind those in it, up to `end`.
    fn come(&mut self, set: &AggregateSet, panes: &Groups, end: i64) -> Result<()> {
        for part in panes.parts(self.through.max(self.after), end) {
            self.add(set, &part)?;
        }
        self.through = end;
        Ok(())
    }

    /// Takes the panes away that end at or before `start`.
    fn leave(&mut self, set: &AggregateSet, panes: &Groups, start: i64) -> Result<()> {
        for part in panes.parts(self.after, start.min(self.through)) {
            part.take_from(set, &mut self.rows, self.sides.iter_mut(), &mut self.slots)?;
            let mut gone = Vec::new();
            for slot in &self.slots {
                let appearances = &mut self.appearances[*slot as usize];
                *appearances -= 1;
                if *appearances == 0 {
                    gone.push(*slot);
                }
            }
            self.rows.remove(&gone)?;
        }
        self.after = self.after.max(start);
        Ok(())
    }

    fn add(&mut self, set: &AggregateSet, part: &Part<'_>) -> Result<()> {
        part.add_to(set, &mut self.rows, self.sides.iter_mut(), &mut self.slots)?;
        let slots = self.slots.iter().max().map_or(0, |slot| *slot as usize + 1);
        if self.appearances.len() < slots {
            self.appearances.resize(slots, 0);
        }
        self.slots.iter().for_each(|slot| self.appearances[*slot as usize] += 1);
        Ok(())
    }
}
