//! Who needs which file: checkpoints that exist, checkpoints in progress, and part lists.
//!
//! Derived data: it is rebuilt from the metadata files at every open, so that there is nothing
//! durable that could fall out of step. Only files that it *knows* can be garbage; a part becomes
//! known in the same step in which a list starts to refer to it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use millpond_core::CheckpointId;

use super::tables::TableAddress;

/// A checkpoint on disk (or in memory) as the ledger sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// The files it refers to; `None` when its metadata cannot be read at all.
    pub(crate) paths: Option<Vec<String>>,
    /// A savepoint belongs to the user and is never removed by us.
    pub(crate) savepoint: bool,
    /// It was found damaged and is kept for inspection only.
    pub(crate) damaged: bool,
}

/// The references to files.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Files of ours, and whether this start of the job wrote them.
    known: BTreeMap<String, bool>,
    lists: HashMap<TableAddress, Vec<String>>,
    pending: BTreeMap<CheckpointId, BTreeSet<String>>,
    kept: BTreeMap<CheckpointId, Kept>,
}

impl Ledger {
    /// A file that lies there from an earlier start.
    pub(crate) fn found(&mut self, path: String) {
        self.known.insert(path, false);
    }
    /// A checkpoint that exists.
    pub(crate) fn keep(&mut self, checkpoint: CheckpointId, kept: Kept) {
        self.kept.insert(checkpoint, kept);
    }
    /// A checkpoint that was found damaged.
    pub(crate) fn damage(&mut self, checkpoint: CheckpointId) {
        if let Some(kept) = self.kept.get_mut(&checkpoint) {
            kept.damaged = true;
        }
    }
    /// Whether this start of the job wrote a file.
    pub(crate) fn wrote(&self, path: &str) -> bool {
        self.known.get(path) == Some(&true)
    }
    /// A list as answered for a checkpoint, and the file that was written for it.
    pub(crate) fn answered(
        &mut self,
        address: &TableAddress,
        checkpoint: CheckpointId,
        written: Option<String>,
        paths: Vec<String>,
    ) {
        self.known.extend(written.map(|path| (path, true)));
        self.pending.entry(checkpoint).or_default().extend(paths.iter().cloned());
        self.lists.insert(address.clone(), paths);
    }
    /// Lists continue from here; what was there before is forgotten.
    pub(crate) fn restart(&mut self, lists: HashMap<TableAddress, Vec<String>>) {
        self.lists = lists;
        self.pending.clear();
    }
    /// A checkpoint exists from now on; older ones in progress can no longer come to be.
    pub(crate) fn commit(&mut self, checkpoint: CheckpointId, kept: Kept) {
        self.pending = self.pending.split_off(&checkpoint.next());
        self.kept.insert(checkpoint, kept);
    }
    /// A checkpoint in progress is given up, or one that existed is removed.
    pub(crate) fn forget(&mut self, checkpoint: CheckpointId) {
        self.pending.remove(&checkpoint);
        self.kept.remove(&checkpoint);
    }
    /// The newest checkpoint that exists.
    pub(crate) fn newest(&self) -> Option<CheckpointId> {
        self.kept.iter().rev().find(|(_, kept)| !kept.damaged).map(|(checkpoint, _)| *checkpoint)
    }
    /// What exists beyond the newest `retained` checkpoints: older ones, and damaged ones that are
    /// older than all that stay.
    pub(crate) fn surplus(&self, retained: usize) -> Vec<CheckpointId> {
        let ours = self.kept.iter().filter(|(_, kept)| !kept.savepoint || kept.damaged);
        let valid = ours.clone().filter(|(_, kept)| !kept.damaged).map(|(checkpoint, _)| *checkpoint);
        let Some(oldest) = valid.rev().nth(retained.max(1) - 1) else {
            return Vec::new();
        };
        ours.map(|(checkpoint, _)| *checkpoint).take_while(|checkpoint| *checkpoint < oldest).collect()
    }
    /// Takes out the files that nothing refers to. While the references of some damaged
    /// checkpoint are unknown, only files of this start can be told to be garbage.
    pub(crate) fn take_garbage(&mut self) -> Vec<String> {
        let kept = self.kept.values().filter_map(|kept| kept.paths.as_ref()).flatten();
        let pending = self.pending.values().flatten();
        let lists = self.lists.values().flatten();
        let needed: BTreeSet<&String> = kept.chain(pending).chain(lists).collect();
        let complete = self.kept.values().all(|kept| kept.paths.is_some());
        let garbage = self.known.iter().filter(|(path, own)| (complete || **own) && !needed.contains(path));
        let garbage: Vec<String> = garbage.map(|(path, _)| path.clone()).collect();
        for path in &garbage {
            self.known.remove(path);
        }
        garbage
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_core::OperatorUid;

    fn address() -> TableAddress {
        TableAddress { uid: OperatorUid("u".into()), table: "t".into(), task: 0 }
    }

    fn kept(paths: &[&str]) -> Kept {
        Kept { paths: Some(paths.iter().map(|path| path.to_string()).collect()), ..Kept::default() }
    }

    #[test]
    fn a_file_of_a_checkpoint_in_progress_is_no_garbage() {
        let mut ledger = Ledger::default();
        ledger.answered(&address(), CheckpointId(1), Some("a".into()), vec!["a".into()]);
        ledger.answered(&address(), CheckpointId(2), Some("b".into()), vec!["b".into()]);
        assert_eq!(ledger.take_garbage(), [] as [&str; 0]);
        ledger.commit(CheckpointId(2), kept(&["b"]));
        assert_eq!(ledger.take_garbage(), ["a"]);
    }

    #[test]
    fn a_part_of_an_aborted_checkpoint_stays_in_its_list() {
        let mut ledger = Ledger::default();
        ledger.answered(&address(), CheckpointId(1), Some("a".into()), vec!["a".into()]);
        ledger.forget(CheckpointId(1));
        assert_eq!(ledger.take_garbage(), [] as [&str; 0]);
    }

    #[test]
    fn nothing_old_is_garbage_while_references_are_unknown() {
        let mut ledger = Ledger::default();
        ledger.found("old".into());
        ledger.keep(CheckpointId(1), Kept { damaged: true, ..Kept::default() });
        ledger.answered(&address(), CheckpointId(2), Some("new".into()), vec![]);
        ledger.commit(CheckpointId(2), kept(&[]));
        assert_eq!(ledger.take_garbage(), ["new"]);
        assert_eq!(ledger.surplus(1), [CheckpointId(1)]);
        ledger.forget(CheckpointId(1));
        assert_eq!(ledger.take_garbage(), ["old"]);
    }

    #[test]
    fn savepoints_are_not_surplus() {
        let mut ledger = Ledger::default();
        for checkpoint in 1..=5 {
            ledger.keep(CheckpointId(checkpoint), Kept { savepoint: checkpoint == 2, ..kept(&[]) });
        }
        assert_eq!(ledger.surplus(2), [CheckpointId(1), CheckpointId(3)]);
        assert_eq!(ledger.surplus(0), [CheckpointId(1), CheckpointId(3), CheckpointId(4)]);
    }
}
