//! What is appended is read again, from anywhere, over restarts, cuts and damage.

use tempfile::TempDir;

use super::*;

fn open(dir: &TempDir) -> Result<Arc<ReplayLog>> {
    ReplayLog::recover(dir.path(), 100).map(Arc::new)
}

/// All records from an offset on, and the offsets behind them.
fn read(log: &Arc<ReplayLog>, from: u64) -> (Vec<String>, Vec<u64>) {
    let mut reader = log.reader(from);
    let (mut records, mut ends) = (Vec::new(), Vec::new());
    while let LogRecord::Record(payload) = reader.peek().unwrap() {
        records.push(String::from_utf8(payload.to_vec()).unwrap());
        reader.pass(payload.len());
        ends.push(reader.at());
    }
    (records, ends)
}

fn words(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("record {n} {}", "x".repeat(n))).collect()
}

fn filled(dir: &TempDir, words: &[String]) -> Arc<ReplayLog> {
    let log = open(dir).unwrap();
    words.iter().for_each(|word| log.append(word.as_bytes()).unwrap());
    log
}

fn files(dir: &TempDir) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "log"));
    files.sort();
    files
}

#[test]
fn records_are_read_from_anywhere_and_over_restarts() {
    let (dir, words) = (TempDir::new().unwrap(), words(20));
    let log = filled(&dir, &words);
    let (all, ends) = read(&log, 0);
    assert_eq!(all, words);
    assert!(files(&dir).len() > 3, "several segments");
    drop(log);
    let log = open(&dir).unwrap();
    for (place, end) in ends.iter().enumerate() {
        assert_eq!(read(&log, *end).0, words[place + 1..]);
    }
    log.append(b"more").unwrap();
    assert_eq!(read(&log, ends[19]).0, ["more"]);
    assert_eq!(log.unread(), 0);
    log.close();
    assert!(log.append(b"late").is_err());
    let end = log.state().end;
    assert!(matches!(log.reader(end).peek().unwrap(), LogRecord::End));
}

#[test]
fn a_cut_end_is_removed_wherever_it_is_cut() {
    let words = words(3);
    let whole = {
        let dir = TempDir::new().unwrap();
        filled(&dir, &words);
        std::fs::read(&files(&dir)[0]).unwrap()
    };
    for cut in 0..whole.len() {
        let dir = TempDir::new().unwrap();
        std::fs::write(segment_path(dir.path(), 0), &whole[..cut]).unwrap();
        let log = open(&dir).unwrap();
        let kept = read(&log, 0).0;
        assert_eq!(kept, words[..kept.len()], "cut at {cut}");
        log.append(b"after").unwrap();
        drop(log);
        assert_eq!(read(&open(&dir).unwrap(), 0).0.last().unwrap(), "after");
    }
}

#[test]
fn damage_before_a_whole_record_is_told() {
    let (dir, words) = (TempDir::new().unwrap(), words(20));
    drop(filled(&dir, &words));
    let (first, last) = (files(&dir)[0].clone(), files(&dir).pop().unwrap());
    let flip = |path: &Path, at: usize| {
        let mut bytes = std::fs::read(path).unwrap();
        bytes[at] ^= 1;
        std::fs::write(path, bytes).unwrap();
    };
    // In a segment that was closed: found when it is read.
    for at in [0, 5, 9, 13] {
        flip(&first, at);
        let log = open(&dir).unwrap();
        assert_eq!(log.reader(0).peek().unwrap_err().kind(), millpond_core::ErrorKind::Corrupt);
        flip(&first, at);
    }
    let bytes = std::fs::read(&last).unwrap();
    let one = [bytes.clone(), bytes].concat();
    std::fs::write(&last, &one).unwrap();
    flip(&last, 13);
    let error = open(&dir).unwrap_err();
    assert!(
        error.kind() == millpond_core::ErrorKind::Corrupt && format!("{error}").contains("damaged"),
        "{error}"
    );
    flip(&last, 13);
    std::fs::OpenOptions::new().write(true).open(&first).unwrap().set_len(7).unwrap();
    assert!(format!("{}", open(&dir).unwrap_err()).contains("has not its length"));
}

#[test]
fn released_segments_go_and_the_rest_stays() {
    let (dir, words) = (TempDir::new().unwrap(), words(20));
    let log = filled(&dir, &words);
    let before = files(&dir).len();
    let (_, ends) = read(&log, 0);
    log.release(ends[9]).unwrap();
    assert!(files(&dir).len() < before);
    assert_eq!(read(&log, ends[9]).0, words[10..]);
    drop(log);
    let log = open(&dir).unwrap();
    assert_eq!(read(&log, ends[9]).0, words[10..]);
    assert!(log.first() > 0 && log.reader(0).peek().is_err());
    log.release(u64::MAX).unwrap();
    log.append(b"after").unwrap();
    assert_eq!(read(&log, ends[19]).0, ["after"]);
}

#[test]
fn appends_from_many_threads_are_all_there() {
    let dir = TempDir::new().unwrap();
    let log = open(&dir).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let log = &log;
            scope
                .spawn(move || (0..50).for_each(|n| log.append(format!("{thread}-{n}").as_bytes()).unwrap()));
        }
    });
    let (records, _) = read(&log, 0);
    assert_eq!(records.len(), 200);
    for thread in 0..4 {
        let own: Vec<&String> = records.iter().filter(|r| r.starts_with(&format!("{thread}-"))).collect();
        let order: Vec<String> = (0..50).map(|n| format!("{thread}-{n}")).collect();
        assert_eq!(own, order.iter().collect::<Vec<_>>());
    }
}

#[test]
fn in_memory_what_was_read_is_forgotten() {
    let log = ReplayLog::open(None).unwrap();
    words(5).iter().for_each(|word| log.append(word.as_bytes()).unwrap());
    assert!(log.unread() > 0);
    assert_eq!(read(&log, 0).0, words(5));
    assert_eq!((log.unread(), log.state().kept.len()), (0, 0));
}

#[test]
fn a_log_keeps_its_name() {
    let (dir, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let name = open(&dir).unwrap().name().to_string();
    assert_eq!(open(&dir).unwrap().name(), name);
    assert_ne!(open(&other).unwrap().name(), name);
    assert!(open(&dir).unwrap().append(&vec![0; RECORD_BYTES_MAX as usize + 1]).is_err());
}
