//! Checkpoints elsewhere: nothing here is needed, and every request may fail.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

use super::*;

/// Files in memory; the request numbered `failing` fails, before or after it has been obeyed.
#[derive(Debug, Default)]
struct FakeRemote {
    files: Mutex<BTreeMap<String, Vec<u8>>>,
    failing: AtomicI64,
    loses_answers: bool,
}

impl FakeRemote {
    fn ask<T>(&self, obey: impl FnOnce() -> Result<T>) -> Result<T> {
        let fails = self.failing.fetch_sub(1, Ordering::SeqCst) == 1;
        let answer = if fails && !self.loses_answers { None } else { Some(obey()?) };
        answer.filter(|_| !fails).ok_or_else(|| Error::unavailable("the network is down"))
    }
    fn names(&self) -> Vec<String> {
        self.files.lock().unwrap().keys().cloned().collect()
    }
}

impl RemoteFiles for FakeRemote {
    fn put(&self, name: &str, content: Vec<u8>) -> Result<()> {
        self.ask(|| {
            self.files.lock().unwrap().insert(name.into(), content);
            Ok(())
        })
    }
    fn create(&self, name: &str, content: Vec<u8>) -> Result<bool> {
        self.ask(|| {
            let mut files = self.files.lock().unwrap();
            let is_new = !files.contains_key(name);
            if is_new {
                files.insert(name.into(), content);
            }
            Ok(is_new)
        })
    }
    fn get(&self, name: &str) -> Result<Vec<u8>> {
        let missing = || Error::corrupt(format!("{name} is not there"));
        self.ask(|| self.files.lock().unwrap().get(name).cloned().ok_or_else(missing))
    }
    fn list(&self) -> Result<Vec<String>> {
        self.ask(|| Ok(self.names()))
    }
    fn delete(&self, name: &str) -> Result<()> {
        self.ask(|| {
            self.files.lock().unwrap().remove(name);
            Ok(())
        })
    }
}

fn on_disk() -> impl Iterator<Item = Backend> {
    backends().into_iter().filter(|backend| *backend != Backend::Memory)
}

#[test]
fn a_job_goes_on_where_nothing_of_it_is() {
    for backend in on_disk() {
        for seed in 1..=3 {
            let folder = tempfile::tempdir().unwrap();
            let remote = Arc::new(FakeRemote::default());
            let mut random = Random::seeded(seed);
            let mut job = Job::open_remote(backend, &folder.path().join("job"), 2, remote.clone());
            for _ in 0..20 {
                job.change(&mut random, 20);
                match random.below(6) {
                    0 => job.fail_checkpoint(),
                    1 => job.restart(1 + random.below(3) as usize),
                    2 => job.move_away(1 + random.below(3) as usize),
                    _ => job.checkpoint(),
                }
                job.verify();
            }
            job.checkpoint();
            // What metadata up there names is up there; of older checkpoints nothing stays.
            let names = remote.names();
            for stored in job.store().checkpoints(Verify::Size).unwrap() {
                let missing: Vec<String> = metadata_paths(&stored.metadata)
                    .into_iter()
                    .filter(|path| !names.contains(path))
                    .collect();
                assert_eq!(missing, [] as [String; 0]);
            }
            assert_eq!(names.iter().filter(|name| name.ends_with("metadata.json")).count(), 3);
            assert_eq!(names.iter().filter(|name| name.starts_with("generation/")).count(), 1);
        }
    }
}

#[test]
fn a_start_that_was_taken_over_commits_nothing() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let remote = Arc::new(FakeRemote::default());
    let mut job = Job::open_remote(Backend::Filesystem, here.path(), 1, remote.clone());
    job.change(&mut Random::seeded(1), 20);
    job.checkpoint();
    let newest = job.newest().metadata;
    let other = RemoteStore::open(&options(Backend::Filesystem, there.path()), remote.clone()).unwrap();
    assert_eq!(other.checkpoints(Verify::Crc).unwrap()[0].metadata.checkpoint, newest.checkpoint);
    let before = remote.names();
    let zombie = CheckpointMetadata { checkpoint: newest.checkpoint.next(), ..newest };
    let error = job.store().commit(&zombie).unwrap_err();
    assert!(error.message().contains("has taken over"), "{error}");
    assert_eq!(remote.names(), before);
}

/// Whichever request fails, a checkpoint either is there for the next machine, whole, or is not.
#[test]
fn any_request_may_fail() {
    for (failing, loses_answers) in (1..=40).flat_map(|failing| [(failing, false), (failing, true)]) {
        let folder = tempfile::tempdir().unwrap();
        let remote = Arc::new(FakeRemote { loses_answers, ..FakeRemote::default() });
        let mut random = Random::seeded(failing);
        let mut job = Job::open_remote(Backend::Filesystem, &folder.path().join("job"), 1, remote.clone());
        for _ in 0..3 {
            job.change(&mut random, 20);
            job.checkpoint();
        }
        job.change(&mut random, 20);
        remote.failing.store(failing as i64, Ordering::SeqCst);
        let _ = job.try_checkpoint();
        remote.failing.store(0, Ordering::SeqCst);
        job.move_away(2);
        job.verify();
        job.change(&mut random, 20);
        job.checkpoint();
        job.verify();
    }
}

/// A part that is lost where it was kept costs its checkpoints, not the job.
#[test]
fn a_checkpoint_that_is_not_whole_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let remote = Arc::new(FakeRemote::default());
    let mut random = Random::seeded(5);
    let mut job = Job::open_remote(Backend::Filesystem, &folder.path().join("job"), 1, remote.clone());
    for _ in 0..3 {
        job.change(&mut random, 20);
        job.checkpoint();
    }
    let checkpoints = job.store().checkpoints(Verify::Size).unwrap();
    let before = metadata_paths(&checkpoints[1].metadata);
    let lost =
        metadata_paths(&checkpoints[0].metadata).into_iter().find(|path| !before.contains(path)).unwrap();
    remote.files.lock().unwrap().remove(&lost);
    job.move_away(1);
    let left = job.store().checkpoints(Verify::Crc).unwrap();
    assert_eq!(left[0].metadata.checkpoint, checkpoints[1].metadata.checkpoint);
    assert_eq!(
        job.store().newest_completed(),
        checkpoints[0].metadata.checkpoint,
        "sinks may have committed it"
    );
    job.verify();
}
