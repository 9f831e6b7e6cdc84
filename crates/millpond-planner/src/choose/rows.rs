//! Rows that stand in the query itself: VALUES, SELECT without FROM, and no rows at all.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::logical_expr::{ColumnarValue, EmptyRelation, Expr, Values};
use datafusion::physical_plan::expressions::Column;
use millpond_core::{ChangelogMode, Result};
use millpond_operators::event_time::EventTime;
use millpond_operators::expression::{Expression, reads_epoch};

use super::{Chooser, NewNode, NodeFacts};
use crate::plan_error::{from_datafusion, unsupported};
use crate::properties::Role;
use crate::stream_plan::{NodeId, NodeKind, StateBound};

impl Chooser<'_> {
    pub(super) fn values(&mut self, values: &Values) -> Result<NodeId> {
        let schema = Arc::clone(values.schema.inner());
        let column = |(place, field): (usize, &Arc<Field>)| -> Result<ArrayRef> {
            let constants = values.values.iter().map(|row| self.constant(&row[place]));
            let constants = constants.collect::<Result<Vec<ScalarValue>>>()?;
            let array = ScalarValue::iter_to_array(constants).map_err(from_datafusion)?;
            Ok(cast(&array, field.data_type())?)
        };
        let columns = schema.fields().iter().enumerate().map(column).collect::<Result<Vec<_>>>()?;
        let rows = RecordBatch::try_new(schema, columns)?;
        Ok(self.rows(rows, format!("Values {:?}", values.values)))
    }

    /// One row without columns (SELECT without FROM), or no rows (a filter that is never true).
    pub(super) fn empty_relation(&mut self, empty: &EmptyRelation) -> NodeId {
        if !empty.produce_one_row {
            let rows = RecordBatch::new_empty(Arc::clone(empty.schema.inner()));
            return self.rows(rows, "Values of no row".into());
        }
        // A batch without columns has no rows.
        let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("$row", DataType::Boolean, false)]));
        let column: ArrayRef = Arc::new(BooleanArray::from(vec![true]));
        let options = RecordBatchOptions::new().with_row_count(Some(1));
        let rows = RecordBatch::try_new_with_options(schema, vec![column], &options);
        self.rows(rows.expect("a row of one column"), "Values of one row".into())
    }

    fn constant(&self, expr: &Expr) -> Result<ScalarValue> {
        let physical = self.session.physical(expr, &DFSchema::empty())?;
        if reads_epoch(&physical) {
            return Err(unsupported("the processing time in VALUES"));
        }
        let options = RecordBatchOptions::new().with_row_count(Some(1));
        let row = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &options)?;
        match physical.evaluate(&row).map_err(from_datafusion)? {
            ColumnarValue::Scalar(value) => Ok(value),
            ColumnarValue::Array(array) => ScalarValue::try_from_array(&array, 0).map_err(from_datafusion),
        }
    }

    fn rows(&mut self, rows: RecordBatch, semantics: String) -> NodeId {
        let schema = rows.schema();
        let column = |(place, field): (usize, &Arc<Field>)| -> Expression {
            Arc::new(Column::new(field.name(), place))
        };
        let columns = schema.fields().iter().enumerate().map(column).collect();
        let event_time =
            Arc::new(EventTime { columns, schema: Arc::clone(&schema), watermark: None, keyed: false });
        let node = NewNode {
            uid_prefix: "values".into(),
            semantics,
            identity: None,
            inputs: Vec::new(),
            mode: ChangelogMode::Append,
            upsert_keys: Vec::new(),
            bounded: true,
            state: StateBound::None,
            facts: NodeFacts::new(vec![Role::Plain; schema.fields().len()], true),
            schema,
            kind: NodeKind::Rows { rows, event_time },
        };
        self.add(node)
    }
}
