//! One error type with few kinds; the kind tells what the reader must do.

use std::fmt;

/// The result of anything in Millpond that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the reader of an error must do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// Mend your SQL, option or setting.
    Invalid,
    /// This record is bad.
    Data,
    /// Try again: a resource is missing for the moment.
    Unavailable,
    /// Stored bytes are not what was written: restore from another checkpoint.
    Corrupt,
    /// A bug of ours: a broken invariant.
    Internal,
    /// The user or the host asked to stop.
    Cancelled,
}

/// A place in SQL text: 1-based line and column, counted in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Location {
    /// 1-based line.
    pub line: u64,
    /// 1-based column, in characters.
    pub column: u64,
}

/// The one error: a kind, a message, and optionally a detail, a hint and a place in the SQL text.
///
/// The message is lower case, has no full stop and names the thing and its type.
#[derive(Clone, PartialEq, Eq)]
pub struct Error(Box<Parts>);

#[derive(Clone, PartialEq, Eq)]
struct Parts {
    kind: ErrorKind,
    message: String,
    detail: Option<String>,
    hint: Option<String>,
    location: Option<Location>,
}

impl Error {
    /// An error of a kind with a message.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Parts { kind, message: message.into(), detail: None, hint: None, location: None }))
    }
    /// Mend your SQL, option or setting.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }
    /// This record is bad.
    pub fn data(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Data, message)
    }
    /// Try again.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }
    /// Stored bytes are damaged.
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, message)
    }
    /// A bug of ours.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }
    /// The user asked to stop.
    pub fn cancelled() -> Self {
        Self::new(ErrorKind::Cancelled, "cancelled")
    }
    /// An operating-system error while doing `what` (for example `read "a.csv"`).
    pub fn io(what: impl fmt::Display, error: &std::io::Error) -> Self {
        Self::unavailable(format!("cannot {what}: {error}"))
    }

    /// Adds how to mend it.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }
    /// Adds what else is known.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.0.detail = Some(detail.into());
        self
    }
    /// Adds the place in the SQL text, unless one is known already.
    #[must_use]
    pub fn with_location(mut self, location: Option<Location>) -> Self {
        if self.0.location.is_none() {
            self.0.location = location;
        }
        self
    }
    /// Puts `context: ` in front of the message.
    #[must_use]
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.0.message = format!("{context}: {}", self.0.message);
        self
    }

    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }
    /// The message.
    pub fn message(&self) -> &str {
        &self.0.message
    }
    /// What else is known.
    pub fn detail(&self) -> Option<&str> {
        self.0.detail.as_deref()
    }
    /// How to mend it.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
    /// Where in the SQL text.
    pub fn location(&self) -> Option<Location> {
        self.0.location
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        if let Some(detail) = &self.0.detail {
            write!(f, "\n  detail: {detail}")?;
        }
        if let Some(hint) = &self.0.hint {
            write!(f, "\n  hint: {hint}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl std::error::Error for Error {}

impl From<arrow::error::ArrowError> for Error {
    /// Arrow complains about values (overflow, a failed cast): the record is bad.
    fn from(error: arrow::error::ArrowError) -> Self {
        let message = match error {
            arrow::error::ArrowError::CastError(m)
            | arrow::error::ArrowError::ParseError(m)
            | arrow::error::ArrowError::ComputeError(m)
            | arrow::error::ArrowError::ArithmeticOverflow(m)
            | arrow::error::ArrowError::InvalidArgumentError(m) => m,
            arrow::error::ArrowError::DivideByZero => "division by zero".into(),
            other => other.to_string(),
        };
        Error::data(message)
    }
}
