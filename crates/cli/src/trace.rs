//! `weft trace`: a timeline for Perfetto, of a running node or of a journal.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use weft_node::admin::{Client, TurnReport};
use weft_node::journal::{Begins, JournalFile};
use weft_sched::journal::Replay;

use crate::args::{Sockets, TraceOptions};
use crate::output::note;
use crate::replay::{parts, read};
use crate::timeline::Timeline;

/// `weft trace`
pub(crate) fn trace(sockets: &Sockets, options: &TraceOptions) -> Result<()> {
    let shown = options.output.display();
    let create = || {
        let file = File::create(&options.output);
        file.map(BufWriter::new).with_context(|| format!("cannot create {shown}"))
    };
    // What is to be drawn comes first: without it an earlier drawing stays.
    let (mut output, events) = match &options.journal {
        Some(journal) => {
            let journal = parts(journal)?;
            let mut output = create()?;
            let events = write(&journal, &BTreeMap::new(), &mut output)
                .with_context(|| format!("cannot write {shown}"))?;
            (output, events)
        }
        None => {
            let mut client = sockets.connect()?;
            let mut output = create()?;
            note(&format!("recording for {} s", options.seconds));
            if !client.node()?.you_administrate {
                note("without an administrator's rights: only the turns of your own vGPUs");
                let events = own_turns(&mut client, options.seconds, &mut output)?;
                output.flush().with_context(|| format!("cannot write {shown}"))?;
                note(&format!("{shown}: {events} events; open it at https://ui.perfetto.dev"));
                return Ok(());
            }
            let recording = client.record(options.seconds)?;
            let path = Path::new(&recording.path);
            if recording.cut {
                note("warning: the recording ends early: there was more than could be written");
            }
            let events = write(&parts(path)?, &recording.vgpus, &mut output);
            (output, events.with_context(|| format!("cannot write {shown}"))?)
        }
    };
    output.flush().with_context(|| format!("cannot write {shown}"))?;
    note(&format!("{shown}: {events} events; open it at https://ui.perfetto.dev"));
    Ok(())
}

/// Draws the turns of the user's own vGPUs in the next seconds; the number of events.
fn own_turns(client: &mut Client, seconds: u32, output: &mut impl Write) -> Result<u64> {
    let since_ns = client.stats()?.now_ns;
    let mut turns: BTreeMap<(String, u64), TurnReport> = BTreeMap::new();
    for _ in 0..seconds {
        std::thread::sleep(Duration::from_secs(1));
        // The node keeps a limited number of turns; one that went on is seen again.
        for turn in client.timeline(since_ns)?.turns {
            turns.insert((turn.vgpu.clone(), turn.start_ns), turn);
        }
    }
    let names: Vec<&String> = turns.keys().map(|(name, _)| name).collect();
    let row = |name: &String| names.partition_point(|other| *other < name);
    let mut events: Vec<serde_json::Value> = turns
        .values()
        .map(|turn| {
            let end_ns = turn.end_ns.unwrap_or(turn.start_ns + turn.used_ns);
            json!({
                "ph": "X", "pid": 1, "tid": row(&turn.vgpu), "name": turn.vgpu,
                "ts": micros(turn.start_ns.saturating_sub(since_ns)),
                "dur": micros(end_ns.saturating_sub(turn.start_ns)),
                "args": {"used_us": micros(turn.used_ns)},
            })
        })
        .collect();
    let mut named = names.clone();
    named.dedup();
    events.extend(named.into_iter().map(|name| {
        json!({
            "ph": "M", "pid": 1, "tid": row(name), "name": "thread_name", "args": {"name": name},
        })
    }));
    let document = json!({"displayTimeUnit": "ms", "traceEvents": events});
    serde_json::to_writer(output, &document)?;
    Ok(events.len() as u64)
}

#[expect(clippy::cast_precision_loss, reason = "a time to draw at")]
fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// Writes what a journal says as one document (Trace Event Format, JSON object); the number of
/// events.
fn write(
    journal: &[JournalFile],
    names: &BTreeMap<u32, String>,
    output: &mut impl Write,
) -> Result<u64> {
    output.write_all(b"{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n")?;
    let mut events = 0;
    let mut emit = |event: &serde_json::Value| -> Result<()> {
        if events > 0 {
            output.write_all(b",\n")?;
        }
        events += 1;
        Ok(serde_json::to_writer(&mut *output, event)?)
    };
    let (mut base_ns, mut new) = (None, Vec::new());
    let mut timeline: Option<Timeline<'_>> = None;
    for file in journal {
        let bytes = read(&file.path)?;
        let of_file = || format!("{}", file.path.display());
        let mut replay = Replay::new(&bytes).with_context(of_file)?;
        // Turns go on from one file to the next; elsewhere there is a gap.
        if file.begins != Begins::Next
            && let Some(mut before) = timeline.take()
        {
            before.finish(&mut new);
        }
        let timeline = timeline.get_or_insert_with(|| Timeline::new(replay.node(), names));
        while let Some(record) = replay.step().with_context(of_file)? {
            timeline.set_base(*base_ns.get_or_insert(record.now_ns));
            timeline.take(&record, &mut new);
            new.drain(..).try_for_each(|event| emit(&event))?;
        }
    }
    if let Some(mut timeline) = timeline {
        timeline.finish(&mut new);
    }
    new.drain(..).try_for_each(|event| emit(&event))?;
    output.write_all(b"\n]}\n")?;
    Ok(events)
}
