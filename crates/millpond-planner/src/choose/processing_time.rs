//! Windows over PROCTIME(): the time of the epochs takes the watermark's place.

use std::sync::Arc;

use chrono_tz::Tz;
use millpond_core::{Result, TimePrecision};
use millpond_operators::processing_time::{ProcessingTimeFactory, WindowEnds};

use super::{Chooser, NodeFacts, Operator, column_index, lost};
use crate::properties::Role;
use crate::stream_plan::{NodeId, StateBound};
use crate::window_relation::{WindowShape, WindowTvf};

impl Chooser<'_> {
    /// The input of a window function; where its time is PROCTIME(), with that as time attribute.
    pub(super) fn window_input(&mut self, window: &WindowTvf) -> Result<NodeId> {
        let input = self.choose(&window.input)?;
        let time = column_index(window.input.schema(), &window.time)
            .ok_or_else(|| lost("a window's time column"))?;
        if self.facts[input].roles[time] != Role::ProcessingTime {
            return Ok(input);
        }
        let before = self.node(input);
        let schema = Arc::clone(&before.schema);
        let (mode, upsert_keys) = (before.properties.mode, before.properties.upsert_keys.clone());
        let precision =
            TimePrecision::of(schema.field(time).data_type()).ok_or_else(|| lost("a timestamp"))?;
        // No other time follows this watermark.
        let role = |(column, role): (usize, &Role)| match role {
            _ if column == time => Role::EventTime,
            Role::ProcessingTime => Role::ProcessingTime,
            _ => Role::Plain,
        };
        let roles = self.facts[input].roles.iter().enumerate().map(role).collect();
        let ends = window_ends(window.shape, precision, self.session.time_zone());
        let operator = Operator {
            semantics: format!("time={time} {ends:?}"),
            identity: None,
            inputs: vec![input],
            mode,
            upsert_keys,
            state: StateBound::None,
            facts: NodeFacts { roles, ..self.facts[input].clone() },
            factory: Arc::new(ProcessingTimeFactory {
                column: schema.field(time).name().clone(),
                schema,
                precision,
                ends,
            }),
        };
        Ok(self.add_operator(operator))
    }
}

fn window_ends(shape: WindowShape, precision: TimePrecision, time_zone: Option<Tz>) -> WindowEnds {
    let size = shape.size();
    let offset = match shape {
        WindowShape::Session { gap } => return WindowEnds::After(gap),
        WindowShape::Tumble { offset, .. } | WindowShape::Cumulate { offset, .. } => offset,
        WindowShape::Hop { offset, .. } => offset + size,
    };
    WindowEnds::Grid { step: shape.slide(precision), offset, size, time_zone }
}
