//! Storage that is slow, full or rotten: a checkpoint that fails harms no other and stalls nobody.

use std::path::{Path, PathBuf};

use millpond_state::{Backend, StateStore, StoreOptions, Verify, open_store};

use super::*;

fn manual(store: &Arc<FakeStore>) -> (Arc<ManualClock>, Environment) {
    let clock = Arc::new(ManualClock::new(Timestamp(1_000)));
    (clock.clone(), Environment { clock, ..environment(Arc::clone(store)) })
}

/// The checkpoint is given up, the job goes on meanwhile, and the next one has what it lacked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_on_slow_storage_times_out_and_the_next_has_its_rows() {
    let (source, sink, store) =
        (FakeSource::new(false, vec![vec![1, 2]]), FakeSink::transactional(), FakeStore::new());
    let (clock, environment) = manual(&store);
    let options = JobOptions { checkpoint_timeout: 500, ..options() };
    let graph = || pipeline(&source, counting(), 1, sink_tail(&sink));
    let job = start_job(graph(), options, environment).unwrap();
    job.end_epoch().await.unwrap();
    store.hold(true);
    let asked = job.clone();
    let asked = tokio::spawn(async move { asked.checkpoint().await });
    while !store.is_waited_for() {
        tokio::task::yield_now().await;
    }
    clock.advance(500);
    let error = asked.await.unwrap().unwrap_err();
    assert!(error.message().contains("checkpoint 1 failed: not complete after 500 us"), "{error}");
    source.push(0, &[2]);
    job.end_epoch().await.unwrap();
    store.hold(false);
    let report = job.checkpoint().await.unwrap();
    // The delta of the first was written late and is a part of the second too.
    assert_eq!((report.checkpoint, report.rows), (CheckpointId(2), 1));
    assert_eq!(sink.visible(), [1001, 2001, 2002]);
    assert_eq!(job.metrics().restarts, 0);
    let failed = job.metrics().checkpoints.failed;
    assert_eq!(failed.into_iter().collect::<Vec<_>>(), [("not complete after 500 us".to_string(), 1)]);
    job.crash().await;
    source.push(0, &[1]);
    let job = start(graph(), crate::testing::options(), &store.reopen());
    job.end_epoch().await.unwrap();
    job.stop().await.unwrap();
    assert_eq!(sink.visible(), [1001, 1002, 2001, 2002]);
}

/// A full disk for a while: every checkpoint fails and is counted, none of the older is touched.
#[tokio::test]
async fn a_full_disk_fails_checkpoints_and_harms_none() {
    let (source, sink, store) =
        (FakeSource::new(false, vec![vec![1]]), FakeSink::transactional(), FakeStore::new());
    let graph = || pipeline(&source, counting(), 1, sink_tail(&sink));
    let job = start(graph(), options(), &store);
    job.end_epoch().await.unwrap();
    job.checkpoint().await.unwrap();
    store.fail_writes(5);
    for n in 2..7 {
        source.push(0, &[n]);
        job.end_epoch().await.unwrap();
        let error = job.checkpoint().await.unwrap_err();
        assert!(error.message().contains("no space"), "{error}");
        let kept = store.checkpoints(Verify::Size).unwrap();
        assert_eq!(kept.len(), 1);
        assert_eq!(sink.visible(), [1001]);
    }
    job.checkpoint().await.unwrap();
    assert_eq!(sink.visible(), [1001, 2001, 3001, 4001, 5001, 6001]);
    job.stop().await.unwrap();
}

struct Rotten {
    folder: tempfile::TempDir,
    backend: Backend,
}

impl Rotten {
    fn store(&self) -> Arc<dyn StateStore> {
        let dir = Some(self.folder.path().to_path_buf());
        open_store(&StoreOptions { backend: self.backend, dir }).unwrap()
    }

    fn start(&self, source: &Arc<FakeSource>, sink: &Arc<FakeSink>, verify: Verify) -> JobHandle {
        let environment = Environment { store: self.store(), ..environment(FakeStore::new()) };
        let options = JobOptions { verify, ..options() };
        start_job(pipeline(source, counting(), 2, sink_tail(sink)), options, environment).unwrap()
    }

    /// Two checkpoints of three numbers each; then a bit flips in a part of the second alone.
    async fn prepare(&self, source: &Arc<FakeSource>, sink: &Arc<FakeSink>) {
        let job = self.start(source, sink, Verify::Size);
        for numbers in [[1, 2, 3], [1, 2, 3]] {
            source.push(0, &numbers);
            job.end_epoch().await.unwrap();
            job.checkpoint().await.unwrap();
        }
        job.crash().await;
        let parts = parts_below(self.folder.path());
        let newest = parts.iter().find(|path| path.to_string_lossy().contains("-2-1.parquet")).unwrap();
        let mut content = std::fs::read(newest).unwrap();
        let middle = content.len() / 2;
        content[middle] ^= 1;
        std::fs::write(newest, content).unwrap();
    }
}

fn parts_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { parts_below(&path) } else { vec![path] }).collect()
}

/// Its length is right: what looks only at that finds the damage when it reads, and falls back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_falls_back_whatever_is_verified_beforehand() {
    for verify in [Verify::Size, Verify::Crc] {
        let rotten = Rotten { folder: tempfile::tempdir().unwrap(), backend: Backend::Filesystem };
        let (source, sink) = (FakeSource::new(false, vec![vec![]]), FakeSink::plain());
        rotten.prepare(&source, &sink).await;
        let again = FakeSink::plain();
        let job = rotten.start(&source, &again, verify);
        job.end_epoch().await.unwrap();
        job.stop().await.unwrap();
        assert_eq!(again.visible(), [1002, 2002, 3002], "from checkpoint 1 on, {verify:?}");
        assert!(rotten.folder.path().join("chk-2/metadata.json.corrupt").exists());
    }
}

/// Where output of the damaged checkpoint is visible, going back would write it twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_is_told_with_its_file_when_going_back_would_double_rows() {
    let rotten = Rotten { folder: tempfile::tempdir().unwrap(), backend: Backend::Filesystem };
    let (source, sink) = (FakeSource::new(false, vec![vec![]]), FakeSink::transactional());
    rotten.prepare(&source, &sink).await;
    let before = sink.visible();
    let error = rotten.start(&source, &sink, Verify::Size).wait().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(error.message(), "checkpoint 2 of j is damaged or gone");
    let detail = error.detail().unwrap();
    assert!(detail.contains("checkpoint 2 of j") && detail.contains(".parquet\" is damaged"), "{detail}");
    assert_eq!(sink.visible(), before);
}
