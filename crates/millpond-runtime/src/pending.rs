//! Committables that are owed: prepared by sinks, not yet committed.
//!
//! What a sink has prepared for checkpoint *n* is committed once the metadata of *n*, or of a
//! later checkpoint, is durable. An aborted checkpoint leaves its committables here: the job did
//! not restart, so their rows will not be read again. Only a restore forgets them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millpond_connect::{Committable, SinkConnector};
use millpond_core::{CheckpointId, Error, ErrorKind, OperatorUid, Result};
use millpond_state::{CheckpointMetadata, OperatorSnapshot};

use crate::background::Background;
use crate::graph::{JobGraph, SinkNode, Tail};
use crate::snapshot::COMMITTABLES;

/// Prepared output by sink and checkpoint.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pending(BTreeMap<OperatorUid, Vec<Owed>>);

#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
struct Owed {
    checkpoint: CheckpointId,
    committable: Committable,
}

impl Pending {
    pub(crate) fn add(&mut self, uid: OperatorUid, checkpoint: CheckpointId, committable: Committable) {
        self.0.entry(uid).or_default().push(Owed { checkpoint, committable });
    }

    /// What a checkpoint's metadata says is owed.
    pub(crate) fn restored(metadata: &CheckpointMetadata) -> Result<Self> {
        let mut pending = Self::default();
        for (uid, operator) in &metadata.operators {
            for entry in operator.lists.get(COMMITTABLES).into_iter().flatten() {
                let owed: Owed = serde_json::from_value(entry.clone()).map_err(|error| {
                    Error::corrupt(format!("a committable of sink {uid} cannot be read: {error}"))
                })?;
                pending.0.entry(uid.clone()).or_default().push(owed);
            }
        }
        Ok(pending)
    }

    /// Writes what is owed into the operators of a checkpoint; every sink has an entry.
    pub(crate) fn add_to(
        &self,
        sinks: &[SinkNode],
        operators: &mut BTreeMap<OperatorUid, OperatorSnapshot>,
    ) -> Result<()> {
        for sink in sinks {
            let owed = self.0.get(&sink.uid).map_or(&[][..], Vec::as_slice);
            let entry = |owed| serde_json::to_value(owed).map_err(|error| Error::internal(error.to_string()));
            let list = owed.iter().map(entry).collect::<Result<Vec<_>>>()?;
            let operator = operators.entry(sink.uid.clone()).or_default();
            operator.name = "Sink".into();
            operator.lists.insert(COMMITTABLES.into(), list);
        }
        Ok(())
    }

    /// What is owed up to a checkpoint: what a later one has prepared is not promised by it.
    pub(crate) fn through(&self, checkpoint: CheckpointId) -> Self {
        let upto = |owed: &Vec<Owed>| -> Vec<Owed> {
            owed.iter().filter(|owed| owed.checkpoint <= checkpoint).cloned().collect()
        };
        Self(self.0.iter().map(|(uid, owed)| (uid.clone(), upto(owed))).collect())
    }

    /// A checkpoint's metadata once its sinks have committed: nothing is owed.
    pub(crate) fn settled(metadata: &CheckpointMetadata) -> CheckpointMetadata {
        let mut settled = metadata.clone();
        for operator in settled.operators.values_mut() {
            if let Some(owed) = operator.lists.get_mut(COMMITTABLES) {
                owed.clear();
            }
        }
        settled
    }

    /// What a sink is owed.
    pub(crate) fn of(&self, uid: &OperatorUid) -> Vec<Committable> {
        self.0.get(uid).into_iter().flatten().map(|owed| owed.committable.clone()).collect()
    }

    /// Everything up to a checkpoint has been committed.
    pub(crate) fn settle(&mut self, through: CheckpointId) {
        for owed in self.0.values_mut() {
            owed.retain(|owed| owed.checkpoint > through);
        }
    }

    /// Commits everything that is owed (invariant 9). Repeats what fails for the moment, a few
    /// times; then the job restarts, and its restore commits again.
    pub(crate) fn commit(&self, sinks: &[SinkNode], background: &Background) -> Result<()> {
        for sink in sinks {
            background.check_halted()?;
            let owed = self.of(&sink.uid);
            if !owed.is_empty() {
                commit_patiently(&sink.connector, &owed, background)
                    .map_err(|error| error.context(format!("commit to table {:?}", sink.table)))?;
            }
        }
        Ok(())
    }
}

const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(50);

fn commit_patiently(
    sink: &Arc<dyn SinkConnector>,
    owed: &[Committable],
    background: &Background,
) -> Result<()> {
    let mut attempt = 1;
    loop {
        match sink.commit(owed) {
            Err(error) if error.kind() == ErrorKind::Unavailable && attempt < TRIES => {
                tracing::warn!(%error, attempt, "commit failed and is tried again");
                std::thread::sleep(FIRST_PAUSE * 2u32.pow(attempt - 1));
                background.check_halted()?;
                attempt += 1;
            }
            result => return result,
        }
    }
}

/// All sinks of a job.
pub(crate) fn sinks_of(graph: &JobGraph) -> Vec<SinkNode> {
    let tails = graph.fragments.iter().flat_map(|fragment| &fragment.tail);
    tails
        .filter_map(|tail| match tail {
            Tail::Sink(sink) => Some(sink.clone()),
            Tail::Edge { .. } | Tail::Client => None,
        })
        .collect()
}

/// The name under which a sink's writers prepare output: unique for each sink of each job, so
/// that two sinks over one folder do not take each other's leavings for their own.
pub(crate) fn sink_identity(writer: &str, uid: &OperatorUid) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    format!("{writer}-{}", uid.0.chars().map(plain).collect::<String>())
}
