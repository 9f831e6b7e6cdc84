//! Savepoints of every store: self-contained, movable, read by any number of tasks.

use super::*;
use crate::savepoint::{Snapshot, TableDefs, prepare_savepoint, write_savepoint};

fn defs() -> TableDefs {
    Tables::new().defs().map(|def| ((model::uid(), def.name.clone()), def.clone())).collect()
}

fn write(job: &Job, folder: &Path) {
    let report = write_savepoint(job.store(), &job.newest().metadata, &defs(), folder).unwrap();
    assert!(report.bytes > 0 && report.rows > 0, "{report:?}");
}

#[test]
fn a_savepoint_is_moved_and_read_after_its_job_is_gone() {
    for backend in backends() {
        for seed in 1..=3 {
            let (folder, away) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let mut random = Random::seeded(seed);
            let mut job = Job::open(backend, folder.path(), 1 + random.below(3) as usize);
            for _ in 0..5 {
                job.change(&mut random, 40);
                job.checkpoint();
            }
            write(&job, &away.path().join("a"));
            let saved = job.newest().metadata.checkpoint;
            // The job goes on and forgets the checkpoint; its folder goes away.
            for _ in 0..5 {
                job.change(&mut random, 40);
                job.checkpoint();
            }
            let history = job.crash();
            drop(folder);
            fs::rename(away.path().join("a"), away.path().join("b")).unwrap();
            let snapshot = Snapshot::open(&away.path().join("b")).unwrap();
            snapshot.verify(Verify::Crc).unwrap();
            assert_eq!(snapshot.metadata().kind, "savepoint");
            for tasks in 1..=3 {
                assert_eq!(Tables::new().read_from(&snapshot, tasks), history[&saved], "{backend:?} {seed}");
            }
        }
    }
}

#[test]
fn a_checkpoint_is_read_where_it_lies() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::seeded(9);
    let mut job = Job::open(Backend::Filesystem, folder.path(), 2);
    for _ in 0..2 {
        job.change(&mut random, 40);
        job.checkpoint();
    }
    let newest = Snapshot::open(folder.path()).unwrap();
    let first = Snapshot::open(&folder.path().join("chk-1")).unwrap();
    assert_eq!(Tables::new().read_from(&newest, 3), job.history[&CheckpointId(2)]);
    assert_eq!(Tables::new().read_from(&first, 1), job.history[&CheckpointId(1)]);
}

#[test]
fn a_folder_in_use_is_refused_and_a_failed_try_leaves_nothing() {
    let (folder, away) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut job = Job::open(Backend::Filesystem, folder.path(), 1);
    job.change(&mut Random::seeded(2), 20);
    job.checkpoint();
    let mut incomplete = defs();
    incomplete.pop_last();
    let error = write_savepoint(job.store(), &job.newest().metadata, &incomplete, away.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert_eq!(model::files_below(away.path()), [] as [&str; 0]);
    fs::write(away.path().join("mine"), "x").unwrap();
    let error = prepare_savepoint(away.path()).unwrap_err();
    assert!(error.message().contains("is not empty"), "{error}");
    assert_eq!(Snapshot::open(away.path()).unwrap_err().kind(), ErrorKind::Invalid);
}

/// A changed byte in any file of a savepoint is an error, never another answer.
#[test]
fn a_damaged_savepoint_is_refused() {
    let (folder, away) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut random = Random::seeded(5);
    let mut job = Job::open(Backend::Filesystem, folder.path(), 2);
    job.change(&mut random, 40);
    job.checkpoint();
    write(&job, away.path());
    for file in model::files_below(away.path()) {
        let path = away.path().join(&file);
        let good = fs::read(&path).unwrap();
        for _ in 0..20 {
            let mut bad = good.clone();
            let at = random.below(bad.len() as u64) as usize;
            bad[at] ^= 1 << random.below(8);
            fs::write(&path, &bad).unwrap();
            let opened = Snapshot::open(away.path()).and_then(|snapshot| snapshot.verify(Verify::Crc));
            assert_eq!(opened.unwrap_err().kind(), ErrorKind::Corrupt, "{file} at {at}");
        }
        fs::write(&path, &good).unwrap();
    }
}
