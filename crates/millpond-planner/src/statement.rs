//! Statements: what a user can say, with spans into their text.

use millpond_core::Location;
use millpond_operators::sink_materialize::Conflict;
use sqlparser::ast;

/// A statement, its text and where it begins.
#[derive(Debug, Clone)]
pub struct ParsedStatement {
    /// What it says.
    pub statement: Statement,
    /// Its text, without the semicolon, as the user wrote it.
    pub text: String,
    /// Its first token.
    pub location: Location,
}

/// What a user can say.
#[derive(Debug, Clone)]
pub enum Statement {
    /// `CREATE [TEMPORARY] TABLE [IF NOT EXISTS] …`.
    CreateTable(Box<CreateTable>),
    /// `CREATE [TEMPORARY] VIEW [IF NOT EXISTS] …`.
    CreateView(CreateView),
    /// `DROP TABLE [IF EXISTS] t`.
    DropTable {
        /// The table.
        name: ast::Ident,
        /// No error if it is not there.
        if_exists: bool,
    },
    /// `DROP VIEW [IF EXISTS] v`.
    DropView {
        /// The view.
        name: ast::Ident,
        /// No error if it is not there.
        if_exists: bool,
    },
    /// `INSERT INTO t [(columns)] query`.
    Insert(Insert),
    /// `EXECUTE STATEMENT SET BEGIN … END`: one job with several sinks.
    StatementSet(Vec<Insert>),
    /// A query, optionally with `EMIT CHANGES`.
    Query {
        /// The query.
        query: Box<ast::Query>,
        /// Whether the changelog itself is wanted, with its op column.
        emit_changes: bool,
    },
    /// `SET 'k' = 'v'` or `SET k = v`.
    Set {
        /// The key.
        key: String,
        /// The value, unquoted.
        value: String,
        /// Where the key stands.
        location: Location,
    },
    /// `RESET ['k']`.
    Reset {
        /// The key; `None` for all.
        key: Option<String>,
    },
    /// `SHOW …`.
    Show(Show),
    /// `DESCRIBE t` or `DESC t`.
    Describe {
        /// The table or view.
        name: ast::Ident,
    },
    /// `EXPLAIN [kind] statement`.
    Explain {
        /// What of the plan.
        kind: ExplainKind,
        /// The statement explained.
        statement: Box<Statement>,
    },
    /// `CHECKPOINT [JOB id]`.
    Checkpoint {
        /// The job; `None` for all.
        job: Option<u64>,
    },
    /// `CREATE SAVEPOINT 'folder' FOR JOB id`.
    CreateSavepoint {
        /// The job.
        job: u64,
        /// The folder; its own.
        folder: String,
    },
    /// `STOP JOB id [WITH SAVEPOINT ['folder']] [WITH DRAIN]`: a last checkpoint, then the end.
    StopJob {
        /// The job.
        job: u64,
        /// Whether the last checkpoint is also written as a savepoint.
        savepoint: StopSavepoint,
        /// Whether the input counts as ended, so that windows are closed.
        drain: bool,
    },
    /// `ALTER JOB id SET ('k' = 'v', …)`.
    AlterJob {
        /// The job.
        job: u64,
        /// Keys and values, with the place of each key.
        options: Vec<(String, String, Location)>,
    },
    /// `DESCRIBE CHECKPOINT n [FOR JOB id]`.
    DescribeCheckpoint {
        /// The checkpoint's number, or the folder of a savepoint or checkpoint.
        checkpoint: String,
        /// The job; `None` for the only one that has such a checkpoint.
        job: Option<u64>,
    },
    /// `EXPLAIN RESTORE FROM 'place' statement`: what of a snapshot's state the statement's job
    /// would keep.
    ExplainRestore {
        /// A savepoint or checkpoint.
        place: String,
        /// The INSERT or statement set.
        statement: Box<Statement>,
    },
    /// `CANCEL JOB id`: the end, at once.
    CancelJob {
        /// The job.
        job: u64,
    },
}

/// Whether a stopped job leaves a savepoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopSavepoint {
    /// None.
    None,
    /// Below `state.savepoints.dir`.
    Default,
    /// In this folder.
    In(String),
}

/// `SHOW …`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    /// Tables.
    Tables,
    /// Views.
    Views,
    /// Functions.
    Functions,
    /// Settings.
    Settings,
    /// Jobs.
    Jobs,
    /// Checkpoints.
    Checkpoints,
}

/// What `EXPLAIN` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExplainKind {
    /// The StreamPlan.
    Plan,
    /// The state bound of every operator.
    State,
    /// Kinds and keys per edge.
    ChangelogMode,
    /// The optimised logical plan.
    Logical,
}

/// `CREATE TABLE`.
#[derive(Debug, Clone)]
pub struct CreateTable {
    /// The name.
    pub name: ast::Ident,
    /// No error if it is there already.
    pub if_not_exists: bool,
    /// Gone with the session.
    pub temporary: bool,
    /// Columns in order.
    pub columns: Vec<Column>,
    /// `WATERMARK FOR column AS expr`.
    pub watermark: Option<Watermark>,
    /// `PRIMARY KEY (…)`.
    pub primary_key: Vec<ast::Ident>,
    /// `PARTITIONED BY (…)`.
    pub partitioned_by: Vec<ast::Ident>,
    /// `COMMENT '…'`.
    pub comment: Option<String>,
    /// `WITH ('k' = 'v', …)`, with the place of each key.
    pub options: Vec<(String, String, Location)>,
}

/// A column of `CREATE TABLE`.
#[derive(Debug, Clone)]
pub struct Column {
    /// The name.
    pub name: ast::Ident,
    /// What it is.
    pub kind: ColumnKind,
    /// `COMMENT '…'`.
    pub comment: Option<String>,
}

/// What a column is.
#[derive(Debug, Clone)]
pub enum ColumnKind {
    /// Read from and written to the connector.
    Physical {
        /// Its SQL type.
        data_type: ast::DataType,
        /// `NOT NULL`.
        not_null: bool,
    },
    /// `c AS expr`.
    Computed {
        /// The expression.
        expr: Box<ast::Expr>,
    },
    /// `c TYPE METADATA [FROM 'key'] [VIRTUAL]`.
    Metadata {
        /// Its SQL type.
        data_type: ast::DataType,
        /// The connector's name for it; the column's name if not given.
        from: Option<String>,
        /// Not written.
        is_virtual: bool,
    },
}

/// `WATERMARK FOR column AS expr`.
#[derive(Debug, Clone)]
pub struct Watermark {
    /// The time column.
    pub column: ast::Ident,
    /// The expression.
    pub expr: ast::Expr,
}

/// `CREATE VIEW`.
#[derive(Debug, Clone)]
pub struct CreateView {
    /// The name.
    pub name: ast::Ident,
    /// New names of the columns; empty to keep the query's.
    pub columns: Vec<ast::Ident>,
    /// No error if it is there already.
    pub if_not_exists: bool,
    /// Gone with the session.
    pub temporary: bool,
    /// The query.
    pub query: Box<ast::Query>,
    /// Text of the query.
    pub query_text: String,
}

/// `INSERT INTO`.
#[derive(Debug, Clone)]
pub struct Insert {
    /// The sink table.
    pub table: ast::Ident,
    /// Its columns, if listed.
    pub columns: Vec<ast::Ident>,
    /// What is inserted.
    pub query: Box<ast::Query>,
    /// `ON CONFLICT DO …`, if written.
    pub on_conflict: Option<OnConflict>,
}

/// `ON CONFLICT DO …`: what becomes of rows with the same primary key of the sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnConflict {
    /// What is done.
    pub conflict: Conflict,
    /// Where the clause stands.
    pub location: Location,
}
