//! The interactive shell on a real terminal.

use std::path::Path;
use std::process::Command;

#[test]
fn lines_typed_ahead_are_all_run() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/typed_ahead.py");
    let home = std::env::temp_dir();
    let output = Command::new("timeout")
        .args(["60", "python3"])
        .arg(script)
        .arg(env!("CARGO_BIN_EXE_millpond"))
        .arg(home)
        .output()
        .expect("python3 runs the shell");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{shown}{}", String::from_utf8_lossy(&output.stderr));
    assert!(shown.contains("table name") && shown.contains("view name"), "{shown}");
}
