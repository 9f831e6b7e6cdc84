//! Tests of `job`.

use millpond_core::random::Random;
use millpond_core::{EpochMark, ManualClock, Timestamp};

use super::*;
use crate::graph::Exchange;
use crate::report::CheckpointStatus;
use crate::testing::*;

#[path = "crash_points.rs"]
mod crash_points;
#[path = "faults.rs"]
mod faults;

const PARALLEL: usize = 2;

fn numbers(count: i64, keys: i64) -> Vec<i64> {
    (0..count).map(|i| i * 7 % keys).collect()
}

fn counting() -> ActFactory {
    ActFactory::new(Act::Count)
}

fn start(graph: JobGraph, options: JobOptions, store: &Arc<FakeStore>) -> JobHandle {
    start_job(graph, options, environment(Arc::clone(store))).unwrap()
}

async fn failure(graph: JobGraph, options: JobOptions) -> Error {
    let job = start(graph, options, &FakeStore::new());
    let error = job.wait().await.unwrap_err();
    assert_eq!(job.status(), JobStatus::Failed(error.clone()));
    error
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_does_not_depend_on_epochs_batches_or_parallelism() {
    let splits: Vec<Vec<i64>> = (0..3).map(|i| numbers(100 + i, 13)).collect();
    let expected = counted(&splits.concat());
    for parallelism in [1, 2, 4] {
        for (batch_rows, epoch_rows) in [(8192, None), (7, None), (1, Some(1)), (7, Some(5))] {
            let (source, sink) = (FakeSource::new(true, splits.clone()), FakeSink::transactional());
            let options = JobOptions { batch_rows, epoch_rows, ..options() };
            let graph = pipeline(&source, counting(), parallelism, sink_tail(&sink));
            let job = start(graph, options, &FakeStore::new());
            job.wait().await.unwrap();
            assert_eq!(sink.visible(), expected, "{parallelism} {batch_rows} {epoch_rows:?}");
            assert_eq!(job.status(), JobStatus::Finished);
            let metrics = job.metrics();
            assert_eq!(metrics.sources.iter().map(|source| source.metrics.sent.value()).sum::<u64>(), 303);
            assert_eq!(
                metrics.operators.iter().map(|operator| operator.metrics.rows_in.value()).sum::<u64>(),
                303
            );
            assert!(metrics.sources.iter().all(|source| source.watermark == Some(Timestamp::MAX)));
            assert!(epoch_rows != Some(1) || metrics.epoch.0 >= 303, "one row per epoch");
        }
    }
}

#[tokio::test]
async fn a_finished_job_is_finished_at_once_when_it_is_started_again() {
    let (source, sink, store) =
        (FakeSource::new(true, vec![vec![1, 2, 2]]), FakeSink::transactional(), FakeStore::new());
    start(pipeline(&source, counting(), 1, sink_tail(&sink)), options(), &store).wait().await.unwrap();
    let again = start(pipeline(&source, counting(), 1, sink_tail(&sink)), options(), &store.reopen());
    again.wait().await.unwrap();
    assert_eq!(sink.visible(), [1001, 2001, 2002]);
    assert!(again.checkpoints().is_empty());
}

/// Crashes a job at seeded moments, each time continuing with another parallelism; what is
/// visible at the end is what an undisturbed run gives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crashes_lose_nothing_and_double_nothing() {
    let splits: Vec<Vec<i64>> = (0..3).map(|i| numbers(60 + 10 * i, 11)).collect();
    let expected = counted(&splits.concat());
    let mut crashed_midway = 0;
    for seed in 0..100 {
        let mut random = Random::seeded(seed);
        let (source, sink) = (FakeSource::new(true, splits.clone()), FakeSink::transactional());
        let mut store = FakeStore::new();
        for _ in 0..1 + random.below(3) {
            let job = start(torture_graph(&source, &sink, &mut random), torture_options(&mut random), &store);
            crash_after(&job, random.below(60), random.below(40)).await;
            let visible = sink.visible().len();
            crashed_midway += usize::from(0 < visible && visible < expected.len());
            store = store.reopen();
        }
        let job = start(torture_graph(&source, &sink, &mut random), torture_options(&mut random), &store);
        job.wait().await.unwrap();
        assert_eq!(sink.visible(), expected, "seed {seed}");
        assert_eq!(sink.prepared(), 0, "seed {seed}");
    }
    assert!(crashed_midway > 10, "only {crashed_midway} crashes met a job half-way");
}

/// Crashes a job when so many epochs have passed, and a little later.
async fn crash_after(job: &JobHandle, epochs: u64, later: u64) {
    while job.metrics().epoch.0 < epochs && !job.status().is_terminal() {
        tokio::task::yield_now().await;
    }
    for _ in 0..later {
        tokio::task::yield_now().await;
    }
    job.crash().await;
}

fn torture_graph(source: &Arc<FakeSource>, sink: &Arc<FakeSink>, random: &mut Random) -> JobGraph {
    pipeline(source, counting(), [1, 2, 4][random.below(3) as usize], sink_tail(sink))
}

fn torture_options(random: &mut Random) -> JobOptions {
    let checkpoint_at_every_epoch = random.below(2) == 0;
    let checkpoint_every_rows = (!checkpoint_at_every_epoch).then_some(20);
    let (batch_rows, epoch_rows) = (1 + random.below(9) as usize, Some(1 + random.below(12)));
    JobOptions { checkpoint_at_every_epoch, checkpoint_every_rows, batch_rows, epoch_rows, ..options() }
}

#[tokio::test]
async fn a_failed_checkpoint_leaves_its_output_to_the_next() {
    let (source, sink, store) =
        (FakeSource::new(false, vec![vec![1, 2]]), FakeSink::transactional(), FakeStore::new());
    let job = start(pipeline(&source, counting(), PARALLEL, sink_tail(&sink)), options(), &store);
    store.fail_writes(2);
    job.end_epoch().await.unwrap();
    assert!(job.checkpoint().await.is_err());
    assert_eq!((sink.visible(), job.metrics().restarts), (vec![], 0));
    source.push(0, &[2]);
    job.end_epoch().await.unwrap();
    let report = job.checkpoint().await.unwrap();
    assert_eq!(sink.visible(), [1001, 2001, 2002]);
    assert_eq!((report.rows, report.status), (3, CheckpointStatus::Completed));
    job.crash().await;
    // The state of the failed checkpoint has reached the store with the next one.
    source.push(0, &[1]);
    let job = start(pipeline(&source, counting(), PARALLEL, sink_tail(&sink)), options(), &store.reopen());
    job.end_epoch().await.unwrap();
    job.stop().await.unwrap();
    assert_eq!(sink.visible(), [1001, 1002, 2001, 2002]);
}

#[tokio::test]
async fn too_many_failed_checkpoints_restart_the_job_and_nothing_is_lost() {
    let (source, sink, store) =
        (FakeSource::new(true, vec![numbers(50, 5)]), FakeSink::transactional(), FakeStore::new());
    let options = JobOptions { tolerable_failures: Some(0), checkpoint_at_every_epoch: true, ..options() };
    store.fail_writes(2);
    let job = start(pipeline(&source, counting(), PARALLEL, sink_tail(&sink)), options, &store);
    job.wait().await.unwrap();
    assert_eq!(sink.visible(), counted(&numbers(50, 5)));
    assert!(job.metrics().restarts > 0);
}

#[tokio::test]
async fn a_sink_that_cannot_commit_is_committed_by_the_restart() {
    let (source, sink, store) =
        (FakeSource::new(true, vec![numbers(50, 5)]), FakeSink::transactional(), FakeStore::new());
    sink.fail_commits(2);
    let job = start(pipeline(&source, counting(), PARALLEL, sink_tail(&sink)), options(), &store);
    job.wait().await.unwrap();
    assert_eq!((sink.visible(), sink.prepared()), (counted(&numbers(50, 5)), 0));
    assert_eq!(job.metrics().restarts, 2);
}

#[tokio::test]
async fn errors_of_the_user_end_the_job_and_bugs_are_tried_again() {
    let source = || FakeSource::new(true, vec![numbers(50, 9)]);
    let graph = |act| pipeline(&source(), ActFactory::new(act), PARALLEL, sink_tail(&FakeSink::plain()));
    let error = failure(graph(Act::Fail(3, ErrorKind::Data)), options()).await;
    assert_eq!((error.kind(), error.message()), (ErrorKind::Data, "met 3"));
    let error = failure(graph(Act::Panic(3)), options()).await;
    assert_eq!(error.message(), "task panicked: met 3");
    assert_eq!(error.detail(), Some("the same error 3 times in a row"));
    let never = RestartPolicy { attempts: Some(0), delay: 0, delay_max: 0 };
    let error =
        failure(graph(Act::Fail(3, ErrorKind::Unavailable)), JobOptions { restart: never, ..options() })
            .await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn whoever_waits_for_an_epoch_is_told_why_it_never_came() {
    let (source, store) = (FakeSource::new(false, vec![vec![]]), FakeStore::new());
    let act = ActFactory::new(Act::Fail(3, ErrorKind::Data));
    let job = start(pipeline(&source, act, PARALLEL, sink_tail(&FakeSink::plain())), options(), &store);
    job.end_epoch().await.unwrap();
    source.push(0, &[3]);
    assert_eq!(job.end_epoch().await.unwrap_err().message(), "met 3");
}

#[tokio::test]
async fn an_error_that_passes_restarts_the_job_from_its_last_checkpoint() {
    let (source, sink, store) =
        (FakeSource::new(true, vec![numbers(200, 50)]), FakeSink::transactional(), FakeStore::new());
    // A restore builds each operator once more, to compare its tables.
    let factory = ActFactory { heals_after: 4, ..ActFactory::new(Act::Fail(42, ErrorKind::Unavailable)) };
    let options =
        JobOptions { checkpoint_at_every_epoch: true, epoch_rows: Some(3), batch_rows: 2, ..options() };
    let job = start(pipeline(&source, factory, 1, sink_tail(&sink)), options, &store);
    job.wait().await.unwrap();
    let mut expected = numbers(200, 50);
    expected.sort_unstable();
    assert_eq!((sink.visible(), job.metrics().restarts), (expected, 2));
}

#[tokio::test]
async fn a_stopped_job_goes_on_where_it_was() {
    let (source, sink, store) =
        (FakeSource::new(false, vec![vec![1, 2]]), FakeSink::transactional(), FakeStore::new());
    let job = start(pipeline(&source, counting(), 1, sink_tail(&sink)), options(), &store);
    job.end_epoch().await.unwrap();
    job.stop().await.unwrap();
    assert_eq!((job.status(), sink.visible()), (JobStatus::Stopped, vec![1001, 2001]));
    source.push(0, &[2]);
    source.add_split(&[1]);
    let job = start(pipeline(&source, counting(), 4, sink_tail(&sink)), options(), &store.reopen());
    job.end_epoch().await.unwrap();
    job.stop().await.unwrap();
    assert_eq!(sink.visible(), [1001, 1002, 2001, 2002]);
}

#[tokio::test]
async fn a_cancelled_job_is_gone_and_refuses_what_is_asked_of_it() {
    let source = FakeSource::new(false, vec![vec![1]]);
    let job =
        start(pipeline(&source, counting(), 1, sink_tail(&FakeSink::plain())), options(), &FakeStore::new());
    job.end_epoch().await.unwrap();
    job.cancel().await;
    assert_eq!(job.status(), JobStatus::Cancelled);
    assert_eq!(job.wait().await.unwrap_err().kind(), ErrorKind::Cancelled);
    assert!(job.checkpoint().await.is_err() && job.end_epoch().await.is_err() && job.stop().await.is_err());
}

#[tokio::test]
async fn state_without_its_operator_is_refused_unless_its_loss_is_allowed() {
    let (source, store) = (FakeSource::new(false, vec![vec![1]]), FakeStore::new());
    let graph = || pipeline(&source, counting(), 1, sink_tail(&FakeSink::plain()));
    let job = start(graph(), options(), &store);
    job.end_epoch().await.unwrap();
    job.stop().await.unwrap();
    let stateless = || {
        let mut graph = pipeline(&source, ActFactory::new(Act::Pass), 1, sink_tail(&FakeSink::plain()));
        graph.fragments[1].chain[0].uid = uid("other");
        graph
    };
    let job = start(stateless(), options(), &store.reopen());
    let error = job.wait().await.unwrap_err();
    assert_eq!(error.message(), "checkpoint 1 has state of Act act, which the job no longer has");
    assert_eq!(error.detail(), Some("Act act, counts: lost: the job has no such operator"));
    let options = JobOptions { allow_non_restored_state: true, ..options() };
    start(stateless(), options, &store.reopen()).stop().await.unwrap();
}

/// What an operator computes has changed, and with it its uid; its state is found by its likeness,
/// and from the next checkpoint on under the new uid.
#[tokio::test]
async fn state_is_taken_over_by_the_only_operator_that_is_like_it() {
    let (source, store) = (FakeSource::new(false, vec![vec![1, 1]]), FakeStore::new());
    let graph = |sink: &Arc<FakeSink>, name: &str| {
        let mut graph = pipeline(&source, counting(), 1, sink_tail(sink));
        graph.fragments[1].chain[0].uid = uid(name);
        graph
    };
    let job = start(graph(&FakeSink::plain(), "act"), options(), &store);
    job.end_epoch().await.unwrap();
    job.stop().await.unwrap();
    let mut store = store;
    for (name, expected) in [("changed", 1003), ("changed", 1004), ("again", 1005)] {
        source.push(0, &[1]);
        let sink = FakeSink::plain();
        store = store.reopen();
        let job = start(graph(&sink, name), options(), &store);
        job.end_epoch().await.unwrap();
        job.stop().await.unwrap();
        assert_eq!(sink.visible(), [expected], "{name}");
    }
    let newest = millpond_state::StateStore::checkpoints(&*store, millpond_state::Verify::Size)
        .unwrap()
        .remove(0)
        .metadata;
    let items = crate::explain_restore(&graph(&FakeSink::plain(), "act"), &newest).unwrap();
    let fates: Vec<String> =
        items.iter().map(|item| format!("{} {} {}", item.uid, item.state, item.fate)).collect();
    assert_eq!(fates, ["in splits kept", "act counts kept, from again", "sink committables kept"]);
}

/// What a client has received up to the end of an epoch.
async fn next_epoch(client: &mut mpsc::Receiver<Result<Element>>) -> (Vec<i64>, EpochMark) {
    let mut rows = Vec::new();
    loop {
        match client.recv().await.unwrap().unwrap() {
            Element::Batch(batch) => rows.extend(values(&batch)),
            Element::EpochEnd(mark) => return (rows, mark),
        }
    }
}

#[tokio::test]
async fn a_client_gets_rows_and_marks_and_cancels_by_going_away() {
    let source = FakeSource::new(false, vec![vec![3, 5]]);
    let job = start(pipeline(&source, counting(), 1, Tail::Client), options(), &FakeStore::new());
    let mut client = job.client().unwrap();
    assert!(job.client().is_none());
    let (rows, mark) = next_epoch(&mut client).await;
    assert_eq!((rows, mark.watermark), (vec![3001, 5001], Some(Timestamp(5))));
    source.push(0, &[9]);
    let (rows, mark) = next_epoch(&mut client).await;
    assert_eq!((rows, mark.watermark), (vec![9001], Some(Timestamp(9))));
    drop(client);
    source.push(0, &[10]);
    assert_eq!(job.wait().await.unwrap_err().kind(), ErrorKind::Cancelled);
}

#[tokio::test]
async fn a_client_is_told_why_its_query_has_failed() {
    let source = FakeSource::new(true, vec![vec![3]]);
    let act = ActFactory::new(Act::Fail(3, ErrorKind::Data));
    let job = start(pipeline(&source, act, 1, Tail::Client), options(), &FakeStore::new());
    let mut client = job.client().unwrap();
    assert_eq!(client.recv().await.unwrap().unwrap_err().message(), "met 3");
    assert!(client.recv().await.is_none());
}

#[tokio::test]
async fn unread_and_slow_splits_hold_the_watermark_and_the_end_releases_it() {
    let source = FakeSource::new(true, vec![vec![1, 2, 3], vec![], vec![7]]);
    let options = JobOptions { batch_rows: 1, epoch_rows: Some(1), ..options() };
    let graph = pipeline(&source, ActFactory::new(Act::Pass), 1, Tail::Client);
    let job = start(graph, options, &FakeStore::new());
    let mut client = job.client().unwrap();
    let mut watermarks = Vec::new();
    loop {
        let (rows, mark) = next_epoch(&mut client).await;
        assert!(rows.len() <= 1);
        watermarks.push(mark.watermark);
        if mark.end {
            break;
        }
    }
    assert!(watermarks.is_sorted());
    assert_eq!(watermarks.last(), Some(&Some(Timestamp::MAX)));
    assert!(!watermarks.contains(&Some(Timestamp(7))), "the slower split never lets 7 pass");
    job.wait().await.unwrap();
}

#[tokio::test]
async fn an_idle_split_lets_the_watermark_pass_after_its_timeout() {
    let clock = Arc::new(ManualClock::new(Timestamp(1_000)));
    let source = FakeSource::new(false, vec![vec![5], vec![9]]);
    let mut graph = pipeline(&source, ActFactory::new(Act::Pass), 1, Tail::Client);
    if let crate::graph::Head::Source(node) = &mut graph.fragments[0].head {
        node.idle_timeout = 100;
    }
    let environment = Environment { clock: clock.clone(), ..environment(FakeStore::new()) };
    let job = start_job(graph, options(), environment).unwrap();
    let mut client = job.client().unwrap();
    let (rows, mark) = next_epoch(&mut client).await;
    assert_eq!((rows, mark.watermark, mark.time), (vec![5, 9], Some(Timestamp(5)), Timestamp(1_000)));
    clock.advance(60);
    source.push(1, &[20]);
    let (rows, mark) = next_epoch(&mut client).await;
    assert_eq!((rows, mark.watermark), (vec![20], Some(Timestamp(5))));
    clock.advance(60);
    let (rows, mark) = next_epoch(&mut client).await;
    assert_eq!((rows, mark.watermark, mark.idle), (vec![], Some(Timestamp(20)), false));
    job.cancel().await;
}

/// source ─┬─forward─▶ pass ─▶ ┐
///         └─hash──────────────▶ union ─▶ sink: the two ways have different lengths and channels
/// are short; only alignment that never prefers an input gets through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_diamond_does_not_deadlock() {
    let all = numbers(2_000, 17);
    let (source, sink) = (FakeSource::new(true, vec![all.clone(), all.clone()]), FakeSink::transactional());
    let ways = vec![edge(1, 0, Exchange::Forward), edge(2, 1, Exchange::Hash(vec![0]))];
    let pass = act_fragment(ActFactory::new(Act::Pass), 1, PARALLEL, edge(2, 0, Exchange::Hash(vec![0])));
    let mut union = act_fragment(counting(), 2, PARALLEL, sink_tail(&sink));
    union.chain[0].uid = uid("union");
    let graph = JobGraph {
        fragments: vec![source_fragment("in", &source, PARALLEL, ways), pass, union],
        max_parallelism: 64,
    };
    let options =
        JobOptions { batch_rows: 3, epoch_rows: Some(50), checkpoint_at_every_epoch: true, ..options() };
    start(graph, options, &FakeStore::new()).wait().await.unwrap();
    assert_eq!(sink.visible(), counted(&[&all[..], &all, &all, &all].concat()));
}

/// A fast source and one that has nothing: the barrier waits for neither rows nor luck.
#[tokio::test]
async fn a_checkpoint_completes_while_an_input_is_quiet() {
    let (fast, slow) = (FakeSource::new(false, vec![numbers(500, 7)]), FakeSource::new(false, vec![vec![]]));
    let sink = FakeSink::transactional();
    let to_act = |input| vec![edge(2, input, Exchange::Hash(vec![0]))];
    let fragments = vec![
        source_fragment("fast", &fast, 1, to_act(0)),
        source_fragment("slow", &slow, 1, to_act(1)),
        act_fragment(counting(), 2, PARALLEL, sink_tail(&sink)),
    ];
    let job = start(JobGraph { fragments, max_parallelism: 64 }, options(), &FakeStore::new());
    job.end_epoch().await.unwrap();
    job.checkpoint().await.unwrap();
    assert_eq!(sink.visible(), counted(&numbers(500, 7)));
    slow.push(0, &[3]);
    job.end_epoch().await.unwrap();
    job.stop().await.unwrap();
    assert_eq!(sink.visible().len(), 501);
}

#[tokio::test]
async fn plain_sinks_publish_at_the_end_of_each_epoch() {
    let (source, sink) = (FakeSource::new(false, vec![vec![4]]), FakeSink::plain());
    let job = start(pipeline(&source, counting(), 1, sink_tail(&sink)), options(), &FakeStore::new());
    job.end_epoch().await.unwrap();
    assert_eq!(sink.visible(), [4001]);
    source.push(0, &[4]);
    job.end_epoch().await.unwrap();
    assert_eq!(sink.visible(), [4001, 4002]);
    assert!(job.checkpoints().is_empty());
}

#[tokio::test]
async fn broken_graphs_are_refused() {
    let source = FakeSource::new(true, vec![]);
    let mut graph = pipeline(&source, counting(), 2, Tail::Client);
    let refused = |graph: JobGraph| {
        start_job(graph, options(), environment(FakeStore::new())).unwrap_err().message().to_string()
    };
    assert_eq!(refused(graph.clone()), "job graph: fragment 1: a client of several tasks");
    graph.fragments[1].parallelism = 1;
    graph.fragments[0].tail = vec![edge(1, 0, Exchange::Forward)];
    assert_eq!(refused(graph.clone()), "job graph: fragment 0: a forward edge from 2 to 1 tasks");
    graph.fragments[0].tail = vec![edge(1, 1, Exchange::Single)];
    assert_eq!(refused(graph), "job graph: fragment 0: an edge to input 1 of fragment 1");
}

#[test]
fn restarts_pause_longer_each_time_and_a_checkpoint_forgives() {
    let policy = RestartPolicy { attempts: Some(3), delay: 100, delay_max: 300 };
    let mut restarts = Restarts::new(policy);
    let mut pause = |completed: Option<u64>| {
        let pause = restarts.pause(Error::unavailable("away"), completed.map(CheckpointId));
        pause.map(|pause| pause.as_micros()).ok()
    };
    assert_eq!([pause(None), pause(None), pause(None), pause(None)], [Some(100), Some(200), Some(300), None]);
    assert_eq!([pause(Some(1)), pause(Some(1))], [Some(100), Some(200)]);
}

/// A savepoint holds what the job had, is read at another parallelism, and by another job.
#[tokio::test]
async fn a_job_begins_at_a_savepoint_of_another() {
    let away = tempfile::tempdir().unwrap();
    let (source, sink, store) =
        (FakeSource::new(false, vec![vec![1, 2]]), FakeSink::transactional(), FakeStore::new());
    let job = start(pipeline(&source, counting(), PARALLEL, sink_tail(&sink)), options(), &store);
    job.end_epoch().await.unwrap();
    let report = job.savepoint(away.path().join("s")).await.unwrap();
    assert_eq!((report.rows, report.checkpoint), (2, CheckpointId(1)));
    assert_eq!(sink.visible(), [1001, 2001], "a savepoint commits as a checkpoint does");
    assert_eq!(job.checkpoints()[0].trigger, Trigger::Savepoint);
    job.cancel().await;
    source.push(0, &[2, 3]);
    let options = JobOptions { job: "k".into(), restore_from: Some(away.path().join("s")), ..options() };
    for parallelism in [1, 4] {
        let (sink, store) = (FakeSink::transactional(), FakeStore::new());
        let graph = || pipeline(&source, counting(), parallelism, sink_tail(&sink));
        let job = start(graph(), options.clone(), &store);
        job.end_epoch().await.unwrap();
        job.stop().await.unwrap();
        assert_eq!(sink.visible(), [2002, 3001]);
        // From its first checkpoint on the job has a state of its own, and all of it.
        source.push(0, &[1, 2]);
        let job = start(graph(), options.clone(), &store.reopen());
        job.end_epoch().await.unwrap();
        job.cancel().await;
        let job = start(graph(), JobOptions { restore_from: None, ..options.clone() }, &store.reopen());
        job.end_epoch().await.unwrap();
        job.stop().await.unwrap();
        assert_eq!(sink.visible(), [1002, 2002, 2003, 3001]);
        source.truncate(0, 4);
    }
}

#[tokio::test]
async fn a_job_stops_with_a_savepoint_or_says_why_there_is_none() {
    let away = tempfile::tempdir().unwrap();
    let graph = |source| pipeline(source, counting(), 1, sink_tail(&FakeSink::transactional()));
    let source = FakeSource::new(false, vec![vec![1]]);
    let job = start(graph(&source), options(), &FakeStore::new());
    job.end_epoch().await.unwrap();
    job.stop_with_savepoint(away.path().join("s"), false).await.unwrap();
    assert_eq!(job.status(), JobStatus::Stopped);
    // The folder is in use: the job is stopped all the same.
    let job = start(graph(&source), options(), &FakeStore::new());
    let error = job.stop_with_savepoint(away.path().join("s"), false).await.unwrap_err();
    assert!(error.message().contains("is not empty"), "{error}");
    assert_eq!(job.status(), JobStatus::Stopped);
    let error = job.savepoint(away.path().join("t")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "it has ended");
}

#[tokio::test]
async fn a_drained_job_is_finished_with_its_watermark_at_the_end() {
    let source = FakeSource::new(false, vec![vec![5]]);
    let store = FakeStore::new();
    let graph = || pipeline(&source, counting(), 1, sink_tail(&FakeSink::plain()));
    let job = start(graph(), options(), &store);
    job.end_epoch().await.unwrap();
    job.drain().await.unwrap();
    assert_eq!(job.status(), JobStatus::Finished);
    assert!(job.metrics().sources.iter().all(|source| source.watermark == Some(Timestamp::MAX)));
    let again = start(graph(), options(), &store.reopen());
    again.wait().await.unwrap();
    assert!(again.checkpoints().is_empty(), "nothing is left to do");
}

#[tokio::test]
async fn at_least_once_is_refused_for_a_sink_that_waits_for_checkpoints() {
    let source = FakeSource::new(false, vec![vec![4]]);
    let options = JobOptions { mode: crate::CheckpointMode::AtLeastOnce, ..options() };
    let graph = |sink: &Arc<FakeSink>| pipeline(&source, counting(), 1, sink_tail(sink));
    let refused =
        start_job(graph(&FakeSink::transactional()), options.clone(), environment(FakeStore::new()));
    assert!(refused.unwrap_err().message().starts_with("table \"out\" takes part in checkpoints"));
    // A plain sink shows each epoch at once, and again what came after the last checkpoint.
    let (sink, store) = (FakeSink::plain(), FakeStore::new());
    let job = start(graph(&sink), options.clone(), &store);
    job.end_epoch().await.unwrap();
    job.checkpoint().await.unwrap();
    source.push(0, &[4]);
    job.end_epoch().await.unwrap();
    assert_eq!(sink.visible(), [4001, 4002]);
    job.crash().await;
    let job = start(graph(&sink), options, &store.reopen());
    job.end_epoch().await.unwrap();
    job.cancel().await;
    assert_eq!(sink.visible(), [4001, 4002, 4002]);
}

#[tokio::test]
async fn options_of_a_running_job_change_at_once() {
    let clock = Arc::new(ManualClock::new(Timestamp(1_000)));
    let source = FakeSource::new(false, vec![vec![1]]);
    let environment = Environment { clock: clock.clone(), ..environment(FakeStore::new()) };
    let graph = pipeline(&source, counting(), 1, sink_tail(&FakeSink::plain()));
    let job = start_job(graph, options(), environment).unwrap();
    job.end_epoch().await.unwrap();
    job.alter(|options| options.checkpoint_interval = Some(100));
    // The driver has taken the change over when it obeys what was asked after it.
    job.end_epoch().await.unwrap();
    clock.advance(100);
    while job.checkpoints().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(job.checkpoints()[0].trigger, Trigger::Interval);
    job.alter(|options| options.trigger = crate::TriggerPolicy::Manual);
    job.end_epoch().await.unwrap();
    clock.advance(1_000);
    let refused = |event: &CheckpointEvent| matches!(event, CheckpointEvent::Refused(_));
    while !job.checkpoint_events().iter().any(refused) {
        tokio::task::yield_now().await;
    }
    job.checkpoint().await.unwrap();
    let totals = job.metrics().checkpoints;
    assert_eq!((totals.completed, totals.failed.len(), totals.refused), (2, 0, 1));
    job.cancel().await;
}

/// What later checkpoints have prepared is not committed with an earlier one.
#[tokio::test]
async fn checkpoints_that_overlap_commit_each_its_own_rows() {
    let (source, sink, store) =
        (FakeSource::new(false, vec![vec![1]]), FakeSink::transactional(), FakeStore::new());
    let options = JobOptions { max_concurrent: 3, ..options() };
    let job = start(pipeline(&source, counting(), PARALLEL, sink_tail(&sink)), options, &store);
    job.end_epoch().await.unwrap();
    for n in 0..20 {
        source.push(0, &[n, n + 1]);
        let (first, second) = tokio::join!(job.checkpoint(), job.checkpoint());
        assert!(first.is_ok() && second.is_ok());
    }
    job.end_epoch().await.unwrap();
    job.stop().await.unwrap();
    let all: Vec<i64> = std::iter::once(1).chain((0..20).flat_map(|n| [n, n + 1])).collect();
    assert_eq!((sink.visible(), sink.prepared()), (counted(&all), 0));
}
