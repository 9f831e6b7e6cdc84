//! Tests of `coordinator`.

use super::*;

const OPTIONS: CoordinatorOptions = CoordinatorOptions {
    interval: Some(100),
    every_rows: None,
    policy: TriggerPolicy::Always,
    timeout: 50,
    min_pause: 0,
    concurrent_max: 1,
    tolerable_failures: None,
};

fn task(index: usize) -> TaskId {
    TaskId { fragment: 0, index }
}

/// Runs a script over two tasks: `@t` sets the time and ticks, `rows=n`, `ask`, `signal`,
/// `savepoint` (each with request number 7), `end`, `stop`, `ack=n.task`, `nack=n.task`, `commit=n`, `fail=n`.
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
            "savepoint" => request(Trigger::Savepoint),
            "signal" => request(Trigger::External),
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
        Action::Start { checkpoint, trigger, .. } => format!("start({checkpoint},{})", trigger.name()),
        Action::Complete { checkpoint } => format!("complete({checkpoint})"),
        Action::Refuse { trigger, refusal } => format!("refuse({},{})", trigger.name(), word(*refusal)),
        Action::Abort { checkpoint, .. } => format!("abort({checkpoint})"),
        Action::Reply { request, result: Ok(checkpoint) } => format!("reply({request},{checkpoint})"),
        Action::Reply { request, result: Err(_) } => format!("reply({request},error)"),
        Action::Fail(_) => "fail".into(),
    }
}

fn word(refusal: Refusal) -> String {
    match refusal {
        Refusal::Ending => "ending".into(),
        Refusal::Manual => "manual".into(),
        Refusal::NotYet(at) => format!("before-{}", at.0),
        Refusal::Over(at) => format!("over-{}", at.0),
        Refusal::AlreadyWaits => "waits".into(),
        Refusal::Stretched { took, interval } => format!("{took}-every-{interval}"),
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
    let out = "start(1,interval) complete(1) refuse(interval,waits) start(2,interval) complete(2)";
    check(options.clone(), script, out);
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

#[test]
fn several_may_be_under_way_and_complete_in_order() {
    let two = CoordinatorOptions { concurrent_max: 2, timeout: 1_000, ..OPTIONS };
    let script = "@100 ask ask ack=2.0 ack=2.1 ack=1.0 ack=1.1 commit=1 commit=2";
    // The third waits for room, which the first one's end makes.
    let out = "start(1,interval) start(2,manual) complete(1) complete(2) start(3,manual) reply(7,2)";
    check(two.clone(), script, out);
    let aborted = "ask ask ack=2.0 ack=2.1 nack=1.0 commit=2";
    let out = "start(1,manual) start(2,manual) abort(1) reply(7,error) complete(2) reply(7,2)";
    check(two, aborted, out);
}

#[test]
fn the_trigger_setting_refuses_automatic_ones_with_its_reason() {
    let manual = CoordinatorOptions { policy: TriggerPolicy::Manual, ..OPTIONS };
    check(manual, "@100 ask", "refuse(interval,manual) start(1,manual)");
    let from = TriggerPolicy::Between { from: Some(Timestamp(150)), until: Some(Timestamp(250)) };
    let window = CoordinatorOptions { policy: from, ..OPTIONS };
    let script = "@100 @200 ack=1.0 ack=1.1 commit=1 @300 signal";
    let out = "refuse(interval,before-150) start(1,interval) complete(1) refuse(interval,over-250) start(2,external)";
    check(window, script, out);
    let after = CoordinatorOptions {
        interval: None,
        every_rows: Some(5),
        policy: TriggerPolicy::After(50),
        ..OPTIONS
    };
    let script = "rows=5 rows=6 @60 rows=9 rows=10";
    check(after, script, "refuse(every-rows,before-50) start(1,every-rows)");
}

#[test]
fn what_falls_due_while_one_waits_is_refused_and_counted() {
    let slow = CoordinatorOptions { timeout: 10_000, ..OPTIONS };
    let script = "@100 @200 @300 ack=1.0 ack=1.1 commit=1";
    let out = "start(1,interval) refuse(interval,waits) complete(1) refuse(interval,200-every-400)";
    check(slow, script, out);
}

#[test]
fn an_interval_that_is_too_short_is_stretched_until_it_fits_again() {
    let slow = CoordinatorOptions { timeout: 10_000, ..OPTIONS };
    let stretched = "@100 @200 @250 ack=1.0 ack=1.1 commit=1";
    let out = "start(1,interval) complete(1) refuse(interval,150-every-300)";
    check(slow.clone(), stretched, out);
    // It began at 100: the next one comes at 400, and when that is quick the set interval is back.
    let back =
        format!("{stretched} @399 @400 ack=2.0 ack=2.1 commit=2 @700 ack=3.0 ack=3.1 commit=3 @799 @800");
    let out = format!("{out} start(2,interval) complete(2) start(3,interval) complete(3) start(4,interval)");
    check(slow, &back, &out);
}

#[test]
fn a_savepoint_goes_before_a_checkpoint_and_serves_who_asked_for_one() {
    let script = "@100 ask savepoint ack=1.0 ack=1.1 commit=1 ack=2.0 ack=2.1 commit=2";
    let out = "start(1,interval) complete(1) start(2,savepoint) complete(2) reply(7,2) reply(7,2)";
    check(OPTIONS, script, out);
}

#[test]
fn altered_options_hold_from_now_on() {
    let mut coordinator = Coordinator::new(OPTIONS, [task(0)], CheckpointId(1), Timestamp(0));
    let often = CoordinatorOptions { interval: Some(10), ..OPTIONS };
    coordinator.alter(Timestamp(50), often);
    assert_eq!(coordinator.next_tick(), Some(Timestamp(60)));
    let off = CoordinatorOptions { interval: None, ..OPTIONS };
    coordinator.alter(Timestamp(55), off);
    assert_eq!(coordinator.next_tick(), None);
    assert_eq!(coordinator.step(Timestamp(100), Event::Tick { rows: 0 }), []);
}
