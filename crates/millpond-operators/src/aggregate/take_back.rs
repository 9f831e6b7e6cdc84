//! Taking back: subtracts groups that were added, for sums over panes that slide.
//!
//! Only what is exact can be taken back: counts, and sums of integers and decimals. An extreme has
//! forgotten its second best, and floats would keep the rounding errors of what has gone.

use millpond_state::StateColumn;

use super::fold::add_wide;
use super::set::{AggregateSet, BoundCall};
use super::state::Form;

impl AggregateSet {
    /// Whether groups that were merged can be taken back.
    pub fn can_take_back(&self) -> bool {
        self.calls.iter().all(|bound| match bound.form {
            Form::Count | Form::IntegerSum | Form::DecimalSum => true,
            Form::Moments { .. }
            | Form::FloatSum
            | Form::Truths
            | Form::Xor
            | Form::Bits { .. }
            | Form::Extreme(_)
            | Form::Arrival { .. }
            | Form::Values
            | Form::Rows => false,
        })
    }

    /// The reverse of [`AggregateSet::merge`]; DISTINCT calls are left out again.
    pub fn take_back(&self, columns: &mut [StateColumn], slots: &[u32], other: &[StateColumn], from: &[u32]) {
        for bound in self.calls.iter().filter(|bound| bound.distinct.is_none() && !bound.shared) {
            let range = bound.range();
            bound.take_back(&mut columns[range.clone()], slots, &other[range], from);
        }
    }
}

impl BoundCall {
    fn take_back(&self, columns: &mut [StateColumn], slots: &[u32], other: &[StateColumn], from: &[u32]) {
        let pairs = || slots.iter().zip(from).map(|(slot, from)| (*slot as usize, *from as usize));
        let subtract = |column: &mut StateColumn, other: &StateColumn| {
            let (values, other) = (column.i64s_mut(), other.i64s());
            pairs().for_each(|(slot, from)| values[slot] -= other[from]);
        };
        match self.form {
            Form::Count => subtract(&mut columns[0], &other[0]),
            Form::IntegerSum => {
                let (sums, other_sums) = (columns[0].i128s_mut(), other[0].i128s());
                pairs().for_each(|(slot, from)| sums[slot] -= other_sums[from]);
                subtract(&mut columns[1], &other[1]);
            }
            Form::DecimalSum => {
                subtract(&mut columns[1], &other[1]);
                subtract(&mut columns[2], &other[2]);
                let [sums, _, carries] = columns else { unreachable!("a decimal sum has three columns") };
                let (sums, carries, other_sums) = (sums.i128s_mut(), carries.i64s_mut(), other[0].i128s());
                pairs().for_each(|(slot, from)| {
                    // The least of all has no negation; its half has.
                    let (half, rest) = (other_sums[from] / 2, other_sums[from] % 2);
                    for part in [-half, -half, -rest] {
                        add_wide(&mut sums[slot], &mut carries[slot], part);
                    }
                });
            }
            Form::Moments { .. }
            | Form::FloatSum
            | Form::Truths
            | Form::Xor
            | Form::Bits { .. }
            | Form::Extreme(_)
            | Form::Arrival { .. }
            | Form::Values
            | Form::Rows => {
                unreachable!("{} cannot be taken back", self.call.name)
            }
        }
    }
}
