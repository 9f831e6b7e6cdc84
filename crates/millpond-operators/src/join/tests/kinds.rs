//! Tests of outer, semi and anti joins.

use std::cell::RefCell;

use super::*;

const ALL: [JoinKind; 6] =
    [JoinKind::Inner, JoinKind::Left, JoinKind::Right, JoinKind::Full, JoinKind::Semi, JoinKind::Anti];

fn factory_of(kind: JoinKind) -> JoinFactory {
    let field = |name| Field::new(name, DataType::Int64, true);
    let fields = if kind.shows_pairs() { vec![field("lv"), field("rv")] } else { vec![field("lv")] };
    JoinFactory {
        kind,
        output: if kind.shows_pairs() { vec![1, 4] } else { vec![1] },
        schema: Arc::new(Schema::new(fields)),
        ..factory()
    }
}

/// Nested loops.
fn answer(
    kind: JoinKind,
    content: &[Vec<Row>; 2],
    accept: impl Fn(&Row, &Row) -> bool,
) -> BTreeMap<(i64, i64), i64> {
    let [left, right] = content;
    let holds = |l: &Row, r: &Row| l.0.is_some() && l.0 == r.0 && accept(l, r);
    let mut rows = Vec::new();
    for l in left {
        let partners: Vec<&Row> = right.iter().filter(|r| holds(l, r)).collect();
        let alone = match kind {
            JoinKind::Semi => !partners.is_empty(),
            _ => kind.keeps_unmatched().0 && partners.is_empty(),
        };
        rows.extend(alone.then_some((l.1, NOTHING)));
        rows.extend(partners.iter().filter(|_| kind.shows_pairs()).map(|r| (l.1, r.1)));
    }
    let unmatched = |r: &&Row| kind.keeps_unmatched().1 && !left.iter().any(|l| holds(l, r));
    rows.extend(right.iter().filter(unmatched).map(|r| (NOTHING, r.1)));
    let mut counts = BTreeMap::new();
    rows.into_iter().for_each(|row| *counts.entry(row).or_default() += 1);
    counts
}

/// A random batch that takes rows back now and then; few distinct rows, so that equal ones meet.
fn changes(random: &mut Random, rows: &mut Vec<Row>) -> (Vec<Row>, Vec<RowKind>) {
    let (mut batch, mut kinds) = (Vec::new(), Vec::new());
    for _ in 0..random.below(7) {
        if random.below(2) == 0 && !rows.is_empty() {
            batch.push(rows.swap_remove(random.below(rows.len() as u64) as usize));
            kinds.push(RowKind::UpdateBefore);
        } else {
            let key = random.below(4) as i64;
            let row = ((key > 0).then_some(key), random.below(3) as i64, 0);
            batch.push(row);
            rows.push(row);
            kinds.push(RowKind::UpdateAfter);
        }
    }
    (batch, kinds)
}

#[test]
fn every_kind_is_right_after_every_epoch_and_over_restarts() {
    for kind in ALL {
        for seed in 0..30 {
            let filter = (seed % 2 == 0).then(less_than);
            let accept = |l: &Row, r: &Row| seed % 2 != 0 || l.1 < r.1;
            let (left_mode, right_mode) = (ChangelogMode::Retract, ChangelogMode::Retract);
            let factory = JoinFactory { left_mode, right_mode, filter, ..factory_of(kind) };
            let mut random = Random::seeded(seed);
            let mut run = Run::new(&factory);
            let mut stored = [Stored::default(), Stored::default()];
            let mut content: [Vec<Row>; 2] = Default::default();
            for epoch in 0..60 {
                for _ in 0..random.below(4) {
                    let input = random.below(2) as usize;
                    let (batch, kinds) = changes(&mut random, &mut content[input]);
                    run.process(input, ChangelogBatch::with_kinds(rows(&batch), kinds));
                }
                run.close_epoch(None);
                assert_eq!(run.pairs, answer(kind, &content, accept), "{kind:?}, seed {seed}, epoch {epoch}");
                if random.below(4) == 0 {
                    run.restart(&factory, &mut stored);
                }
            }
        }
    }
}

/// Few live rows in many chunks: rows move, and their partners with them.
#[test]
fn counts_follow_rows_out_of_sparse_chunks() {
    let (left_mode, right_mode) = (ChangelogMode::Retract, ChangelogMode::Retract);
    let factory = JoinFactory { left_mode, right_mode, ..factory_of(JoinKind::Left) };
    let mut run = Run::new(&factory);
    let mut content: [Vec<Row>; 2] = Default::default();
    for round in 0..4 {
        let many: Vec<Row> = (0..9_000).map(|v| (Some(v % 3_000), v, 0)).collect();
        run.process(0, ChangelogBatch::with_kinds(rows(&many), vec![RowKind::Insert; many.len()]));
        let partner = (Some(round), -1, 0);
        run.process(1, ChangelogBatch::with_kinds(rows(&[partner]), vec![RowKind::Insert]));
        content[1].push(partner);
        run.close_epoch(None);
        let (kept, gone) = many.split_at(500);
        run.process(0, ChangelogBatch::with_kinds(rows(gone), vec![RowKind::Delete; gone.len()]));
        content[0].extend(kept);
        run.close_epoch(None);
        assert_eq!(run.pairs, answer(JoinKind::Left, &content, |_, _| true), "round {round}");
    }
    let partners = std::mem::take(&mut content[1]);
    run.process(1, ChangelogBatch::with_kinds(rows(&partners), vec![RowKind::Delete; 4]));
    run.close_epoch(None);
    assert_eq!(run.pairs, answer(JoinKind::Left, &content, |_, _| true));
    assert_eq!(run.batch_max, BATCH_ROWS_MAX);
}

/// Within an epoch, a row is never both alone and in a pair.
#[test]
fn a_row_leaves_its_loneliness_before_its_first_pair() {
    let (left_mode, right_mode) = (ChangelogMode::Retract, ChangelogMode::Retract);
    let mut run = Run::new(&JoinFactory { left_mode, right_mode, ..factory_of(JoinKind::Left) });
    let change = |row: Row, kind| ChangelogBatch::with_kinds(rows(&[row]), vec![kind]);
    run.process(0, change((Some(1), 10, 0), RowKind::Insert));
    run.close_epoch(None);
    assert_eq!(run.pairs, [((10, NOTHING), 1)].into());
    run.process(1, change((Some(1), 20, 0), RowKind::Insert));
    assert_eq!(run.pairs, [((10, 20), 1)].into(), "before the end of the epoch");
    run.process(1, change((Some(1), 20, 0), RowKind::Delete));
    assert_eq!(run.pairs, BTreeMap::new(), "the lone row waits: it could find another partner");
    run.process(1, change((Some(1), 21, 0), RowKind::Insert));
    run.close_epoch(None);
    assert_eq!(run.pairs, [((10, 21), 1)].into());
}

#[test]
fn interval_joins_append_their_lone_rows_once_they_are_final() {
    for kind in ALL {
        let JoinFactory { filter, retention, .. } = interval_factory();
        let factory = JoinFactory { filter, retention, ..factory_of(kind) };
        for seed in 0..3 {
            let mut random = Random::seeded(seed);
            let mut run = Run::new(&factory);
            let mut stored = [Stored::default(), Stored::default()];
            let mut accepted: [Vec<Row>; 2] = Default::default();
            let slack = [20, 50];
            for epoch in 0..200i64 {
                let watermark = epoch * 40 - 100;
                for input in 0..2 {
                    let row = |_| {
                        let key = random.below(40) as i64;
                        let time = epoch * 40 + random.below(300) as i64 - 200;
                        ((key > 0).then_some(key), epoch, time)
                    };
                    let batch: Vec<Row> = (0..8).map(row).collect();
                    accepted[input].extend(batch.iter().filter(|r| r.2 + slack[input] > watermark));
                    let mut changes = ChangelogBatch::append(rows(&batch));
                    let tag = |row: &Row| match row.2 <= watermark {
                        true => Timestamp::from_millis(watermark),
                        false => Timestamp::MIN,
                    };
                    changes.late = Some(batch.iter().map(tag).collect::<Vec<_>>().into());
                    run.process(input, changes);
                }
                run.end_epoch(watermark + 40);
                if random.below(10) == 0 {
                    run.restart(&factory, &mut stored);
                }
            }
            run.close_epoch(Some(Timestamp::MAX));
            assert_eq!(run.pairs, answer(kind, &accepted, interval), "{kind:?}, seed {seed}");
            assert!(!run.retracted, "{kind:?}");
            assert_eq!((run.join.left.table.rows(), run.join.right.table.rows()), (0, 0));
        }
    }
}

/// Against rows whose keys are forgotten as a whole: what the output has of them it keeps, what takes
/// them back is ignored and counted, and what comes later finds nothing of them.
#[test]
fn keys_live_for_a_time() {
    const TTL: i64 = 160;
    let until = |touched: i64| (touched.div_euclid(10) + 1) * 10 + TTL;
    let (mut forgotten, mut strays) = (0, 0);
    for (kind, seed) in ALL.into_iter().skip(1).flat_map(|kind| (0..20).map(move |seed| (kind, seed))) {
        let filter = (seed % 2 == 0).then(less_than);
        let accept = |l: &Row, r: &Row| seed % 2 != 0 || l.1 < r.1;
        let (left_mode, right_mode) = (ChangelogMode::Retract, ChangelogMode::Retract);
        let factory = JoinFactory { left_mode, right_mode, filter, ttl: [Some(TTL); 2], ..factory_of(kind) };
        let mut random = Random::seeded(seed);
        let mut run = Run::new(&factory);
        let mut stored = [Stored::default(), Stored::default()];
        // Rows with the time at which they came; when each key was touched; what is left of others.
        let mut content: [Vec<(Row, i64)>; 2] = Default::default();
        let mut ever: [Vec<Row>; 2] = Default::default();
        let mut touched: BTreeMap<i64, i64> = BTreeMap::new();
        let left: RefCell<BTreeMap<(i64, i64), i64>> = RefCell::default();
        let mut now = 0;
        let live = |content: &[Vec<(Row, i64)>; 2]| -> [Vec<Row>; 2] {
            content.each_ref().map(|rows| rows.iter().map(|(row, _)| *row).collect())
        };
        // Rows of keys whose time is over; what the output has of them stays.
        let forget = |content: &mut [Vec<(Row, i64)>; 2], touched: &mut BTreeMap<i64, i64>, now: i64| {
            let mut count = 0;
            let over: Vec<i64> =
                touched.iter().filter(|(_, at)| until(**at) <= now).map(|(key, _)| *key).collect();
            for key in over {
                touched.remove(&key);
                let of_key = live(content)
                    .map(|rows| -> Vec<Row> { rows.into_iter().filter(|row| row.0 == Some(key)).collect() });
                count += of_key.iter().map(Vec::len).sum::<usize>();
                for (line, count) in answer(kind, &of_key, accept) {
                    *left.borrow_mut().entry(line).or_default() += count;
                }
                content.iter_mut().for_each(|rows| rows.retain(|(row, _)| row.0 != Some(key)));
            }
            count
        };
        for epoch in 0..80 {
            run.ctx.time = Timestamp(now);
            for _ in 0..random.below(4) {
                let input = random.below(2) as usize;
                let (mut batch, mut kinds) = (Vec::new(), Vec::new());
                for _ in 0..random.below(5) {
                    let takes_back = random.below(3) == 0 && !ever[input].is_empty();
                    let row = match takes_back {
                        true => ever[input][random.below(ever[input].len() as u64) as usize],
                        false => {
                            let key = random.below(4) as i64;
                            ((key > 0).then_some(key), random.below(3) as i64, 0)
                        }
                    };
                    // The oldest of equal rows goes.
                    let place = content[input].iter().position(|(other, _)| *other == row);
                    match (takes_back, place) {
                        (true, Some(place)) => {
                            content[input].remove(place);
                        }
                        (true, None) if row.0.is_none() => continue,
                        (true, None) => strays += 1,
                        (false, _) => {
                            content[input].push((row, now));
                            ever[input].push(row);
                        }
                    }
                    if let (Some(key), true) = (row.0, !takes_back || place.is_some()) {
                        touched.insert(key, now);
                    }
                    batch.push(row);
                    kinds.push(if takes_back { RowKind::Delete } else { RowKind::Insert });
                }
                run.process(input, ChangelogBatch::with_kinds(rows(&batch), kinds));
            }
            now += random.below(60) as i64;
            run.ctx.time = Timestamp(now);
            let mut progress = run.join.end_epoch(&mut run.ctx, None, Timestamp(now)).unwrap().progress;
            run.fold();
            while progress == Progress::More {
                progress = run.join.resume(&mut run.ctx).unwrap();
                run.fold();
            }
            forgotten += forget(&mut content, &mut touched, now);
            let mut expected = answer(kind, &live(&content), accept);
            for (line, count) in left.borrow().iter() {
                *expected.entry(*line).or_default() += count;
            }
            assert_eq!(run.pairs, expected, "{kind:?}, seed {seed}, epoch {epoch}");
            let kept = content.iter().flatten().filter(|(row, _)| row.0.is_some()).count();
            let known: usize = run.join.tables().iter().map(|table| table.rows()).sum();
            assert_eq!(known, kept, "{kind:?}, seed {seed}, epoch {epoch}");
            if random.below(6) == 0 {
                run.restart(&factory, &mut stored);
                // Of a key only its rows are known.
                touched.clear();
                for (row, at) in content.iter().flatten() {
                    if let Some(key) = row.0 {
                        let latest = touched.entry(key).or_insert(*at);
                        *latest = (*latest).max(*at);
                    }
                }
                forgotten += forget(&mut content, &mut touched, now);
            }
        }
        assert!(run.ctx.metrics.rejected.value() > 0, "{kind:?}, seed {seed}");
    }
    assert!(forgotten > 1000 && strays > 500, "{forgotten} {strays}");
}
