//! Random streams through windows, compared with the window model: disorder, duplicates, NULLs,
//! late rows, several splits, at random sizes of batches and epochs and numbers of tasks.

use std::path::Path;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};
use millpond::{Engine, EngineOptions, Error, Outcome, Random, Result, Rows, Timestamp};

use crate::window_model::{Answer, Row, Stream, Windows, answer};

const SECOND: i64 = 1000;

/// Compares one case; whether the engine has its windows.
///
/// Errors: *Internal*, with the case and what differs.
pub(crate) async fn check_windows(seed: u64) -> Result<bool> {
    let mut random = Random::seeded(seed);
    let (windows, stream) = (random_windows(&mut random), Stream::default());
    let stream = random_stream(&mut random, windows, stream);
    let folder = tempfile::tempdir().map_err(|error| Error::io("make a temporary folder", &error))?;
    write(&stream, folder.path()).map_err(|error| Error::io("write a case", &error))?;
    let settings = random_settings(&mut random);
    let told = || format!("windows, seed {seed}: {windows:?} with {settings:?} over {stream:?}");
    let rows = match ask(windows, &stream, folder.path(), &settings).await {
        Ok(rows) => rows,
        Err(error) if error.message().contains("not supported") => return Ok(false),
        Err(error) => return Err(Error::internal(format!("{}\n{error}", told()))),
    };
    let (want, got) = (lines(&answer(windows, &stream)), lines_of(&rows)?);
    match want == got {
        true => Ok(true),
        false => {
            let only = |these: &[String], those: &[String]| {
                these.iter().filter(|line| !those.contains(line)).cloned().collect::<Vec<_>>()
            };
            let (missing, extra) = (only(&want, &got), only(&got, &want));
            Err(Error::internal(format!("{}\nmissing {missing:?}\nunexpected {extra:?}", told())))
        }
    }
}

fn random_windows(random: &mut Random) -> Windows {
    let mut seconds = |least: u64, most: u64| (least + random.below(most - least + 1)) as i64 * SECOND;
    let (one, other, shift) = (seconds(1, 9), seconds(1, 12), seconds(0, 7));
    match seconds(0, 3) / SECOND {
        0 => Windows::Tumble { size: one, offset: shift % one },
        1 => Windows::Hop { slide: one, size: other },
        2 => Windows::Cumulate { step: one, size: one * seconds(1, 4) / SECOND },
        _ => Windows::Session { gap: one },
    }
}

fn random_stream(random: &mut Random, windows: Windows, mut stream: Stream) -> Stream {
    let splits = 1 + random.below(3) as usize;
    stream.delay = [0, SECOND, 3 * SECOND, 20 * SECOND][random.below(4) as usize];
    // Which session a late row of one split meets would depend on how far the others are.
    let is_orderly = matches!(windows, Windows::Session { .. }) && splits > 1;
    let disorder = match is_orderly {
        true => stream.delay,
        false => [0, 2 * SECOND, 15 * SECOND][random.below(3) as usize],
    };
    for _ in 0..splits {
        let mut now = -20 * SECOND;
        let mut rows = Vec::new();
        for _ in 0..random.below(25) {
            now += random.below(12) as i64 * SECOND / 4;
            let behind = random.below(disorder as u64 + 1) as i64;
            // Times next to the bounds of windows are the ones to get wrong.
            let exact = (now - behind).div_euclid(SECOND / 2) * (SECOND / 2);
            let time = exact + [0, 0, 0, 1, -1][random.below(5) as usize];
            let row = Row {
                time: (random.below(15) > 0).then_some(time),
                key: (random.below(6) > 0).then(|| random.below(3) as u8),
                value: (random.below(5) > 0).then(|| random.below(7) as i64 - 3),
            };
            if random.below(8) == 0 {
                rows.push(row.clone());
            }
            rows.push(row);
        }
        if is_orderly {
            retain_those_in_time(&mut rows, stream.delay);
        }
        stream.splits.push(rows);
    }
    stream
}

/// Leaves out the rows that the watermark has reached already: also one whose time it is just at.
fn retain_those_in_time(rows: &mut Vec<Row>, delay: i64) {
    let mut watermark = i64::MIN;
    rows.retain(|row| {
        let Some(time) = row.time else { return true };
        let is_in_time = time > watermark;
        watermark = watermark.max(time - delay);
        is_in_time
    });
}

fn random_settings(random: &mut Random) -> Vec<(String, String)> {
    let choices = [
        ("batch.rows", ["1", "3", "8192"]),
        ("epoch.rows", ["1", "4", "1000"]),
        ("parallelism", ["1", "2", "4"]),
    ];
    let chosen = choices.map(|(key, values)| (key, values[random.below(3) as usize]));
    let all = [("time-zone", "UTC"), chosen[0], chosen[1], chosen[2]];
    all.map(|(key, value)| (key.to_string(), value.to_string())).to_vec()
}

/// One file per split.
fn write(stream: &Stream, folder: &Path) -> std::io::Result<()> {
    for (number, rows) in stream.splits.iter().enumerate() {
        let text = |value: Option<i64>| value.map_or(String::new(), |value| value.to_string());
        let line = |row: &Row| {
            let time = row.time.map_or(String::new(), |time| Timestamp::from_millis(time).to_string());
            format!("{time},{},{}\n", text(row.key.map(i64::from)), text(row.value))
        };
        std::fs::write(
            folder.join(format!("split-{number}.csv")),
            rows.iter().map(line).collect::<String>(),
        )?;
    }
    Ok(())
}

async fn ask(
    windows: Windows,
    stream: &Stream,
    folder: &Path,
    settings: &[(String, String)],
) -> Result<Rows> {
    let settings = settings.to_vec();
    let engine = Engine::with_options(EngineOptions { settings, ..EngineOptions::default() })?;
    let session = engine.session();
    let seconds = |millis: i64| format!("INTERVAL '{}' SECOND", millis / SECOND);
    let create = format!(
        "CREATE TABLE s (ts TIMESTAMP(3), k INT, v BIGINT, WATERMARK FOR ts AS ts - {})
         WITH ('connector' = 'filesystem', 'path' = '{}', 'format' = 'csv', 'bad-rows' = 'skip')",
        seconds(stream.delay),
        folder.display()
    );
    session.execute(&create).await?;
    let (function, lengths) = match windows {
        Windows::Tumble { size, offset: 0 } => ("TUMBLE(TABLE s", seconds(size)),
        Windows::Tumble { size, offset } => {
            ("TUMBLE(TABLE s", format!("{}, {}", seconds(size), seconds(offset)))
        }
        Windows::Hop { slide, size } => ("HOP(TABLE s", format!("{}, {}", seconds(slide), seconds(size))),
        Windows::Cumulate { step, size } => {
            ("CUMULATE(TABLE s", format!("{}, {}", seconds(step), seconds(size)))
        }
        Windows::Session { gap } => ("SESSION(TABLE s PARTITION BY k", seconds(gap)),
    };
    let query = format!(
        "SELECT k, window_start, window_end, COUNT(*), COUNT(v), SUM(v), MIN(v), MAX(v), COUNT(DISTINCT v)
         FROM TABLE({function}, DESCRIPTOR(ts), {lengths})) GROUP BY k, window_start, window_end"
    );
    match session.execute(&query).await? {
        Outcome::Rows(rows) => Ok(rows),
        _ => Err(Error::internal("a bounded query has no answer")),
    }
}

/// The model's answer, one line per window, and one for the late rows.
fn lines(answer: &Answer) -> Vec<String> {
    let mut lines: Vec<String> = answer
        .windows
        .iter()
        .map(|((key, start, end), totals)| {
            let key = key.map_or("NULL".to_string(), |key| key.to_string());
            format!("{key},{start},{end},{}", totals.texts().join(","))
        })
        .collect();
    lines.push(format!("late {}", answer.late));
    lines.sort();
    lines
}

fn lines_of(rows: &Rows) -> Result<Vec<String>> {
    let mut lines = vec![format!("late {}", rows.late)];
    for batch in &rows.batches {
        let columns: Vec<ArrayRef> =
            batch.columns().iter().map(|column| cast(column, &DataType::Int64)).collect::<Result<_, _>>()?;
        for row in 0..batch.num_rows() {
            let cell = |column: &ArrayRef| match column.is_null(row) {
                true => "NULL".to_string(),
                false => column.as_primitive::<Int64Type>().value(row).to_string(),
            };
            lines.push(columns.iter().map(cell).collect::<Vec<_>>().join(","));
        }
    }
    lines.sort();
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn random_streams_agree_with_the_model() {
        for seed in 0..120 {
            let judged = check_windows(seed).await.unwrap_or_else(|error| panic!("{error}"));
            assert!(judged, "the windows of seed {seed} are refused");
        }
    }
}
