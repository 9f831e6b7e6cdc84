//! Folds a changelog into the multiset of rows that it describes.
//!
//! While only additions come, their batches are kept as they are. The first change builds an
//! index: by the whole row (a retraction takes back one equal row) or, for an upsert changelog,
//! by its key. Rows taken back are marked dead, and left out when the rest is read or when most
//! are dead.
//!
//! ```text
//! index: key ─▶ youngest row ─▶ older row ─▶ …       rows: batch 0 [x . x x]  batch 1 [. x]
//! ```

use arrow::array::{ArrayRef, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::SchemaRef;
use arrow::row::{RowConverter, Rows, SortField};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use millpond_core::{ChangelogBatch, Error, Result};

/// The current content of a relation; see the module.
#[derive(Debug)]
pub struct ChangelogFold {
    schema: SchemaRef,
    /// Key columns of an upsert changelog; `None`: a row is found by all its columns.
    upsert_key: Option<Vec<usize>>,
    batches: Vec<RecordBatch>,
    rows: usize,
    index: Option<Index>,
}

/// Finds rows of a fold by key.
#[derive(Debug)]
struct Index {
    converter: RowConverter,
    /// Encoded keys, per batch.
    keys: Vec<Rows>,
    /// Whether a row is part of the content, per batch.
    alive: Vec<Vec<bool>>,
    /// The next older row of the same key, per batch.
    older: Vec<Vec<Place>>,
    youngest: HashTable<(u64, Place)>,
    dead: usize,
}

/// A batch, and a row in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place(u32, u32);

impl Place {
    const NONE: Place = Place(u32::MAX, u32::MAX);
}

/// Dead rows that are worth a compaction.
const DEAD_ROWS_MIN: usize = 4096;

impl ChangelogFold {
    /// The fold of an append or retract changelog.
    pub fn new(schema: SchemaRef) -> Self {
        Self { schema, upsert_key: None, batches: Vec::new(), rows: 0, index: None }
    }

    /// The fold of a changelog whose rows replace each other by key. Deletes need only the key.
    pub fn upsert(schema: SchemaRef, key: Vec<usize>) -> Self {
        Self { upsert_key: Some(key), ..Self::new(schema) }
    }

    /// Applies changes, in their order.
    ///
    /// Errors: *Internal* (invariant 4) if a retraction meets no row.
    pub fn add(&mut self, changes: &ChangelogBatch) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let appends = (0..changes.num_rows()).all(|row| changes.kind(row).is_addition());
        if self.index.is_none() && self.upsert_key.is_none() && appends {
            self.rows += changes.num_rows();
            self.batches.push(changes.rows.clone());
            return Ok(());
        }
        self.indexed()?;
        self.apply(changes)?;
        self.compact_if_sparse()
    }

    /// Number of rows of the content.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The columns.
    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    /// The content so far; rows in order of arrival.
    pub fn batches(&self) -> Result<Vec<RecordBatch>> {
        let Some(index) = &self.index else { return Ok(self.batches.clone()) };
        let live = |(batch, alive): (&RecordBatch, &Vec<bool>)| -> Result<RecordBatch> {
            Ok(filter_record_batch(batch, &BooleanArray::from(alive.clone()))?)
        };
        let batches: Vec<RecordBatch> =
            self.batches.iter().zip(&index.alive).map(live).collect::<Result<_>>()?;
        Ok(batches.into_iter().filter(|batch| batch.num_rows() > 0).collect())
    }

    /// The content; rows in order of arrival.
    pub fn into_batches(self) -> Result<Vec<RecordBatch>> {
        self.batches()
    }

    /// Builds the index over the rows so far.
    fn indexed(&mut self) -> Result<()> {
        if self.index.is_some() {
            return Ok(());
        }
        let types = self.schema.fields().iter().map(|field| field.data_type().clone());
        let fields = match &self.upsert_key {
            None => types.map(SortField::new).collect(),
            Some(key) => {
                key.iter().map(|k| SortField::new(self.schema.field(*k).data_type().clone())).collect()
            }
        };
        let mut index = Index::new(fields)?;
        for (number, batch) in self.batches.iter().enumerate() {
            index.push(batch, &key_columns(self.upsert_key.as_deref(), batch))?;
            (0..batch.num_rows()).for_each(|row| index.insert(Place(number as u32, row as u32)));
        }
        self.index = Some(index);
        Ok(())
    }

    fn apply(&mut self, changes: &ChangelogBatch) -> Result<()> {
        let number = self.batches.len() as u32;
        let index = self.index.as_mut().expect("the index has been built");
        index.push(&changes.rows, &key_columns(self.upsert_key.as_deref(), &changes.rows))?;
        self.batches.push(changes.rows.clone());
        for row in 0..changes.num_rows() {
            let place = Place(number, row as u32);
            let addition = changes.kind(row).is_addition();
            let replaced = (self.upsert_key.is_some() || !addition) && index.remove(place);
            if !addition && !replaced && self.upsert_key.is_none() {
                return Err(no_such_row(changes, row));
            }
            if addition {
                index.insert(place);
            } else {
                index.ignore(place);
            }
            self.rows = self.rows + usize::from(addition) - usize::from(replaced);
        }
        Ok(())
    }

    fn compact_if_sparse(&mut self) -> Result<()> {
        if self.index.as_ref().is_none_or(|index| index.dead < DEAD_ROWS_MIN.max(self.rows)) {
            return Ok(());
        }
        let live = self.batches()?;
        self.batches = match live.is_empty() {
            true => Vec::new(),
            false => vec![arrow::compute::concat_batches(&self.schema, &live)?],
        };
        self.index = None;
        self.indexed()
    }
}

fn no_such_row(changes: &ChangelogBatch, row: usize) -> Error {
    let value = |column: &ArrayRef| {
        arrow::util::display::array_value_to_string(column, row).unwrap_or_else(|error| error.to_string())
    };
    let values: Vec<String> = changes.rows.columns().iter().map(value).collect();
    let kind = changes.kind(row).symbol();
    Error::internal(format!("invariant 4: {kind} meets no row ({})", values.join(", ")))
}

fn key_columns(upsert_key: Option<&[usize]>, batch: &RecordBatch) -> Vec<ArrayRef> {
    match upsert_key {
        None => batch.columns().to_vec(),
        Some(key) => key.iter().map(|k| batch.column(*k).clone()).collect(),
    }
}

impl Index {
    fn new(fields: Vec<SortField>) -> Result<Self> {
        Ok(Self {
            converter: RowConverter::new(fields)?,
            keys: Vec::new(),
            alive: Vec::new(),
            older: Vec::new(),
            youngest: HashTable::new(),
            dead: 0,
        })
    }

    /// Adds the keys of a batch whose rows are then inserted, or looked up only.
    fn push(&mut self, batch: &RecordBatch, keys: &[ArrayRef]) -> Result<()> {
        self.keys.push(self.converter.convert_columns(keys)?);
        self.alive.push(vec![true; batch.num_rows()]);
        self.older.push(vec![Place::NONE; batch.num_rows()]);
        Ok(())
    }

    fn insert(&mut self, place: Place) {
        let (hash, keys) = (self.hash(place), &self.keys);
        match self.youngest.entry(
            hash,
            |entry| entry.0 == hash && key(keys, entry.1) == key(keys, place),
            |e| e.0,
        ) {
            Entry::Occupied(mut entry) => {
                let older = std::mem::replace(&mut entry.get_mut().1, place);
                self.older[place.0 as usize][place.1 as usize] = older;
            }
            Entry::Vacant(entry) => {
                entry.insert((hash, place));
            }
        }
    }

    /// Takes back the youngest row whose key is that of `place`; whether there is one.
    fn remove(&mut self, place: Place) -> bool {
        let (hash, keys) = (self.hash(place), &self.keys);
        let equal = |entry: &(u64, Place)| entry.0 == hash && key(keys, entry.1) == key(keys, place);
        let Ok(mut entry) = self.youngest.find_entry(hash, equal) else { return false };
        let removed = entry.get().1;
        let older = self.older[removed.0 as usize][removed.1 as usize];
        if older == Place::NONE {
            entry.remove();
        } else {
            entry.get_mut().1 = older;
        }
        self.ignore(removed);
        true
    }

    /// The row at `place` is not part of the content.
    fn ignore(&mut self, place: Place) {
        self.alive[place.0 as usize][place.1 as usize] = false;
        self.dead += 1;
    }

    fn hash(&self, place: Place) -> u64 {
        use std::hash::{DefaultHasher, Hasher};
        let mut hasher = DefaultHasher::new();
        hasher.write(key(&self.keys, place));
        hasher.finish()
    }
}

/// The encoded key of a row; rows without columns are all alike.
fn key(keys: &[Rows], place: Place) -> &[u8] {
    let rows = &keys[place.0 as usize];
    if rows.num_rows() == 0 { &[] } else { rows.row(place.1 as usize).data() }
}

#[cfg(test)]
mod tests;
