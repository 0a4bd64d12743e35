//! `weft bench remote`, short: applications on another host's vGPU beside the same here, and beside
//! the same further away, which must show.

use serde_json::Value;

use crate::support::{finish, program, text_of, weft};

/// What the benchmark found.
fn measured() -> Value {
    let mut command = weft();
    command.args(["bench", "remote", "--quick", "--json", "--programs"]);
    command.arg(program("application").parent().unwrap());
    let output = finish(command);
    assert!(output.status.success(), "{}", text_of(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What the figures should have shown and did not, if anything.
fn faults(document: &Value) -> Vec<String> {
    let of = |part: &str, name: &str| {
        let value = document[part][name].as_f64();
        value.unwrap_or_else(|| panic!("no {part}.{name} in {document}"))
    };
    assert_eq!(document["mode"], "real", "{document}");
    assert_eq!(document["rows"].as_array().unwrap().len(), 5, "{document}");
    let mut faults = Vec::new();
    for name in ["cushaw", "cushaw_shared", "copies", "calls"] {
        let remote = of("figures", &format!("{name}_over_local"));
        let delayed = of("controls", &format!("delayed_{name}_over_local"));
        if delayed < remote * 1.05 {
            faults.push(format!("{name}: {remote:.3} remotely, {delayed:.3} with delays"));
        }
    }
    // What waits all the time pays for the way, what hardly waits does not.
    let [computes, calls] =
        ["computes", "calls"].map(|name| of("controls", &format!("delayed_{name}_over_local")));
    if calls < 5.0 * computes {
        faults.push(format!("with delays: {calls:.3} waiting, {computes:.3} computing"));
    }
    faults
}

#[test]
fn applications_of_another_host_compute_the_same_and_a_longer_way_shows() {
    // Processors that are taken away for a moment must not decide.
    let mut found = Vec::new();
    for _ in 0..3 {
        let faults = faults(&measured());
        if faults.is_empty() {
            return;
        }
        eprintln!("{faults:?}");
        found.push(faults);
    }
    panic!("three times: {found:?}");
}
