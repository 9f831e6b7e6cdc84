//! Cuts a script into statements, without parsing them.
//!
//! A script runs one statement after the other, so an error in the fifth must not keep the first
//! four from running; and the shell must know when a statement is complete. Both need only
//! quotes, comments, and the one construct that holds semicolons: a statement set.
//!
//! ```text
//! CREATE …; BEGIN STATEMENT SET; INSERT …; INSERT …; END; SELECT …
//! └── 1 ──┘ └──────────────────── 2 ───────────────────┘ └── 3 ───┘
//! ```

use millpond_core::Location;

/// The text of one statement and where it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatementSource {
    /// From its first to its last token, as written, without the semicolon.
    pub text: String,
    /// Its first character in the script.
    pub location: Location,
}

/// The statements of a script, in order. Never fails: what is wrong shows when a piece is parsed.
pub fn split_statements(sql: &str) -> Vec<StatementSource> {
    split(sql).statements
}

/// Whether the text ends with a semicolon outside quotes, comments and statement sets, so that
/// a shell can run it. Text without a statement is not complete.
pub fn is_complete(sql: &str) -> bool {
    let split = split(sql);
    split.terminated && !split.statements.is_empty()
}

struct Split {
    statements: Vec<StatementSource>,
    /// Nothing but blanks and comments after the last semicolon.
    terminated: bool,
}

fn split(sql: &str) -> Split {
    let mut statements = vec![];
    let mut piece = Piece::default();
    let mut unterminated = false;
    for lexeme in Scanner::new(sql) {
        match lexeme.kind {
            LexemeKind::Blank => {}
            LexemeKind::Semicolon if !piece.inside_set() => {
                statements.extend(std::mem::take(&mut piece).source(sql));
            }
            LexemeKind::Word | LexemeKind::Semicolon | LexemeKind::Other => piece.add(sql, &lexeme),
            LexemeKind::Unterminated { .. } => {
                unterminated = true;
                piece.add(sql, &lexeme);
            }
        }
    }
    let rest = piece.source(sql);
    let terminated = rest.is_none() && !unterminated;
    statements.extend(rest);
    Split { statements, terminated }
}

/// The statement being collected.
#[derive(Default)]
struct Piece<'a> {
    start: Option<(usize, Location)>,
    end: usize,
    first_word: &'a str,
    previous: &'a str,
    set: StatementSet,
}

/// Where the statement stands with regard to `STATEMENT SET … END`.
#[derive(Default, PartialEq, Eq)]
enum StatementSet {
    #[default]
    None,
    /// Inside, with so many CASE that have not met their END.
    Open {
        cases: usize,
    },
    Closed,
}

impl<'a> Piece<'a> {
    fn inside_set(&self) -> bool {
        matches!(self.set, StatementSet::Open { .. })
    }

    fn add(&mut self, sql: &'a str, lexeme: &Lexeme) {
        let text = &sql[lexeme.start..lexeme.end];
        if self.start.is_none() {
            self.start = Some((lexeme.start, lexeme.location));
            self.first_word = text;
        }
        self.end = lexeme.end;
        if lexeme.kind == LexemeKind::Word {
            self.follow_set(text);
        }
        self.previous = text;
    }

    fn follow_set(&mut self, word: &str) {
        let is = |keyword: &str| word.eq_ignore_ascii_case(keyword);
        let may_be_set = self.may_be_set();
        match &mut self.set {
            StatementSet::None if is("SET") && may_be_set => {
                self.set = StatementSet::Open { cases: 0 };
            }
            StatementSet::Open { cases } if is("CASE") => *cases += 1,
            StatementSet::Open { cases: 0 } if is("END") => self.set = StatementSet::Closed,
            StatementSet::Open { cases } if is("END") => *cases -= 1,
            StatementSet::None | StatementSet::Open { .. } | StatementSet::Closed => {}
        }
    }

    fn may_be_set(&self) -> bool {
        const FIRST: [&str; 4] = ["EXECUTE", "BEGIN", "EXPLAIN", "STATEMENT"];
        self.previous.eq_ignore_ascii_case("STATEMENT")
            && FIRST.iter().any(|first| self.first_word.eq_ignore_ascii_case(first))
    }

    fn source(self, sql: &str) -> Option<StatementSource> {
        let (start, location) = self.start?;
        Some(StatementSource { text: sql[start..self.end].into(), location })
    }
}

/// A stretch of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lexeme {
    pub(super) kind: LexemeKind,
    pub(super) location: Location,
    start: usize,
    end: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LexemeKind {
    /// White space or a comment.
    Blank,
    Word,
    Semicolon,
    /// A symbol, something in quotes, or a hint.
    Other,
    /// Something in quotes, or a comment, that reaches the end of the text.
    Unterminated {
        opened_by: char,
    },
}

/// Reads text lexeme by lexeme, with the same idea of lines and columns as sqlparser's tokenizer.
pub(super) struct Scanner<'a> {
    rest: std::iter::Peekable<std::str::CharIndices<'a>>,
    length: usize,
    location: Location,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(sql: &'a str) -> Self {
        let location = Location { line: 1, column: 1 };
        Self { rest: sql.char_indices().peekable(), length: sql.len(), location }
    }

    fn offset(&mut self) -> usize {
        self.rest.peek().map_or(self.length, |(offset, _)| *offset)
    }

    fn peek(&mut self) -> Option<char> {
        self.rest.peek().map(|(_, ch)| *ch)
    }

    fn next_char(&mut self) -> Option<char> {
        let (_, ch) = self.rest.next()?;
        self.location = if ch == '\n' {
            Location { line: self.location.line + 1, column: 1 }
        } else {
            Location { line: self.location.line, column: self.location.column + 1 }
        };
        Some(ch)
    }

    fn take(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.next_char();
        }
        found
    }

    fn skip_while(&mut self, test: impl Fn(char) -> bool) {
        while self.peek().is_some_and(&test) {
            self.next_char();
        }
    }

    fn kind_after(&mut self, first: char) -> LexemeKind {
        match first {
            ';' => LexemeKind::Semicolon,
            '\'' | '"' | '`' => self.quoted(first),
            '-' if self.take('-') => {
                self.skip_while(|ch| ch != '\n');
                LexemeKind::Blank
            }
            '/' if self.take('*') => self.comment(),
            _ if is_word(first) => {
                self.skip_while(is_word);
                LexemeKind::Word
            }
            _ if first.is_whitespace() || first == '\u{feff}' => {
                self.skip_while(char::is_whitespace);
                LexemeKind::Blank
            }
            _ => LexemeKind::Other,
        }
    }

    /// A doubled quote stands for itself.
    fn quoted(&mut self, quote: char) -> LexemeKind {
        while let Some(ch) = self.next_char() {
            if ch == quote && !self.take(quote) {
                return LexemeKind::Other;
            }
        }
        LexemeKind::Unterminated { opened_by: quote }
    }

    /// Comments nest; one that begins with `+` is a hint.
    fn comment(&mut self) -> LexemeKind {
        let kind = if self.peek() == Some('+') { LexemeKind::Other } else { LexemeKind::Blank };
        let mut depth = 1;
        while depth > 0 {
            match self.next_char() {
                Some('*') if self.take('/') => depth -= 1,
                Some('/') if self.take('*') => depth += 1,
                Some(_) => {}
                None => return LexemeKind::Unterminated { opened_by: '/' },
            }
        }
        kind
    }
}

fn is_word(ch: char) -> bool {
    ch.is_alphanumeric() || ch == '_' || ch == '$'
}

impl Iterator for Scanner<'_> {
    type Item = Lexeme;

    fn next(&mut self) -> Option<Lexeme> {
        let (start, location) = (self.offset(), self.location);
        let first = self.next_char()?;
        let kind = self.kind_after(first);
        Some(Lexeme { kind, location, start, end: self.offset() })
    }
}
