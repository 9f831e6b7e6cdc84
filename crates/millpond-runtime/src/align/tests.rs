//! Tests of `align`.

use millpond_core::{BarrierKind, CheckpointId, Timestamp};

use super::*;
use crate::testing::rows;

/// Runs a script: each word is `channel:element`, an element a letter (one row), `|e` (mark e),
/// `|e@w` (with watermark w), `|e~` (idle), `|e!` (with a barrier), `|e.` (the end).
fn run(alignment: &mut Alignment, script: &str) -> String {
    let mut out = Vec::new();
    for word in script.split_whitespace() {
        let (channel, element) = word.split_once(':').unwrap();
        match alignment.accept(channel.parse().unwrap(), parse(element)) {
            Ok(Some(aligned)) => out.push(show(&aligned)),
            Ok(None) => {}
            Err(error) => out.push(format!("error({})", error.message())),
        }
    }
    out.join(" ")
}

fn parse(text: &str) -> Element {
    let Some(mark) = text.strip_prefix('|') else {
        return Element::Batch(rows(&[text.bytes().next().unwrap() as i64]));
    };
    let (epoch, rest) = mark.split_at(mark.find(|c: char| !c.is_ascii_digit()).unwrap_or(mark.len()));
    let (watermark, flags) = match rest.strip_prefix('@') {
        Some(rest) => {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            (Some(Timestamp(rest[..end].parse().unwrap())), &rest[end..])
        }
        None => (None, rest),
    };
    let barrier = Barrier { checkpoint: CheckpointId(1), kind: BarrierKind::Checkpoint };
    Element::EpochEnd(EpochMark {
        epoch: Epoch(epoch.parse().unwrap()),
        time: Timestamp(0),
        watermark,
        idle: flags.contains('~'),
        barrier: flags.contains('!').then_some(barrier),
        end: flags.contains('.'),
    })
}

fn show(aligned: &Aligned) -> String {
    match aligned {
        Aligned::Batch(_, batch) => (crate::testing::values(batch)[0] as u8 as char).to_string(),
        Aligned::Mark(mark) => {
            let watermark = mark.watermark.map(|w| format!("@{}", w.0)).unwrap_or_default();
            let idle = if mark.idle { "~" } else { "" };
            let barrier = if mark.barrier.is_some() { "!" } else { "" };
            let end = if mark.end { "." } else { "" };
            format!("|{}{watermark}{idle}{barrier}{end}", mark.epoch)
        }
    }
}

#[track_caller]
fn check(channels: usize, script: &str, expected: &str) {
    assert_eq!(run(&mut Alignment::new(0..channels, None), script), expected, "{script}");
}

#[test]
fn a_mark_comes_out_when_every_channel_has_delivered_it() {
    check(1, "0:a 0:|1 0:b 0:|2", "a |1 b |2");
    check(2, "0:a 0:|1 1:x 1:|1 0:c 1:y", "a x |1 c y");
    check(3, "0:|1 2:|1 1:z 1:|1", "z |1");
}

#[test]
fn a_channel_is_held_until_the_others_have_delivered() {
    let mut alignment = Alignment::new(0..2, None);
    run(&mut alignment, "0:a 0:|1");
    assert!(alignment.is_held(0) && !alignment.is_held(1));
    run(&mut alignment, "1:|1");
    assert!(!alignment.is_held(0) && !alignment.is_held(1));
}

#[test]
fn the_watermark_is_the_slowest_and_never_goes_back() {
    check(2, "0:|1@5 1:|1@3 0:|2@9 1:|2@7", "|1@3 |2@7");
    check(2, "0:|1@5 1:|1", "|1");
    check(2, "0:|1@5 1:|1@3~ 0:|2@6 1:|2@4", "|1@5 |2@5");
}

#[test]
fn when_all_are_idle_the_fastest_counts() {
    check(2, "0:|1@5 1:|1@4 0:|2@5~ 1:|2@7~ 0:|3@8 1:|3@7~", "|1@4 |2@7~ |3@8");
}

#[test]
fn a_restored_watermark_is_not_undercut() {
    let mut alignment = Alignment::new(0..2, Some(Timestamp(8)));
    assert_eq!(run(&mut alignment, "0:|1@5 1:|1 0:|2@9 1:|2@10"), "|1@8 |2@9");
}

#[test]
fn an_ended_channel_counts_as_having_delivered_every_later_mark() {
    check(2, "0:|1@9. 1:|1@3 1:x 1:|2@4 1:|3@10.", "|1@3 x |2@4 |3@9.");
}

#[test]
fn barriers_travel_on_the_mark() {
    check(2, "0:a 0:|1! 1:b 1:|1!", "a b |1!");
}

#[test]
fn broken_invariants_are_named() {
    check(1, "0:|2", "error(invariant 2: mark 2 where 1 is expected)");
    check(1, "0:|1@5 0:|2@4", "|1@5 error(invariant 3: the watermark of a channel went back)");
    check(2, "0:|1 0:a", "error(invariant 2: channel 0 was read across a mark)");
    check(2, "0:|1! 1:|1", "error(invariant 2: marks of epoch 1 disagree about time or barrier)");
}
