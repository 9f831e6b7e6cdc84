//! The replay log: input that cannot be read again is written down before it counts.
//!
//! A record is durable when [`ReplayLog::append`] returns; appends that come together share one
//! fsync. Readers see durable records only and go on from any offset. What every checkpoint that is
//! kept has behind it is released, a segment at a time. Without a folder the log is in memory and
//! forgets what has been read.
//!
//! ```text
//! <offset of its first record>.log    magic u32 │ length u32 │ CRC32C u32 │ payload   …
//! ```
//!
//! A log has a name of its own, in the file `name`, so that an offset of another one is not taken for
//! one of it.
//!
//!  1. An offset is the number of bytes before a record since the log began; it is never used again.
//!  2. A record that was cut by a crash at the end of the last segment was never promised: it is cut
//!     off. Damage with a whole record behind it is *Corrupt*: that record may have been promised.
//!  3. A failed write leaves nothing; after a failed fsync nothing is taken until the next start,
//!     since it is not known what is durable.

use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use millpond_core::random::Random;
use millpond_core::{Error, Result};

/// "MPR1", by which a record is found behind damage.
const MAGIC: u32 = 0x4d50_5231;
const HEADER_BYTES: u64 = 12;
/// A record longer than this is damage.
const RECORD_BYTES_MAX: u32 = 64 << 20;
/// A segment at least this long is closed.
const SEGMENT_BYTES: u64 = 16 << 20;

/// A log; shared by those who append and the reader.
#[derive(Debug)]
pub(crate) struct ReplayLog {
    /// Tells it from all others.
    name: String,
    folder: Option<PathBuf>,
    segment_bytes: u64,
    state: Mutex<State>,
    synced: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Offsets of the segments' first records, ascending.
    segments: Vec<u64>,
    /// The last segment.
    file: Option<Arc<File>>,
    /// Behind the last record that was written.
    end: u64,
    /// Behind the last record that is durable.
    durable: u64,
    is_syncing: bool,
    /// Everything before has been read and will not be read again.
    released: u64,
    /// How far the reader has come.
    read: u64,
    is_fed: bool,
    /// Nothing more will be appended.
    is_closed: bool,
    failure: Option<Error>,
    /// In memory: the records that have not been read.
    kept: VecDeque<(u64, Arc<[u8]>)>,
}

/// The logs that are open, by folder.
static OPEN: Mutex<Option<HashMap<PathBuf, Weak<ReplayLog>>>> = Mutex::new(None);

impl ReplayLog {
    /// The log in a folder, which is made if need be; `None`: in memory. A log that is open is
    /// shared.
    ///
    /// Errors: *Corrupt* for damage that a crash cannot have done.
    pub(crate) fn open(folder: Option<&Path>) -> Result<Arc<Self>> {
        let Some(folder) = folder else { return Ok(Arc::new(Self::new(None))) };
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let open = open.get_or_insert_default();
        open.retain(|_, log| log.strong_count() > 0);
        if let Some(log) = open.get(folder).and_then(Weak::upgrade) {
            return Ok(log);
        }
        let log = Arc::new(Self::recover(folder, SEGMENT_BYTES)?);
        open.insert(folder.into(), Arc::downgrade(&log));
        Ok(log)
    }

    fn new(folder: Option<PathBuf>) -> Self {
        let name = format!("{:016x}", Random::fresh().next_u64());
        let state = Mutex::new(State::default());
        Self { name, folder, segment_bytes: SEGMENT_BYTES, state, synced: Condvar::new() }
    }

    fn recover(folder: &Path, segment_bytes: u64) -> Result<Self> {
        let io = |what: &str, error: std::io::Error| Error::io(format!("{what} {folder:?}"), &error);
        std::fs::create_dir_all(folder).map_err(|error| io("create", error))?;
        let mut segments = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(|error| io("read", error))? {
            let name = entry.map_err(|error| io("read", error))?.file_name();
            let start = name.to_str().and_then(|name| name.strip_suffix(".log")?.parse::<u64>().ok());
            segments.extend(start);
        }
        segments.sort_unstable();
        for pair in segments.windows(2) {
            let path = segment_path(folder, pair[0]);
            let length =
                std::fs::metadata(&path).map_err(|error| Error::io(format!("read {path:?}"), &error))?;
            if pair[0] + length.len() != pair[1] {
                return Err(Error::corrupt(format!("{path:?} of the replay log has not its length"))
                    .with_detail(format!(
                        "{} bytes are there, {} were written",
                        length.len(),
                        pair[1] - pair[0]
                    )));
            }
        }
        let mut state = State { released: segments.first().copied().unwrap_or(0), ..State::default() };
        state.read = state.released;
        if let Some(last) = segments.last().copied() {
            let path = segment_path(folder, last);
            let failed = |error: std::io::Error| Error::io(format!("open {path:?}"), &error);
            let mut file = OpenOptions::new().read(true).append(true).open(&path).map_err(failed)?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).map_err(failed)?;
            let good = whole_records(&bytes).map_err(|error| error.context(path.display()))?;
            if good < bytes.len() {
                tracing::warn!(file = %path.display(), bytes = bytes.len() - good, "a record that was cut by a crash is removed");
                file.set_len(good as u64).map_err(failed)?;
            }
            // What is there may never have been synced: from here on it counts as durable.
            file.sync_all().map_err(failed)?;
            state.end = last + good as u64;
            state.file = Some(Arc::new(file));
        }
        state.durable = state.end;
        state.segments = segments;
        let new = Self::new(Some(folder.into()));
        let name = kept_name(folder, &new.name).map_err(|error| io("write the name of", error))?;
        Ok(Self { name, segment_bytes, state: Mutex::new(state), ..new })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a record down; it is durable on return.
    ///
    /// Errors: *Unavailable* when it cannot be: then it is not there.
    pub(crate) fn append(&self, payload: &[u8]) -> Result<()> {
        let mut state = self.state();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        if state.is_closed {
            return Err(Error::unavailable("the table takes no more rows"));
        }
        if payload.len() > RECORD_BYTES_MAX as usize {
            return Err(Error::invalid(format!(
                "a record of {} bytes is too large for the replay log",
                payload.len()
            )));
        }
        let Some(folder) = &self.folder else {
            let at = state.end;
            state.end += HEADER_BYTES + payload.len() as u64;
            state.durable = state.end;
            state.kept.push_back((at, payload.into()));
            return Ok(());
        };
        self.write(&mut state, folder, payload)?;
        let end = state.end;
        self.sync(state, end)
    }

    fn write(&self, state: &mut State, folder: &Path, payload: &[u8]) -> Result<()> {
        let full = state.segments.last().is_none_or(|start| state.end - start >= self.segment_bytes);
        if full {
            self.begin_segment(state, folder)?;
        }
        let file = state.file.clone().ok_or_else(|| Error::internal("a log without a segment"))?;
        let start = state.segments.last().copied().unwrap_or(0);
        let mut record = Vec::with_capacity(HEADER_BYTES as usize + payload.len());
        record.extend(MAGIC.to_le_bytes());
        record.extend((payload.len() as u32).to_le_bytes());
        record.extend(crc32c::crc32c(payload).to_le_bytes());
        record.extend(payload);
        if let Err(error) = (&*file).write_all(&record) {
            let error = Error::io(format!("write to the replay log in {folder:?}"), &error);
            if let Err(again) = file.set_len(state.end - start) {
                state.failure = Some(Error::io(format!("repair the replay log in {folder:?}"), &again));
            }
            return Err(error);
        }
        state.end += record.len() as u64;
        Ok(())
    }

    /// The segment before must be durable: from now on only the new one is synced.
    fn begin_segment(&self, state: &mut State, folder: &Path) -> Result<()> {
        let path = segment_path(folder, state.end);
        let failed = |error: std::io::Error| Error::io(format!("create {path:?}"), &error);
        if let Some(file) = &state.file {
            if let Err(error) = file.sync_data() {
                let error = failed(error);
                state.failure = Some(error.clone());
                return Err(error);
            }
            state.durable = state.end;
        }
        let file = OpenOptions::new().read(true).append(true).create(true).open(&path).map_err(failed)?;
        file.set_len(0).map_err(failed)?;
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
        state.file = Some(Arc::new(file));
        state.segments.push(state.end);
        Ok(())
    }

    /// Waits until everything before `end` is durable: one of those who wait does it for all that
    /// is written by then.
    fn sync<'a>(&'a self, mut state: MutexGuard<'a, State>, end: u64) -> Result<()> {
        while state.durable < end {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if state.is_syncing {
                state = self.synced.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            state.is_syncing = true;
            let (file, written) = (state.file.clone(), state.end);
            drop(state);
            let synced = file.map_or(Ok(()), |file| file.sync_data());
            state = self.state();
            state.is_syncing = false;
            match synced {
                Ok(()) => state.durable = state.durable.max(written),
                Err(error) => {
                    let what = "make the replay log durable (start again to go on)";
                    state.failure = Some(Error::io(what, &error));
                }
            }
            self.synced.notify_all();
        }
        Ok(())
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Bytes that have not been read yet.
    pub(crate) fn unread(&self) -> u64 {
        let state = self.state();
        state.end - state.read.min(state.end)
    }

    /// Waits until at most so many bytes have not been read.
    pub(crate) fn wait_for_reader(&self, unread_max: u64) {
        let mut state = self.state();
        while state.end - state.read.min(state.end) > unread_max {
            state = self.synced.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Behind the last record that is durable.
    pub(crate) fn durable_end(&self) -> u64 {
        self.state().durable
    }

    /// Somebody appends from now on.
    pub(crate) fn feed(&self) {
        self.state().is_fed = true;
    }

    /// Whether somebody appends.
    pub(crate) fn is_fed(&self) -> bool {
        self.state().is_fed
    }

    /// What was to be appended cannot be: the reader is told.
    pub(crate) fn fail(&self, error: Error) {
        self.state().failure = Some(error);
    }

    /// Nothing more will come.
    pub(crate) fn close(&self) {
        self.state().is_closed = true;
    }

    /// The offset of the first record that is still there.
    pub(crate) fn first(&self) -> u64 {
        self.state().released
    }

    /// Everything before `offset` is not needed any more.
    pub(crate) fn release(&self, offset: u64) -> Result<()> {
        let mut state = self.state();
        state.released = state.released.max(offset.min(state.durable));
        let Some(folder) = &self.folder else { return Ok(()) };
        while state.segments.len() > 1 && state.segments[1] <= state.released {
            let path = segment_path(folder, state.segments[0]);
            std::fs::remove_file(&path).map_err(|error| Error::io(format!("remove {path:?}"), &error))?;
            state.segments.remove(0);
        }
        Ok(())
    }

    /// Reads from an offset on.
    pub(crate) fn reader(self: &Arc<Self>, from: u64) -> LogReader {
        self.state().read = from;
        LogReader { log: Arc::clone(self), at: from, open: None }
    }

    /// All durable payloads that are there, oldest first.
    pub(crate) fn each(self: &Arc<Self>, mut see: impl FnMut(&[u8])) -> Result<()> {
        let (from, read) = (self.first(), self.state().read);
        let mut reader = LogReader { log: Arc::clone(self), at: from, open: None };
        while let LogRecord::Record(payload) = reader.peek()? {
            see(&payload);
            reader.at += HEADER_BYTES + payload.len() as u64;
        }
        self.state().read = read;
        Ok(())
    }
}

/// What a log has for its reader.
#[derive(Debug)]
pub(crate) enum LogRecord {
    Record(Arc<[u8]>),
    /// Nothing yet.
    Waiting,
    /// Nothing more.
    End,
}

/// Reads a log record by record.
#[derive(Debug)]
pub(crate) struct LogReader {
    log: Arc<ReplayLog>,
    at: u64,
    /// The segment that is read: the offset of its first record, and its file.
    open: Option<(u64, File)>,
}

impl LogReader {
    /// The offset of the next record.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// The next record, which stays the next until [`LogReader::pass`].
    ///
    /// Errors: *Corrupt* if it is not what was written.
    pub(crate) fn peek(&mut self) -> Result<LogRecord> {
        let (start, end) = {
            let state = self.log.state();
            if self.at >= state.durable {
                if let Some(failure) = &state.failure {
                    return Err(failure.clone());
                }
                return Ok(if state.is_closed { LogRecord::End } else { LogRecord::Waiting });
            }
            if self.log.folder.is_none() {
                let kept = state.kept.iter().find(|(at, _)| *at == self.at);
                let kept = kept.ok_or_else(|| Error::internal("a record in memory is gone"))?;
                return Ok(LogRecord::Record(Arc::clone(&kept.1)));
            }
            let start = state.segments.iter().rev().find(|start| **start <= self.at);
            let start = *start.ok_or_else(|| {
                Error::corrupt(format!(
                    "the replay log begins behind {}, from where it is to be read",
                    self.at
                ))
            })?;
            (start, state.durable)
        };
        self.read(start, end).map(LogRecord::Record)
    }

    /// Goes on behind the record of this length.
    pub(crate) fn pass(&mut self, payload_bytes: usize) {
        self.at += HEADER_BYTES + payload_bytes as u64;
        let mut state = self.log.state();
        state.read = self.at;
        while state.kept.front().is_some_and(|(at, _)| *at < self.at) {
            state.kept.pop_front();
        }
        self.log.synced.notify_all();
    }

    fn read(&mut self, start: u64, end: u64) -> Result<Arc<[u8]>> {
        let folder = self.log.folder.as_deref().unwrap_or(Path::new(""));
        let path = segment_path(folder, start);
        let failed = |error: std::io::Error| Error::io(format!("read {path:?}"), &error);
        if self.open.as_ref().is_none_or(|(open, _)| *open != start) {
            self.open = Some((start, File::open(&path).map_err(failed)?));
        }
        let Some((_, file)) = &mut self.open else {
            return Err(Error::internal("a segment that is not open"));
        };
        file.seek(SeekFrom::Start(self.at - start)).map_err(failed)?;
        let mut header = [0; HEADER_BYTES as usize];
        let damaged =
            |what: &str| Error::corrupt(format!("{path:?} is damaged at byte {}: {what}", self.at - start));
        file.read_exact(&mut header).map_err(|_| damaged("it is cut"))?;
        let (length, crc) = header_of(&header).ok_or_else(|| damaged("there is no record"))?;
        if self.at + HEADER_BYTES + u64::from(length) > end {
            return Err(damaged("a record is longer than what was written"));
        }
        let mut payload = vec![0; length as usize];
        file.read_exact(&mut payload).map_err(|_| damaged("it is cut"))?;
        match crc32c::crc32c(&payload) == crc {
            true => Ok(payload.into()),
            false => Err(damaged("its checksum is wrong")),
        }
    }
}

/// The name that a log has had, or has from now on.
fn kept_name(folder: &Path, new: &str) -> std::io::Result<String> {
    let path = folder.join("name");
    match std::fs::read_to_string(&path) {
        Ok(name) if !name.is_empty() => Ok(name),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        Ok(_) | Err(_) => {
            let mut file = File::create(&path)?;
            file.write_all(new.as_bytes())?;
            file.sync_all()?;
            File::open(folder)?.sync_all()?;
            Ok(new.into())
        }
    }
}

fn segment_path(folder: &Path, start: u64) -> PathBuf {
    folder.join(format!("{start:020}.log"))
}

/// Length and checksum of a record's payload.
fn header_of(bytes: &[u8]) -> Option<(u32, u32)> {
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let (magic, length, crc) = (word(0)?, word(4)?, word(8)?);
    (magic == MAGIC && length <= RECORD_BYTES_MAX).then_some((length, crc))
}

/// The length of a whole record at the beginning of `bytes`.
fn record_at(bytes: &[u8]) -> Option<usize> {
    let (length, crc) = header_of(bytes)?;
    let end = HEADER_BYTES as usize + length as usize;
    let payload = bytes.get(HEADER_BYTES as usize..end)?;
    (crc32c::crc32c(payload) == crc).then_some(end)
}

/// How many bytes of whole records a segment has before its cut end.
fn whole_records(bytes: &[u8]) -> Result<usize> {
    let mut good = 0;
    while let Some(length) = record_at(&bytes[good..]) {
        good += length;
    }
    let behind = (good + 1..bytes.len()).find(|at| record_at(&bytes[*at..]).is_some());
    match behind {
        None => Ok(good),
        Some(at) => Err(Error::corrupt(format!("the replay log is damaged at byte {good}"))
            .with_detail(format!("a whole record follows at byte {at}"))
            .with_hint("restore the file from a backup, or remove the job's state and begin anew")),
    }
}

#[cfg(test)]
mod tests;
