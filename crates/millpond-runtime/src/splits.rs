//! Splits of a source: which task reads which, and how a source's state is kept and found again.
//!
//! Split *i* of the list belongs to task *i % parallelism*. The list is the checkpointed one, in
//! the order of first discovery, with newly discovered splits behind it; so it only grows, and a
//! job that continues with another number of tasks deals the same list out anew.

use std::collections::HashSet;
use std::sync::Arc;

use millpond_connect::{Position, SourceConnector, Split};
use millpond_core::{Error, Result, Timestamp};
use millpond_operators::event_time::SplitWatermark;
use tokio::sync::watch;

use crate::background::Background;

/// A split with how far it has been read: an entry of the source's checkpointed state.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct SplitState {
    pub(crate) split: Split,
    /// Place in the list of the source's splits.
    pub(crate) ordinal: u64,
    /// Where to read on; `None`: from the start.
    pub(crate) position: Option<Position>,
    /// Its watermark.
    pub(crate) watermark: SplitWatermark,
    /// Whether it has been read to its end.
    pub(crate) finished: bool,
}

/// The splits of a source, as far as they have been discovered.
#[derive(Debug, Clone, Default)]
pub(crate) struct Discovered {
    /// In the order of discovery.
    pub(crate) splits: Arc<Vec<SplitState>>,
    /// The last poll for which the connector has been asked.
    pub(crate) poll: u64,
}

impl Discovered {
    /// What a checkpoint knows, without duplicates and in its order.
    pub(crate) fn restored(entries: &[serde_json::Value]) -> Result<Self> {
        let read = |entry: &serde_json::Value| {
            serde_json::from_value(entry.clone())
                .map_err(|error| Error::corrupt(format!("a split in the checkpoint cannot be read: {error}")))
        };
        let mut splits = entries.iter().map(read).collect::<Result<Vec<SplitState>>>()?;
        splits.sort_by_key(|split| split.ordinal);
        Ok(Self { splits: Arc::new(splits), poll: 0 })
    }

    /// Adds the splits that are not known yet.
    pub(crate) fn add(&mut self, found: Vec<Split>) {
        let known: HashSet<&str> = self.splits.iter().map(|known| known.split.id.as_str()).collect();
        let new: Vec<Split> = found.into_iter().filter(|split| !known.contains(split.id.as_str())).collect();
        if new.is_empty() {
            return;
        }
        let first = self.splits.last().map_or(0, |last| last.ordinal + 1);
        let state = |(split, ordinal)| SplitState {
            split,
            ordinal,
            position: None,
            watermark: SplitWatermark::default(),
            finished: false,
        };
        Arc::make_mut(&mut self.splits).extend(new.into_iter().zip(first..).map(state));
    }

    /// The splits of a task, without the first `seen` of the whole list.
    pub(crate) fn of_task(&self, index: usize, parallelism: usize, seen: usize) -> Vec<SplitState> {
        let mine = self.splits.iter().enumerate().skip(seen).filter(|(at, _)| at % parallelism == index);
        mine.map(|(_, split)| split.clone()).collect()
    }
}

/// Looks for new splits on behalf of all tasks of a source; the task with index 0 has it.
#[derive(Debug)]
pub(crate) struct Discoverer {
    connector: Arc<dyn SourceConnector>,
    found: watch::Sender<Discovered>,
    due: Option<Timestamp>,
}

impl Discoverer {
    pub(crate) fn new(
        connector: Arc<dyn SourceConnector>,
        found: watch::Sender<Discovered>,
        now: Timestamp,
    ) -> Self {
        let due = connector.discovery_interval().map(|interval| now.saturating_add(interval));
        Self { connector, found, due }
    }

    /// When to look again.
    pub(crate) fn due(&self) -> Option<Timestamp> {
        self.due
    }

    /// Looks if it is time, or if a poll asks for it.
    pub(crate) async fn look(
        &mut self,
        now: Timestamp,
        poll: Option<u64>,
        background: &Background,
    ) -> Result<()> {
        let interval = self.connector.discovery_interval();
        let asked = poll.filter(|poll| *poll > self.found.borrow().poll);
        let is_due = self.due.is_some_and(|due| now >= due);
        if interval.is_some() && (is_due || asked.is_some()) {
            let connector = Arc::clone(&self.connector);
            let splits = background.run(move || connector.splits()).await?;
            self.due = interval.map(|interval| now.saturating_add(interval));
            self.found.send_modify(|found| found.add(splits));
        }
        if let Some(poll) = asked {
            self.found.send_modify(|found| found.poll = poll);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn splits(ids: &[&str]) -> Vec<Split> {
        ids.iter().map(|id| Split { id: (*id).into() }).collect()
    }

    fn ids(states: &[SplitState]) -> Vec<String> {
        states.iter().map(|state| state.split.id.clone()).collect()
    }

    #[test]
    fn splits_are_dealt_out_in_order_of_discovery_and_new_ones_follow() {
        let mut found = Discovered::default();
        found.add(splits(&["a", "b", "c"]));
        found.add(splits(&["0", "a", "d"]));
        assert_eq!(ids(&found.of_task(0, 2, 0)), ["a", "c", "d"]);
        assert_eq!(ids(&found.of_task(1, 2, 0)), ["b", "0"]);
        assert_eq!(ids(&found.of_task(1, 2, 3)), ["0"]);
    }

    #[test]
    fn a_restored_list_keeps_its_order_and_positions() {
        let mut found = Discovered::default();
        found.add(splits(&["a", "b", "c"]));
        let mut states = found.of_task(0, 1, 0);
        states[1].position = Some(Position(serde_json::json!(7)));
        states[2].finished = true;
        states.reverse();
        let entries: Vec<_> = states.iter().map(|state| serde_json::to_value(state).unwrap()).collect();
        let mut restored = Discovered::restored(&entries).unwrap();
        restored.add(splits(&["b", "d"]));
        assert_eq!(ids(&restored.splits), ["a", "b", "c", "d"]);
        assert_eq!(restored.splits[1].position, Some(Position(serde_json::json!(7))));
        assert!(restored.splits[2].finished);
    }
}
