//! Windows: which windows a time lies in, their panes, and when they are final.
//!
//! A window of HOP is `[end − size, end)`; starts are `offset + k · slide`, by floor division, so
//! that times before 1970 fall where they should. TUMBLE is a HOP whose slide is its size. The
//! windows of CUMULATE share their start and end one step after another, up to the maximal size.
//! All arithmetic is in microseconds of *local* time: for a TIMESTAMP_LTZ column with a time zone,
//! a day then has 23 or 25 hours twice a year; [`WindowSpec::instant`] finds the moment at which a
//! local end is reached.
//!
//! ```text
//! panes (gcd of size and slide)   | p1 | p2 | p3 | p4 |      CUMULATE, size of 3 steps
//! HOP of 3 panes, slide 1         |<--- w1 ---->|            |<w1>|    |
//!                                      |<--- w2 ---->|       |<- w2 ->||
//!                                                            |<-- w3 -->|
//! ```

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, PrimitiveArray, TimestampMillisecondArray};
use arrow::datatypes::{
    DataType, Field, FieldRef, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType,
};
use chrono::{DateTime, MappedLocalTime, Offset, TimeZone, Utc};
use chrono_tz::{GapInfo, Tz};
use millpond_core::{Error, Result, TimePrecision, Timestamp};

/// The windows of a TUMBLE, HOP or CUMULATE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowSpec {
    /// Size and slide.
    pub kind: WindowKind,
    /// Start of one of the windows, in microseconds since 1970; may be negative.
    pub offset: i64,
    /// For a TIMESTAMP_LTZ column: the zone in whose local time windows are cut.
    pub time_zone: Option<Tz>,
}

/// Size and slide of windows, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowKind {
    /// Every time lies in exactly one window.
    Tumble {
        /// Length of a window.
        size: i64,
    },
    /// A window starts every `slide`; with a slide above the size some times lie in none.
    Hop {
        /// Length of a window.
        size: i64,
        /// Distance of window starts.
        slide: i64,
    },
    /// A window starts every `size` and ends after each `step` of it.
    Cumulate {
        /// Length of the longest window: a multiple of the step.
        size: i64,
        /// Distance of window ends.
        step: i64,
    },
}

/// Times further from 1970 than this cannot be put into windows: 146,000 years.
pub const WINDOW_TIME_MAX: i64 = 1 << 62;

impl WindowSpec {
    /// Checks size, slide and offset.
    ///
    /// Errors: *Invalid* for one that is not positive, or longer than 142 years.
    pub fn check(&self) -> Result<()> {
        let limit = WINDOW_TIME_MAX >> 10;
        let slide = if matches!(self.kind, WindowKind::Cumulate { .. }) { "step" } else { "slide" };
        for (what, micros) in [("size", self.size()), (slide, self.slide())] {
            if micros <= 0 || micros > limit {
                return Err(Error::invalid(format!("the {what} of a window is {micros} microseconds"))
                    .with_hint("it must be positive and at most 142 years"));
            }
        }
        if self.offset.unsigned_abs() > limit as u64 {
            return Err(Error::invalid(format!("the offset of a window is {} microseconds", self.offset)));
        }
        if let WindowKind::Cumulate { size, step } = self.kind
            && size % step != 0
        {
            let duration = millpond_core::quantity::format_duration;
            let (size, step) = (duration(size), duration(step));
            return Err(Error::invalid(format!(
                "the maximal size of CUMULATE, {size}, is not a multiple of its step, {step}"
            ))
            .with_hint("the last step of a window ends where the next window starts"));
        }
        Ok(())
    }

    /// Length of the longest window.
    pub fn size(&self) -> i64 {
        match self.kind {
            WindowKind::Tumble { size }
            | WindowKind::Hop { size, .. }
            | WindowKind::Cumulate { size, .. } => size,
        }
    }

    /// Distance of window ends.
    pub fn slide(&self) -> i64 {
        match self.kind {
            WindowKind::Tumble { size } => size,
            WindowKind::Hop { slide, .. } => slide,
            WindowKind::Cumulate { step, .. } => step,
        }
    }

    /// Start of the window that ends there.
    pub fn start(&self, end: i64) -> i64 {
        match self.kind {
            WindowKind::Tumble { size } | WindowKind::Hop { size, .. } => end - size,
            WindowKind::Cumulate { size, .. } => {
                (end - 1 - self.offset).div_euclid(size) * size + self.offset
            }
        }
    }

    /// Length of a pane: the largest that divides every window into whole panes.
    pub fn pane(&self) -> i64 {
        let (mut a, mut b) = (self.size(), self.slide());
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    }

    /// End of the pane in which a local time lies.
    pub fn pane_end(&self, local: i64) -> i64 {
        let pane = self.pane();
        (local - self.offset).div_euclid(pane) * pane + self.offset + pane
    }

    /// Ends of the first and the last window in which a local time lies; `None` if it lies between
    /// windows.
    pub fn ends(&self, local: i64) -> Option<(i64, i64)> {
        let (size, slide) = (self.size(), self.slide());
        if let WindowKind::Cumulate { .. } = self.kind {
            let first = self.pane_end(local);
            return Some((first, self.start(first) + size));
        }
        let last = (local - self.offset).div_euclid(slide) * slide + self.offset + size;
        let first = (local - self.offset - size).div_euclid(slide) * slide + slide + self.offset + size;
        (first <= last).then_some((first, last))
    }

    /// Ends of all windows in which a local time lies, ascending.
    pub fn assign(&self, local: i64) -> impl Iterator<Item = i64> + use<> {
        let (first, last) = self.ends(local).unwrap_or((0, -1));
        (first..=last).step_by(self.slide() as usize)
    }

    /// The local time of an instant.
    pub fn local(&self, instant: i64) -> i64 {
        local_time(self.time_zone, instant)
    }

    /// The moment at which every instant with an earlier local time has passed.
    pub fn instant(&self, local_end: i64) -> Timestamp {
        let Some(zone) = self.time_zone else { return Timestamp(local_end) };
        // One microsecond before the end is the last local time of the window; when the clock
        // shows it twice, the second time counts.
        let Some(last) = DateTime::<Utc>::from_timestamp_micros(local_end - 1) else {
            return Timestamp(local_end);
        };
        let last = last.naive_utc();
        match zone.from_local_datetime(&last) {
            MappedLocalTime::Single(time) => Timestamp(time.timestamp_micros() + 1),
            MappedLocalTime::Ambiguous(_, latest) => Timestamp(latest.timestamp_micros() + 1),
            MappedLocalTime::None => {
                let after = GapInfo::new(&last, &zone).and_then(|gap| gap.end);
                Timestamp(after.map_or(local_end, |time| time.timestamp_micros()))
            }
        }
    }

    /// From which watermark on a window is final.
    pub fn final_at(&self, local_end: i64, precision: TimePrecision) -> Timestamp {
        precision.last_instant(self.instant(local_end))
    }

    /// The end of the first window of `first..=last` for which `is_over` is false; windows are
    /// over in order.
    pub fn first_open(&self, (first, last): (i64, i64), is_over: impl Fn(i64) -> bool) -> Option<i64> {
        let slide = self.slide();
        let (mut low, mut high) = (0, (last - first) / slide + 1);
        let count = high;
        while low < high {
            let middle = (low + high) / 2;
            if is_over(first + middle * slide) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        (low < count).then_some(first + low * slide)
    }
}

/// The moment at which every instant with an earlier local time has passed.
pub fn instant_of(local: Timestamp, time_zone: Option<Tz>) -> Timestamp {
    WindowSpec { kind: WindowKind::Tumble { size: 1 }, offset: 0, time_zone }.instant(local.0)
}

/// The local time of an instant.
pub fn local_of(instant: Timestamp, time_zone: Option<Tz>) -> Timestamp {
    Timestamp(WindowSpec { kind: WindowKind::Tumble { size: 1 }, offset: 0, time_zone }.local(instant.0))
}

impl std::fmt::Display for WindowSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let duration = millpond_core::quantity::format_duration;
        match self.kind {
            WindowKind::Tumble { size } => write!(f, "TUMBLE({}", duration(size))?,
            WindowKind::Hop { size, slide } => write!(f, "HOP({}, {}", duration(slide), duration(size))?,
            WindowKind::Cumulate { size, step } => {
                write!(f, "CUMULATE({}, {}", duration(step), duration(size))?
            }
        }
        if self.offset != 0 {
            write!(f, ", offset {}", duration(self.offset))?;
        }
        match self.time_zone {
            Some(zone) => write!(f, ", {zone})"),
            None => f.write_str(")"),
        }
    }
}

/// What the clocks of a time zone (`None`: UTC) show at an instant.
pub fn local_time(time_zone: Option<Tz>, instant: i64) -> i64 {
    let Some(zone) = time_zone else { return instant };
    let Some(time) = DateTime::<Utc>::from_timestamp_micros(instant) else { return instant };
    let offset = zone.offset_from_utc_datetime(&time.naive_utc()).fix().local_minus_utc();
    instant + i64::from(offset) * 1_000_000
}

/// Checks the gap of sessions, in microseconds.
///
/// Errors: *Invalid* for one that is not positive, or longer than 142 years.
pub(crate) fn check_gap(gap: i64) -> Result<()> {
    if gap > 0 && gap <= WINDOW_TIME_MAX >> 10 {
        return Ok(());
    }
    Err(Error::invalid(format!("the gap of a session is {gap} microseconds"))
        .with_hint("it must be positive and at most 142 years"))
}

/// The type of window_start and window_end: a local TIMESTAMP(3).
pub fn bound_type() -> DataType {
    DataType::Timestamp(TimeUnit::Millisecond, None)
}

/// The columns window_start, window_end and window_time of windows over a time column.
pub fn window_fields(time_type: &DataType) -> [FieldRef; 3] {
    [
        Arc::new(Field::new("window_start", bound_type(), false)),
        Arc::new(Field::new("window_end", bound_type(), false)),
        Arc::new(Field::new("window_time", time_type.clone(), false)),
    ]
}

/// A column of window bounds from local microseconds.
pub fn bounds(locals: impl Iterator<Item = i64>) -> ArrayRef {
    Arc::new(TimestampMillisecondArray::from_iter_values(locals.map(|local| local.div_euclid(1000))))
}

/// A column of window_time (the last unit of the window) in the time column's type, from ends as
/// instants.
pub fn window_times(instants: impl Iterator<Item = Timestamp>, time_type: &DataType) -> Result<ArrayRef> {
    let precision = TimePrecision::of(time_type)
        .ok_or_else(|| Error::internal(format!("a window over a time column of type {time_type}")))?;
    let values: Vec<i64> = instants.map(|instant| precision.from_timestamp(instant) - 1).collect();
    macro_rules! typed {
        ($t:ty) => {
            Arc::new(PrimitiveArray::<$t>::new(values.into(), None).with_data_type(time_type.clone()))
                as ArrayRef
        };
    }
    let column = match precision {
        TimePrecision::Second => typed!(TimestampSecondType),
        TimePrecision::Millisecond => typed!(TimestampMillisecondType),
        TimePrecision::Microsecond => typed!(TimestampMicrosecondType),
        TimePrecision::Nanosecond => typed!(TimestampNanosecondType),
    };
    debug_assert_eq!(column.data_type(), time_type);
    Ok(column)
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000;
    const H: i64 = 3600 * S;

    fn tumble(size: i64, offset: i64) -> WindowSpec {
        WindowSpec { kind: WindowKind::Tumble { size }, offset, time_zone: None }
    }

    fn hop(size: i64, slide: i64, offset: i64) -> WindowSpec {
        WindowSpec { kind: WindowKind::Hop { size, slide }, offset, time_zone: None }
    }

    #[test]
    fn times_before_1970_are_put_down_by_floor_division() {
        let windows = tumble(10 * S, 5 * S);
        for (time, end) in [(-1, 5 * S), (0, 5 * S), (5 * S, 15 * S), (-5 * S, 5 * S), (-5 * S - 1, -5 * S)] {
            assert_eq!(windows.assign(time).collect::<Vec<_>>(), [end], "{time}");
            assert_eq!(windows.pane_end(time), end);
        }
    }

    #[test]
    fn every_assignment_agrees_with_the_definition() {
        for (size, slide, offset) in [(10, 2, 0), (10, 3, 0), (10, 4, -3), (7, 7, 2), (3, 5, 1), (6, 4, 100)]
        {
            let windows = hop(size, slide, offset);
            for time in -30..30 {
                let expected: Vec<i64> = (-100..100)
                    .map(|k| offset + k * slide + size)
                    .filter(|end| end - size <= time && time < *end)
                    .collect();
                assert_eq!(
                    windows.assign(time).collect::<Vec<_>>(),
                    expected,
                    "{size} {slide} {offset} {time}"
                );
                let pane = windows.pane_end(time);
                assert!(pane - windows.pane() <= time && time < pane);
                assert!(expected.iter().all(|end| pane <= *end && end - size <= pane - windows.pane()));
            }
        }
    }

    #[test]
    fn cumulative_windows_share_their_start() {
        for (size, step, offset) in [(12, 3, 0), (10, 5, -3), (7, 7, 2)] {
            let windows = WindowSpec { kind: WindowKind::Cumulate { size, step }, offset, time_zone: None };
            for time in -30..30 {
                let start =
                    (-10..10).map(|k| offset + k * size).filter(|start| *start <= time).max().unwrap();
                let expected: Vec<i64> =
                    (1..=size / step).map(|k| start + k * step).filter(|end| *end > time).collect();
                assert_eq!(
                    windows.assign(time).collect::<Vec<_>>(),
                    expected,
                    "{size} {step} {offset} {time}"
                );
                assert!(expected.iter().all(|end| windows.start(*end) == start));
            }
        }
    }

    #[test]
    fn local_days_have_23_24_and_25_hours() {
        let zone = Some(chrono_tz::America::Los_Angeles);
        let days = WindowSpec { time_zone: zone, ..tumble(24 * H, 0) };
        let at = |text: &str| text.parse::<DateTime<Utc>>().unwrap().timestamp_micros();
        let start = at("2021-11-07T07:00:00Z");
        let end = days.pane_end(days.local(start));
        assert_eq!(days.instant(end), Timestamp(at("2021-11-08T08:00:00Z")));
        assert_eq!(days.pane_end(days.local(at("2021-11-08T07:59:59Z"))), end);
        let spring = days.pane_end(days.local(at("2021-03-14T08:00:00Z")));
        assert_eq!(days.instant(spring), Timestamp(at("2021-03-15T07:00:00Z")));
    }

    #[test]
    fn a_local_end_is_reached_once_no_earlier_local_time_can_come() {
        let zone = Some(chrono_tz::America::Los_Angeles);
        let windows = WindowSpec { time_zone: zone, ..tumble(H / 2, 0) };
        let at = |text: &str| text.parse::<DateTime<Utc>>().unwrap().timestamp_micros();
        // The clock shows 01:00–02:00 twice on 2021-11-07, and never 02:00–03:00 on 2021-03-14.
        assert_eq!(windows.instant(at("2021-11-07T01:00:00Z")), Timestamp(at("2021-11-07T08:00:00Z")));
        assert_eq!(windows.instant(at("2021-11-07T01:30:00Z")), Timestamp(at("2021-11-07T09:30:00Z")));
        assert_eq!(windows.instant(at("2021-11-07T02:00:00Z")), Timestamp(at("2021-11-07T10:00:00Z")));
        assert_eq!(windows.instant(at("2021-03-14T02:30:00Z")), Timestamp(at("2021-03-14T10:00:00Z")));
    }

    #[test]
    fn bad_windows_are_refused() {
        for bad in [tumble(0, 0), tumble(-1, 0), hop(10, 0, 0), tumble(i64::MAX, 0), tumble(1, i64::MAX)] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
        assert!(tumble(24 * H, -8 * H).check().is_ok());
        let cumulate = |size, step| {
            WindowSpec { kind: WindowKind::Cumulate { size, step }, offset: 0, time_zone: None }.check()
        };
        assert!(cumulate(10, 3).is_err() && cumulate(10, 0).is_err() && cumulate(10, 5).is_ok());
    }
}
