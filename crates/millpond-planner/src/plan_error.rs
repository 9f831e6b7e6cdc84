//! Errors of planning: what DataFusion complains about, in our words and with a place in the text.
//!
//! Messages of DataFusion's own that we know are rewritten; others pass with their prefixes cut.

use datafusion::common::{Column, DataFusionError, SchemaError};
use millpond_core::{Error, ErrorKind, Location};
use millpond_operators::sql_text::readable;
use sqlparser::tokenizer::Span;

/// How every message ends that names a construct the streaming planner cannot plan.
const UNSUPPORTED: &str = "is not supported in a streaming query yet";

/// `what` cannot be planned as a stream (but perhaps as a batch).
pub(crate) fn unsupported(what: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{what} {UNSUPPORTED}"))
}

/// Whether the query is sound but not plannable as a stream: over bounded input, batch execution
/// can answer it.
pub fn is_unsupported(error: &Error) -> bool {
    error.kind() == ErrorKind::Invalid && error.message().ends_with(UNSUPPORTED)
}

/// An error of ours, to be carried through DataFusion unchanged.
pub(crate) fn carried(error: Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// The place where a span begins.
pub(crate) fn location_of(span: Span) -> Option<Location> {
    (span.start.line > 0).then_some(Location { line: span.start.line, column: span.start.column })
}

/// Our error for one of DataFusion's.
pub(crate) fn from_datafusion(error: DataFusionError) -> Error {
    let location = error
        .diagnostic()
        .and_then(|diagnostic| diagnostic.span)
        .map(|span| Location { line: span.start.line, column: span.start.column });
    translate(error).with_location(location)
}

fn translate(error: DataFusionError) -> Error {
    match error {
        DataFusionError::Diagnostic(_, inner) | DataFusionError::Context(_, inner) => translate(*inner),
        DataFusionError::Collection(mut errors) if !errors.is_empty() => translate(errors.swap_remove(0)),
        DataFusionError::Shared(inner) => reworded(&inner.message()),
        DataFusionError::External(inner) => match inner.downcast::<Error>() {
            Ok(ours) => *ours,
            Err(other) => reworded(&other.to_string()),
        },
        DataFusionError::SchemaError(schema, _) => from_schema(*schema),
        DataFusionError::ArrowError(arrow, _) => Error::from(*arrow),
        DataFusionError::NotImplemented(message) => unsupported_feature(&message),
        DataFusionError::Internal(message) => Error::internal(cleaned(&message)),
        DataFusionError::ResourcesExhausted(message) => Error::unavailable(cleaned(&message)),
        DataFusionError::Execution(message) => Error::data(cleaned(&message)),
        other => reworded(&other.message()),
    }
}

fn from_schema(error: SchemaError) -> Error {
    match error {
        SchemaError::FieldNotFound { field, valid_fields } => unknown_column(&field, &valid_fields),
        SchemaError::AmbiguousReference { field } => {
            Error::invalid(format!("column \"{}\" is ambiguous", field.name))
                .with_hint(format!("qualify it with its table, as in t.{}", field.name))
        }
        SchemaError::DuplicateQualifiedField { name, .. }
        | SchemaError::DuplicateUnqualifiedField { name } => {
            Error::invalid(format!("column \"{name}\" is there twice"))
                .with_hint(format!("rename one of them, as in {name} AS {name}2"))
        }
    }
}

fn unknown_column(column: &Column, known: &[Column]) -> Error {
    let message = match &column.relation {
        Some(relation) => format!("column \"{}\" of \"{relation}\" does not exist", column.name),
        None => format!("column \"{}\" does not exist", column.name),
    };
    let names: Vec<&str> = known.iter().map(|column| column.name.as_str()).collect();
    with_nearest(Error::invalid(message), &column.name, &names)
}

/// Adds the known names that are most like `name` as a hint.
pub(crate) fn with_nearest(error: Error, name: &str, known: &[&str]) -> Error {
    let nearest = nearest(name, known);
    if !nearest.is_empty() {
        let nearest: Vec<String> = nearest.iter().map(|name| format!("\"{name}\"")).collect();
        return error.with_hint(format!("did you mean {}?", nearest.join(" or ")));
    }
    match known {
        [] => error,
        known => {
            let mut known = known.to_vec();
            known.sort_unstable();
            known.dedup();
            known.truncate(12);
            error.with_hint(format!("there are {}", known.join(", ")))
        }
    }
}

/// At most three known names, most alike first.
pub(crate) fn nearest<'a>(name: &str, known: &[&'a str]) -> Vec<&'a str> {
    let lower = name.to_lowercase();
    let mut ranked: Vec<(f64, &str)> = known
        .iter()
        .map(|known| (strsim::jaro_winkler(&lower, &known.to_lowercase()), *known))
        .filter(|(likeness, _)| *likeness > 0.8)
        .collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    ranked.dedup_by(|a, b| a.1 == b.1);
    ranked.into_iter().take(3).map(|(_, name)| name).collect()
}

fn unsupported_feature(message: &str) -> Error {
    let message = cleaned(message);
    if let Some(error) = without_physical_form(&message) {
        return error;
    }
    match message.contains("support") {
        true => Error::invalid(message),
        false => Error::invalid(format!("{message} is not supported")),
    }
}

/// `Physical plan does not support logical expression InSubquery(InSubquery { … })`.
fn without_physical_form(message: &str) -> Option<Error> {
    let expression = message.strip_prefix("physical plan does not support logical expression ")?;
    let (what, hint) = match expression.split('(').next() {
        Some("InSubquery") => ("IN with a subquery", "it can stand in WHERE, or be written as a join"),
        Some("Exists") => ("EXISTS with a subquery", "it can stand in WHERE, or be written as a join"),
        Some("ScalarSubquery") => ("a subquery of this form", "write it as a join"),
        Some("OuterReferenceColumn") => (
            "a subquery that refers to the query around it in this way",
            "compare the outer column by = in its WHERE, or write it as a join",
        ),
        _ => ("this expression", "it can stand in WHERE, or be written as a join"),
    };
    Some(Error::invalid(format!("{what} is not supported here")).with_hint(hint))
}

fn reworded(message: &str) -> Error {
    // One of ours, which the planner has made a text of.
    if let Some((_, own)) = message.split_once("External error: ") {
        let (message, notes) = own.split_once("\n  ").unwrap_or((own, ""));
        let message = message.split(". No function matches").next().unwrap_or(message);
        let error = Error::invalid(cleaned(message));
        return match notes.split_once("hint: ") {
            Some((_, hint)) => {
                let hint = hint.lines().next().unwrap_or(hint);
                error.with_hint(hint.split(". No function matches").next().unwrap_or(hint))
            }
            None => error,
        };
    }
    let message = cleaned(message);
    // `Invalid function 'x'.\nDid you mean 'y'?`, where y is any of the nearest.
    if let Some(name) = message.strip_prefix("invalid function '").and_then(|rest| rest.split('\'').next()) {
        return Error::invalid(format!("function {}{NO_FUNCTION}", name.to_uppercase()));
    }
    if let Some(error) = without_physical_form(&message) {
        return error;
    }
    // `Cannot create filter with non-boolean predicate 't.id' returning Int32`.
    if let Some((predicate, found)) = message
        .strip_prefix("cannot create filter with non-boolean predicate '")
        .and_then(|rest| rest.split_once("' returning "))
    {
        return Error::invalid(format!("a condition must be BOOLEAN, but {predicate} is {found}"))
            .with_hint("compare it with a value");
    }
    // `Column in SELECT must be in GROUP BY …: While expanding wildcard, column "t.id" must appear …`.
    if message.starts_with("column in SELECT must be in GROUP BY")
        && let Some(name) = message.split('"').nth(1)
    {
        let bare = name.rsplit('.').next().unwrap_or(name);
        return Error::invalid(format!("column \"{bare}\" is neither in GROUP BY nor in an aggregate"))
            .with_hint(format!("add it to GROUP BY, or aggregate it, as in MAX({bare})"));
    }
    // `Function 'x' user-defined coercion failed with: OUR MESSAGE No function matches …`.
    if let Some((_, own)) = message.split_once("user-defined coercion failed with: ") {
        return Error::invalid(cleaned(own.split(" No function matches").next().unwrap_or(own)));
    }
    // `No function matches the given name and argument types 'x(Int64)'. You might …\n\tCandidate functions: …`.
    if let Some((_, call)) = message.split_once("unction matches the given name and argument types '")
        && let Some(call) = call.split('\'').next()
    {
        return Error::invalid(format!("there is no function {call} for these types"))
            .with_hint("CAST its arguments to the types that it takes");
    }
    Error::invalid(message)
}

/// How the message about an unknown function ends.
const NO_FUNCTION: &str = " does not exist";

/// The function that the error says is unknown.
pub(crate) fn unknown_function(error: &Error) -> Option<&str> {
    error.message().strip_prefix("function ")?.strip_suffix(NO_FUNCTION)
}

/// The message with SQL's names of types.
fn with_sql_types(message: &str) -> String {
    const TYPES: [(&str, &str); 20] = [
        ("Timestamp(Second, None)", "TIMESTAMP(0)"),
        ("Timestamp(Millisecond, None)", "TIMESTAMP(3)"),
        ("Timestamp(Microsecond, None)", "TIMESTAMP(6)"),
        ("Timestamp(Nanosecond, None)", "TIMESTAMP(9)"),
        ("Timestamp(ms)", "TIMESTAMP(3)"),
        ("Timestamp(µs)", "TIMESTAMP(6)"),
        ("Interval(MonthDayNano)", "INTERVAL"),
        ("Int8", "TINYINT"),
        ("Int16", "SMALLINT"),
        ("Int32", "INT"),
        ("Int64", "BIGINT"),
        ("Float32", "FLOAT"),
        ("Float64", "DOUBLE"),
        ("Utf8View", "STRING"),
        ("Utf8", "STRING"),
        ("Boolean", "BOOLEAN"),
        ("Date32", "DATE"),
        ("Decimal128", "DECIMAL"),
        ("Binary", "BYTES"),
        ("List", "ARRAY"),
    ];
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut named = message.to_owned();
    for (engine, sql) in TYPES {
        let mut from = 0;
        while let Some(start) = named[from..].find(engine).map(|found| found + from) {
            let end = start + engine.len();
            let inside = named[..start].ends_with(is_word) || named[end..].starts_with(is_word);
            if inside {
                from = end;
                continue;
            }
            named.replace_range(start..end, sql);
            from = start + sql.len();
        }
    }
    named
}

/// Without backtrace, prefixes, capital letter and full stop.
fn cleaned(message: &str) -> String {
    let mut message = message.split("\n\nbacktrace:").next().unwrap_or_default().trim();
    let prefixes = [
        "Error during planning: ",
        "This feature is not implemented: ",
        "Execution error: ",
        "Schema error: ",
        "Optimizer rule ",
        "type_coercion\ncaused by\n",
    ];
    while let Some(rest) = prefixes.iter().find_map(|prefix| message.strip_prefix(prefix)) {
        message = rest;
    }
    let message = message.trim_end_matches('.').replace("DataFusion", "the planner");
    let message = with_sql_types(&readable(&message));
    let mut letters = message.chars();
    match (letters.next(), letters.clone().next()) {
        (Some(first), Some(second)) if first.is_uppercase() && !second.is_uppercase() => {
            first.to_lowercase().chain(letters).collect()
        }
        _ => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_columns_name_the_nearest() {
        let known = ["price", "bidder", "auction"].map(Column::from_name).to_vec();
        let field = Box::new(Column::from_name("pryce"));
        let schema = SchemaError::FieldNotFound { field, valid_fields: known };
        let error = from_datafusion(DataFusionError::SchemaError(Box::new(schema), Box::new(None)));
        assert_eq!(error.message(), "column \"pryce\" does not exist");
        assert_eq!(error.hint(), Some("did you mean \"price\"?"));
    }

    #[test]
    fn our_own_errors_pass_unchanged() {
        let ours = Error::invalid("x").with_hint("y");
        let wrapped = DataFusionError::Context("while planning".into(), Box::new(carried(ours.clone())));
        assert_eq!(from_datafusion(wrapped), ours);
    }

    #[test]
    fn unsupported_is_told_apart() {
        assert!(is_unsupported(&unsupported("OVER")));
        assert!(!is_unsupported(&Error::invalid("column \"a\" does not exist")));
    }

    #[test]
    fn types_have_the_names_of_sql() {
        let error = "Cannot coerce arithmetic expression Int64 + Boolean to valid types";
        let error = from_datafusion(DataFusionError::Plan(error.into()));
        assert_eq!(error.message(), "cannot coerce arithmetic expression BIGINT + BOOLEAN to valid types");
        assert_eq!(with_sql_types("MyInt64 List(Int8)"), "MyInt64 ARRAY(TINYINT)");
    }

    #[test]
    fn unknown_functions_are_told() {
        let error =
            from_datafusion(DataFusionError::Plan("Invalid function 'smu'.\nDid you mean 'sum'?".into()));
        assert_eq!(error.message(), "function SMU does not exist");
        assert_eq!(unknown_function(&error), Some("SMU"));
    }
}
