//! `weft bench remote`, short: applications on another host's vGPU beside the same here, and beside
//! the same further away, which must show.

use serde_json::Value;

use crate::benchmark;

/// What the figures should have shown and did not, if anything.
fn faults(document: &Value) -> Vec<String> {
    let of = |part: &str, name: &str| benchmark::number(document, part, name);
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
    benchmark::finds_no_fault("remote", faults);
}
