//! What every state table is to the runtime: rows of a schema that can be frozen and loaded.

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, SchemaRef};
use millpond_core::{KeyGroupRange, Result};

/// The shape of a state table; decides how its rows are found, expired and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TableKind {
    /// key → one row.
    Value,
    /// (window end, key) → one row; windows expire as a whole. Column 0 is the window end in
    /// microseconds (`Int64`).
    Window,
    /// key → rows, each with a row number (`UInt64`, the last identity column).
    Multimap,
}

/// A state table's name, kind and columns.
#[derive(Debug, Clone, PartialEq)]
pub struct TableDef {
    /// The name within its operator: part of the state's address (uid, table).
    pub name: String,
    /// Its kind.
    pub kind: TableKind,
    /// Identity columns first, then the value columns; all under readable names.
    pub schema: SchemaRef,
    /// How many of the first columns identify a row.
    pub identity_columns: usize,
    /// Which columns (indices into `schema`, within the identity) are the partition key: their
    /// stable hash gives the key group.
    pub partition_columns: Vec<usize>,
}

/// Whether a table's columns survive the row encoding unchanged; the rows of those that do not are
/// written as Parquet only.
pub(crate) fn survives_encoding(def: &TableDef) -> bool {
    fn exact(field: &Field) -> bool {
        match field.data_type() {
            DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
                exact(item)
            }
            DataType::Struct(fields) => fields.iter().all(|field| exact(field)),
            DataType::Dictionary(..) | DataType::RunEndEncoded(..) => false,
            other => !other.is_nested(),
        }
    }
    def.schema.fields().iter().all(|field| exact(field))
}

/// What changed in a table since the last freeze: at most one row per identity.
#[derive(Debug, Clone)]
pub struct Delta {
    /// New contents of changed rows (the table's schema), in any order.
    pub upserts: RecordBatch,
    /// Identity columns of rows that are gone.
    pub deletes: RecordBatch,
    /// Window tables: every row whose window end is at or below this is gone.
    pub expired_through: Option<i64>,
}

impl Delta {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.upserts.num_rows() == 0 && self.deletes.num_rows() == 0 && self.expired_through.is_none()
    }
}

/// What a freeze is to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// What changed since the last freeze or load: a delta.
    Changes,
    /// All rows, without deletes: a base.
    Everything,
}

/// A frozen set of rows, copied out of the table; [`Frozen::into_delta`] does the rest on a
/// background thread.
pub struct Frozen(Box<dyn FnOnce() -> Result<Delta> + Send>);

impl Frozen {
    /// A delta that is made later, from what the closure owns.
    pub fn new(make: impl FnOnce() -> Result<Delta> + Send + 'static) -> Self {
        Self(Box::new(make))
    }
    /// Makes the delta.
    pub fn into_delta(self) -> Result<Delta> {
        (self.0)()
    }
}

impl std::fmt::Debug for Frozen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Frozen")
    }
}

/// The face of a state table that the runtime sees.
pub trait StateTable: Send {
    /// Name, kind and columns.
    fn def(&self) -> &TableDef;
    /// Fixes the set of rows in the scope and starts a new dirty set (invariant 6: once per
    /// checkpoint). It copies nothing: [`StateTable::drain`] does, bit by bit, while the table is
    /// used. The last frozen set must have been drained.
    fn begin_freeze(&mut self, scope: Scope) -> Result<()>;
    /// Copies rows of the frozen set, about as many as the budget says, which shrinks accordingly;
    /// answers the set when it is complete. A row that changes before it is copied is copied first.
    fn drain(&mut self, budget: &mut usize) -> Result<Option<Frozen>>;
    /// What changed since the last freeze, at once.
    fn freeze(&mut self) -> Result<Frozen> {
        self.begin_freeze(Scope::Changes)?;
        drain_all(self)
    }
    /// Everything, at once.
    fn freeze_all(&mut self) -> Result<Frozen> {
        self.begin_freeze(Scope::Everything)?;
        drain_all(self)
    }
    /// Puts back rows of a snapshot (the table's schema). Rows outside `range` are ignored;
    /// loaded rows are clean.
    fn load(&mut self, rows: &RecordBatch, range: KeyGroupRange) -> Result<()>;
    /// Number of live rows.
    fn rows(&self) -> usize;
    /// Bytes held in memory, estimated.
    fn bytes(&self) -> usize;
    /// Bytes that its live rows take, estimated: room that rows have left is used again.
    fn used_bytes(&self) -> usize;
}

fn drain_all<T: StateTable + ?Sized>(table: &mut T) -> Result<Frozen> {
    loop {
        if let Some(frozen) = table.drain(&mut { usize::MAX })? {
            return Ok(frozen);
        }
    }
}
