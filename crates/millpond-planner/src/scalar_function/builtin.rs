//! A built-in function: a line that says what it takes and gives, and a calculation over columns.
//!
//! The line is data: names and types are checked by it, and messages show it.
//!
//! ```text
//! "SUBSTRING(text STRING, start INT [, length INT]) -> STRING"
//! "CONCAT(text STRING, ...) -> STRING"
//! ```

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BinaryBuilder, BooleanArray, Float64Array, Int32Array, Int64Array,
    PrimitiveArray, StringArray, StringBuilder,
};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Field, FieldRef, Float64Type, Int64Type, TimeUnit};
use chrono_tz::Tz;
use datafusion::common::{DataFusionError, ScalarValue};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use millpond_core::{Error, Result};

use super::zone::Times;
use crate::plan_error::carried;
use crate::sql_type::{LTZ_ZONE, sql_type};

/// Computes a function for all rows of a batch.
pub(super) type Evaluate = fn(&Call<'_>) -> Result<ArrayRef>;

/// The type of a result, from the types of the arguments and those of their values that are constant.
pub(super) type ResultType = fn(&[DataType], &[Option<ScalarValue>]) -> Result<DataType>;

/// The types that the arguments are cast to; `None` if they do not fit.
pub(super) type Coercion = fn(&[DataType]) -> Option<Vec<DataType>>;

/// What a function takes, gives and does.
#[derive(Debug)]
pub(super) struct Definition {
    usage: &'static str,
    name: String,
    aliases: Vec<String>,
    kinds: Vec<Kind>,
    required: usize,
    variadic: bool,
    result: Kind,
    result_type: Option<ResultType>,
    coercion: Option<Coercion>,
    volatility: Volatility,
    evaluate: Evaluate,
}

/// A kind of argument or result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    /// Any value, as CAST(… AS STRING) shows it.
    Shown,
    Int,
    BigInt,
    Double,
    Number,
    Boolean,
    Bytes,
    Date,
    /// A timestamp of either sort.
    Time,
    /// A timestamp, or a text that is one.
    TimeText,
    Milliseconds,
    LocalMilliseconds,
    Array,
    Map,
    Any,
}

impl Kind {
    fn parse(word: &str) -> Self {
        match word {
            "STRING" => Kind::Text,
            "VALUE" => Kind::Shown,
            "INT" => Kind::Int,
            "BIGINT" => Kind::BigInt,
            "DOUBLE" => Kind::Double,
            "NUMBER" => Kind::Number,
            "BOOLEAN" => Kind::Boolean,
            "BYTES" => Kind::Bytes,
            "DATE" => Kind::Date,
            "TIMESTAMP" => Kind::Time,
            "TIMESTAMP|STRING" => Kind::TimeText,
            "TIMESTAMP(3)" => Kind::Milliseconds,
            "TIMESTAMP_LTZ(3)" => Kind::LocalMilliseconds,
            "ARRAY" => Kind::Array,
            "MAP" => Kind::Map,
            "ANY" => Kind::Any,
            other => unreachable!("a function's line names the type {other}"),
        }
    }

    /// The type that an argument of this type is cast to.
    fn accept(self, given: &DataType) -> Option<DataType> {
        if given.is_null() && self != Kind::Any {
            return Some(self.data_type().unwrap_or(DataType::Null));
        }
        let text = matches!(given, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
        match self {
            Kind::Text => text.then_some(DataType::Utf8),
            Kind::Shown => (!given.is_nested()).then(|| if text { DataType::Utf8 } else { given.clone() }),
            Kind::Int | Kind::BigInt => given.is_integer().then_some(DataType::Int64),
            Kind::Double => given.is_numeric().then_some(DataType::Float64),
            Kind::Number => given.is_numeric().then(|| given.clone()),
            Kind::Boolean => (*given == DataType::Boolean).then_some(DataType::Boolean),
            Kind::Bytes => match given {
                DataType::Binary | DataType::LargeBinary | DataType::BinaryView => Some(DataType::Binary),
                DataType::FixedSizeBinary(_) => Some(DataType::Binary),
                _ => None,
            },
            Kind::Date => match given {
                DataType::Date32 | DataType::Timestamp(_, _) => Some(DataType::Date32),
                _ => None,
            },
            Kind::Time | Kind::Milliseconds | Kind::LocalMilliseconds => match given {
                DataType::Timestamp(_, _) | DataType::Date32 => Some(given.clone()),
                _ => None,
            },
            Kind::TimeText if text => Some(DataType::Utf8),
            Kind::TimeText => Kind::Time.accept(given),
            Kind::Array => matches!(given, DataType::List(_)).then(|| given.clone()),
            Kind::Map => matches!(given, DataType::Map(_, _)).then(|| given.clone()),
            Kind::Any => Some(given.clone()),
        }
    }

    /// The type of a result of this kind, or of a NULL given for it.
    fn data_type(self) -> Option<DataType> {
        match self {
            Kind::Text | Kind::Shown => Some(DataType::Utf8),
            Kind::Int => Some(DataType::Int32),
            Kind::BigInt => Some(DataType::Int64),
            Kind::Double => Some(DataType::Float64),
            Kind::Boolean => Some(DataType::Boolean),
            Kind::Bytes => Some(DataType::Binary),
            Kind::Date => Some(DataType::Date32),
            Kind::Time | Kind::TimeText | Kind::Milliseconds => {
                Some(DataType::Timestamp(TimeUnit::Millisecond, None))
            }
            Kind::LocalMilliseconds => {
                Some(DataType::Timestamp(TimeUnit::Millisecond, Some(LTZ_ZONE.into())))
            }
            Kind::Number | Kind::Array | Kind::Map | Kind::Any => None,
        }
    }
}

impl Definition {
    /// A function of this line.
    pub(super) fn new(usage: &'static str, evaluate: Evaluate) -> Self {
        let (call, result) = usage.split_once(" -> ").unwrap_or((usage, "ANY"));
        let (name, parameters) = call.split_once('(').unwrap_or((call, ")"));
        let parameters = parameters.trim_end_matches(')');
        let is_optional = parameters.find('[').unwrap_or(parameters.len());
        let count = |text: &str| text.split(',').filter(|part| !part.trim().is_empty()).count();
        let variadic = parameters.contains("...");
        let required = count(&parameters[..is_optional]) - usize::from(variadic);
        let kinds = parameters
            .split(',')
            .map(|parameter| parameter.trim_matches(|letter| " []".contains(letter)))
            .filter(|parameter| !parameter.is_empty() && *parameter != "...")
            .map(|parameter| Kind::parse(parameter.rsplit(' ').next().unwrap_or_default()))
            .collect();
        Self {
            usage,
            name: name.to_lowercase(),
            aliases: Vec::new(),
            kinds,
            required,
            variadic,
            result: Kind::parse(result),
            result_type: None,
            coercion: None,
            volatility: Volatility::Immutable,
            evaluate,
        }
    }

    /// Also called so.
    pub(super) fn alias(mut self, alias: &str) -> Self {
        self.aliases.push(alias.to_owned());
        self
    }

    /// The result's type, where the line does not say it.
    pub(super) fn gives(mut self, result_type: ResultType) -> Self {
        self.result_type = Some(result_type);
        self
    }

    /// The arguments' types, where the line does not say them.
    pub(super) fn takes(mut self, coercion: Coercion) -> Self {
        self.coercion = Some(coercion);
        self
    }

    /// Gives another value each time.
    pub(super) fn volatile(mut self) -> Self {
        self.volatility = Volatility::Volatile;
        self
    }

    /// The function, with local times in this zone.
    pub(super) fn function(self, zone: Option<Tz>) -> ScalarUDF {
        let signature = match (self.required, self.variadic) {
            (0, false) if self.kinds.is_empty() => Signature::nullary(self.volatility),
            _ => Signature::user_defined(self.volatility),
        };
        ScalarUDF::from(Builtin { definition: Arc::new(self), zone, signature })
    }

    fn coerced(&self, given: &[DataType]) -> Option<Vec<DataType>> {
        if given.len() < self.required || (!self.variadic && given.len() > self.kinds.len()) {
            return None;
        }
        if let Some(coercion) = self.coercion {
            return coercion(given);
        }
        let kind = |place: usize| self.kinds.get(place).or(self.kinds.last());
        given.iter().enumerate().map(|(place, given)| kind(place)?.accept(given)).collect()
    }

    fn mismatch(&self, given: &[DataType]) -> Error {
        let given: Vec<String> = given.iter().map(sql_type).collect();
        let name = self.name.to_uppercase();
        Error::invalid(format!("there is no function {name}({})", given.join(", ")))
            .with_hint(format!("there is {}", self.usage))
    }
}

/// A definition as DataFusion wants it.
#[derive(Debug)]
struct Builtin {
    definition: Arc<Definition>,
    zone: Option<Tz>,
    signature: Signature,
}

impl PartialEq for Builtin {
    fn eq(&self, other: &Self) -> bool {
        self.definition.name == other.definition.name && self.zone == other.zone
    }
}

impl Eq for Builtin {}

impl Hash for Builtin {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.definition.name.hash(state);
    }
}

impl ScalarUDFImpl for Builtin {
    fn name(&self) -> &str {
        &self.definition.name
    }
    fn aliases(&self) -> &[String] {
        &self.definition.aliases
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>, DataFusionError> {
        self.definition.coerced(given).ok_or_else(|| carried(self.definition.mismatch(given)))
    }
    fn return_type(&self, _: &[DataType]) -> Result<DataType, DataFusionError> {
        Err(carried(Error::internal("the type of a result depends on its arguments' fields")))
    }
    fn return_field_from_args(&self, given: ReturnFieldArgs<'_>) -> Result<FieldRef, DataFusionError> {
        let definition = &self.definition;
        let types: Vec<DataType> = given.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        let types = definition.coerced(&types).ok_or_else(|| carried(definition.mismatch(&types)))?;
        let constants: Vec<Option<ScalarValue>> =
            given.scalar_arguments.iter().map(|scalar| scalar.cloned()).collect();
        let data_type = match definition.result_type {
            Some(result_type) => result_type(&types, &constants).map_err(carried)?,
            None => definition
                .result
                .data_type()
                .ok_or_else(|| carried(Error::internal(format!("{} gives no type", definition.usage))))?,
        };
        Ok(Arc::new(Field::new(&definition.name, data_type, true)))
    }
    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
        let constant = self.definition.volatility == Volatility::Immutable
            && arguments.args.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
        let rows = if constant { 1 } else { arguments.number_rows };
        let result = arguments.return_field.data_type().clone();
        let arguments = arguments.args.iter().map(Argument::new).collect::<Result<Vec<_>, _>>()?;
        let call = Call { arguments, rows, zone: self.zone, result: &result, usage: self.definition.usage };
        let values = (self.definition.evaluate)(&call).map_err(carried)?;
        match constant {
            true => Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&values, 0)?)),
            false => Ok(ColumnarValue::Array(values)),
        }
    }
}

/// A column of values, or one value for all rows.
struct Argument {
    values: ArrayRef,
    /// All bits for a column, none for one value: row and mask is the place.
    mask: usize,
}

impl Argument {
    fn new(value: &ColumnarValue) -> Result<Self, DataFusionError> {
        Ok(match value {
            ColumnarValue::Array(values) => Self { values: Arc::clone(values), mask: usize::MAX },
            ColumnarValue::Scalar(value) => Self { values: value.to_array()?, mask: 0 },
        })
    }
}

/// One evaluation of a function.
pub(super) struct Call<'a> {
    arguments: Vec<Argument>,
    /// How many rows the result has.
    pub(super) rows: usize,
    /// The session's time zone; `None`: UTC.
    pub(super) zone: Option<Tz>,
    /// The type of the result.
    pub(super) result: &'a DataType,
    usage: &'static str,
}

/// The values of one argument.
pub(super) struct Values<'a, A: Array> {
    values: &'a A,
    mask: usize,
}

impl<A: Array> Clone for Values<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A: Array> Copy for Values<'_, A> {}

impl<'a, A: Array> Values<'a, A> {
    fn place(&self, row: usize) -> Option<usize> {
        let place = row & self.mask;
        self.values.is_valid(place).then_some(place)
    }
}

impl<'a> Values<'a, StringArray> {
    /// The text of a row.
    pub(super) fn at(&self, row: usize) -> Option<&'a str> {
        self.place(row).map(|place| self.values.value(place))
    }
}

impl<'a> Values<'a, BinaryArray> {
    /// The bytes of a row.
    pub(super) fn at(&self, row: usize) -> Option<&'a [u8]> {
        self.place(row).map(|place| self.values.value(place))
    }
}

impl<T: ArrowPrimitiveType> Values<'_, PrimitiveArray<T>> {
    /// The value of a row.
    pub(super) fn at(&self, row: usize) -> Option<T::Native> {
        self.place(row).map(|place| self.values.value(place))
    }
}

impl<'a> Call<'a> {
    /// How many arguments there are.
    pub(super) fn len(&self) -> usize {
        self.arguments.len()
    }

    /// The type of an argument.
    pub(super) fn data_type(&self, argument: usize) -> &DataType {
        self.arguments[argument].values.data_type()
    }

    /// The values of an argument, and the mask that gives a row's place among them.
    pub(super) fn values(&self, argument: usize) -> (&ArrayRef, usize) {
        (&self.arguments[argument].values, self.arguments[argument].mask)
    }

    /// The values of an argument, one per row.
    pub(super) fn column(&self, argument: usize) -> Result<ArrayRef> {
        let Argument { values, mask } = &self.arguments[argument];
        match *mask {
            0 => {
                let places = Int64Array::from(vec![0i64; self.rows]);
                Ok(arrow::compute::take(values, &places, None)?)
            }
            _ => Ok(Arc::clone(values)),
        }
    }

    /// Whether an argument is one value for all rows.
    pub(super) fn is_constant(&self, argument: usize) -> bool {
        self.arguments[argument].mask == 0
    }

    fn wrong(&self, argument: usize) -> Error {
        let found = sql_type(self.data_type(argument));
        Error::internal(format!("argument {} of {} is {found}", argument + 1, self.usage))
    }

    /// An argument that is a text.
    pub(super) fn text(&self, argument: usize) -> Result<Values<'_, StringArray>> {
        let (values, mask) = self.values(argument);
        let values = values.as_string_opt::<i32>().ok_or_else(|| self.wrong(argument))?;
        Ok(Values { values, mask })
    }

    /// An argument that is a text, if it is there.
    pub(super) fn optional_text(&self, argument: usize) -> Result<Option<Values<'_, StringArray>>> {
        (argument < self.len()).then(|| self.text(argument)).transpose()
    }

    /// An argument of bytes.
    pub(super) fn bytes(&self, argument: usize) -> Result<Values<'_, BinaryArray>> {
        let (values, mask) = self.values(argument);
        let values = values.as_binary_opt::<i32>().ok_or_else(|| self.wrong(argument))?;
        Ok(Values { values, mask })
    }

    /// An argument that is a whole number.
    pub(super) fn int(&self, argument: usize) -> Result<Values<'_, Int64Array>> {
        let (values, mask) = self.values(argument);
        let values = values.as_primitive_opt::<Int64Type>().ok_or_else(|| self.wrong(argument))?;
        Ok(Values { values, mask })
    }

    /// An argument that is a whole number, if it is there.
    pub(super) fn optional_int(&self, argument: usize) -> Result<Option<Values<'_, Int64Array>>> {
        (argument < self.len()).then(|| self.int(argument)).transpose()
    }

    /// An argument that is a floating point number.
    pub(super) fn double(&self, argument: usize) -> Result<Values<'_, Float64Array>> {
        let (values, mask) = self.values(argument);
        let values = values.as_primitive_opt::<Float64Type>().ok_or_else(|| self.wrong(argument))?;
        Ok(Values { values, mask })
    }

    /// An argument that is a timestamp, a date or a text that is one.
    pub(super) fn time(&self, argument: usize) -> Result<Times<'_>> {
        let (values, mask) = self.values(argument);
        Times::new(values, mask, self.zone).ok_or_else(|| self.wrong(argument))
    }

    /// A text for each row.
    pub(super) fn texts<T: AsRef<str>>(&self, value: impl Fn(usize) -> Option<T>) -> Result<ArrayRef> {
        self.try_texts(|row| Ok(value(row)))
    }

    /// A text for each row, which may fail.
    pub(super) fn try_texts<T: AsRef<str>>(
        &self,
        value: impl Fn(usize) -> Result<Option<T>>,
    ) -> Result<ArrayRef> {
        let mut texts = StringBuilder::with_capacity(self.rows, self.rows * 16);
        for row in 0..self.rows {
            texts.append_option(value(row)?);
        }
        Ok(Arc::new(texts.finish()))
    }

    /// Bytes for each row.
    pub(super) fn binaries<T: AsRef<[u8]>>(
        &self,
        value: impl Fn(usize) -> Result<Option<T>>,
    ) -> Result<ArrayRef> {
        let mut binaries = BinaryBuilder::with_capacity(self.rows, self.rows * 16);
        for row in 0..self.rows {
            binaries.append_option(value(row)?);
        }
        Ok(Arc::new(binaries.finish()))
    }

    /// A number for each row, as INT.
    pub(super) fn ints(&self, value: impl Fn(usize) -> Result<Option<i64>>) -> Result<ArrayRef> {
        let value =
            |row| -> Result<Option<i32>> { Ok(value(row)?.and_then(|value| i32::try_from(value).ok())) };
        Ok(Arc::new((0..self.rows).map(value).collect::<Result<Int32Array>>()?))
    }

    /// A number for each row, as BIGINT.
    pub(super) fn bigints(&self, value: impl Fn(usize) -> Result<Option<i64>>) -> Result<ArrayRef> {
        Ok(Arc::new((0..self.rows).map(value).collect::<Result<Int64Array>>()?))
    }

    /// A number for each row, as DOUBLE.
    pub(super) fn doubles(&self, value: impl Fn(usize) -> Option<f64>) -> Result<ArrayRef> {
        Ok(Arc::new((0..self.rows).map(value).collect::<Float64Array>()))
    }

    /// A truth for each row.
    pub(super) fn booleans(&self, value: impl Fn(usize) -> Result<Option<bool>>) -> Result<ArrayRef> {
        Ok(Arc::new((0..self.rows).map(value).collect::<Result<BooleanArray>>()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_a_function_takes() {
        let nothing: Evaluate = |_| Err(Error::internal("not called"));
        let substring =
            Definition::new("SUBSTRING(text STRING, start INT [, length INT]) -> STRING", nothing);
        assert_eq!((substring.name.as_str(), substring.required), ("substring", 2));
        assert_eq!(substring.kinds, [Kind::Text, Kind::Int, Kind::Int]);
        let takes = |given: &[DataType]| substring.coerced(given);
        assert_eq!(takes(&[DataType::Utf8, DataType::Int8]), Some(vec![DataType::Utf8, DataType::Int64]));
        assert_eq!(takes(&[DataType::Utf8]), None);
        assert_eq!(takes(&[DataType::Int32, DataType::Int8]), None);
        let concat = Definition::new("CONCAT(text VALUE, ...) -> STRING", nothing);
        assert_eq!((concat.required, concat.variadic), (1, true));
        assert_eq!(concat.coerced(&vec![DataType::Utf8; 5]).map(|types| types.len()), Some(5));
        assert_eq!(concat.coerced(&[]), None);
        let pi = Definition::new("PI() -> DOUBLE", nothing);
        assert_eq!((pi.required, pi.kinds.len()), (0, 0));
    }
}
