//! What people see.

use std::fmt::Write as _;

use weft_api::v1::{Cgpu, Endpoint, Gpu, Instance, Operation, Project};

/// A text that tells a terminal nothing: what else than its lines and tabs would be a command to it
/// is shown as a number.
pub(crate) fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() && !matches!(letter, '\n' | '\t') {
            // A string takes everything.
            let _ = write!(shown, "\\x{:02x}", u32::from(letter));
        } else {
            shown.push(letter);
        }
    }
    shown
}

/// Columns, as wide as they must be.
fn table(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let head = head.iter().map(|word| (*word).to_owned()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    plain(&rows.iter().map(line).collect::<Vec<_>>().join("\n"))
}

/// A word of an enumeration, as in JSON.
fn word(value: &impl serde::Serialize) -> String {
    let text = serde_json::to_string(value).unwrap_or_default();
    text.trim_matches('"').to_owned()
}

fn memory(mib: u64) -> String {
    if mib == 0 { "whole".to_owned() } else { format!("{mib} MiB") }
}

/// A list of VMs.
pub(crate) fn instances(all: &[Instance]) -> String {
    let row = |one: &Instance| {
        let ready = one.ready_ms.map(|at| format!("{} ms", at.saturating_sub(one.created_ms)));
        vec![
            one.id.clone(),
            one.name.clone(),
            one.project.clone(),
            word(&one.state),
            one.cgpus.to_string(),
            memory(one.memory_mib),
            word(&one.mode),
            word(&one.locality),
            ready.unwrap_or_else(|| "-".to_owned()),
        ]
    };
    let head =
        ["ID", "NAME", "PROJECT", "STATE", "CGPUS", "MEMORY", "MODE", "LOCALITY", "READY AFTER"];
    table(&head, all.iter().map(row).collect())
}

/// A VM with all that is known of it.
pub(crate) fn instance(one: &Instance, cgpus: &[Cgpu], operation: &Operation) -> String {
    let mut parts = vec![instances(std::slice::from_ref(one))];
    parts.extend(one.failure.iter().map(|why| plain(&format!("it failed: {why}"))));
    parts.extend(one.ending.iter().map(|what| plain(&format!("ending: {what}"))));
    let row = |cgpu: &Cgpu| {
        let or_hidden = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        vec![
            cgpu.ordinal.to_string(),
            memory(cgpu.memory_mib),
            word(&cgpu.state),
            or_hidden(cgpu.masked.clone()),
            or_hidden(cgpu.gpu.map(|gpu| gpu.to_string())),
            or_hidden(cgpu.node.clone()),
        ]
    };
    let head = ["CGPU", "MEMORY", "STATE", "ADDRESS", "GPU", "NODE"];
    parts.push(table(&head, cgpus.iter().map(row).collect()));
    let row = |event: &weft_api::v1::Event| {
        let after = event.at_ms.saturating_sub(operation.created_ms);
        vec![
            format!("{after} ms"),
            event.step.clone(),
            word(&event.kind),
            format!("{} us", event.took_us),
            event.detail.clone().unwrap_or_default(),
        ]
    };
    let head = ["AFTER", "STEP", "WHAT", "TOOK", "DETAIL"];
    parts.push(table(&head, operation.events.iter().map(row).collect()));
    parts.join("\n\n")
}

/// A project's quota.
pub(crate) fn quota(project: &Project) -> String {
    let (used, quota) = (project.used, project.quota);
    let row = |name: &str, used: u64, quota: u64| {
        vec![name.to_owned(), used.to_string(), quota.to_string()]
    };
    let rows = vec![
        row("cGPUs", used.cgpus, quota.cgpus),
        row("memory, MiB", used.memory_mib, quota.memory_mib),
        row("exclusive GPUs", used.exclusive_gpus, quota.exclusive_gpus),
        row("weight of shared cGPUs", used.weight, quota.weight),
        row("user-facing cGPUs", used.user_facing, quota.user_facing),
    ];
    table(&[&project.name, "USED", "QUOTA"], rows)
}

/// A list of endpoints.
pub(crate) fn endpoints(all: &[Endpoint]) -> String {
    let row = |one: &Endpoint| {
        let state = if one.in_service { "in service" } else { "drained" };
        vec![
            one.host.clone(),
            one.socket.clone(),
            one.instances.to_string(),
            state.to_owned(),
            one.unreachable.clone().unwrap_or_else(|| "answers".to_owned()),
        ]
    };
    table(&["HOST", "SOCKET", "VMS", "STATE", "NOW"], all.iter().map(row).collect())
}

/// A list of GPUs.
pub(crate) fn gpus(all: &[Gpu]) -> String {
    let row = |gpu: &Gpu| {
        let state = match (gpu.in_service, gpu.exclusive) {
            _ if gpu.lost_ms.is_some() => "lost: not in service on its node",
            (false, _) => "drained",
            (true, true) => "exclusive",
            (true, false) => "in service",
        };
        let state = match gpu.unheard_ms {
            Some(ms) => format!("{state}; node not heard of for {} s", ms / 1_000),
            None => state.to_owned(),
        };
        vec![
            gpu.id.to_string(),
            gpu.node.clone(),
            gpu.device.clone(),
            gpu.product.clone(),
            format!("{} of {} MiB", gpu.held_mib, gpu.memory_mib),
            gpu.cgpus.to_string(),
            state,
        ]
    };
    let head = ["GPU", "NODE", "DEVICE", "PRODUCT", "HELD", "CGPUS", "STATE"];
    table(&head, all.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_of_a_silent_node_is_not_simply_in_service() {
        let gpu = Gpu {
            id: 1,
            node: "n".to_owned(),
            device: "gpu0".to_owned(),
            product: String::new(),
            memory_mib: 1,
            held_mib: 0,
            cgpus: 0,
            exclusive: false,
            in_service: true,
            generation: 0,
            unheard_ms: None,
            lost_ms: None,
        };
        let state = |gpu: Gpu| gpus(&[gpu]).lines().last().unwrap_or_default().to_owned();
        assert!(state(gpu.clone()).ends_with("in service"));
        let silent = Gpu { unheard_ms: Some(35_999), ..gpu.clone() };
        assert!(state(silent).ends_with("in service; node not heard of for 35 s"));
        let lost = Gpu { lost_ms: Some(1), in_service: false, ..gpu };
        assert!(state(lost).ends_with("lost: not in service on its node"));
    }

    #[test]
    fn what_a_guest_printed_is_no_command_to_a_terminal() {
        let said = "a\tb\n\x1b]0;title\x07\x1b[2Jc\r\u{9b}31md\u{7f}\0ä";
        assert_eq!(plain(said), "a\tb\n\\x1b]0;title\\x07\\x1b[2Jc\\x0d\\x9b31md\\x7f\\x00ä");
    }
}
