//! The stored documents have the figures that the project's design asks for, by their names.

use std::fs;

use serde_json::Value;

use crate::shell::root;
use crate::void::{failed, is_void};

/// A document in `docs/evaluation`, and what must be among its figures (design, section 9).
const NAMES: &[(&str, &[&str])] = &[
    ("real/call", &["sync_us_p50", "sync_us_p99", "submit_us_p50", "sync_over_line_exchange"]),
    (
        "real/copy",
        &[
            "pageable_over_memcpy",
            "pinned_over_memcpy",
            "pageable_1m_over_memcpy",
            "pageable_64k_over_memcpy",
            "pinned_64k_over_memcpy",
        ],
    ),
    ("real/overhead", &["overhead_max", "overhead_sync_max", "overhead_21us", "trap_model_21us"]),
    ("real/fairness", &["mmr_min", "mmr_control", "overhead_max", "window_s"]),
    ("real/conserve", &["utilization_min", "utilization_control_min"]),
    (
        "real/engine",
        &[
            "matmul_naive_ms",
            "matmul_tiled_ms",
            "saxpy_ms",
            "reduction_ms",
            "matmul_naive_over_pocl",
            "saxpy_over_pocl",
            "scaling_2",
        ],
    ),
    ("real/accounting", &["error_max", "closure"]),
    ("real/cosched", &["wake_p99_over_plain", "hog_share_error"]),
    ("real/decision", &["ns_p50_1024", "ns_p50_65536"]),
    ("real/adversary", &["victim_loss_max", "utilization_min", "victim_loss_control"]),
    ("real/latency", &["p99_over_alone_max", "batch_share_min", "p99_over_alone_control"]),
    ("real/move", &["pause_over_copy_ms", "moves"]),
    ("real/flexy", &["sla_pct_at_85", "utilization", "resets", "lost_tasks", "sim_error_points"]),
    ("real/memory", &["engine_over_flat", "oversub4_over_swap_min", "verified"]),
    ("real/call_vm", &["sync_us_p50", "submit_us_p50", "exits_per_call"]),
    ("real/call_tls", &["sync_us_p50", "submit_us_p50", "over_tcp_echo"]),
    (
        "real/control",
        &[
            "manage_75_ms",
            "boot_overhead_75_pct",
            "reads_per_s",
            "grants_per_s",
            "endpoint_rtt_add_us",
        ],
    ),
    ("real/predict", &["p99_error_max", "mmr_error_max", "configurations"]),
    (
        "flexy/report",
        &[
            "deadline_sla_min",
            "deadline_utilization",
            "gap_to_ceiling_points",
            "batch_wait_max_s",
            "decision_ns_p50",
            "invariant_violations",
        ],
    ),
    (
        "dymgpu/report",
        &[
            "copies_over_scores_15",
            "pipelined_efficiency",
            "scores_efficiency",
            "exact_mismatches",
            "lag_quanta_over",
        ],
    ),
    (
        "gsaas/report",
        &["speedup_1x", "speedup_1_5x", "speedup_2x", "frag_over_best_fit", "decision_ms_100k"],
    ),
    (
        "report",
        &[
            "mmr_min",
            "victim_loss_max",
            "overhead_max",
            "long_kernel_mmr",
            "wake_delay_quanta_max",
            "adversary_gain_max",
            "lag_bound_violations",
            "decisions",
        ],
    ),
];

/// Of these, benchmarks that have them since their stored document was made. Whoever stores it anew
/// takes them off.
const LATER: &[(&str, &[&str])] = &[("real/overhead", &["trap_model_21us"])];

/// And those that no benchmark has.
const NOWHERE: &[(&str, &[&str])] =
    &[("real/engine", &["matmul_naive_over_pocl", "saxpy_over_pocl", "scaling_2"])];

fn is_listed(list: &[(&str, &[&str])], document: &str, name: &str) -> bool {
    list.iter().any(|(of, names)| *of == document && names.contains(&name))
}

/// Whether a document has a number of that name. Controls and baselines count; the report of all
/// experiments has them in its summary.
fn has(document: &Value, name: &str) -> bool {
    let of = document.get("summary").unwrap_or(document);
    ["figures", "baselines", "controls"].iter().any(|part| of[part][name].is_number())
}

#[test]
fn every_figure_of_the_design_is_in_a_stored_document() {
    let mut missing = Vec::new();
    for (document, names) in NAMES {
        let path = root().join(format!("docs/evaluation/{document}.json"));
        let text = fs::read_to_string(&path);
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let value: Value = serde_json::from_str(&text).expect("a document is JSON");
        // One that failed has none, which the table says.
        if failed(&value).is_some() {
            continue;
        }
        for name in *names {
            // One that is void is named, with why.
            let stored = has(&value, name) || is_void(&value, name);
            let is_nowhere = is_listed(NOWHERE, document, name);
            assert!(!(stored && is_nowhere), "{document} has {name}: take it off the list");
            if !stored && !is_nowhere && !is_listed(LATER, document, name) {
                missing.push(format!("{document}: {name}"));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_figure_is_found_by_its_whole_name() {
    let document =
        serde_json::json!({ "figures": { "mmr_min": 1.0 }, "controls": { "c": "text" } });
    assert!(has(&document, "mmr_min"));
    assert!(!has(&document, "mmr") && !has(&document, "c"));
    assert!(has(&serde_json::json!({ "summary": document }), "mmr_min"));
    let void = serde_json::json!({ "figures": {}, "void": [{ "figures": ["mmr_min"] }] });
    assert!(is_void(&void, "mmr_min") && !has(&void, "mmr_min"));
    assert!(!is_void(&void, "mmr") && !is_void(&document, "c"));
}
