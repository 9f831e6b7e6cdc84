//! Tells sources what no checkpoint that is kept needs any more.
//!
//! A checkpoint is needed until so many newer ones are there as are retained. After a start nothing
//! is known of older ones; sources hear of it when as many have been made anew.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use millpond_connect::{Position, SourceConnector};
use millpond_core::{OperatorUid, Result};
use millpond_state::CheckpointMetadata;

use crate::graph::{Head, JobGraph};
use crate::snapshot::SPLITS;
use crate::splits::Discovered;

/// The sources of a job, and the positions of its newest checkpoints.
#[derive(Debug)]
pub(crate) struct Releases {
    sources: Vec<Source>,
    /// For each checkpoint the positions by source; `None` where a split has not been begun.
    kept: Mutex<VecDeque<Vec<Option<Vec<Position>>>>>,
}

#[derive(Debug)]
struct Source {
    uid: OperatorUid,
    connector: Arc<dyn SourceConnector>,
    log_dir: Option<PathBuf>,
}

impl Releases {
    /// For all sources of a job, whose logs lie below `log_dir`.
    pub(crate) fn new(graph: &JobGraph, log_dir: Option<&PathBuf>) -> Self {
        let source = |head: &Head| match head {
            Head::Source(node) => Some(Source {
                uid: node.uid.clone(),
                connector: Arc::clone(&node.connector),
                log_dir: log_dir.map(|dir| dir.join(&node.uid.0)),
            }),
            Head::Inputs(_) => None,
        };
        let sources = graph.fragments.iter().filter_map(|fragment| source(&fragment.head)).collect();
        Self { sources, kept: Mutex::default() }
    }

    /// A checkpoint is complete, and `retained` are kept.
    ///
    /// Errors: what a source says; the job does not depend on it.
    pub(crate) fn completed(&self, metadata: &CheckpointMetadata, retained: usize) -> Result<()> {
        let positions = self.sources.iter().map(|source| positions_of(metadata, &source.uid));
        let positions = positions.collect::<Result<Vec<_>>>()?;
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(positions);
        while kept.len() > retained.max(1) {
            kept.pop_front();
        }
        if kept.len() < retained.max(1) {
            return Ok(());
        }
        let Some(oldest) = kept.front() else { return Ok(()) };
        for (source, positions) in self.sources.iter().zip(oldest) {
            if let Some(positions) = positions {
                source.connector.release(source.log_dir.as_deref(), positions)?;
            }
        }
        Ok(())
    }
}

fn positions_of(metadata: &CheckpointMetadata, uid: &OperatorUid) -> Result<Option<Vec<Position>>> {
    let splits = metadata.operators.get(uid).and_then(|operator| operator.lists.get(SPLITS));
    let Some(splits) = splits.map(|entries| Discovered::restored(entries)).transpose()? else {
        return Ok(None);
    };
    Ok(splits.splits.iter().map(|split| split.position.clone()).collect())
}
