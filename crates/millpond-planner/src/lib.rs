//! millpond-planner
