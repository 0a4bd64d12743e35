//! `weft bench NAME --quick` in tests: figures are held against controls of the same run.

use std::ffi::OsStr;

use serde_json::Value;

use crate::support::{DEADLINE, finish, finish_within, provided, text_of, weft};

/// Runs a benchmark, again if `faults` finds some: processors that are taken away for a moment must
/// not decide.
pub(crate) fn finds_no_fault(name: &str, faults: impl Fn(&Value) -> Vec<String>) {
    let mut found = Vec::new();
    for _ in 0..3 {
        let faults = faults(&measured(name, &[]));
        if faults.is_empty() {
            return;
        }
        eprintln!("{faults:?}");
        found.push(faults);
    }
    panic!("three times: {found:?}");
}

/// A number that the document must have.
pub(crate) fn number(document: &Value, part: &str, name: &str) -> f64 {
    let value = document[part][name].as_f64();
    value.unwrap_or_else(|| panic!("no {part}.{name} in {document}"))
}

/// The document of a benchmark with these flags.
pub(crate) fn measured(name: &str, flags: &[&OsStr]) -> Value {
    let mut command = weft();
    command.args(["bench", name, "--quick", "--json", "--programs"]);
    command.arg(provided("WEFT_TEST_PROGRAMS")).args(flags);
    // Several programs in turn, each within the deadline.
    let output = finish_within(4 * DEADLINE, command);
    assert!(output.status.success(), "{}", text_of(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Over TLS on this host's loopback: the figures that the design names are there, and each is of a
/// run that can be one.
#[test]
fn calls_of_another_hosts_vgpu_are_measured() {
    let document = measured("call", &["--via".as_ref(), "tls".as_ref()]);
    let figure = |name: &str| number(&document, "figures", name);
    for name in ["sync_us_p50", "sync_us_p99", "submit_us_p50", "over_tcp_echo"] {
        assert!(figure(name) > 0.0, "{name} in {document}");
    }
    assert!(figure("sync_us_p50") <= figure("sync_us_p99"), "{document}");
    for name in ["tcp_echo_us_p50", "shared_memory_sync_us_p50", "trap_sync_us_p50"] {
        assert!(number(&document, "baselines", name) > 0.0, "{name} in {document}");
    }
    // The network's way is no shared memory.
    let near = number(&document, "baselines", "shared_memory_sync_us_p50");
    assert!(figure("sync_us_p50") > near, "{document}");
}

/// What a benchmark would not look at is refused before it measures.
#[test]
fn parts_are_chosen_only_of_benchmarks_that_have_some() {
    for arguments in [&["call", "--only", "x"][..], &["overhead", "--via", "vm", "--only", "x"]] {
        let mut command = weft();
        command.arg("bench").args(arguments);
        command.arg("--programs").arg(provided("WEFT_TEST_PROGRAMS"));
        let output = finish(command);
        assert!(text_of(&output).contains("has no parts"), "{}", text_of(&output));
        assert_eq!(output.status.code(), Some(1));
    }
}

/// The cloud's services are `weft`'s, too.
#[test]
fn weft_becomes_the_programs_that_are_installed_beside_it() {
    let said = |arguments: &[&str]| {
        let mut command = weft();
        command.args(arguments);
        let output = finish(command);
        (output.status.code(), text_of(&output))
    };
    let (code, text) = said(&["control", "openapi"]);
    assert!(code == Some(0) && text.contains("\"openapi\": \"3.1"), "{text}");
    let (code, text) = said(&["endpoint", "host", "--help"]);
    assert!(code == Some(0) && text.contains("--uplink"), "{text}");
    assert_eq!(said(&["control", "--nonsense"]).0, Some(2));
}
