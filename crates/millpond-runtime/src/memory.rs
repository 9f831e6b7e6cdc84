//! Memory: one limit for the state of all tasks of a process (`memory.limit`).
//!
//! Each operator tells what its state takes. Above the share of the limit that is meant for state,
//! every operator that looks gives up rows of keys that were not used for long; they go to the spill
//! area, and come back, a batch at a time, before the operator meets their keys again.
//!
//! ```text
//! batch ─ touches ─▶ keys that are out? ─ take ─▶ admit ─▶ process
//! between batches and at the end of an epoch:  used > share?  ─ evict ─▶ put
//!                           still too much: the epoch ends early; after it: the job fails by name
//! ```
//!
//! A limit of zero gives up everything that the open epoch has not touched, before each batch: tests
//! run so.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use millpond_core::{ChangelogBatch, Error, Result};
use millpond_operators::{InputIndex, Operator, Residency};
use millpond_state::{Frozen, Scope, SpillArea, TableDef, TableSpill};

/// The limit of a process and what its tasks use of it.
#[derive(Debug)]
pub struct MemoryBudget {
    limit: AtomicUsize,
    used: AtomicUsize,
    /// Of it, by operators whose rows stay.
    resident: AtomicUsize,
    accounts: AtomicUsize,
}

/// Where tasks account for their state, and where rows go that have no room.
#[derive(Debug, Clone)]
pub struct Memory {
    /// The limit.
    pub budget: Arc<MemoryBudget>,
    /// Where rows go; `None`: all stay in memory.
    pub area: Option<Arc<SpillArea>>,
}

impl Memory {
    /// No limit.
    pub fn unlimited() -> Self {
        Self { budget: Arc::new(MemoryBudget::new(usize::MAX)), area: None }
    }
}

/// Of the limit, what state may take: batches under way, the buffers of RocksDB and the room that
/// growing tables leave behind need the rest.
const SHARE_OF_STATE: usize = 2;

/// How full the share is after rows have left.
const FILLED_AFTER: f64 = 0.8;

impl MemoryBudget {
    /// Nothing is used.
    pub fn new(limit: usize) -> Self {
        let none = AtomicUsize::default;
        Self { limit: AtomicUsize::new(limit), used: none(), resident: none(), accounts: none() }
    }

    /// Another limit holds from now on, in bytes.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// The limit, in bytes.
    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Bytes that all tasks hold.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// The fraction of its keys that each operator whose rows can leave may keep; `None`: there is
    /// room. What stays anyway comes first, but leaves an eighth of the share.
    fn keep(&self) -> Option<f64> {
        let (share, used) = (self.limit() / SHARE_OF_STATE, self.used());
        if used <= share && share > 0 {
            return None;
        }
        let resident = self.resident.load(Ordering::Relaxed);
        let (room, movable) = (share.saturating_sub(resident).max(share / 8), used.saturating_sub(resident));
        (movable > room || share == 0).then(|| FILLED_AFTER * room as f64 / movable.max(1) as f64)
    }
}

/// What the task knows of an operator's memory.
#[derive(Debug)]
pub(crate) struct OperatorMemory {
    memory: Memory,
    bytes: usize,
    /// Per table; none: its rows stay in memory.
    spills: Vec<TableSpill>,
    batches: usize,
    /// Nothing more can leave before the epoch ends.
    is_pinned: bool,
}

/// Whether state found room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// There is enough.
    Enough,
    /// What the open epoch has touched takes more than there is: it should end.
    Pinned,
}

/// Batches between two looks at the state's size, which costs a pass over its columns.
const BATCHES_BETWEEN: usize = 8;

/// State that is not worth a look-up.
const BYTES_MIN: usize = 64 << 10;

impl OperatorMemory {
    /// `None` for an operator without state.
    pub(crate) fn new(memory: &Memory, operator: &mut dyn Operator) -> Result<Option<Self>> {
        let can_spill = match operator.residency() {
            Residency::Stateless => return Ok(None),
            Residency::Resident(_) => false,
            Residency::Spilling(_) => true,
        };
        let mut spills = Vec::new();
        if let Some(area) = memory.area.as_ref().filter(|_| can_spill) {
            let tables = operator.tables();
            let all: Option<Vec<TableSpill>> =
                tables.iter().map(|table| area.table(table.def())).collect::<Result<_>>()?;
            spills = all.unwrap_or_default();
        }
        memory.budget.accounts.fetch_add(1, Ordering::Relaxed);
        Ok(Some(Self { memory: memory.clone(), bytes: 0, spills, batches: 0, is_pinned: false }))
    }

    /// Makes the keys of a batch resident.
    pub(crate) fn admit(
        &mut self,
        operator: &mut dyn Operator,
        input: InputIndex,
        batch: &ChangelogBatch,
    ) -> Result<()> {
        if self.spills.iter().all(|spill| spill.rows() == 0) {
            return Ok(());
        }
        // Rows of one key leave all tables together, and so they come back.
        let mut keys: Vec<u64> = Vec::new();
        for set in operator.touches(input, batch)? {
            let is_out = |hash: &u64| self.spills.iter().any(|spill| spill.may_hold(*hash));
            keys.extend(set.hashes.iter().copied().filter(is_out));
        }
        keys.sort_unstable();
        keys.dedup();
        if keys.is_empty() {
            return Ok(());
        }
        let tables = self.spills.iter_mut().map(|spill| spill.take(&keys)).collect::<Result<Vec<_>>>()?;
        match operator.residency() {
            Residency::Spilling(state) if tables.iter().any(|rows| !rows.is_empty()) => state.admit(tables),
            Residency::Spilling(_) | Residency::Resident(_) | Residency::Stateless => Ok(()),
        }
    }

    /// Between two batches of an epoch: a look now and then. Whatever is in use now may leave when
    /// the epoch has ended.
    pub(crate) fn between_batches(&mut self, operator: &mut dyn Operator) -> Result<Room> {
        self.batches += 1;
        let is_due = self.batches.is_multiple_of(BATCHES_BETWEEN) || self.memory.budget.limit() == 0;
        if !is_due || self.is_pinned {
            return Ok(Room::Enough);
        }
        let room = self.make_room(operator)?;
        self.is_pinned = room == Room::Pinned;
        Ok(room)
    }

    /// The epoch has ended in the operator, or its state was restored.
    ///
    /// Errors: *Invalid* if the limit cannot be kept.
    pub(crate) fn after_epoch(&mut self, operator: &mut dyn Operator) -> Result<()> {
        self.is_pinned = false;
        self.make_room(operator)?;
        let budget = &self.memory.budget;
        let (limit, accounts) = (budget.limit(), budget.accounts.load(Ordering::Relaxed));
        // The one that holds most is named; the others might be small.
        let is_largest = self.bytes.saturating_mul(accounts) >= budget.used();
        if limit > 0 && budget.used() > limit && is_largest {
            return Err(self.too_little(limit));
        }
        Ok(())
    }

    /// Gives up rows if there is too little room.
    fn make_room(&mut self, operator: &mut dyn Operator) -> Result<Room> {
        self.account(operator);
        let budget = Arc::clone(&self.memory.budget);
        if let Some(keep) = budget.keep()
            && (self.bytes >= BYTES_MIN || budget.limit() == 0)
        {
            self.evict(operator, keep)?;
            self.account(operator);
        }
        let limit = budget.limit();
        let is_too_much = match self.spills.is_empty() {
            true => budget.used() > limit,
            false => budget.keep().is_some(),
        };
        Ok(if limit > 0 && is_too_much { Room::Pinned } else { Room::Enough })
    }

    fn evict(&mut self, operator: &mut dyn Operator, keep: f64) -> Result<()> {
        let Residency::Spilling(state) = operator.residency() else { return Ok(()) };
        if self.spills.is_empty() {
            return Ok(());
        }
        let evicted = state.evict(keep)?;
        self.spills.iter_mut().zip(&evicted).try_for_each(|(spill, rows)| spill.put(rows))
    }

    fn account(&mut self, operator: &mut dyn Operator) {
        let in_tables: usize = operator.tables().iter().map(|table| table.used_bytes()).sum();
        let beside = match operator.residency() {
            Residency::Stateless => 0,
            Residency::Resident(beside) => beside,
            Residency::Spilling(state) => state.beside(),
        };
        let out: usize = self.spills.iter().map(TableSpill::bytes).sum();
        self.note(in_tables + beside + out);
    }

    fn note(&mut self, bytes: usize) {
        let budget = &self.memory.budget;
        let is_resident = self.spills.is_empty();
        for total in std::iter::once(&budget.used).chain(is_resident.then_some(&budget.resident)) {
            match bytes.checked_sub(self.bytes) {
                Some(more) => total.fetch_add(more, Ordering::Relaxed),
                None => total.fetch_sub(self.bytes - bytes, Ordering::Relaxed),
            };
        }
        self.bytes = bytes;
    }

    fn too_little(&self, limit: usize) -> Error {
        let spilled: usize = self.spills.iter().map(TableSpill::rows).sum();
        let megabytes = |bytes: usize| bytes.div_ceil(1 << 20);
        let error = Error::invalid(format!(
            "'memory.limit' of {} MB is exceeded: state takes {} MB",
            megabytes(limit),
            megabytes(self.memory.budget.used())
        ));
        let detail = match self.spills.is_empty() {
            true => "its rows cannot leave memory".to_string(),
            false => format!("{spilled} of its rows have left memory"),
        };
        error
            .with_detail(format!("this operator's state takes {} MB; {detail}", megabytes(self.bytes)))
            .with_hint("raise 'memory.limit', or bound the state: 'state.ttl', a watermark, fewer keys")
    }

    /// What has left the tables' memory is frozen with them.
    pub(crate) fn begin_freeze(&mut self, table: usize, scope: Scope) {
        if let Some(spill) = self.spills.get_mut(table) {
            spill.begin_freeze(scope);
        }
    }

    pub(crate) fn finish_freeze(&mut self, table: usize, def: &TableDef, resident: Frozen) -> Frozen {
        match self.spills.get_mut(table) {
            Some(spill) => spill.finish_freeze(def, resident),
            None => resident,
        }
    }
}

impl Drop for OperatorMemory {
    fn drop(&mut self) {
        self.note(0);
        self.memory.budget.accounts.fetch_sub(1, Ordering::Relaxed);
    }
}
