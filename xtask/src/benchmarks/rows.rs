//! What of each benchmark stands in the table of docs/benchmarks.md.

/// A benchmark and what of it stands in the table.
pub(super) struct Bench {
    pub(super) name: &'static str,
    pub(super) rows: &'static [Row],
}

/// One figure: its key, what it is, its goal.
pub(super) struct Row(pub(super) &'static str, pub(super) &'static str, pub(super) Goal);

/// What a figure should be.
pub(super) enum Goal {
    AtMost(f64),
    AtLeast(f64),
    /// Told, not judged.
    Told,
}

use Goal::{AtLeast, AtMost, Told};

pub(super) const BENCHES: [Bench; 30] = [
    Bench {
        name: "call",
        rows: &[
            Row("sync_us_p50", "synchronous call, µs, median", AtMost(1.0)),
            Row("sync_us_p99", "synchronous call, µs, 99th percentile", Told),
            Row("submit_us_p50", "asynchronous launch, µs, median", AtMost(0.3)),
            Row("sync_over_line_exchange", "the synchronous call over a cache line's way", Told),
        ],
    },
    Bench {
        name: "copy",
        rows: &[
            Row("pageable_over_memcpy", "pageable 256 MiB over memcpy, slower way", AtLeast(0.8)),
            Row("pageable_in_over_memcpy_262144K", "pageable 256 MiB, to the device", Told),
            Row("pageable_out_over_memcpy_262144K", "pageable 256 MiB, from the device", Told),
            Row("pinned_over_memcpy", "pinned 256 MiB over memcpy, slower way", AtLeast(0.95)),
            Row("pageable_1m_over_memcpy", "pageable 1 MiB over memcpy, slower way", Told),
            Row("pageable_64k_over_memcpy", "pageable 64 KiB over memcpy, slower way", Told),
            Row("pinned_64k_over_memcpy", "pinned 64 KiB over memcpy, slower way", Told),
        ],
    },
    Bench {
        name: "call_tls",
        rows: &[
            Row("sync_us_p50", "synchronous call of another host's vGPU, µs", Told),
            Row("over_tcp_echo", "the same over an echo by TCP", AtMost(1.3)),
            Row("submit_us_p50", "asynchronous launch there, µs, median", AtMost(1.0)),
            Row("shared_memory_sync_us_p50", "a call through shared memory, µs", Told),
            Row("tcp_echo_us_p50", "an echo by TCP, µs", Told),
            Row("trap_sync_us_p50", "a request of four system calls within a host, µs", Told),
        ],
    },
    Bench {
        name: "copy_tls",
        rows: &[
            Row(
                "pageable_in_over_tls_262144K",
                "pageable 256 MiB over TLS alone, there",
                AtLeast(0.8),
            ),
            Row("pageable_out_over_tls_262144K", "the same, back", AtLeast(0.8)),
            Row("pinned_in_over_tls_262144K", "pinned 256 MiB over TLS alone, there", AtLeast(0.8)),
            Row("pinned_out_over_tls_262144K", "the same, back", AtLeast(0.8)),
            Row("pageable_in_GBps_262144K", "pageable 256 MiB, there, GB/s", Told),
            Row(
                "shared_memory_pageable_in_GBps_262144K",
                "the same through shared memory, GB/s",
                Told,
            ),
            Row("tcp_GBps", "TCP alone, GB/s", Told),
            Row("tls_GBps", "TLS alone, GB/s", Told),
            Row("tls_processors", "processors that TLS alone keeps busy", Told),
            Row("tls_memory_GBps", "TLS alone from 256 MiB of memory to others, GB/s", Told),
            Row(
                "trap_in_GBps_262144K",
                "the same through a socket within a host, there, GB/s",
                Told,
            ),
        ],
    },
    Bench {
        name: "overhead_tls",
        rows: &[
            Row("overhead_max", "another host's vGPU over direct, batches", Told),
            Row("overhead_sync_max", "synchronised after each kernel, over direct", Told),
            Row("overhead_sync_21us", "the same of 21 µs", Told),
            Row("shared_memory_sync_21us", "through shared memory, 21 µs", Told),
            Row("tcp_echo_model_21us", "an echo by TCP after each, 21 µs", Told),
            Row("trap_21us", "four system calls a request within a host, 21 µs", Told),
        ],
    },
    Bench {
        name: "remote",
        rows: &[
            Row("cushaw_over_local", "CUSHAW's proportions, remote over local", AtMost(1.05)),
            Row("cushaw_shared_over_local", "two of them on one device", Told),
            Row("computes_over_local", "an application that computes", Told),
            Row("copies_over_local", "one that copies", Told),
            Row("calls_over_local", "one that waits for each short kernel", Told),
            Row("delayed_cushaw_over_local", "CUSHAW's, 10 ms further away", Told),
            Row("delayed_calls_over_local", "waits for each, 10 ms further away", Told),
        ],
    },
    Bench {
        name: "call_vm",
        rows: &[
            Row("sync_us_p50", "synchronous call in a machine (TCG), µs", AtMost(3.0)),
            Row("submit_us_p50", "asynchronous launch there, µs", Told),
            Row(
                "submit_us_p50_over_node_in_guest",
                "the same over a process's on that interpreter",
                AtMost(2.0),
            ),
            Row("exits_per_call", "marks across its border for a polled call", AtMost(0.05)),
            Row("notifications_per_call", "notifications for one, as QEMU counts", AtMost(0.05)),
            Row("exits_per_blocked_wait", "the same for a wait that sleeps", Told),
            Row("trap_in_guest_sync_us_p50", "a request of four system calls there, µs", Told),
            Row("tcp_echo_in_guest_us_p50", "an echo by TCP on its loopback, µs", Told),
            Row("node_in_guest_sync_us_p50", "a call through shared memory inside it, µs", Told),
        ],
    },
    Bench {
        name: "copy_vm",
        rows: &[
            Row("pageable_over_memcpy_16384K", "pageable 16 MiB over the guest's memcpy", Told),
            Row("pinned_over_memcpy_16384K", "pinned 16 MiB over it", Told),
            Row("pageable_in_GBps_16384K", "pageable 16 MiB, to the device, GB/s", Told),
            Row(
                "node_in_guest_pageable_in_GBps_16384K",
                "the same through shared memory inside the machine, GB/s",
                Told,
            ),
            Row("tcp_in_guest_GBps", "TCP alone on its loopback, GB/s", Told),
            Row("trap_in_guest_in_GBps_16384K", "the same through a socket there, GB/s", Told),
        ],
    },
    Bench {
        name: "overhead_vm",
        rows: &[
            Row("batch_over_model_max", "batches in a machine over the model", Told),
            Row("sync_over_model_max", "synchronised after each kernel, over the model", Told),
            Row("overhead_max", "batches in a machine over direct on the host", Told),
            Row("overhead_sync_max", "synchronised after each kernel, over direct", Told),
            Row("overhead_21us", "batches of 21 µs over direct on the host", Told),
            Row("trap_model_21us", "four system calls a request within the host, 21 µs", Told),
        ],
    },
    Bench {
        name: "fairness_vm",
        rows: &[
            Row("mmr_min", "MMR of three machines, weights 1:2:3", AtLeast(0.99)),
            Row("overhead_max", "the device's time over what they had of it", Told),
            Row("mmr_control", "the same with `unmanaged`", Told),
        ],
    },
    Bench {
        name: "fairgv_vm",
        rows: &[
            Row("mmr_min", "the same of Figure 8's programs, least", AtLeast(0.99)),
            Row("mmr_MM", "of MM", Told),
            Row("utilization_MM", "its part of the device", Told),
            Row("mmr_HS", "of HS", Told),
            Row("utilization_HS", "its part of the device", Told),
            Row("mmr_BS", "of BS, which does not fill the device", Told),
            Row("utilization_BS", "its part of the device", Told),
            Row("mmr_SRD1", "of SRD1, which does not fill the device", Told),
            Row("utilization_SRD1", "its part of the device", Told),
            Row("mmr_control", "the same with `unmanaged`, highest", Told),
            Row(
                "figure2_overhead_max",
                "Figure 2: the device's time over what three machines had of it",
                AtMost(1.02),
            ),
            Row("figure2_overhead_21us", "the same of 21 µs", Told),
            Row("figure2_overhead_51us", "of 51 µs", Told),
            Row("figure2_overhead_102us", "of 102 µs", Told),
            Row("figure2_overhead_172us", "of 172 µs", Told),
            Row("figure2_overhead_285us", "of 285 µs", Told),
            Row("figure2_overhead_391us", "of 391 µs", Told),
            Row("figure2_mmr_min", "their MMR, least", AtLeast(0.99)),
            Row("figure2_trap_overhead_21us", "four system calls a request there, 21 µs", Told),
        ],
    },
    Bench {
        name: "cosched_vm",
        rows: &[
            Row("wake_p99_over_plain_boost", "a machine's wake to run, p99 over the plain", Told),
            Row("wake_p50_us_boost", "submitted to running again less the kernel, µs", Told),
            Row("wake_p50_us_off", "the same with `off`", Told),
            Row("kernels_per_s_boost", "kernels of a machine beside two hogs, a second", Told),
            Row("kernels_per_s_off", "the same with `off`", Told),
            Row("hog_share_error", "a hog's distance from its part of wall time", Told),
            Row("hog_share_of_wall_boost", "the lesser hog's part of the processor", Told),
            Row("hog_share_of_wall_off", "the same with `off`", Told),
        ],
    },
    Bench {
        name: "overhead",
        rows: &[
            Row("overhead_max", "remoted over direct, batches", AtMost(1.02)),
            Row("overhead_over_model_max", "the same over the model", Told),
            Row("overhead_sync_max", "synchronised after each kernel, over direct", AtMost(1.05)),
            Row("overhead_sync_over_model_max", "the same over the model", Told),
            Row("overhead_sync_passes_1_02_us", "µs of a kernel below which it passes 1.02", Told),
            Row("overhead_sync_over_model_passes_1_02_us", "the same over the model", Told),
            Row("trap_21us", "four system calls a request, 21 µs", Told),
            Row("trap_queued_21us", "the same, answered when queued", Told),
            Row("trap_passes_1_02_us", "µs of a kernel below which it passes 1.02", Told),
        ],
    },
    Bench {
        name: "fairness",
        rows: &[
            Row("mmr_min", "MMR, lowest median of all sets", AtLeast(0.99)),
            Row("mmr_window_min", "MMR of the worst single window of 10 s", Told),
            Row("overhead_max", "aggregated overhead, largest", AtMost(1.01)),
            Row("mmr_control", "MMR of `unmanaged`, highest", Told),
        ],
    },
    Bench {
        name: "fairgv",
        rows: &[
            Row("figure8_mmr_min", "Figure 8, least MMR of `fair`", AtLeast(0.99)),
            Row("figure9_mmr_min", "Figure 9, least MMR of `fair`", AtLeast(0.97)),
            Row("overhead_max", "both, largest aggregated overhead of `fair`", Told),
            Row("figure11_deviation_max", "Figure 11, distance from 2.0", AtMost(0.02)),
            Row("table4_slowdown_max", "Table 4, slowdown by slicing, %", Told),
            Row("mmr_control", "MMR of `round_robin` and `unmanaged`, highest", Told),
        ],
    },
    Bench {
        name: "conserve",
        rows: &[
            Row("utilization_min", "utilisation beside a sleeper", AtLeast(0.97)),
            Row(
                "utilization_control_min",
                "control that holds the device for a slice of 6 ms",
                Told,
            ),
        ],
    },
    Bench {
        name: "engine",
        rows: &[
            Row("saxpy_ms", "saxpy 1 M, ms", AtMost(6.0)),
            Row("matmul_naive_ms", "naive matmul 256³, ms", AtMost(40.0)),
            Row("matmul_tiled_ms", "tiled matmul 256³, ms", Told),
            Row("reduction_ms", "reduction, ms", Told),
        ],
    },
    Bench {
        name: "accounting",
        rows: &[
            Row("error_max", "charges against the kernels' own stamps", AtMost(0.01)),
            Row("error_control", "the least error of two wrong books", Told),
            Row("closure", "charges against wall time, killed sessions too", AtMost(0.005)),
        ],
    },
    Bench {
        name: "cosched",
        rows: &[
            Row("wake_p99_over_plain", "wake to run, p99 over the plain wake-up's", AtMost(0.1)),
            Row("wake_p50_us_boost", "wake to run, µs, median", Told),
            Row("wake_p50_us_off", "the plain wake-up's, µs, median", Told),
            Row("waits_slept_boost", "waits in which the program slept", Told),
            Row("hog_share_error", "a hog's distance from its part of wall time", AtMost(0.1)),
            Row("hog_over_plain", "a hog's processor time over that with `off`", Told),
            Row("tenants_share_of_wall_boost", "the tenants' part of wall time", Told),
            Row("tenants_share_of_wall_off", "the same with `off`", Told),
        ],
    },
    Bench { name: "adversary", rows: &ATTACKS },
    Bench { name: "adversary_apart", rows: &ATTACKS },
    Bench {
        name: "latency",
        rows: &[
            Row("p99_over_alone_max", "p99 over alone and a slice, largest", AtMost(1.05)),
            Row("batch_share_min", "what batch tenants keep of the rest, least", AtLeast(0.95)),
            Row("p99_over_alone_control", "p99 with equal classes, least", Told),
        ],
    },
    Bench {
        name: MEMORY,
        rows: &[
            Row("engine_over_flat", "translated over flat, slowest kernel", AtMost(1.05)),
            Row(
                "oversub4_over_swap_min",
                "4x: throughput over whole-vGPU swap, least",
                AtLeast(1.0),
            ),
            Row(
                "over_swap_4x_fits_contents",
                "the same, working sets fit, contents swapped",
                AtLeast(2.0),
            ),
            Row("over_swap_4x_fits_modelled", "the same, DymGPU's cost of an entry", AtLeast(2.0)),
            Row("over_swap_4x_fits_memcpy", "the same, what copying takes here", AtLeast(2.0)),
            Row(
                "as_needed_over_swap_of_1s_4x_exceeds_contents",
                "over swap in turns of 1 s, nothing stays, contents swapped",
                AtLeast(1.0),
            ),
            Row(
                "as_needed_over_swap_of_1s_4x_fits_contents",
                "the same, working sets fit",
                AtLeast(1.0),
            ),
            Row(
                "of_1s_over_swap_of_1s_4x_exceeds_contents",
                "nothing stays, both in turns of 1 s",
                AtLeast(1.0),
            ),
            Row(
                "over_swap_of_1s_4x_exceeds_contents",
                "nothing stays, turns of 6 ms beside swap's of 1 s",
                Told,
            ),
            Row(
                "ahead_over_own_4x_exceeds_modelled",
                "4x, nothing stays: slots written ahead over not, DymGPU's cost",
                Told,
            ),
            Row("over_demand_4x_exceeds_contents", "over demand paging, nothing stays", Told),
            Row(
                "pipelined_efficiency_real_modelled",
                "what exchanges leave of the device, 15 vGPUs, 1.22 ms a slot, turns of 16 ms",
                AtLeast(0.9),
            ),
            Row("exact_efficiency_real_modelled", "the same, `exact`", Told),
            Row("scores_efficiency_real_modelled", "the same, `scores`", Told),
            Row(
                "pipelined_work_of_occupied_real_modelled",
                "kernels' part of kernels and exchanges, `pipelined`",
                Told,
            ),
            Row("scores_work_of_occupied_real_modelled", "the same, `scores`", Told),
            Row("verified", "every program found its memory", AtLeast(1.0)),
            Row(
                "clients_4x_over_swap_modelled",
                "4x, unmodified programs: throughput over whole-vGPU swap, DymGPU's cost",
                AtLeast(1.0),
            ),
            Row("clients_4x_over_swap_contents", "the same, contents swapped", AtLeast(1.0)),
            Row("clients_2x_over_swap_modelled", "2x, DymGPU's cost", AtLeast(1.0)),
            Row("clients_4x_memory_over_device_modelled", "their memory over the device's", Told),
            Row("clients_trainers", "tinygrad's training loops among them", AtLeast(1.0)),
            Row("clients_ended_well", "programs that ended, each with the right result", Told),
            Row("clients_verified", "all of them", AtLeast(1.0)),
        ],
    },
    Bench {
        name: "decision",
        rows: &[
            Row("ns_p50_1024", "decision at 1,024 vGPUs, ns", AtMost(250.0)),
            Row("ns_p50_65536", "decision at 65,536 vGPUs, ns", AtMost(1000.0)),
        ],
    },
    Bench {
        name: "scale",
        rows: &[
            Row("vgpus", "vGPUs live at once", AtLeast(1024.0)),
            Row("attach_ms_p50", "attach, ms, median", AtMost(50.0)),
            Row("attach_ms_p99", "attach, ms, 99th percentile", Told),
            Row("worker_private_kib_max", "private memory of an idle worker, KiB", AtMost(4096.0)),
            Row("idle_cpu_percent", "CPU of the idle node, %", Told),
            Row("mmr_of_three", "MMR of three of them at work", Told),
        ],
    },
    Bench {
        name: "reweight",
        rows: &[
            Row("share_error_max", "share against weight between changes", AtMost(0.01)),
            Row("share_error_of_change_max", "the same in windows with a change", Told),
        ],
    },
    Bench {
        name: "move",
        rows: &[
            Row("pause_over_copy_ms", "pause of a move over copying its memory, ms", AtMost(10.0)),
            Row("moves", "moves, verified", AtLeast(100.0)),
        ],
    },
    Bench {
        name: "flexy",
        rows: &[
            Row("sla_pct_at_85", "`deadline`: tasks in time, %, worst column", AtLeast(99.0)),
            Row("utilization", "utilisation there, least", AtLeast(0.85)),
            Row("resets", "resets of `deadline`", AtMost(0.0)),
            Row("lost_tasks", "tasks lost, all policies", AtMost(0.0)),
            Row("free_ms_p99", "from the time to yield until the device is free, ms, P99", Told),
            Row("sim_error_points", "distance from the simulated part in time, largest", Told),
            Row("sla_pct_fifo", "tasks in time under `fifo`, %", Told),
        ],
    },
    Bench {
        name: CONTROL,
        rows: &[
            Row("manage_75_ms", "VM with 75 cGPUs, 10,000 present, until ready, ms", AtMost(100.0)),
            Row("manage_75_over_empty", "the same over that with none present", Told),
            Row("boot_overhead_75_pct", "beside QEMU's own boot, 75 cGPUs, %", AtMost(0.2)),
            Row("boot_75_over_plain_pct", "boot over one of a VM without cGPUs, %", Told),
            Row("boot_plain_spread_pct", "longest over shortest boot without, %", Told),
            Row("manage_ms_75", "the local cloud's steps for 75 cGPUs, ms", Told),
            Row("reads_per_s", "reads of an instance /s", AtLeast(2000.0)),
            Row("grants_per_s", "instances made and removed again /s", AtLeast(200.0)),
            Row("endpoint_rtt_add_us", "added by an endpoint to 64 bytes' way, µs", AtMost(5.0)),
            Row("endpoint_throughput_loss_pct", "throughput lost by it, %", AtMost(7.0)),
            Row("put_10k_ms", "one more grant where one host has 10,000, ms", Told),
            Row("cut_ms", "until a withdrawn grant's connection is cut, ms", AtMost(1000.0)),
            Row("session_cut_ms_max", "until a real session has ended, ms", AtMost(1000.0)),
            Row("session_program_told_ms", "until its program has an error, ms", Told),
        ],
    },
    Bench {
        name: PREDICT,
        rows: &[
            Row("p99_error_max", "P99 of answers, simulated over real, off by", AtMost(0.05)),
            Row("mmr_error_max", "MMR, simulated less real, off by", AtMost(0.005)),
            Row("share_error_max", "shares, off by", Told),
            Row("p99_error_median", "the P99's error in the median configuration", Told),
            Row("configurations", "configurations", AtLeast(20.0)),
            Row("p99_error_max_round_robin", "P99, another policy simulated, off by", Told),
            Row("mmr_error_max_round_robin", "MMR, the same, off by", Told),
        ],
    },
];

/// Of what attacks take.
const ATTACKS: [Row; 8] = [
    Row(
        "victim_loss_max",
        "what a victim loses of its work beside an honest tenant, worst attack",
        AtMost(0.01),
    ),
    Row("loss_none", "the same with an honest tenant in the attacker's place", Told),
    Row("victim_loss_max_noise", "the worst one's in half of all runs by noise alone", Told),
    Row("victim_loss_median", "of its work, median attack", Told),
    Row("victim_loss_control", "the same without the defence, least", Told),
    Row(
        "victim_time_loss_max",
        "of its time on the real device, by its stamps, worst attack",
        AtMost(0.01),
    ),
    Row("utilization_min", "utilisation beside an attacker, least", AtLeast(0.97)),
    Row(
        "stall_beyond_ms_max",
        "longest stall less the longest uncuttable kernel and a quantum, ms",
        AtMost(0.0),
    ),
];

/// The one that is an experiment of the simulator beside real runs.
pub(super) const PREDICT: &str = "predict";

/// The one of the services of the cloud, which boots machines.
pub(super) const CONTROL: &str = "control";

/// The one with programs in Python.
pub(super) const MEMORY: &str = "memory";

/// What ends the names of benchmarks that run `--via tls` and `--via vm`.
pub(super) const VIA_TLS: &str = "_tls";
pub(super) const VIA_VM: &str = "_vm";

/// What ends the name of the one whose device has a processor of its own.
pub(super) const APART: &str = "_apart";

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::Value;

    use super::super::{RESULTS, document_path, in_words};
    use super::*;
    use crate::shell::root;

    /// Texts in quotes of what measures `--via tls` and `--via vm`.
    fn quoted() -> Vec<String> {
        let folder = root().join("crates/cli/src/bench");
        let machines = fs::read_dir(folder.join("vm")).unwrap().map(|file| file.unwrap().path());
        let sources = machines.chain([folder.join("via.rs")]).map(fs::read_to_string);
        let lines = sources.flat_map(|text| {
            let texts = text.unwrap();
            texts.lines().map(str::to_owned).collect::<Vec<_>>()
        });
        let of = |line: String| -> Vec<String> {
            line.split('"').skip(1).step_by(2).map(str::to_owned).collect()
        };
        lines.flat_map(of).collect()
    }

    /// Whether a text is this name, or what it is formatted from: begins and ends as it does.
    fn makes(text: &str, name: &str) -> bool {
        let Some((begin, rest)) = text.split_once('{') else { return text == name };
        let end = rest.rsplit_once('}').map_or("", |(_, end)| end);
        !begin.is_empty() && name.starts_with(begin) && name.ends_with(end)
    }

    /// A row whose name nobody writes would say "not measured" for ever.
    #[test]
    fn rows_of_remote_hosts_and_machines_are_what_is_measured() {
        let (written, results) = (quoted(), root().join(RESULTS));
        let is_via = |bench: &&Bench| bench.name.ends_with(VIA_TLS) || bench.name.ends_with(VIA_VM);
        let mut rows = 0;
        for bench in BENCHES.iter().filter(is_via) {
            let text = fs::read_to_string(document_path(&results, bench.name)).unwrap_or_default();
            let document: Value = serde_json::from_str(&text).unwrap_or_default();
            for Row(name, ..) in bench.rows {
                let mut parts = ["figures", "controls", "baselines"].iter();
                let is_stored = parts.any(|part| document[part][name].is_number());
                let is_known = is_stored || written.iter().any(|text| makes(text, name));
                assert!(is_known, "`{}` has no figure {name}", in_words(bench.name));
                rows += 1;
            }
        }
        assert!(rows > 50, "{rows} rows were looked at");
        assert!(makes("figure2_{us}us", "figure2_21us") && !makes("mmr_min", "mmr_max"));
    }
}
