//! What of a snapshot's state a job takes over, and what it cannot (invariant 11).
//!
//! State finds its operator by uid and table. A uid changes with what an operator computes and with
//! what comes before it; so what is left over is matched once more, by likeness: an
//! operator of the same kind with the same state tables, a source or sink of the same table, where
//! there is exactly one on both sides. A table is kept when its kind and its columns are what the
//! job's operator has now; an operator of which one table does not fit starts empty as a whole,
//! because its tables speak of each other.
//!
//! ```text
//! snapshot            job                         by
//! aggregate-1a2b  ──▶ aggregate-1a2b              uid
//! join-3c4d       ──▶ join-9e8f                   likeness: both alone have these tables
//! aggregate-5e6f      aggregate-77aa, -88bb       nothing: two could be meant
//! ```

use std::collections::BTreeMap;
use std::fmt;

use millpond_core::{Error, KeyGroupRange, OperatorUid, Result};
use millpond_operators::BuildContext;
use millpond_state::{CheckpointMetadata, OperatorSnapshot, TableDef, TableSnapshot};

use crate::graph::{Head, JobGraph, OperatorNode};
use crate::pending::sinks_of;
use crate::snapshot::{COMMITTABLES, SPLITS};

/// A state table or list, and what becomes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoreItem {
    /// The operator, source or sink.
    pub uid: OperatorUid,
    /// What it is.
    pub operator: String,
    /// The table or list.
    pub state: String,
    /// What becomes of it.
    pub fate: Fate,
}

/// What becomes of a state table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// The job goes on with it.
    Kept {
        /// Rows or entries, deletes of incremental parts included.
        entries: u64,
        /// The uid that it had, if another.
        from: Option<OperatorUid>,
    },
    /// The snapshot has nothing for it: it starts empty.
    Fresh,
    /// The job cannot take it over, for this reason.
    Lost(String),
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fate::Kept { from: None, .. } => f.write_str("kept"),
            Fate::Kept { from: Some(uid), .. } => write!(f, "kept, from {uid}"),
            Fate::Fresh => f.write_str("starts empty"),
            Fate::Lost(why) => write!(f, "lost: {why}"),
        }
    }
}

const GONE: &str = "the job has no such operator";

/// What a job would take over of a snapshot: the job's own state first, then what is left.
///
/// Errors: *Invalid* when the snapshot has another number of key groups.
pub fn explain_restore(graph: &JobGraph, metadata: &CheckpointMetadata) -> Result<Vec<RestoreItem>> {
    check_key_groups(graph, metadata)?;
    let own = own_state(graph)?;
    let (taken, renamed) = rename(&own, metadata);
    Ok(items(&own, &taken, &renamed))
}

fn check_key_groups(graph: &JobGraph, metadata: &CheckpointMetadata) -> Result<()> {
    let (then, now) = (metadata.max_parallelism, graph.max_parallelism);
    if then == now {
        return Ok(());
    }
    let what = format!("{} {} has {then} key groups and the job {now}", metadata.kind, metadata.checkpoint);
    Err(Error::invalid(what).with_hint(format!("SET 'max-parallelism' = '{then}'")))
}

/// Something of the job that may have state.
struct Own {
    uid: OperatorUid,
    name: String,
    state: OwnState,
}

enum OwnState {
    /// A source's or sink's list.
    List(&'static str),
    Tables(Vec<TableDef>),
}

/// In the order in which rows meet them, sinks last. Builds every operator once.
fn own_state(graph: &JobGraph) -> Result<Vec<Own>> {
    let mut own = Vec::new();
    for fragment in &graph.fragments {
        if let Head::Source(node) = &fragment.head {
            let state = OwnState::List(SPLITS);
            own.push(Own { uid: node.uid.clone(), name: "Source".into(), state });
        }
        for node in &fragment.chain {
            let state = OwnState::Tables(tables_of(node, graph.max_parallelism)?);
            own.push(Own { uid: node.uid.clone(), name: node.factory.name().into(), state });
        }
    }
    let sinks = sinks_of(graph).into_iter();
    let state = || OwnState::List(COMMITTABLES);
    own.extend(sinks.map(|sink| Own { uid: sink.uid, name: "Sink".into(), state: state() }));
    Ok(own)
}

fn items(own: &[Own], taken: &CheckpointMetadata, renamed: &Renamed) -> Vec<RestoreItem> {
    let mut items = Vec::new();
    for own in own {
        match &own.state {
            OwnState::List(list) => items.push(list_item(taken, own, list)),
            OwnState::Tables(defs) => items.extend(operator_items(taken, own, defs)),
        }
    }
    let left = taken.operators.iter().filter(|(uid, _)| own.iter().all(|own| own.uid != **uid));
    items.extend(left.flat_map(|(uid, operator)| left_items(uid, operator)));
    for item in &mut items {
        if let Fate::Kept { from, .. } = &mut item.fate {
            *from = renamed.get(&item.uid).cloned();
        }
    }
    items
}

/// New uids with the old ones.
pub(crate) type Renamed = BTreeMap<OperatorUid, OperatorUid>;

/// A table's kind and columns.
type TableShape = (String, Vec<(String, String, String)>);

/// By what operators are alike: a kind with its state tables, or a source or sink with its table.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone)]
enum Likeness {
    Tables(String, BTreeMap<String, TableShape>),
    Stem(String),
}

/// A snapshot with the job's uids in place of those that it had, where likeness says so.
fn rename(own: &[Own], metadata: &CheckpointMetadata) -> (CheckpointMetadata, Renamed) {
    let mut seekers: BTreeMap<Likeness, Vec<&OperatorUid>> = BTreeMap::new();
    for own in own.iter().filter(|own| !metadata.operators.contains_key(&own.uid)) {
        if let Some(likeness) = own.likeness() {
            seekers.entry(likeness).or_default().push(&own.uid);
        }
    }
    let left = metadata.operators.iter().filter(|(uid, _)| own.iter().all(|own| own.uid != **uid));
    let mut offered: BTreeMap<Likeness, Vec<&OperatorUid>> = BTreeMap::new();
    for (uid, likeness) in left.filter_map(|(uid, operator)| Some((uid, likeness_of(uid, operator)?))) {
        offered.entry(likeness).or_default().push(uid);
    }
    let mut renamed = Renamed::new();
    for (likeness, new) in seekers {
        if let ([new], Some([old])) = (new.as_slice(), offered.get(&likeness).map(Vec::as_slice)) {
            renamed.insert((*new).clone(), (*old).clone());
        }
    }
    let mut taken = metadata.clone();
    for (new, old) in &renamed {
        if let Some(operator) = taken.operators.remove(old) {
            taken.operators.insert(new.clone(), operator);
        }
    }
    if !renamed.is_empty() {
        // RocksDB's files know the old uids.
        taken.native = None;
    }
    (taken, renamed)
}

impl Own {
    /// `None` where there is nothing to take over.
    fn likeness(&self) -> Option<Likeness> {
        match &self.state {
            OwnState::List(_) => Some(Likeness::Stem(stem(&self.uid))),
            OwnState::Tables(defs) if defs.is_empty() => None,
            OwnState::Tables(defs) => {
                let tables = defs.iter().map(|def| (def.name.clone(), TableSnapshot::describe(def)));
                let tables = tables.map(|(name, table)| (name, (table.kind, table.columns)));
                Some(Likeness::Tables(self.name.clone(), tables.collect()))
            }
        }
    }
}

fn likeness_of(uid: &OperatorUid, operator: &OperatorSnapshot) -> Option<Likeness> {
    if operator.lists.contains_key(SPLITS) || operator.lists.contains_key(COMMITTABLES) {
        return Some(Likeness::Stem(stem(uid)));
    }
    let tables: BTreeMap<_, _> = operator
        .tables
        .iter()
        .map(|(name, table)| (name.clone(), (table.kind.clone(), table.columns.clone())))
        .collect();
    (!tables.is_empty()).then(|| Likeness::Tables(operator.name.clone(), tables))
}

/// A uid without the hash at its end: `source-bid-1a2b3c4d` is `source-bid`.
fn stem(uid: &OperatorUid) -> String {
    match uid.0.rsplit_once('-') {
        Some((stem, hash)) if hash.len() == 8 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => stem.into(),
        Some(_) | None => uid.0.clone(),
    }
}

fn tables_of(node: &OperatorNode, max_parallelism: u16) -> Result<Vec<TableDef>> {
    let mut operator = node.factory.build(BuildContext {
        index: 0,
        parallelism: 1,
        max_parallelism,
        key_groups: KeyGroupRange::all(max_parallelism),
    })?;
    Ok(operator.tables().into_iter().map(|table| table.def().clone()).collect())
}

fn list_item(metadata: &CheckpointMetadata, own: &Own, list: &str) -> RestoreItem {
    let entries = metadata.operators.get(&own.uid).and_then(|operator| operator.lists.get(list));
    let kept = |entries: &Vec<_>| Fate::Kept { entries: entries.len() as u64, from: None };
    let fate = entries.map_or(Fate::Fresh, kept);
    RestoreItem { uid: own.uid.clone(), operator: own.name.clone(), state: list.into(), fate }
}

fn operator_items(metadata: &CheckpointMetadata, own: &Own, defs: &[TableDef]) -> Vec<RestoreItem> {
    let stored = metadata.operators.get(&own.uid).map(|operator| &operator.tables);
    let mut fates: BTreeMap<String, Fate> = BTreeMap::new();
    for def in defs {
        let table = stored.and_then(|tables| tables.get(&def.name));
        fates.insert(def.name.clone(), table.map_or(Fate::Fresh, |table| fate_of(def, table)));
    }
    for name in stored.into_iter().flat_map(BTreeMap::keys) {
        let gone = || Fate::Lost("the operator has no such table".into());
        fates.entry(name.clone()).or_insert_with(gone);
    }
    if fates.values().any(|fate| matches!(fate, Fate::Lost(_))) {
        for fate in fates.values_mut().filter(|fate| matches!(fate, Fate::Kept { .. })) {
            *fate = Fate::Lost("another table of the operator is lost".into());
        }
    }
    let item = |(state, fate): (String, Fate)| RestoreItem {
        uid: own.uid.clone(),
        operator: own.name.clone(),
        state,
        fate,
    };
    fates.into_iter().map(item).collect()
}

/// Whether a stored table is what the operator has now.
fn fate_of(def: &TableDef, stored: &TableSnapshot) -> Fate {
    let now = TableSnapshot::describe(def);
    if now.kind != stored.kind {
        return Fate::Lost(format!("it was a {} table and is a {} table now", stored.kind, now.kind));
    }
    let names = |table: &TableSnapshot| -> Vec<String> {
        table.columns.iter().map(|(name, data_type, _)| format!("{name} {data_type}")).collect()
    };
    if now.columns != stored.columns {
        let (then, now) = (names(stored), names(&now));
        return Fate::Lost(format!(
            "its columns were ({}) and are ({}) now",
            then.join(", "),
            now.join(", ")
        ));
    }
    Fate::Kept { entries: stored.parts.values().flatten().map(|part| part.rows).sum(), from: None }
}

fn left_items(uid: &OperatorUid, operator: &OperatorSnapshot) -> Vec<RestoreItem> {
    let listed = [SPLITS, COMMITTABLES]
        .into_iter()
        .filter(|name| operator.lists.get(*name).is_some_and(|list| !list.is_empty()));
    let names = operator.tables.keys().map(String::as_str).chain(listed);
    let item = |state: &str| RestoreItem {
        uid: uid.clone(),
        operator: operator.name.clone(),
        state: state.into(),
        fate: Fate::Lost(GONE.into()),
    };
    names.map(item).collect()
}

/// What a job takes over of a snapshot.
pub(crate) struct TakenOver {
    /// The snapshot, by the job's uids.
    pub(crate) metadata: CheckpointMetadata,
    pub(crate) renamed: Renamed,
    /// The operators whose tables the job cannot take over.
    pub(crate) dropped: Vec<OperatorUid>,
}

/// Takes over what fits.
///
/// Errors: *Invalid*, with all that would be lost, unless its loss is allowed.
pub(crate) fn take_over(
    graph: &JobGraph,
    metadata: &CheckpointMetadata,
    loss_is_allowed: bool,
) -> Result<TakenOver> {
    check_key_groups(graph, metadata)?;
    let own = own_state(graph)?;
    let (taken, renamed) = rename(&own, metadata);
    let items = items(&own, &taken, &renamed);
    for item in &items {
        if let Fate::Kept { from: Some(old), .. } = &item.fate {
            tracing::warn!(uid = %item.uid, state = item.state, "state of {} is taken over from {old}", item.operator);
        }
    }
    let lost: Vec<&RestoreItem> = items.iter().filter(|item| matches!(item.fate, Fate::Lost(_))).collect();
    match lost.first() {
        Some(first) if !loss_is_allowed => return Err(refusal(metadata, first, &lost)),
        Some(_) | None => {}
    }
    for item in &lost {
        tracing::warn!(uid = %item.uid, state = item.state, "state of {} is {}", item.operator, item.fate);
    }
    let dropped = lost.iter().map(|item| item.uid.clone()).collect();
    Ok(TakenOver { metadata: taken, renamed, dropped })
}

fn refusal(metadata: &CheckpointMetadata, first: &RestoreItem, lost: &[&RestoreItem]) -> Error {
    let (kind, number) = (&metadata.kind, metadata.checkpoint);
    let what = match &first.fate {
        Fate::Lost(why) if why == GONE => "which the job no longer has".to_string(),
        fate => format!("which does not fit: {fate}"),
    };
    let lines: Vec<String> = lost
        .iter()
        .map(|item| format!("{} {}, {}: {}", item.operator, item.uid, item.state, item.fate))
        .collect();
    Error::invalid(format!("{kind} {number} has state of {} {}, {what}", first.operator, first.uid))
        .with_detail(lines.join("; "))
        .with_hint(
            "SET 'restore.allow-non-restored-state' = 'true' to drop it, or use another job.name; EXPLAIN RESTORE FROM shows what is kept",
        )
}
