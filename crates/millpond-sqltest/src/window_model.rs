//! The window model: what windows over event time must give, row by row and plainly right.
//!
//! A row is known by its split, its time, its key and its value. A split's watermark before a row is
//! the largest time of its earlier rows, less the delay. A row counts in every window that it lies
//! in, except those that are final at that watermark: whose last millisecond is not after it.
//! Everything is computed from the definition; nothing is incremental.

use std::collections::BTreeMap;

/// The windows of a query; lengths in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Windows {
    Tumble { size: i64, offset: i64 },
    Hop { slide: i64, size: i64 },
    Cumulate { step: i64, size: i64 },
    Session { gap: i64 },
}

/// A row of the input; without a time it is unreadable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) time: Option<i64>,
    pub(crate) key: Option<u8>,
    pub(crate) value: Option<i64>,
}

/// The rows of a table by split, in the order of each, and how far the watermark is behind them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stream {
    pub(crate) splits: Vec<Vec<Row>>,
    pub(crate) delay: i64,
}

/// A window's aggregates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    values: Vec<Option<i64>>,
}

/// The answer: one line per key and window, and the rows that counted nowhere because they came
/// late.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) windows: BTreeMap<(Option<u8>, i64, i64), Totals>,
    pub(crate) late: u64,
}

impl Windows {
    /// Starts and ends of the windows that a time lies in: from all windows nearby those that
    /// hold it.
    fn of(self, time: i64) -> Vec<(i64, i64)> {
        let nearby = |distance: i64, size: i64| {
            let nearest = time.div_euclid(distance);
            let reach = size / distance + 2;
            (nearest - reach..=nearest + reach).map(move |n| n * distance)
        };
        let windows: Vec<(i64, i64)> = match self {
            Windows::Tumble { size, offset } => {
                nearby(size, size).map(|start| (start + offset, start + offset + size)).collect()
            }
            Windows::Hop { slide, size } => nearby(slide, size).map(|start| (start, start + size)).collect(),
            Windows::Cumulate { step, size } => nearby(size, size)
                .flat_map(|start| (1..=size / step).map(move |n| (start, start + n * step)))
                .collect(),
            Windows::Session { gap } => vec![(time, time + gap)],
        };
        windows.into_iter().filter(|(start, end)| *start <= time && time < *end).collect()
    }
}

/// What the query must give.
pub(crate) fn answer(windows: Windows, stream: &Stream) -> Answer {
    match windows {
        Windows::Session { gap } => sessions(gap, stream),
        _ => assigned(windows, stream),
    }
}

fn assigned(windows: Windows, stream: &Stream) -> Answer {
    let mut answer = Answer::default();
    for split in &stream.splits {
        let mut watermark = i64::MIN;
        for row in split {
            let Some(time) = row.time else { continue };
            let all = windows.of(time);
            let open: Vec<&(i64, i64)> = all.iter().filter(|(_, end)| end - 1 > watermark).collect();
            answer.late += u64::from(open.is_empty() && !all.is_empty());
            for (start, end) in open {
                answer.windows.entry((row.key, *start, *end)).or_default().values.push(row.value);
            }
            watermark = watermark.max(time - stream.delay);
        }
    }
    answer
}

/// A session: its bounds and the values in it.
#[derive(Debug, Clone)]
struct Session {
    start: i64,
    end: i64,
    values: Vec<Option<i64>>,
}

/// Sessions of a key grow together when they touch. One that is final grows no more; a row whose
/// session would be final already is late. With late rows the order of the splits would matter, so
/// those are for one split only.
fn sessions(gap: i64, stream: &Stream) -> Answer {
    let mut answer = Answer::default();
    let mut open: BTreeMap<Option<u8>, Vec<Session>> = BTreeMap::new();
    for split in &stream.splits {
        let mut watermark = i64::MIN;
        for row in split {
            let Some(time) = row.time else { continue };
            let sessions = open.entry(row.key).or_default();
            if stream.splits.len() == 1 {
                let is_final = |session: &Session| session.end - 1 <= watermark;
                close(&mut answer, row.key, sessions.iter().filter(|session| is_final(session)));
                sessions.retain(|session| !is_final(session));
            }
            let mut own = Session { start: time, end: time + gap, values: vec![row.value] };
            let (touching, others): (Vec<Session>, Vec<Session>) =
                sessions.iter().cloned().partition(|other| other.start <= own.end && own.start <= other.end);
            for other in touching.iter() {
                own.start = own.start.min(other.start);
                own.end = own.end.max(other.end);
                own.values.extend(&other.values);
            }
            if own.end - 1 <= watermark {
                answer.late += 1;
            } else {
                *sessions = others;
                sessions.push(own);
            }
            watermark = watermark.max(time - stream.delay);
        }
    }
    for (key, sessions) in &open {
        close(&mut answer, *key, sessions.iter());
    }
    answer
}

fn close<'a>(answer: &mut Answer, key: Option<u8>, sessions: impl Iterator<Item = &'a Session>) {
    for session in sessions {
        let window = answer.windows.entry((key, session.start, session.end)).or_default();
        window.values.extend(&session.values);
    }
}

impl Totals {
    /// `COUNT(*)`, `COUNT(v)`, `SUM(v)`, `MIN(v)`, `MAX(v)`, `COUNT(DISTINCT v)` as text.
    pub(crate) fn texts(&self) -> [String; 6] {
        let known: Vec<i64> = self.values.iter().flatten().copied().collect();
        let text = |value: Option<i64>| value.map_or_else(|| "NULL".to_string(), |value| value.to_string());
        let mut distinct = known.clone();
        distinct.sort_unstable();
        distinct.dedup();
        [
            self.values.len().to_string(),
            known.len().to_string(),
            text((!known.is_empty()).then(|| known.iter().sum())),
            text(known.iter().min().copied()),
            text(known.iter().max().copied()),
            distinct.len().to_string(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(delay: i64, times: &[i64]) -> Stream {
        let row = |time: &i64| Row { time: Some(*time), key: None, value: Some(1) };
        Stream { splits: vec![times.iter().map(row).collect()], delay }
    }

    fn windows(answer: &Answer) -> Vec<(i64, i64, usize)> {
        answer.windows.iter().map(|((_, start, end), totals)| (*start, *end, totals.values.len())).collect()
    }

    #[test]
    fn a_row_is_late_for_windows_that_the_watermark_has_passed() {
        let tumble = answer(Windows::Tumble { size: 10, offset: 0 }, &stream(0, &[1, 9, 3]));
        assert_eq!((windows(&tumble), tumble.late), (vec![(0, 10, 2)], 1), "9 is the last instant");
        let hop = answer(Windows::Hop { slide: 5, size: 10 }, &stream(0, &[1, 9, 7]));
        assert_eq!((windows(&hop), hop.late), (vec![(-5, 5, 1), (0, 10, 2), (5, 15, 2)], 0));
        let cumulate = answer(Windows::Cumulate { step: 5, size: 10 }, &stream(0, &[1, 4, 3]));
        assert_eq!((windows(&cumulate), cumulate.late), (vec![(0, 5, 2), (0, 10, 3)], 0));
    }

    #[test]
    fn sessions_that_touch_are_one_and_final_ones_do_not_grow() {
        let touching = answer(Windows::Session { gap: 10 }, &stream(100, &[0, 20, 10]));
        assert_eq!(windows(&touching), [(0, 30, 3)]);
        let closed = answer(Windows::Session { gap: 10 }, &stream(0, &[0, 12, 1, 5]));
        assert_eq!((windows(&closed), closed.late), (vec![(0, 10, 1), (5, 22, 2)], 1));
    }
}
