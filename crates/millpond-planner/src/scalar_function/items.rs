//! The items of arrays and maps as lists of rows `(c0, c1, …)`, for UNNEST in a batch.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, ListArray, StructArray, UInt32Array};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{nullif, take};
use arrow::datatypes::{DataType, Field, Fields};
use datafusion::common::DataFusionError;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use millpond_core::{Error, Result};

use crate::plan_error::carried;

/// The items of an array or map, with their columns; `outer`: one of NULLs where there are none.
pub(crate) fn item_rows(columns: Vec<DataType>, ordinality: bool, outer: bool) -> ScalarUDF {
    let field = |(place, data_type)| Field::new(format!("c{place}"), data_type, true);
    let fields: Fields = columns.into_iter().enumerate().map(field).collect();
    ScalarUDF::from(ItemRows {
        fields,
        ordinality,
        outer,
        signature: Signature::any(1, Volatility::Immutable),
    })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ItemRows {
    fields: Fields,
    ordinality: bool,
    outer: bool,
    signature: Signature,
}

impl ItemRows {
    fn item(&self) -> Arc<Field> {
        Arc::new(Field::new("item", DataType::Struct(self.fields.clone()), true))
    }

    fn rows(&self, collections: &ArrayRef) -> Result<ArrayRef> {
        let (offsets, columns) = parts(collections)?;
        let mut lengths = Vec::with_capacity(collections.len());
        let (mut places, mut numbers) = (Vec::new(), Vec::new());
        for row in 0..collections.len() {
            let range = match collections.is_null(row) {
                true => 0..0,
                false => offsets[row] as u32..offsets[row + 1] as u32,
            };
            let before = places.len();
            for (place, number) in range.zip(1i32..) {
                places.push(Some(place));
                numbers.push(Some(number));
            }
            if self.outer && places.len() == before {
                places.push(None);
                numbers.push(None);
            }
            lengths.push(places.len() - before);
        }
        let places = UInt32Array::from(places);
        let mut columns =
            columns.iter().map(|column| Ok(take(column, &places, None)?)).collect::<Result<Vec<_>>>()?;
        if self.ordinality {
            columns.push(Arc::new(Int32Array::from(numbers)));
        }
        let items = StructArray::try_new(self.fields.clone(), columns, None)?;
        let offsets = OffsetBuffer::from_lengths(lengths);
        Ok(Arc::new(ListArray::try_new(self.item(), offsets, Arc::new(items), None)?))
    }
}

/// Where the items of each row stand, and their columns.
fn parts(collections: &ArrayRef) -> Result<(Vec<i32>, Vec<ArrayRef>)> {
    match collections.data_type() {
        DataType::Map(_, _) => {
            let maps = collections.as_map();
            Ok((maps.value_offsets().to_vec(), maps.entries().columns().to_vec()))
        }
        DataType::List(_) => {
            let lists = collections.as_list::<i32>();
            let columns = match lists.values().as_struct_opt() {
                None => vec![Arc::clone(lists.values())],
                Some(rows) => {
                    let missing = arrow::compute::is_null(rows)?;
                    rows.columns().iter().map(|c| Ok(nullif(c, &missing)?)).collect::<Result<_>>()?
                }
            };
            Ok((lists.value_offsets().to_vec(), columns))
        }
        other => Err(Error::internal(format!("{other} has no items"))),
    }
}

impl ScalarUDFImpl for ItemRows {
    fn name(&self) -> &str {
        "$item_rows"
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn return_type(&self, _: &[DataType]) -> Result<DataType, DataFusionError> {
        Ok(DataType::List(self.item()))
    }
    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue, DataFusionError> {
        let collections = arguments.args[0].to_array(arguments.number_rows)?;
        Ok(ColumnarValue::Array(self.rows(&collections).map_err(carried)?))
    }
}
