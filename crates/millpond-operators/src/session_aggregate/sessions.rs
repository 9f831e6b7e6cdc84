//! The open sessions of all keys, in memory: which of them a row belongs to, which are due.
//!
//! ```text
//! heads: key ─▶ session with the largest end ─▶ … ─▶ the smallest      timers: heap of ends
//! ```
//!
//! A timer is set once, when a session begins; when it comes up too early, because the session has
//! grown since, it is set again for the end of then.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// "No session".
pub(super) const NONE: u32 = u32::MAX;

/// A session: `[start, end)` in microseconds.
#[derive(Debug, Clone)]
pub(super) struct Session {
    pub(super) start: i64,
    pub(super) end: i64,
    /// Its row in the state table; [`NONE`] until the batch that began it has been folded.
    pub(super) slot: u32,
    /// By which its rows in side tables are known.
    pub(super) id: i64,
    /// The row of the batch that began it.
    pub(super) row: u32,
    key: u32,
    /// The session of the same key that ends before it.
    next: u32,
    /// The session that it was united with.
    into: u32,
}

/// All open sessions, by number.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    sessions: Vec<Session>,
    free: Vec<u32>,
    heads: Vec<u32>,
    timers: BinaryHeap<Reverse<(i64, u32)>>,
    /// Sessions that were united with others since the last [`Sessions::take_united`].
    united: Vec<u32>,
}

impl Sessions {
    /// Makes room for so many keys.
    pub(super) fn resize(&mut self, keys: usize) {
        if keys > self.heads.len() {
            self.heads.resize(keys, NONE);
        }
    }

    pub(super) fn at(&self, session: u32) -> &Session {
        &self.sessions[session as usize]
    }

    /// Whether a key has a session.
    pub(super) fn has(&self, key: u32) -> bool {
        self.heads[key as usize] != NONE
    }

    /// Puts a row into the sessions of its key: one that it begins, or all that it overlaps or
    /// touches, as one. Sessions for which `is_over` holds are none to it; `None` if it is late.
    pub(super) fn place(
        &mut self,
        key: u32,
        time: i64,
        gap: i64,
        row: u32,
        is_over: impl Fn(i64) -> bool,
    ) -> Option<u32> {
        let (mut start, mut end) = (time, time + gap);
        let (mut home, mut above, mut at) = (NONE, NONE, self.heads[key as usize]);
        while at != NONE {
            let session = &self.sessions[at as usize];
            if session.end < time {
                break;
            }
            let next = session.next;
            if session.start <= time + gap && !is_over(session.end) {
                (start, end) = (start.min(session.start), end.max(session.end));
                self.link(key, above, next);
                home = if home == NONE { at } else { self.unite(home, at) };
            } else {
                above = at;
            }
            at = next;
        }
        if home == NONE {
            if is_over(end) {
                return None;
            }
            home = self.create(key, row);
        }
        let session = &mut self.sessions[home as usize];
        (session.start, session.end) = (start, end);
        self.insert(home);
        Some(home)
    }

    /// Puts back a session of a snapshot.
    pub(super) fn restore(&mut self, key: u32, (start, end): (i64, i64), slot: u32, id: i64) {
        let session = self.create(key, 0);
        let restored = &mut self.sessions[session as usize];
        (restored.start, restored.end, restored.slot, restored.id) = (start, end, slot, id);
        self.insert(session);
        self.timers.push(Reverse((end, session)));
    }

    /// Gives a session that began its row in the state table.
    pub(super) fn settle(&mut self, session: u32, slot: u32, id: i64) {
        let settled = &mut self.sessions[session as usize];
        (settled.slot, settled.id) = (slot, id);
        self.timers.push(Reverse((settled.end, session)));
    }

    /// The session that this one has become part of, in the end.
    pub(super) fn root(&self, mut session: u32) -> u32 {
        while self.sessions[session as usize].into != NONE {
            session = self.sessions[session as usize].into;
        }
        session
    }

    /// Those that were united with others: of each that has a row in the state table, that row and
    /// id, and the session it went to.
    pub(super) fn take_united(&mut self) -> Vec<(u32, i64, u32)> {
        let united = std::mem::take(&mut self.united);
        let stored = |session: &&u32| self.sessions[**session as usize].slot != NONE;
        let moves = united
            .iter()
            .filter(stored)
            .map(|session| (self.at(*session).slot, self.at(*session).id, self.root(*session)))
            .collect();
        for session in united {
            // The others are freed when their timer comes up.
            if self.sessions[session as usize].slot == NONE {
                self.free.push(session);
            }
        }
        moves
    }

    /// Takes out the session that ends first, if `is_final` holds for its end.
    pub(super) fn take_due(&mut self, is_final: impl Fn(i64) -> bool) -> Option<Session> {
        loop {
            let Reverse((end, number)) = *self.timers.peek().filter(|timer| is_final(timer.0.0))?;
            self.timers.pop();
            let session = self.sessions[number as usize].clone();
            if session.into != NONE {
                self.free.push(number);
            } else if session.end > end {
                self.timers.push(Reverse((session.end, number)));
            } else {
                self.unlink(number);
                self.free.push(number);
                return Some(session);
            }
        }
    }

    /// The key of a session that was taken out.
    pub(super) fn key_of(session: &Session) -> u32 {
        session.key
    }

    fn create(&mut self, key: u32, row: u32) -> u32 {
        let session = Session { start: 0, end: 0, slot: NONE, id: 0, row, key, next: NONE, into: NONE };
        match self.free.pop() {
            Some(number) => {
                self.sessions[number as usize] = session;
                number
            }
            None => {
                self.sessions.push(session);
                (self.sessions.len() - 1) as u32
            }
        }
    }

    /// Of two sessions that become one, the one that stays: rather one that has state.
    fn unite(&mut self, a: u32, b: u32) -> u32 {
        let (stays, goes) = if self.at(a).slot == NONE { (b, a) } else { (a, b) };
        self.sessions[goes as usize].into = stays;
        self.united.push(goes);
        stays
    }

    /// Puts a session among those of its key: larger ends first.
    fn insert(&mut self, session: u32) {
        let Session { key, end, .. } = self.sessions[session as usize];
        let (mut above, mut at) = (NONE, self.heads[key as usize]);
        while at != NONE && self.sessions[at as usize].end > end {
            above = at;
            at = self.sessions[at as usize].next;
        }
        self.sessions[session as usize].next = at;
        self.link(key, above, session);
    }

    fn unlink(&mut self, session: u32) {
        let Session { key, next, .. } = self.sessions[session as usize];
        let (mut above, mut at) = (NONE, self.heads[key as usize]);
        while at != session {
            above = at;
            at = self.sessions[at as usize].next;
        }
        self.link(key, above, next);
    }

    /// Makes `next` the session below `above`, or the first.
    fn link(&mut self, key: u32, above: u32, next: u32) {
        match above {
            NONE => self.heads[key as usize] = next,
            above => self.sessions[above as usize].next = next,
        }
    }
}
