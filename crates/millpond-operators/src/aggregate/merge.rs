//! Merging: adds the state columns of some groups to those of others, as the panes of a HOP need.

use millpond_state::{StateColumn, StateValues};

use super::fold::{Extreme, add_compensated, add_wide, float_above};
use super::moment;
use super::set::{BoundCall, state_mut};
use super::state::Form;

impl BoundCall {
    /// Adds the call's columns at `from` to those at `into`.
    pub(super) fn merge(
        &self,
        columns: &mut [StateColumn],
        into: &[u32],
        other: &[StateColumn],
        from: &[u32],
    ) {
        let pairs = || into.iter().zip(from).map(|(into, from)| (*into as usize, *from as usize));
        let add = |column: &mut StateColumn, other: &StateColumn| {
            let (values, other) = (column.i64s_mut(), other.i64s());
            pairs().for_each(|(into, from)| values[into] += other[from]);
        };
        match self.form {
            Form::Values | Form::Rows => {}
            Form::Count => add(&mut columns[0], &other[0]),
            Form::Truths => (0..2).for_each(|column| add(&mut columns[column], &other[column])),
            Form::IntegerSum => {
                let (sums, other_sums) = (columns[0].i128s_mut(), other[0].i128s());
                pairs().for_each(|(into, from)| sums[into] += other_sums[from]);
                add(&mut columns[1], &other[1]);
            }
            Form::DecimalSum => {
                add(&mut columns[1], &other[1]);
                add(&mut columns[2], &other[2]);
                let [sums, _, carries] = state_mut::<3>(columns);
                let (sums, carries, other_sums) = (sums.i128s_mut(), carries.i64s_mut(), other[0].i128s());
                pairs()
                    .for_each(|(into, from)| add_wide(&mut sums[into], &mut carries[into], other_sums[from]));
            }
            Form::FloatSum => {
                (2..6).for_each(|column| add(&mut columns[column], &other[column]));
                let [sums, compensations, ..] = state_mut::<6>(columns);
                let (sums, compensations) = (sums.f64s_mut(), compensations.f64s_mut());
                let (other_sums, other_compensations) = (other[0].f64s(), other[1].f64s());
                pairs().for_each(|(into, from)| {
                    add_compensated(&mut sums[into], &mut compensations[into], other_sums[from]);
                    compensations[into] += other_compensations[from];
                });
            }
            Form::Moments { .. } => moment::merge(columns, other, pairs()),
            Form::Xor => {
                let (bits, other_bits) = (columns[0].i64s_mut(), other[0].i64s());
                pairs().for_each(|(into, from)| bits[into] ^= other_bits[from]);
                add(&mut columns[1], &other[1]);
            }
            Form::Bits { all } => merge_bits(all, &mut columns[0], &other[0], pairs()),
            Form::Extreme(extreme) => merge_extreme(extreme, &mut columns[0], &other[0], pairs()),
            Form::Arrival { last } => merge_arrival(last, state_mut(columns), other, pairs()),
        }
    }
}

fn merge_bits(
    all: bool,
    column: &mut StateColumn,
    other: &StateColumn,
    pairs: impl Iterator<Item = (usize, usize)>,
) {
    let pairs: Vec<(usize, usize)> = pairs.filter(|(_, from)| other.is_valid(*from as u32)).collect();
    for (into, from) in pairs {
        let value = other.i64s()[from];
        let known = column.is_valid(into as u32);
        let bits = &mut column.i64s_mut()[into];
        *bits = match (known, all) {
            (false, _) => value,
            (true, true) => *bits & value,
            (true, false) => *bits | value,
        };
        column.valid.as_mut().expect("bits may be NULL")[into] = true;
    }
}

fn merge_arrival(
    last: bool,
    [values, arrivals]: &mut [StateColumn; 2],
    other: &[StateColumn],
    pairs: impl Iterator<Item = (usize, usize)>,
) {
    let (mut into_slots, mut from_slots) = (Vec::new(), Vec::new());
    let (arrivals, others) = (arrivals.i64s_mut(), other[1].i64s());
    for (into, from) in pairs {
        let (known, arrived) = (arrivals[into], others[from]);
        if arrived != 0 && (known == 0 || (if last { arrived > known } else { arrived < known })) {
            arrivals[into] = arrived;
            into_slots.push(into as u32);
            from_slots.push(from as u32);
        }
    }
    // Each group of the other table has its own place here, so that no slot is stored twice.
    let stored = other[0].gather(&from_slots).and_then(|taken| values.store(&into_slots, &taken));
    stored.expect("both columns have the type of the argument");
}

fn merge_extreme(
    extreme: Extreme,
    column: &mut StateColumn,
    other: &StateColumn,
    pairs: impl Iterator<Item = (usize, usize)>,
) {
    let valid = column.valid.as_mut().expect("an extreme may be NULL");
    let pairs = pairs.filter(|(_, from)| other.is_valid(*from as u32));
    macro_rules! improve {
        ($best:expr, $other:expr, $order:expr) => {
            for (into, from) in pairs {
                if !valid[into] || extreme.is_better($order(&$other[from], &$best[into])) {
                    valid[into] = true;
                    $best[into] = $other[from].clone();
                }
            }
        };
    }
    let float_order = |new: &f64, old: &f64| float_above(*new, *old).cmp(&float_above(*old, *new));
    match (&mut column.values, &other.values) {
        (StateValues::I64(best), StateValues::I64(other)) => improve!(best, other, Ord::cmp),
        (StateValues::F64(best), StateValues::F64(other)) => improve!(best, other, float_order),
        (StateValues::I128(best), StateValues::I128(other)) => improve!(best, other, Ord::cmp),
        (StateValues::Bool(best), StateValues::Bool(other)) => improve!(best, other, Ord::cmp),
        (StateValues::Bytes(best), StateValues::Bytes(other)) => {
            for (into, from) in pairs {
                if !valid[into] || extreme.is_better(other[from].cmp(&best[into])) {
                    valid[into] = true;
                    best.set(into, &other[from]);
                }
            }
        }
        (best, other) => panic!("extremes in the layouts {best:?} and {other:?} cannot meet"),
    }
}
