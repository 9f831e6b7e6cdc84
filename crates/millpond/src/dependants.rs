//! Who uses a table or view: the views over it, and the jobs that read or write it.

use std::collections::BTreeSet;

use millpond_core::{Error, Result};
use millpond_planner::{CatalogEntry, Insert, Statement, parse_one, relation_names, split_statements};

use crate::engine::State;
use crate::job::{Job, JobRecord};

impl State {
    /// Refuses to drop what a running job reads or writes: it could not be started again.
    pub(crate) fn refuse_drop_under_jobs(&self, name: &str) -> Result<()> {
        let running = |job: &&JobRecord| job.handle.as_ref().is_some_and(Job::is_running);
        let user = self.jobs.values().filter(running).find(|job| {
            let inserts = inserts_of(&job.text);
            inserts.iter().any(|insert| insert.table.value == name || self.reads(insert, name))
        });
        match user {
            None => Ok(()),
            Some(JobRecord { id, name: job, .. }) => {
                Err(Error::invalid(format!("{name:?} is in use by job {id} ({job})"))
                    .with_hint(format!("STOP JOB {id} or CANCEL JOB {id} first")))
            }
        }
    }

    /// The views that read a table or view, themselves or through other views.
    pub(crate) fn views_over(&self, name: &str) -> Vec<String> {
        let views =
            self.catalog.views().filter(|view| self.expanded(relation_names(&view.query)).contains(name));
        views.map(|view| view.name.clone()).collect()
    }

    /// A job that is neither this one nor ended and that writes into one of these tables, if what
    /// it has written stays there.
    pub(crate) fn other_writer(&self, identity: &str, targets: &[&str]) -> Option<(&JobRecord, String)> {
        let others = self.jobs.values().filter(|job| job.identity != identity && job.ended.is_none());
        others.into_iter().find_map(|job| {
            let inserts = inserts_of(&job.text);
            let shared = inserts.into_iter().find(|insert| {
                targets.contains(&insert.table.value.as_str()) && self.keeps_output(&insert.table.value)
            });
            shared.map(|insert| (job, insert.table.value))
        })
    }

    fn keeps_output(&self, table: &str) -> bool {
        let connector = self.connectors.get(table);
        connector.and_then(|connector| connector.sink.as_ref()).is_some_and(|sink| sink.is_transactional())
    }

    fn reads(&self, insert: &Insert, name: &str) -> bool {
        self.expanded(relation_names(&insert.query)).contains(name)
    }

    /// These names, and those that the views among them read.
    fn expanded(&self, names: BTreeSet<String>) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        let mut waiting: Vec<String> = names.into_iter().collect();
        while let Some(name) = waiting.pop() {
            if let Some(CatalogEntry::View(view)) = self.catalog.find(&name) {
                let unseen = relation_names(&view.query).into_iter().filter(|name| !all.contains(name));
                waiting.extend(unseen);
            }
            all.insert(name);
        }
        all
    }
}

/// The INSERTs of a job's statement.
fn inserts_of(text: &str) -> Vec<Insert> {
    let statements = split_statements(text).into_iter().filter_map(|source| parse_one(&source).ok());
    let inserts = statements.flat_map(|parsed| match parsed.statement {
        Statement::Insert(insert) => vec![insert],
        Statement::StatementSet(inserts) => inserts,
        _ => Vec::new(),
    });
    inserts.collect()
}
