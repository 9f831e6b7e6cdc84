//! Expressions as SQL, for EXPLAIN and messages.
//!
//! The planner names columns that nobody named after expressions in its own notation
//! (`count(Int64(1))`); [`readable`] writes those as SQL too.

use std::borrow::Cow;
use std::fmt::Write;

use arrow::datatypes::{DataType, IntervalMonthDayNano, TimeUnit};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::ScalarFunctionExpr;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, CastExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr, Literal,
    NegativeExpr, NotExpr, TryCastExpr,
};
use datafusion::physical_expr_common::physical_expr::fmt_sql;

use crate::expression::Expression;
use crate::quick_time::original_of;

/// How tightly an expression binds: of those around it, the looser ones need no parentheses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Binding {
    Or,
    And,
    Not,
    Comparison,
    Sum,
    Product,
    Atom,
}

/// The expression as SQL.
pub fn sql_text(expression: &Expression) -> String {
    let mut out = String::new();
    write_expression(expression, Binding::Or, &mut out);
    out
}

fn write_expression(expression: &Expression, least: Binding, out: &mut String) {
    let (text, binding) = text_of(expression);
    match binding < least {
        true => {
            let _ = write!(out, "({text})");
        }
        false => out.push_str(&text),
    }
}

fn inner(expression: &Expression, least: Binding) -> String {
    let mut out = String::new();
    write_expression(expression, least, &mut out);
    out
}

fn text_of(expression: &Expression) -> (String, Binding) {
    let any = expression.as_ref();
    if let Some(original) = original_of(expression) {
        return text_of(original);
    }
    if let Some(column) = any.downcast_ref::<Column>() {
        return (readable(column.name()).into_owned(), Binding::Atom);
    }
    if let Some(literal) = any.downcast_ref::<Literal>() {
        return (literal_text(literal.value()), Binding::Atom);
    }
    if let Some(binary) = any.downcast_ref::<BinaryExpr>() {
        let binding = binding_of(binary.op());
        let tighter = if binding >= Binding::Comparison { next(binding) } else { binding };
        let (left, right) = (inner(binary.left(), binding), inner(binary.right(), tighter));
        let op = match binary.op() {
            Operator::NotEq => "<>".to_owned(),
            other => other.to_string(),
        };
        return (format!("{left} {op} {right}"), binding);
    }
    if let Some(not) = any.downcast_ref::<NotExpr>() {
        return (format!("NOT {}", inner(not.arg(), Binding::Comparison)), Binding::Not);
    }
    if let Some(null) = any.downcast_ref::<IsNullExpr>() {
        return (format!("{} IS NULL", inner(null.arg(), Binding::Sum)), Binding::Comparison);
    }
    if let Some(null) = any.downcast_ref::<IsNotNullExpr>() {
        return (format!("{} IS NOT NULL", inner(null.arg(), Binding::Sum)), Binding::Comparison);
    }
    if let Some(negative) = any.downcast_ref::<NegativeExpr>() {
        return (format!("-{}", inner(negative.arg(), Binding::Atom)), Binding::Product);
    }
    if let Some(cast) = any.downcast_ref::<CastExpr>() {
        return (cast_text("CAST", cast.expr(), cast.cast_type()), Binding::Atom);
    }
    if let Some(cast) = any.downcast_ref::<TryCastExpr>() {
        return (cast_text("TRY_CAST", cast.expr(), cast.cast_type()), Binding::Atom);
    }
    if let Some(like) = any.downcast_ref::<LikeExpr>() {
        let not = if like.negated() { "NOT " } else { "" };
        let word = if like.case_insensitive() { "ILIKE" } else { "LIKE" };
        let (text, pattern) = (inner(like.expr(), Binding::Sum), inner(like.pattern(), Binding::Sum));
        return (format!("{text} {not}{word} {pattern}"), Binding::Comparison);
    }
    if let Some(list) = any.downcast_ref::<InListExpr>() {
        let not = if list.negated() { "NOT " } else { "" };
        let items: Vec<String> = list.list().iter().map(sql_text).collect();
        let text = format!("{} {not}IN ({})", inner(list.expr(), Binding::Sum), items.join(", "));
        return (text, Binding::Comparison);
    }
    if let Some(case) = any.downcast_ref::<CaseExpr>() {
        return (case_text(case), Binding::Atom);
    }
    if let Some(call) = any.downcast_ref::<ScalarFunctionExpr>() {
        return call_text(call);
    }
    (fmt_sql(any).to_string(), Binding::Atom)
}

fn next(binding: Binding) -> Binding {
    match binding {
        Binding::Comparison => Binding::Sum,
        Binding::Sum => Binding::Product,
        _ => Binding::Atom,
    }
}

fn binding_of(operator: &Operator) -> Binding {
    match operator {
        Operator::Or => Binding::Or,
        Operator::And => Binding::And,
        Operator::Plus | Operator::Minus | Operator::StringConcat => Binding::Sum,
        Operator::Multiply | Operator::Divide | Operator::Modulo => Binding::Product,
        _ => Binding::Comparison,
    }
}

fn cast_text(word: &str, expression: &Expression, target: &DataType) -> String {
    format!("{word}({} AS {})", sql_text(expression), type_text(target))
}

fn case_text(case: &CaseExpr) -> String {
    let mut out = String::from("CASE");
    if let Some(operand) = case.expr() {
        let _ = write!(out, " {}", sql_text(operand));
    }
    for (condition, result) in case.when_then_expr() {
        let _ = write!(out, " WHEN {} THEN {}", sql_text(condition), sql_text(result));
    }
    if let Some(otherwise) = case.else_expr() {
        let _ = write!(out, " ELSE {}", sql_text(otherwise));
    }
    out + " END"
}

fn call_text(call: &ScalarFunctionExpr) -> (String, Binding) {
    let (name, arguments) = (call.fun().name(), call.args());
    let atom = |text: String| (text, Binding::Atom);
    match (name, arguments) {
        ("+" | "-" | "*" | "/" | "%", [left, right]) => {
            let binding = if matches!(name, "+" | "-") { Binding::Sum } else { Binding::Product };
            let (left, right) = (inner(left, binding), inner(right, next(binding)));
            (format!("{left} {name} {right}"), binding)
        }
        ("negate", [number]) => (format!("-{}", inner(number, Binding::Atom)), Binding::Product),
        ("item", [collection, index]) => {
            atom(format!("{}[{}]", inner(collection, Binding::Atom), sql_text(index)))
        }
        ("get_field", [row, field]) if field.downcast_ref::<Literal>().is_some() => {
            atom(format!("{}.{}", inner(row, Binding::Atom), sql_text(field).trim_matches('\'')))
        }
        ("like", [text, pattern, escape @ ..]) | ("similar_to", [text, pattern, escape @ ..]) => {
            let word = if name == "like" { "LIKE" } else { "SIMILAR TO" };
            let escape: String =
                escape.iter().map(|escape| format!(" ESCAPE {}", sql_text(escape))).collect();
            let (text, pattern) = (inner(text, Binding::Sum), inner(pattern, Binding::Sum));
            (format!("{text} {word} {pattern}{escape}"), Binding::Comparison)
        }
        ("extract", [unit, time]) => {
            atom(format!("EXTRACT({} FROM {})", sql_text(unit).trim_matches('\''), sql_text(time)))
        }
        ("floor_time" | "ceil_time", [time, unit]) => {
            let word = if name == "floor_time" { "FLOOR" } else { "CEIL" };
            atom(format!("{word}({} TO {})", sql_text(time), sql_text(unit).trim_matches('\'')))
        }
        (_, [argument]) if name.contains("CAST AS ") => {
            let (word, target) = name.split_once(" AS ").unwrap_or((name, ""));
            atom(format!("{word}({} AS {target})", sql_text(argument)))
        }
        _ => {
            let arguments: Vec<String> = arguments.iter().map(sql_text).collect();
            atom(format!("{}({})", name.to_uppercase(), arguments.join(", ")))
        }
    }
}

/// SQL's name of a type.
fn type_text(data_type: &DataType) -> String {
    let digits = |unit: &TimeUnit| match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 3,
        TimeUnit::Microsecond => 6,
        TimeUnit::Nanosecond => 9,
    };
    match data_type {
        DataType::Int8 => "TINYINT".into(),
        DataType::Int16 => "SMALLINT".into(),
        DataType::Int32 => "INT".into(),
        DataType::Int64 => "BIGINT".into(),
        DataType::Float32 => "FLOAT".into(),
        DataType::Float64 => "DOUBLE".into(),
        DataType::Boolean => "BOOLEAN".into(),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "STRING".into(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "BYTES".into(),
        DataType::Date32 => "DATE".into(),
        DataType::Decimal128(precision, scale) => format!("DECIMAL({precision}, {scale})"),
        DataType::Time32(unit) | DataType::Time64(unit) => format!("TIME({})", digits(unit)),
        DataType::Timestamp(unit, None) => format!("TIMESTAMP({})", digits(unit)),
        DataType::Timestamp(unit, Some(_)) => format!("TIMESTAMP_LTZ({})", digits(unit)),
        DataType::List(item) => format!("ARRAY<{}>", type_text(item.data_type())),
        other => other.to_string().to_uppercase(),
    }
}

fn literal_text(value: &ScalarValue) -> String {
    if value.is_null() {
        return "NULL".into();
    }
    match value {
        ScalarValue::Utf8(Some(text))
        | ScalarValue::LargeUtf8(Some(text))
        | ScalarValue::Utf8View(Some(text)) => {
            format!("'{}'", text.replace('\'', "''"))
        }
        ScalarValue::Boolean(Some(truth)) => truth.to_string().to_uppercase(),
        ScalarValue::Binary(Some(bytes)) => {
            format!("X'{}'", bytes.iter().map(|byte| format!("{byte:02X}")).collect::<String>())
        }
        ScalarValue::Decimal128(Some(value), precision, scale) => {
            use arrow::datatypes::{Decimal128Type, DecimalType};
            Decimal128Type::format_decimal(*value, *precision, *scale)
        }
        ScalarValue::Date32(_) => format!("DATE '{value}'"),
        ScalarValue::Time32Second(_)
        | ScalarValue::Time32Millisecond(_)
        | ScalarValue::Time64Microsecond(_)
        | ScalarValue::Time64Nanosecond(_) => format!("TIME '{}'", shown(value)),
        ScalarValue::TimestampSecond(..)
        | ScalarValue::TimestampMillisecond(..)
        | ScalarValue::TimestampMicrosecond(..)
        | ScalarValue::TimestampNanosecond(..) => format!("TIMESTAMP '{}'", shown(value).replace('T', " ")),
        ScalarValue::IntervalMonthDayNano(Some(interval)) => interval_text(*interval),
        other => other.to_string(),
    }
}

fn shown(value: &ScalarValue) -> String {
    let array = value.to_array().ok();
    array
        .and_then(|array| arrow::util::display::array_value_to_string(&array, 0).ok())
        .unwrap_or_else(|| value.to_string())
}

fn interval_text(interval: IntervalMonthDayNano) -> String {
    const UNITS: [(i64, &str); 4] = [
        (3_600_000_000_000, "HOUR"),
        (60_000_000_000, "MINUTE"),
        (1_000_000_000, "SECOND"),
        (1_000_000, "MILLISECOND"),
    ];
    let IntervalMonthDayNano { months, days, nanoseconds } = interval;
    let single = match (months, days, nanoseconds) {
        (months, 0, 0) if months != 0 && months % 12 == 0 => Some((i64::from(months / 12), "YEAR")),
        (months, 0, 0) if months != 0 => Some((i64::from(months), "MONTH")),
        (0, days, 0) if days != 0 => Some((i64::from(days), "DAY")),
        (0, 0, 0) => Some((0, "SECOND")),
        (0, 0, nanos) => {
            UNITS.iter().find(|(unit, _)| nanos % unit == 0).map(|(unit, name)| (nanos / unit, *name))
        }
        _ => None,
    };
    if let Some((number, unit)) = single {
        return format!("INTERVAL '{number}' {unit}");
    }
    let seconds = nanoseconds as f64 / 1e9;
    format!("INTERVAL '{months} months {days} days {seconds} seconds'")
}

/// The call by which a cast shows in a name.
const NAMED_CAST: &str = "named_cast(";

/// A name as people read it, where the planner made it of an expression.
pub fn readable(name: &str) -> Cow<'_, str> {
    const SORTS: [&str; 16] = [
        "Int8",
        "Int16",
        "Int32",
        "Int64",
        "UInt8",
        "UInt32",
        "UInt64",
        "Float32",
        "Float64",
        "Utf8",
        "Boolean",
        "Decimal128",
        "Date32",
        "IntervalMonthDayNano",
        "TimestampMillisecond",
        "TimestampMicrosecond",
    ];
    let mut shown = Cow::Borrowed(name);
    for sort in SORTS {
        let open = format!("{sort}(");
        let mut from = 0;
        while let Some(start) = shown[from..].find(&open).map(|found| found + from) {
            let inside = start + open.len();
            let within_word =
                shown[..start].ends_with(|letter: char| letter.is_alphanumeric() || letter == '_');
            let Some(length) = argument_length(&shown[inside..]).filter(|_| !within_word) else {
                from = inside;
                continue;
            };
            let plain = plain_argument(sort, &shown[inside..inside + length]);
            from = start + plain.len();
            shown = Cow::Owned(format!("{}{plain}{}", &shown[..start], &shown[inside + length + 1..]));
        }
    }
    while let Some(start) = shown.find(NAMED_CAST) {
        let inside = start + NAMED_CAST.len();
        let Some(length) = argument_length(&shown[inside..]) else { break };
        let Some((value, sql_type)) = shown[inside..inside + length].rsplit_once(",'") else { break };
        let cast = format!("CAST({value} AS {})", sql_type.trim_end_matches('\''));
        shown = Cow::Owned(format!("{}{cast}{}", &shown[..start], &shown[inside + length + 1..]));
    }
    for (engine, sql) in [("count(1)", "COUNT(*)"), ("count(*)", "COUNT(*)")] {
        if shown.contains(engine) {
            shown = Cow::Owned(shown.replace(engine, sql));
        }
    }
    shown
}

/// The same for a column of state that people open: without the names of tables, functions in
/// capitals.
pub fn plain_name(name: &str) -> String {
    let shown = readable(name);
    let (mut plain, mut rest, mut quote) = (String::new(), shown.as_ref(), None);
    while let Some(letter) = rest.chars().next() {
        let is_word = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '$';
        let word = &rest[..rest.find(|letter| !is_word(letter)).unwrap_or(rest.len())];
        let after = &rest[word.len()..];
        if quote.is_some() || word.is_empty() {
            quote = match quote {
                None if matches!(letter, '\'' | '"') => Some(letter),
                Some(open) if open == letter => None,
                open => open,
            };
            plain.push(letter);
            rest = &rest[letter.len_utf8()..];
            continue;
        }
        let is_table = after.strip_prefix('.').is_some_and(|column| column.starts_with(is_word))
            && !word.starts_with(|first: char| first.is_ascii_digit())
            && !plain.ends_with('.');
        match after.starts_with('(') {
            true => plain.push_str(&word.to_uppercase()),
            false if is_table => {}
            false => plain.push_str(word),
        }
        rest = after.strip_prefix('.').filter(|_| is_table).unwrap_or(after);
    }
    plain
}

/// How long the text before the closing parenthesis is.
fn argument_length(text: &str) -> Option<usize> {
    let (mut depth, mut quoted) = (0usize, false);
    for (place, letter) in text.char_indices() {
        match letter {
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted && depth == 0 => return Some(place),
            ')' if !quoted => depth -= 1,
            _ => {}
        }
    }
    None
}

fn plain_argument(sort: &str, argument: &str) -> String {
    let unquoted = argument.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    if sort == "IntervalMonthDayNano"
        && let Some(interval) = interval_of(unquoted.unwrap_or(argument))
    {
        return interval_text(interval);
    }
    if sort == "Decimal128"
        && let Some(decimal) = decimal_of(argument)
    {
        return decimal;
    }
    match (sort, unquoted) {
        ("Utf8" | "Date32", Some(text)) => format!("'{text}'"),
        (_, Some(text)) => text.to_owned(),
        (_, None) => argument.to_owned(),
    }
}

/// `IntervalMonthDayNano { months: 0, days: 0, nanoseconds: 1000000 }`.
fn interval_of(text: &str) -> Option<IntervalMonthDayNano> {
    let number = |name: &str| -> Option<i64> {
        let rest = text.split_once(&format!("{name}: "))?.1;
        rest.split([',', ' ']).next()?.parse().ok()
    };
    Some(IntervalMonthDayNano {
        months: i32::try_from(number("months")?).ok()?,
        days: i32::try_from(number("days")?).ok()?,
        nanoseconds: number("nanoseconds")?,
    })
}

/// `Some(15),2,1` is 1.5.
fn decimal_of(text: &str) -> Option<String> {
    use arrow::datatypes::{Decimal128Type, DecimalType};
    let mut parts = text.split(',');
    let value = parts.next()?.strip_prefix("Some(")?.strip_suffix(')')?.parse().ok()?;
    let (precision, scale) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some(Decimal128Type::format_decimal(value, precision, scale))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn column(name: &str) -> Expression {
        Arc::new(Column::new(name, 0))
    }

    fn literal(value: ScalarValue) -> Expression {
        Arc::new(Literal::new(value))
    }

    fn binary(left: Expression, op: Operator, right: Expression) -> Expression {
        Arc::new(BinaryExpr::new(left, op, right))
    }

    #[test]
    fn parentheses_stand_where_they_are_needed() {
        let sum = binary(column("a"), Operator::Plus, literal(ScalarValue::Int32(Some(1))));
        let product = binary(sum.clone(), Operator::Multiply, column("b"));
        assert_eq!(sql_text(&product), "(a + 1) * b");
        let difference = binary(column("c"), Operator::Minus, sum.clone());
        assert_eq!(sql_text(&difference), "c - (a + 1)");
        let less = binary(sum, Operator::Lt, column("b"));
        let both = binary(less.clone(), Operator::And, less);
        assert_eq!(sql_text(&both), "a + 1 < b AND a + 1 < b");
        let text = literal(ScalarValue::Utf8(Some("it's".into())));
        assert_eq!(sql_text(&binary(column("s"), Operator::NotEq, text)), "s <> 'it''s'");
    }

    #[test]
    fn names_of_the_planners_are_readable() {
        let cases = [
            ("count(Int64(1))", "COUNT(*)"),
            ("clicks.user_id % Int64(7)", "clicks.user_id % 7"),
            ("clicks.page != Utf8(\"a(b\")", "clicks.page != 'a(b'"),
            ("x + Decimal128(Some(15),2,1)", "x + 1.5"),
            (
                "endtime - IntervalMonthDayNano(\"IntervalMonthDayNano { months: 0, days: 0, nanoseconds: 1000000 }\")",
                "endtime - INTERVAL '1' MILLISECOND",
            ),
            ("MyInt64(1)", "MyInt64(1)"),
            ("plain", "plain"),
        ];
        for (name, expected) in cases {
            assert_eq!(readable(name), expected);
        }
    }

    #[test]
    fn names_of_state_are_plain() {
        let cases = [
            ("sum(orders.amount)", "SUM(amount)"),
            ("count(Int64(1))", "COUNT(*)"),
            ("g.i % Int64(1000)", "i % 1000"),
            ("t.v * Float64(1.5) || Utf8(\"a.b(\")", "v * 1.5 || 'a.b('"),
            ("max(named_cast(t.a,Utf8(\"STRING\")))", "MAX(CAST(a AS STRING))"),
            ("customer", "customer"),
        ];
        for (name, expected) in cases {
            assert_eq!(plain_name(name), expected);
        }
    }

    #[test]
    fn intervals_are_literals() {
        let day = literal(ScalarValue::IntervalMonthDayNano(Some(IntervalMonthDayNano::new(0, 1, 0))));
        assert_eq!(sql_text(&day), "INTERVAL '1' DAY");
        let mixed = literal(ScalarValue::IntervalMonthDayNano(Some(IntervalMonthDayNano::new(14, 0, 0))));
        assert_eq!(sql_text(&mixed), "INTERVAL '14' MONTH");
    }
}
