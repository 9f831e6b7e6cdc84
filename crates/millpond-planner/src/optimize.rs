//! Optimisation of logical plans with the stock rules that are right for streams.
//!
//! Left out: pushing limits down (wrong with updates), making semi joins of inner ones whose right
//! side is unique (the operator for inner joins is bounded by windows), splitting distinct aggregates (doubles
//! state and retractions), merging unions by predicate (loses the branch), leaf projections
//! (hides patterns from the choice of operators).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use datafusion::common::alias::AliasGenerator;
use datafusion::common::config::ConfigOptions;
use datafusion::execution::context::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::logical_expr::registry::FunctionRegistry;
use datafusion::optimizer::common_subexpr_eliminate::CommonSubexprEliminate;
use datafusion::optimizer::decorrelate_lateral_join::DecorrelateLateralJoin;
use datafusion::optimizer::decorrelate_predicate_subquery::DecorrelatePredicateSubquery;
use datafusion::optimizer::eliminate_cross_join::EliminateCrossJoin;
use datafusion::optimizer::eliminate_duplicated_expr::EliminateDuplicatedExpr;
use datafusion::optimizer::eliminate_filter::EliminateFilter;
use datafusion::optimizer::eliminate_group_by_constant::EliminateGroupByConstant;
use datafusion::optimizer::eliminate_outer_join::EliminateOuterJoin;
use datafusion::optimizer::extract_equijoin_predicate::ExtractEquijoinPredicate;
use datafusion::optimizer::filter_null_join_keys::FilterNullJoinKeys;
use datafusion::optimizer::optimize_projections::OptimizeProjections;
use datafusion::optimizer::optimize_unions::OptimizeUnions;
use datafusion::optimizer::propagate_empty_relation::PropagateEmptyRelation;
use datafusion::optimizer::push_down_filter::PushDownFilter;
use datafusion::optimizer::replace_distinct_aggregate::ReplaceDistinctWithAggregate;
use datafusion::optimizer::rewrite_set_comparison::RewriteSetComparison;
use datafusion::optimizer::scalar_subquery_to_join::ScalarSubqueryToJoin;
use datafusion::optimizer::simplify_expressions::SimplifyExpressions;
use datafusion::optimizer::{Optimizer, OptimizerConfig, OptimizerRule};
use millpond_core::{Error, Result};

use crate::plan_error::from_datafusion;
use crate::rewrite::with_special_casts;
use crate::session::Session;
use crate::subquery::{Executor, with_own_subqueries};

/// The plan, checked, coerced and optimised.
pub(crate) fn optimized(session: &Session, plan: LogicalPlan) -> Result<LogicalPlan> {
    let state = session.state();
    let options = Arc::clone(state.config_options());
    let plan = with_own_subqueries(plan, OptimizerConfig::alias_generator(state), Executor::Stream)?;
    let analyzed = analyzed(session, plan)?;
    unless_it_panics(|| {
        let config = StreamOptimizer { state, options };
        Optimizer::with_rules(rules()).optimize(analyzed, &config, |_, _| {}).map_err(from_datafusion)
    })
}

/// What the optimizer makes of a plan: a rule that panics over an unforeseen shape must not take the
/// host program with it.
pub(crate) fn unless_it_panics<T>(optimize: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(optimize)).unwrap_or_else(|_| {
        Err(Error::invalid("this query cannot be planned: a rule of the optimizer failed on it")
            .with_hint("a subquery that refers to a query around it may stand too deep: write it as a join"))
    })
}

/// The plan, checked and with all casts.
pub(crate) fn analyzed(session: &Session, plan: LogicalPlan) -> Result<LogicalPlan> {
    let state = session.state();
    let options = Arc::clone(state.config_options());
    let analyzed = state.analyzer().execute_and_check(plan, &options, |_, _| {}).map_err(from_datafusion)?;
    with_special_casts(analyzed, session.time_zone())
}

fn rules() -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    vec![
        Arc::new(RewriteSetComparison::new()),
        Arc::new(OptimizeUnions::new()),
        Arc::new(SimplifyExpressions::new()),
        Arc::new(ReplaceDistinctWithAggregate::new()),
        Arc::new(DecorrelatePredicateSubquery::new()),
        Arc::new(ScalarSubqueryToJoin::new()),
        Arc::new(DecorrelateLateralJoin::new()),
        Arc::new(ExtractEquijoinPredicate::new()),
        Arc::new(EliminateDuplicatedExpr::new()),
        Arc::new(EliminateFilter::new()),
        Arc::new(EliminateCrossJoin::new()),
        Arc::new(PropagateEmptyRelation::new()),
        Arc::new(FilterNullJoinKeys::default()),
        Arc::new(EliminateOuterJoin::new()),
        Arc::new(PushDownFilter::new()),
        Arc::new(EliminateGroupByConstant::new()),
        Arc::new(CommonSubexprEliminate::new()),
        Arc::new(OptimizeProjections::new()),
    ]
}

/// An optimiser that knows no planning time (so that nothing is folded to it) but all functions.
struct StreamOptimizer<'a> {
    state: &'a SessionState,
    options: Arc<ConfigOptions>,
}

impl OptimizerConfig for StreamOptimizer<'_> {
    fn query_execution_start_time(&self) -> Option<chrono::DateTime<chrono::Utc>> {
        None
    }
    fn alias_generator(&self) -> &Arc<AliasGenerator> {
        OptimizerConfig::alias_generator(self.state)
    }
    fn options(&self) -> Arc<ConfigOptions> {
        Arc::clone(&self.options)
    }
    fn function_registry(&self) -> Option<&dyn FunctionRegistry> {
        Some(self.state)
    }
}
