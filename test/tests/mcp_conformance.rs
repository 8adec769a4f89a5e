//! The official MCP conformance suite against the product's own router, guard and settings.

use std::process::Command;

#[test]
fn the_official_mcp_conformance_suite_passes_for_both_families_of_revisions() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/conformance/run");
    let output = Command::new(script)
        .arg(env!("CARGO_BIN_EXE_conformance_fixture"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    for passed in [
        "2026-07-28 (strict) passed",
        "2025-11-25 (plain) passed",
        "2025-11-25 (sessions) passed",
    ] {
        assert!(text.contains(passed), "{passed}: {text}");
    }
}
