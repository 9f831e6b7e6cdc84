//! Every store against a model: chains of deltas, crashes, damage, rescaling.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, StringArray, UInt64Array};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, UInt64Type};
use millpond_core::key::{key_group, stable_hashes};
use millpond_core::random::Random;
use millpond_core::{ErrorKind, KeyGroupRange};

use super::*;
use crate::metadata::FORMAT;

mod damage;
mod leftovers;
mod model;
mod remote;
mod savepoints;

use model::{Job, Rows, Tables};

fn backends() -> Vec<Backend> {
    let mut backends = vec![Backend::Memory, Backend::Filesystem];
    if cfg!(feature = "rocksdb") {
        backends.push(Backend::Rocksdb);
    }
    backends
}

fn options(backend: Backend, dir: &Path) -> StoreOptions {
    StoreOptions { backend, dir: Some(dir.to_path_buf()) }
}

/// Random changes, checkpoints, failures, restarts and rescaling agree with the model at every
/// retained checkpoint, whatever the number of readers.
#[test]
fn chains_of_deltas_agree_with_the_model() {
    for backend in backends() {
        for seed in 1..=4 {
            let folder = tempfile::tempdir().unwrap();
            let mut random = Random::seeded(seed);
            let mut job = Job::open(backend, folder.path(), 1 + random.below(3) as usize);
            for _ in 0..30 {
                job.change(&mut random, 20);
                match random.below(8) {
                    0 => job.fail_checkpoint(),
                    1 => job.restart(1 + random.below(3) as usize),
                    _ => job.checkpoint(),
                }
                job.verify();
            }
        }
    }
}

#[test]
fn large_deltas_are_merged_into_a_base() {
    for backend in backends() {
        let folder = tempfile::tempdir().unwrap();
        let mut random = Random::seeded(7);
        let mut job = Job::open(backend, folder.path(), 1);
        for _ in 0..6 {
            job.change(&mut random, 3000);
            job.checkpoint();
        }
        job.verify();
        let parts = &job.newest().metadata.operators[&model::uid()].tables["value"].parts[&0];
        assert!(parts[0].base && parts.len() < 5, "{parts:?}");
    }
}

#[test]
fn lists_stay_short_and_sizes_geometric() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::seeded(8);
    let mut job = Job::open(Backend::Filesystem, folder.path(), 1);
    for _ in 0..40 {
        job.change(&mut random, 10);
        job.checkpoint();
        let tables = &job.newest().metadata.operators[&model::uid()].tables;
        assert!(tables.values().all(|table| table.parts[&0].len() <= part_list::PARTS_MAX));
    }
    job.verify();
}

#[test]
fn an_empty_delta_writes_nothing() {
    for backend in backends() {
        let folder = tempfile::tempdir().unwrap();
        let mut job = Job::open(backend, folder.path(), 2);
        job.change(&mut Random::seeded(1), 20);
        job.checkpoint();
        let before = job.newest().metadata.operators.clone();
        job.checkpoint();
        assert_eq!(job.newest().metadata.operators, before);
        job.verify();
    }
}

#[test]
fn retain_keeps_exactly_the_newest() {
    for backend in backends() {
        let folder = tempfile::tempdir().unwrap();
        let mut job = Job::open(backend, folder.path(), 1);
        let mut random = Random::seeded(3);
        for checkpoint in 1..=6u64 {
            job.change(&mut random, 20);
            job.checkpoint();
            let kept = job.store().checkpoints(Verify::Crc).unwrap();
            let numbers: Vec<u64> = kept.iter().map(|stored| stored.metadata.checkpoint.0).collect();
            let expected: Vec<u64> = (1..=checkpoint).rev().take(3).collect();
            assert_eq!(numbers, expected, "{backend:?}");
        }
        job.store().retain(1).unwrap();
        assert_eq!(job.store().checkpoints(Verify::Crc).unwrap().len(), 1);
        job.verify();
        if backend != Backend::Memory {
            let parts =
                model::files_below(folder.path()).into_iter().filter(|path| path.ends_with(".parquet"));
            let listed = metadata_paths(&job.newest().metadata);
            assert_eq!(parts.collect::<Vec<_>>(), listed);
        }
    }
}

fn metadata_paths(metadata: &CheckpointMetadata) -> Vec<String> {
    let mut paths: Vec<String> = crate::metadata::files_of(metadata).map(|file| file.path.clone()).collect();
    paths.sort();
    paths
}

#[test]
fn a_second_open_is_refused_until_the_first_ends() {
    let folder = tempfile::tempdir().unwrap();
    for backend in backends().into_iter().filter(|backend| *backend != Backend::Memory) {
        let first = open_store(&options(backend, folder.path())).unwrap();
        let error = open_store(&options(backend, folder.path())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains("is in use"), "{error}");
        let generation = first.generation();
        drop(first);
        assert_eq!(open_store(&options(backend, folder.path())).unwrap().generation(), generation + 1);
    }
    let error = open_store(&StoreOptions { backend: Backend::Filesystem, dir: None }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[test]
fn checkpoint_numbers_are_never_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = open_store(&options(Backend::Filesystem, folder.path())).unwrap();
    store.abort(CheckpointId(41)).unwrap();
    drop(store);
    let store = open_store(&options(Backend::Filesystem, folder.path())).unwrap();
    assert_eq!((store.last_checkpoint_id(), store.generation()), (CheckpointId(41), 2));
}

/// A full disk: the delta that could not be written is in the next part.
#[test]
fn a_delta_that_cannot_be_written_is_not_lost() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = Job::open(Backend::Filesystem, folder.path(), 1);
    let mut random = Random::seeded(5);
    job.change(&mut random, 30);
    job.checkpoint();
    let shared = folder.path().join("shared");
    let aside = folder.path().join("aside");
    for _ in 0..3 {
        fs::rename(&shared, &aside).unwrap();
        fs::write(&shared, b"in the way").unwrap();
        job.change(&mut random, 30);
        assert_eq!(job.try_checkpoint().unwrap_err().kind(), ErrorKind::Unavailable);
        fs::remove_file(&shared).unwrap();
        fs::rename(&aside, &shared).unwrap();
    }
    job.checkpoint();
    job.verify();
}

#[test]
fn a_rescaled_table_must_write_a_base() {
    for backend in backends() {
        let folder = tempfile::tempdir().unwrap();
        let mut job = Job::open(backend, folder.path(), 2);
        job.change(&mut Random::seeded(2), 50);
        job.checkpoint();
        job.restart(2);
        assert!(!job.store().needs_base(&model::uid(), "value", 0), "{backend:?}");
        job.restart(3);
        assert!(job.store().needs_base(&model::uid(), "value", 0));
        let tables = Tables::new();
        let next = job.store().last_checkpoint_id().next();
        let empty = tables.value.delta(&Rows::new(), &[], None);
        let refused =
            job.store().write_delta(&model::uid(), &tables.value.def, 0, next, model::GROUPS, empty, false);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Internal);
    }
}

#[test]
fn commits_of_another_start_and_out_of_order_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = Job::open(Backend::Filesystem, folder.path(), 1);
    job.change(&mut Random::seeded(2), 5);
    job.checkpoint();
    let newest = job.newest().metadata;
    assert_eq!(job.store().commit(&newest).unwrap_err().kind(), ErrorKind::Internal);
    let next = newest.checkpoint.next();
    let zombie = CheckpointMetadata { checkpoint: next, generation: 0, ..newest };
    assert_eq!(job.store().commit(&zombie).unwrap_err().kind(), ErrorKind::Internal);
}

#[cfg(feature = "rocksdb")]
#[test]
fn native_files_and_parquet_agree() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::seeded(11);
    let mut job = Job::open(Backend::Rocksdb, folder.path(), 2);
    let mut native = 0;
    for round in 0..25 {
        job.change(&mut random, 40);
        job.checkpoint();
        let metadata = job.newest().metadata;
        native += u32::from(metadata.native.is_some());
        let parquet = CheckpointMetadata { native: None, ..metadata.clone() };
        assert_eq!(job.read(&metadata, 3), job.read(&parquet, 3));
        if round % 6 == 5 {
            job.restart(1 + round % 3);
        }
    }
    assert_eq!(native, 25, "a rescaled or fresh job writes bases, so every checkpoint has native files");
}

#[cfg(feature = "rocksdb")]
#[test]
fn native_files_hold_every_type() {
    let (def, upserts) = crate::snapshot::tests::table_of_every_type();
    let folder = tempfile::tempdir().unwrap();
    let store = open_store(&options(Backend::Rocksdb, folder.path())).unwrap();
    let deletes = upserts.project(&[0]).unwrap().slice(0, 0);
    let delta = Delta { upserts, deletes, expired_through: None };
    let number = CheckpointId(1);
    let parts = store.write_delta(&model::uid(), &def, 0, number, model::GROUPS, delta, false).unwrap();
    let native = store.link_native(number).unwrap();
    assert!(native.is_some());
    let table = TableSnapshot { parts: BTreeMap::from([(0, parts)]), ..TableSnapshot::describe(&def) };
    let operator = OperatorSnapshot { tables: BTreeMap::from([("t".into(), table)]), ..Default::default() };
    let metadata = model::metadata(store.generation(), number, operator, native);
    store.commit(&metadata).unwrap();
    let range = KeyGroupRange::all(model::GROUPS);
    let by_native = store.read_table(&metadata, &model::uid(), &def, range).unwrap();
    let parquet = CheckpointMetadata { native: None, ..metadata };
    assert_eq!(by_native, store.read_table(&parquet, &model::uid(), &def, range).unwrap());
    assert_eq!(by_native[0].num_rows(), 4);
}

/// A job that changes its store between runs keeps its state.
#[cfg(feature = "rocksdb")]
#[test]
fn the_backend_can_be_changed() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::seeded(12);
    let mut job = Job::open(Backend::Rocksdb, folder.path(), 2);
    for backend in [Backend::Filesystem, Backend::Rocksdb, Backend::Filesystem, Backend::Rocksdb] {
        for _ in 0..3 {
            job.change(&mut random, 20);
            job.checkpoint();
            job.verify();
        }
        job.restart_as(backend, 2);
    }
    job.verify();
}

/// RocksDB must never stand for a checkpoint of which it lacks a delta, or has one too many.
#[cfg(feature = "rocksdb")]
#[test]
fn native_files_are_made_only_when_complete() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::seeded(13);
    let mut job = Job::open(Backend::Rocksdb, folder.path(), 1);
    job.change(&mut random, 20);
    job.checkpoint();
    let tables = Tables::new();
    let later = CheckpointId(3);
    let rows = Rows::from([((1, "a".into()), (None, None))]);
    let delta = tables.value.delta(&rows, &[], None);
    job.store().write_delta(&model::uid(), &tables.value.def, 0, later, model::GROUPS, delta, false).unwrap();
    assert_eq!(job.store().link_native(CheckpointId(2)).unwrap(), None, "a later delta is in it");
    fs::remove_dir_all(folder.path().join("native/chk-1")).unwrap();
    job.restart(1);
    assert_eq!(job.store().link_native(CheckpointId(4)).unwrap(), None, "it has nothing yet");
    job.change(&mut random, 20);
    job.checkpoint();
    assert!(job.newest().metadata.native.is_some());
    job.verify();
}

/// A manifest cut at the end of a record is a valid older state to RocksDB.
#[cfg(feature = "rocksdb")]
#[test]
fn a_cut_manifest_is_not_taken_for_an_older_state() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random::seeded(14);
    let mut job = Job::open(Backend::Rocksdb, folder.path(), 1);
    for _ in 0..4 {
        job.change(&mut random, 20);
        job.checkpoint();
    }
    let manifest = model::files_below(folder.path())
        .into_iter()
        .find(|path| path.starts_with("native/chk-4/") && path.contains("MANIFEST"));
    let manifest = folder.path().join(manifest.unwrap());
    let content = fs::read(&manifest).unwrap();
    for length in (0..content.len()).step_by(5) {
        fs::write(&manifest, &content[..length]).unwrap();
        // Forgets what is open.
        job.store().retain(3).unwrap();
        let newest = job.newest().metadata;
        assert_eq!(job.read(&newest, 1), job.history[&newest.checkpoint], "cut at {length}");
    }
}
