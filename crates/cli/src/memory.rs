//! `weft memory`: who has which slot of a device's memory, as a map.
//!
//! A slot is a letter: its owner's. Upper case: others have the slot too, in their turns. A dot is
//! nobody's. Under it stands what the last switch wrote.

use anyhow::{Result, bail};
use serde_json::json;
use weft_node::admin::{DeviceReport, LENT_BY_SESSIONS, LastSwitch, MemoryReport, SlotReport};

use crate::args::Sockets;
use crate::output::{line, size, table};

/// Slots in a line of the map, in groups of eight.
const LINE: usize = 64;
const GROUP: usize = 8;
/// Letters of vGPUs; those beyond share the last one.
const LETTERS: &str = "abcdefghijklmnopqrstuvwxyzαβγδεζηθικλμνξοπρστυφχψω";

/// `weft memory`
pub(crate) fn memory(sockets: &Sockets, device: Option<&str>, as_json: bool) -> Result<()> {
    let stats = sockets.connect()?.stats()?;
    let is_asked = |own: &&DeviceReport| device.is_none_or(|name| own.name == name);
    let devices: Vec<&DeviceReport> = stats.devices.iter().filter(is_asked).collect();
    if let (Some(name), true) = (device, devices.is_empty()) {
        let known: Vec<&str> = stats.devices.iter().map(|own| own.name.as_str()).collect();
        bail!("there is no device `{name}`: the devices are {}", known.join(", "));
    }
    if as_json {
        let all = devices.iter().map(|own| json!({"device": own.name, "memory": own.memory}));
        line(&serde_json::to_string_pretty(&all.collect::<Vec<_>>())?);
        return Ok(());
    }
    for own in devices {
        line(&drawn(own));
    }
    Ok(())
}

/// A device's memory as text.
fn drawn(device: &DeviceReport) -> String {
    let memory = &device.memory;
    if memory.slots.is_empty() {
        return match memory.placement.as_str() {
            LENT_BY_SESSIONS => lent(device),
            _ => format!("{}: its memory is not dealt out in slots\n", device.name),
        };
    }
    let legend = Legend::new(memory);
    let mut text = format!(
        "{}: {} of {} slots of {} in use, {} shared, placement {}\n",
        device.name,
        memory.slots.iter().filter(|slot| slot.owner.is_some()).count(),
        memory.slots.len(),
        size(memory.slot_bytes),
        memory.slots.iter().filter(|slot| is_shared(slot)).count(),
        memory.placement,
    );
    for (number, slots) in memory.slots.chunks(LINE).enumerate() {
        let row = |of: &dyn Fn(&SlotReport) -> char| {
            let groups = slots.chunks(GROUP).map(|group| group.iter().map(of).collect::<String>());
            groups.collect::<Vec<_>>().join(" ")
        };
        text.push_str(&format!("{:>6}  {}\n", number * LINE, row(&|slot| legend.cell(slot))));
        let written = row(&|slot| if slot.copied { '^' } else { ' ' });
        if written.contains('^') {
            text.push_str(&format!("        {}\n", written.trim_end()));
        }
    }
    if let Some(LastSwitch { vgpu, slots, entries, ns, .. }) = &memory.last_switch {
        let us = ns / 1_000;
        text.push_str(&format!(
            "^ the last switch, of {vgpu}: {slots} slots, {entries} entries, {us} µs\n"
        ));
    }
    text.push_str(&legend.table(memory));
    text
}

/// The memory of a device that lends it session by session, as text.
fn lent(device: &DeviceReport) -> String {
    let memory = &device.memory;
    let there: u64 = memory.vgpus.iter().map(|own| own.resident_bytes).sum();
    let (name, all) = (&device.name, size(device.memory_bytes));
    let mut text = format!("{name}: {} of {all} in use, lent session by session\n", size(there));
    if let Some(LastSwitch { vgpu, moved_bytes, ns, .. }) = &memory.last_switch {
        let (moved, ms) = (size(*moved_bytes), ns / 1_000_000);
        text.push_str(&format!("the last exchange, for {vgpu}: {moved} in {ms} ms\n"));
    }
    let mut vgpus: Vec<_> = memory.vgpus.iter().collect();
    vgpus.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let rows = vgpus.into_iter().map(|own| {
        let swapped = own.used_bytes.saturating_sub(own.resident_bytes);
        vec![own.name.clone(), size(own.used_bytes), size(own.resident_bytes), size(swapped)]
    });
    text + &table(&["vGPU", "USED", "ON DEVICE", "SWAPPED"], &rows.collect::<Vec<_>>())
}

/// A line for `weft top`: nothing where no slot is anybody's.
pub(crate) fn summary(device: &DeviceReport) -> Option<String> {
    let memory = &device.memory;
    if memory.placement == LENT_BY_SESSIONS && !memory.vgpus.is_empty() {
        let there: u64 = memory.vgpus.iter().map(|own| own.resident_bytes).sum();
        let used: u64 = memory.vgpus.iter().map(|own| own.used_bytes).sum();
        let swapped = size(used.saturating_sub(there));
        return Some(format!("on the device {}  swapped {swapped}", size(there)));
    }
    if !memory.slots.iter().any(|slot| slot.owner.is_some() || !slot.users.is_empty()) {
        return None;
    }
    let legend = Legend::new(memory);
    let map: String = memory.slots.iter().take(LINE).map(|slot| legend.cell(slot)).collect();
    let rest = if memory.slots.len() > LINE { "…" } else { "" };
    let swapped: u64 =
        memory.vgpus.iter().map(|own| own.used_bytes.saturating_sub(own.resident_bytes)).sum();
    let shared = memory.slots.iter().filter(|slot| is_shared(slot)).count();
    let written =
        memory.last_switch.as_ref().map_or(String::new(), |LastSwitch { vgpu, .. }| {
            let to: Vec<_> =
                (0..memory.slots.len()).filter(|at| memory.slots[*at].copied).collect();
            format!("  last switch {vgpu} to {}", ranges(&to))
        });
    Some(format!("slots [{map}{rest}]  shared {shared}  swapped {}{written}", size(swapped)))
}

/// Rising numbers, those that follow one another as one: `0-3,7`; `-` for none.
fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        [only] => only.to_string(),
        [] => String::new(),
    });
    let runs: Vec<_> = runs.collect();
    if runs.is_empty() { "-".to_owned() } else { runs.join(",") }
}

fn is_shared(slot: &SlotReport) -> bool {
    slot.users.len() > 1
}

/// In upper case.
fn upper(letter: char) -> char {
    letter.to_uppercase().next().unwrap_or(letter)
}

/// Which letter is whose.
struct Legend<'a>(Vec<&'a str>);

impl<'a> Legend<'a> {
    fn new(memory: &'a MemoryReport) -> Self {
        let mut names: Vec<&str> = memory.vgpus.iter().map(|own| own.name.as_str()).collect();
        names.sort_unstable();
        Self(names)
    }

    fn letter(&self, name: &str) -> char {
        let place = self.0.iter().position(|own| *own == name).unwrap_or(usize::MAX);
        LETTERS.chars().nth(place).or_else(|| LETTERS.chars().last()).unwrap_or('?')
    }

    fn cell(&self, slot: &SlotReport) -> char {
        match &slot.owner {
            Some(owner) if is_shared(slot) => upper(self.letter(owner)),
            Some(owner) => self.letter(owner),
            None if slot.users.is_empty() => '.',
            None => '-',
        }
    }

    fn table(&self, memory: &MemoryReport) -> String {
        let mut vgpus: Vec<_> = memory.vgpus.iter().collect();
        vgpus.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let rows = vgpus.into_iter().map(|own| {
            let has = |slot: &&SlotReport| slot.users.contains(&own.name);
            let shared = memory.slots.iter().filter(has).filter(|slot| is_shared(slot)).count();
            vec![
                own.name.clone(),
                self.letter(&own.name).to_string(),
                size(own.used_bytes),
                size(own.resident_bytes),
                size(own.used_bytes.saturating_sub(own.resident_bytes)),
                memory.slots.iter().filter(has).count().to_string(),
                shared.to_string(),
            ]
        });
        let header = ["vGPU", "MAP", "USED", "IN SLOTS", "SWAPPED", "SLOTS", "SHARED"];
        table(&header, &rows.collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use weft_node::admin::VgpuMemoryReport;

    use super::*;

    fn slot(owner: Option<&str>, users: &[&str], copied: bool) -> SlotReport {
        SlotReport {
            owner: owner.map(str::to_owned),
            part: owner.map(|_| 0),
            users: users.iter().map(|name| (*name).to_owned()).collect(),
            copied,
        }
    }

    fn device() -> DeviceReport {
        let slots = vec![
            slot(Some("train"), &["train"], false),
            slot(Some("infer"), &["train", "infer"], true),
            slot(None, &["infer"], false),
            slot(None, &[], false),
        ];
        let of = |name: &str, used_bytes, resident_bytes| VgpuMemoryReport {
            name: name.to_owned(),
            parts: used_bytes >> 20,
            used_bytes,
            resident_bytes,
        };
        let vgpus = vec![of("train", 2 << 20, 1 << 20), of("infer", 2 << 20, 1 << 20)];
        let last = LastSwitch {
            vgpu: "infer".to_owned(),
            slots: 1,
            entries: 256,
            ns: 12_345,
            moved_bytes: 0,
        };
        let memory = MemoryReport {
            placement: "exact".to_owned(),
            slot_bytes: 1 << 20,
            slots,
            vgpus,
            last_switch: Some(last),
            ..MemoryReport::default()
        };
        serde_json::from_value(json!({
            "name": "gpu0", "policy": "fair", "product": "Weft", "backend": "soft", "clock": "real",
            "memory_bytes": 4 << 20, "memory_used_bytes": 0, "busy_ns": 0, "overruns": 0,
            "executions": 0, "memory": memory,
        }))
        .unwrap()
    }

    #[test]
    fn the_map_says_whose_each_slot_is_and_what_was_written() {
        let expected = "\
gpu0: 2 of 4 slots of 1MiB in use, 1 shared, placement exact
     0  bA-.
         ^
^ the last switch, of infer: 1 slots, 256 entries, 12 µs
vGPU   MAP  USED  IN SLOTS  SWAPPED  SLOTS  SHARED
infer    a  2MiB      1MiB     1MiB      2       1
train    b  2MiB      1MiB     1MiB      2       1
";
        assert_eq!(drawn(&device()), expected);
    }

    #[test]
    fn what_is_lent_by_sessions_has_no_slots() {
        let mut device = device();
        device.memory.placement = LENT_BY_SESSIONS.to_owned();
        device.memory.slots.clear();
        let moved = LastSwitch { moved_bytes: 3 << 20, ns: 12_345_678, ..LastSwitch::default() };
        device.memory.last_switch = Some(LastSwitch { vgpu: "infer".to_owned(), ..moved });
        let expected = "\
gpu0: 2MiB of 4MiB in use, lent session by session
the last exchange, for infer: 3MiB in 12 ms
vGPU   USED  ON DEVICE  SWAPPED
infer  2MiB       1MiB     1MiB
train  2MiB       1MiB     1MiB
";
        assert_eq!(drawn(&device), expected);
        assert_eq!(summary(&device).unwrap(), "on the device 2MiB  swapped 2MiB");
    }

    #[test]
    fn numbers_that_follow_one_another_are_one_range() {
        assert_eq!(ranges(&[]), "-");
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    }

    #[test]
    fn half_a_hundred_vgpus_have_letters_of_their_own() {
        let names: Vec<String> = (0..60).map(|number| format!("{number:02}")).collect();
        let legend = Legend(names.iter().map(String::as_str).collect());
        let letters: Vec<char> = names.iter().map(|name| legend.letter(name)).collect();
        let distinct: std::collections::BTreeSet<char> =
            letters.iter().flat_map(|letter| [*letter, upper(*letter)]).collect();
        assert_eq!((distinct.len(), letters[49], letters[59]), (100, 'ω', 'ω'));
    }

    #[test]
    fn top_has_it_in_a_line_where_there_is_anything_to_see() {
        let expected = "slots [bA-.]  shared 1  swapped 2MiB  last switch infer to 1";
        assert_eq!(summary(&device()).unwrap(), expected);
        let mut empty = device();
        empty.memory = MemoryReport::default();
        assert_eq!(summary(&empty), None);
        assert!(drawn(&empty).contains("not dealt out"));
    }
}
