//! What is in a snapshot, as rows of text: for DESCRIBE CHECKPOINT and `millpond checkpoints`.

use millpond_state::CheckpointMetadata;

/// Names of what [`state_rows`] gives.
pub(crate) const STATE_COLUMNS: [&str; 9] =
    ["operator uid", "operator", "state", "kind", "columns", "tasks", "parts", "rows", "bytes"];

/// One row per state table and list: uid, operator, state, kind, columns, tasks, parts, rows, bytes.
pub(crate) fn state_rows(metadata: &CheckpointMetadata) -> Vec<Vec<Option<String>>> {
    let mut rows = Vec::new();
    for (uid, operator) in &metadata.operators {
        for (name, table) in &operator.tables {
            let parts = || table.parts.values().flatten();
            let files = || parts().filter_map(|part| part.file.as_ref());
            let columns: Vec<String> = table
                .columns
                .iter()
                .map(|(name, data_type, role)| format!("{name} {data_type} {role}"))
                .collect();
            let texts = [
                uid.to_string(),
                operator.name.clone(),
                name.clone(),
                table.kind.clone(),
                columns.join(", "),
                table.parts.len().to_string(),
                files().count().to_string(),
                parts().map(|part| part.rows).sum::<u64>().to_string(),
                files().map(|file| file.bytes).sum::<u64>().to_string(),
            ];
            rows.push(texts.map(Some).to_vec());
        }
        for (name, list) in operator.lists.iter().filter(|(_, list)| !list.is_empty()) {
            let texts = [uid.to_string(), operator.name.clone(), name.clone(), "list".into()].map(Some);
            let entries = Some(list.len().to_string());
            rows.push(texts.into_iter().chain([None, None, None, entries, None]).collect());
        }
    }
    rows
}
