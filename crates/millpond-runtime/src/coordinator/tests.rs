//! Tests of `coordinator`.

use super::*;

const OPTIONS: CoordinatorOptions = CoordinatorOptions {
    interval: Some(100),
    every_rows: None,
    timeout: 50,
    min_pause: 0,
    tolerable_failures: None,
};

fn task(index: usize) -> TaskId {
    TaskId { fragment: 0, index }
}

/// Runs a script over two tasks: `@t` sets the time and ticks, `rows=n`, `ask` (manual, with
/// request number 7), `end`, `stop`, `ack=n.task`, `nack=n.task`, `commit=n`, `fail=n`.
fn run(options: CoordinatorOptions, script: &str) -> String {
    let mut coordinator = Coordinator::new(options, [task(0), task(1)], CheckpointId(1), Timestamp(0));
    let (mut now, mut rows, mut out) = (Timestamp(0), 0, Vec::new());
    for word in script.split_whitespace() {
        let (name, value) = word.split_once('=').unwrap_or((word, "0"));
        let (id, at) = value.split_once('.').unwrap_or((value, "0"));
        let checkpoint = CheckpointId(id.parse().unwrap());
        let task = task(at.parse().unwrap());
        let request = |trigger| Event::Request { trigger, request: Some(7) };
        let event = match name {
            "rows" => {
                rows = checkpoint.0;
                Event::Tick { rows }
            }
            "ask" => request(Trigger::Manual),
            "end" => Event::Request { trigger: Trigger::EndOfInput, request: None },
            "stop" => Event::Request { trigger: Trigger::Stop, request: None },
            "ack" => Event::Acked { checkpoint, task },
            "nack" => Event::Declined { checkpoint, task, reason: Error::unavailable("no space") },
            "commit" => Event::Committed { checkpoint },
            "fail" => Event::CommitFailed { checkpoint, reason: Error::unavailable("no space") },
            time => {
                now = Timestamp(time.strip_prefix('@').unwrap().parse().unwrap());
                Event::Tick { rows }
            }
        };
        out.extend(coordinator.step(now, event).iter().map(show));
    }
    out.join(" ")
}

fn show(action: &Action) -> String {
    match action {
        Action::Start { checkpoint, trigger } => format!("start({checkpoint},{})", trigger.name()),
        Action::Complete { checkpoint } => format!("complete({checkpoint})"),
        Action::Abort { checkpoint, .. } => format!("abort({checkpoint})"),
        Action::Reply { request, result: Ok(checkpoint) } => format!("reply({request},{checkpoint})"),
        Action::Reply { request, result: Err(_) } => format!("reply({request},error)"),
        Action::Fail(_) => "fail".into(),
    }
}

#[track_caller]
fn check(options: CoordinatorOptions, script: &str, expected: &str) {
    assert_eq!(run(options, script), expected, "{script}");
}

#[test]
fn a_checkpoint_is_complete_when_every_task_has_acknowledged() {
    check(OPTIONS, "@99 @100 ack=1.0 ack=1.0 ack=1.1 commit=1", "start(1,interval) complete(1)");
}

#[test]
fn one_at_a_time_and_the_next_when_it_is_due() {
    let script = "@100 @120 ack=1.0 ack=1.1 commit=1 @199 @200 ack=2.0 ack=2.1 commit=2";
    check(OPTIONS, script, "start(1,interval) complete(1) start(2,interval) complete(2)");
    let slow = CoordinatorOptions { timeout: 1_000, ..OPTIONS };
    check(slow, "@100 @200 ack=1.0 ack=1.1 commit=1", "start(1,interval) complete(1) start(2,interval)");
}

#[test]
fn automatic_ones_pause_and_asked_ones_do_not() {
    let options = CoordinatorOptions { interval: Some(10), min_pause: 40, ..OPTIONS };
    let script = "@10 ack=1.0 ack=1.1 commit=1 @20 @49 @50 ack=2.0 ack=2.1 commit=2";
    check(options.clone(), script, "start(1,interval) complete(1) start(2,interval) complete(2)");
    let script = "@10 ack=1.0 ack=1.1 commit=1 @11 ask";
    check(options, script, "start(1,interval) complete(1) start(2,manual)");
}

#[test]
fn every_rows_counts_from_the_last_start() {
    let options = CoordinatorOptions { interval: None, every_rows: Some(10), ..OPTIONS };
    let script = "rows=9 rows=12 ack=1.0 ack=1.1 commit=1 rows=21 rows=22";
    check(options, script, "start(1,every-rows) complete(1) start(2,every-rows)");
}

#[test]
fn who_asks_is_answered_with_the_checkpoint_that_began_after_asking() {
    let script = "@100 ask ask ack=1.0 ack=1.1 commit=1 ack=2.0 ack=2.1 commit=2";
    check(OPTIONS, script, "start(1,interval) complete(1) start(2,manual) complete(2) reply(7,2) reply(7,2)");
}

#[test]
fn a_declined_checkpoint_is_aborted_and_late_acks_say_nothing() {
    check(OPTIONS, "ask ack=1.0 nack=1.1 ack=1.1", "start(1,manual) abort(1) reply(7,error)");
    check(OPTIONS, "ask ack=1.0 ack=1.1 fail=1", "start(1,manual) complete(1) abort(1) reply(7,error)");
}

#[test]
fn a_checkpoint_that_takes_too_long_is_aborted() {
    check(OPTIONS, "@100 ack=1.0 @149 @150 ack=1.1", "start(1,interval) abort(1)");
}

#[test]
fn failures_in_a_row_are_tolerated_up_to_a_number() {
    let options = CoordinatorOptions { interval: None, tolerable_failures: Some(1), ..OPTIONS };
    let twice = "ask nack=1.0 ask nack=2.0";
    let out = "start(1,manual) abort(1) reply(7,error) start(2,manual) abort(2) reply(7,error)";
    check(options.clone(), twice, &format!("{out} fail"));
    let between = "ask nack=1.0 ask ack=2.0 ack=2.1 commit=2 ask nack=3.0";
    assert!(!run(options, between).contains("fail"));
    assert!(!run(OPTIONS, twice).contains("fail"), "unlimited by default");
}

#[test]
fn the_last_checkpoint_waits_for_the_current_one_and_nothing_follows_it() {
    let script = "@100 end ack=1.0 ack=1.1 commit=1 ask @1000 ack=2.0 ack=2.1";
    let timeless = CoordinatorOptions { timeout: 100_000, ..OPTIONS };
    check(timeless, script, "start(1,interval) complete(1) start(2,end-of-input) reply(7,error) complete(2)");
    check(
        OPTIONS,
        "ask stop ack=1.0 ack=1.1 commit=1",
        "start(1,manual) complete(1) reply(7,1) start(2,stop)",
    );
}

#[test]
fn a_last_checkpoint_that_fails_fails_the_job() {
    check(OPTIONS, "stop nack=1.0", "start(1,stop) abort(1) fail");
}
