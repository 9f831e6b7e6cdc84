//! Types: SQL's names for them and the Arrow types that hold them.
//!
//! Flink's rules where the two differ: `TIMESTAMP` is `TIMESTAMP(6)`, `DECIMAL` is
//! `DECIMAL(10, 0)`, strings have no length. Arrow knows timestamps of 0, 3, 6 and 9 digits, so
//! that other precisions are rounded up.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields, IntervalUnit, TimeUnit};
use datafusion::common::DataFusionError;
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::expr::Cast;
use datafusion::logical_expr::planner::TypePlanner;
use millpond_core::{Error, Result};
use sqlparser::ast::{self, ArrayElemTypeDef, ExactNumberInfo, TimezoneInfo};

/// The time zone that an Arrow type carries for `TIMESTAMP_LTZ`: values are UTC.
pub const LTZ_ZONE: &str = "UTC";

/// The most digits of a `DECIMAL`.
const DECIMAL_DIGITS_MAX: u64 = 38;

/// The Arrow type of a SQL type.
pub fn arrow_type(sql: &ast::DataType) -> Result<DataType> {
    use ast::DataType as Sql;
    Ok(match sql {
        Sql::Boolean | Sql::Bool => DataType::Boolean,
        Sql::TinyInt(_) => DataType::Int8,
        Sql::SmallInt(_) | Sql::Int2(_) => DataType::Int16,
        Sql::Int(_) | Sql::Integer(_) | Sql::Int4(_) => DataType::Int32,
        Sql::BigInt(_) | Sql::Int8(_) => DataType::Int64,
        Sql::Float(_) | Sql::Real | Sql::Float4 => DataType::Float32,
        Sql::Double(_) | Sql::DoublePrecision | Sql::Float8 => DataType::Float64,
        Sql::Decimal(digits) | Sql::Numeric(digits) | Sql::Dec(digits) => decimal(digits)?,
        Sql::Char(_)
        | Sql::Character(_)
        | Sql::Varchar(_)
        | Sql::CharVarying(_)
        | Sql::CharacterVarying(_)
        | Sql::Nvarchar(_)
        | Sql::Text
        | Sql::String(_) => DataType::Utf8,
        Sql::Binary(_) | Sql::Varbinary(_) | Sql::Bytes(_) | Sql::Bytea => DataType::Binary,
        Sql::Date => DataType::Date32,
        Sql::Time(digits, TimezoneInfo::None | TimezoneInfo::WithoutTimeZone) => time(*digits),
        Sql::Timestamp(digits, zone) => timestamp(*digits, zone_of(*zone))?,
        Sql::Interval { .. } => DataType::Interval(IntervalUnit::MonthDayNano),
        Sql::Array(ArrayElemTypeDef::AngleBracket(item) | ArrayElemTypeDef::SquareBracket(item, None)) => {
            DataType::List(Arc::new(Field::new("item", arrow_type(item)?, true)))
        }
        Sql::Map(key, value) => map(arrow_type(key)?, arrow_type(value)?),
        Sql::Struct(fields, _) => DataType::Struct(row_fields(fields)?),
        Sql::Custom(name, arguments) => custom(&name.to_string(), arguments, sql)?,
        other => return Err(unknown(other)),
    })
}

/// How many characters a cast leaves of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum TextLength {
    /// `CHAR(n)`: cut or filled with blanks.
    Char(usize),
    /// `VARCHAR(n)`: cut.
    Varchar(usize),
}

/// Under which key a cast's target tells its length; the Arrow type has none.
const LENGTH: &str = "millpond.length";

impl TextLength {
    /// That of a type; `None` for types without one.
    pub(crate) fn of(sql: &ast::DataType) -> Option<Self> {
        use ast::DataType as Sql;
        let number = |length: &Option<ast::CharacterLength>| match length {
            Some(ast::CharacterLength::IntegerLength { length, .. }) => usize::try_from(*length).ok(),
            Some(ast::CharacterLength::Max) | None => None,
        };
        match sql {
            Sql::Char(None) | Sql::Character(None) => Some(TextLength::Char(1)),
            Sql::Char(length) | Sql::Character(length) => number(length).map(TextLength::Char),
            Sql::Varchar(length) | Sql::CharVarying(length) | Sql::CharacterVarying(length) => {
                number(length).map(TextLength::Varchar)
            }
            _ => None,
        }
    }

    /// The text with this length.
    pub(crate) fn fit(self, text: &str) -> Cow<'_, str> {
        let (TextLength::Char(length) | TextLength::Varchar(length)) = self;
        if let Some((end, _)) = text.char_indices().nth(length) {
            return Cow::Borrowed(&text[..end]);
        }
        match self {
            TextLength::Char(length) => Cow::Owned(format!("{text:<length$}")),
            TextLength::Varchar(_) => Cow::Borrowed(text),
        }
    }
}

impl fmt::Display for TextLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TextLength::Char(length) => write!(f, "CHAR({length})"),
            TextLength::Varchar(length) => write!(f, "VARCHAR({length})"),
        }
    }
}

/// The text, cast to a length.
pub(crate) fn with_length(text: Expr, length: TextLength) -> Expr {
    let metadata = HashMap::from([(LENGTH.to_owned(), length.to_string())]);
    let field = Field::new("", DataType::Utf8, true).with_metadata(metadata);
    Expr::Cast(Cast { expr: Box::new(text), field: Arc::new(field) })
}

/// The length that the target of a cast tells.
pub(crate) fn text_length(target: &Field) -> Option<TextLength> {
    let text = target.metadata().get(LENGTH)?;
    let (name, digits) = text.strip_suffix(')')?.split_once('(')?;
    let length = digits.parse().ok()?;
    Some(if name == "CHAR" { TextLength::Char(length) } else { TextLength::Varchar(length) })
}

fn unknown(sql: &ast::DataType) -> Error {
    Error::invalid(format!("type {sql} is not supported"))
        .with_hint("types are those of Flink SQL, such as BIGINT, DECIMAL(10, 2), STRING, TIMESTAMP(3)")
}

fn decimal(digits: &ExactNumberInfo) -> Result<DataType> {
    let (precision, scale) = match *digits {
        ExactNumberInfo::None => (10, 0),
        ExactNumberInfo::Precision(precision) => (precision, 0),
        ExactNumberInfo::PrecisionAndScale(precision, scale) => (precision, scale),
    };
    if !(1..=DECIMAL_DIGITS_MAX).contains(&precision) || !(0..=precision as i64).contains(&scale) {
        return Err(Error::invalid(format!("type DECIMAL({precision}, {scale}) does not exist"))
            .with_hint("the precision is 1 to 38, the scale 0 to the precision"));
    }
    Ok(DataType::Decimal128(precision as u8, scale as i8))
}

fn time(digits: Option<u64>) -> DataType {
    match digits.unwrap_or(0) {
        0..=3 => DataType::Time32(TimeUnit::Millisecond),
        4..=6 => DataType::Time64(TimeUnit::Microsecond),
        _ => DataType::Time64(TimeUnit::Nanosecond),
    }
}

fn zone_of(zone: TimezoneInfo) -> Option<&'static str> {
    match zone {
        TimezoneInfo::None | TimezoneInfo::WithoutTimeZone => None,
        TimezoneInfo::WithTimeZone | TimezoneInfo::Tz => Some(LTZ_ZONE),
    }
}

fn timestamp(digits: Option<u64>, zone: Option<&str>) -> Result<DataType> {
    let unit = match digits.unwrap_or(6) {
        0 => TimeUnit::Second,
        1..=3 => TimeUnit::Millisecond,
        4..=6 => TimeUnit::Microsecond,
        7..=9 => TimeUnit::Nanosecond,
        digits => {
            return Err(Error::invalid(format!("type TIMESTAMP({digits}) does not exist"))
                .with_hint("a timestamp has 0 to 9 fractional digits"));
        }
    };
    Ok(DataType::Timestamp(unit, zone.map(Into::into)))
}

fn map(key: DataType, value: DataType) -> DataType {
    let entries = Fields::from(vec![Field::new("key", key, false), Field::new("value", value, true)]);
    DataType::Map(Arc::new(Field::new("entries", DataType::Struct(entries), false)), false)
}

fn row_fields(fields: &[ast::StructField]) -> Result<Fields> {
    let field = |(index, field): (usize, &ast::StructField)| {
        let name = field.field_name.as_ref().map_or_else(|| format!("f{index}"), |name| name.value.clone());
        Ok(Field::new(name, arrow_type(&field.field_type)?, true))
    };
    fields.iter().enumerate().map(field).collect()
}

fn custom(name: &str, arguments: &[String], sql: &ast::DataType) -> Result<DataType> {
    if !name.eq_ignore_ascii_case("TIMESTAMP_LTZ") {
        return Err(unknown(sql));
    }
    let digits = arguments.first().map(|digits| digits.parse()).transpose().map_err(|_| unknown(sql))?;
    timestamp(digits, Some(LTZ_ZONE))
}

/// SQL's name of an Arrow type.
pub fn sql_type(data_type: &DataType) -> String {
    match data_type {
        DataType::Null => "NULL".into(),
        DataType::Boolean => "BOOLEAN".into(),
        DataType::Int8 => "TINYINT".into(),
        DataType::Int16 => "SMALLINT".into(),
        DataType::Int32 => "INT".into(),
        DataType::Int64 => "BIGINT".into(),
        DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::UInt64 => {
            format!("BIGINT UNSIGNED({})", data_type.primitive_width().map_or(64, |bytes| bytes * 8))
        }
        DataType::Float16 | DataType::Float32 => "FLOAT".into(),
        DataType::Float64 => "DOUBLE".into(),
        DataType::Decimal32(p, s)
        | DataType::Decimal64(p, s)
        | DataType::Decimal128(p, s)
        | DataType::Decimal256(p, s) => format!("DECIMAL({p}, {s})"),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "STRING".into(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "BYTES".into(),
        DataType::FixedSizeBinary(size) => format!("BINARY({size})"),
        DataType::Date32 | DataType::Date64 => "DATE".into(),
        DataType::Time32(unit) | DataType::Time64(unit) => format!("TIME({})", digits_of(*unit)),
        DataType::Timestamp(unit, None) => format!("TIMESTAMP({})", digits_of(*unit)),
        DataType::Timestamp(unit, Some(_)) => format!("TIMESTAMP_LTZ({})", digits_of(*unit)),
        DataType::Interval(_) | DataType::Duration(_) => "INTERVAL".into(),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _) => format!("ARRAY<{}>", sql_type(item.data_type())),
        DataType::Struct(fields) => row_name(fields),
        DataType::Map(entries, _) => map_name(entries),
        DataType::Dictionary(_, value) => sql_type(value),
        DataType::RunEndEncoded(_, value) => sql_type(value.data_type()),
        DataType::Union(_, _) => "UNION".into(),
    }
}

fn digits_of(unit: TimeUnit) -> usize {
    match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 3,
        TimeUnit::Microsecond => 6,
        TimeUnit::Nanosecond => 9,
    }
}

fn row_name(fields: &Fields) -> String {
    let fields: Vec<String> =
        fields.iter().map(|field| format!("`{}` {}", field.name(), sql_type(field.data_type()))).collect();
    format!("ROW<{}>", fields.join(", "))
}

fn map_name(entries: &FieldRef) -> String {
    match entries.data_type() {
        DataType::Struct(fields) if fields.len() == 2 => {
            format!("MAP<{}, {}>", sql_type(fields[0].data_type()), sql_type(fields[1].data_type()))
        }
        other => format!("MAP<{}>", sql_type(other)),
    }
}

/// Gives DataFusion our types, so that `CAST` and `CREATE TABLE` agree.
#[derive(Debug)]
pub(crate) struct SqlTypes;

impl TypePlanner for SqlTypes {
    fn plan_type_field(&self, sql: &ast::DataType) -> Result<Option<FieldRef>, DataFusionError> {
        match arrow_type(sql) {
            Ok(data_type) => {
                let length = TextLength::of(sql).map(|length| (LENGTH.to_owned(), length.to_string()));
                let metadata: HashMap<String, String> = length.into_iter().collect();
                Ok(Some(Arc::new(Field::new("", data_type, true).with_metadata(metadata))))
            }
            Err(error) => Err(DataFusionError::External(Box::new(error))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sqlparser::dialect::GenericDialect;
    use sqlparser::parser::Parser;

    fn round_trip(sql: &str) -> String {
        let dialect = GenericDialect {};
        let parsed = Parser::new(&dialect).try_with_sql(sql).unwrap().parse_data_type().unwrap();
        match arrow_type(&parsed) {
            Ok(data_type) => sql_type(&data_type),
            Err(error) => error.message().to_owned(),
        }
    }

    #[test]
    fn texts_are_cut_and_filled() {
        assert_eq!(TextLength::Char(4).fit("äb"), "äb  ");
        assert_eq!(TextLength::Char(1).fit("äb"), "ä");
        assert_eq!(TextLength::Varchar(4).fit("äb"), "äb");
    }

    #[test]
    fn sql_types_keep_their_names() {
        let cases = [
            ("TINYINT", "TINYINT"),
            ("INTEGER", "INT"),
            ("BIGINT", "BIGINT"),
            ("DECIMAL", "DECIMAL(10, 0)"),
            ("DECIMAL(12, 3)", "DECIMAL(12, 3)"),
            ("DECIMAL(40, 3)", "type DECIMAL(40, 3) does not exist"),
            ("VARCHAR(20)", "STRING"),
            ("BYTES", "BYTES"),
            ("TIMESTAMP", "TIMESTAMP(6)"),
            ("TIMESTAMP(1)", "TIMESTAMP(3)"),
            ("TIMESTAMP_LTZ(3)", "TIMESTAMP_LTZ(3)"),
            ("TIMESTAMP(12)", "type TIMESTAMP(12) does not exist"),
            ("ARRAY<INT>", "ARRAY<INT>"),
            ("STRUCT<a INT, b ARRAY<STRING>>", "ROW<`a` INT, `b` ARRAY<STRING>>"),
            ("JSON", "type JSON is not supported"),
        ];
        for (sql, expected) in cases {
            assert_eq!(round_trip(sql), expected, "{sql}");
        }
    }
}
