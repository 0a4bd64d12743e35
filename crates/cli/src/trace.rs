//! `weft trace`: a timeline for Perfetto, of a running node or of a journal.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
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
            let recording = client.record(options.seconds)?;
            let path = Path::new(&recording.path);
            if recording.cut {
                note("warning: the recording ends early: there was more than could be written");
            }
            let events = write(&parts(path)?, &recording.vgpus, &mut output);
            fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
            (output, events.with_context(|| format!("cannot write {shown}"))?)
        }
    };
    output.flush().with_context(|| format!("cannot write {shown}"))?;
    note(&format!("{shown}: {events} events; open it at https://ui.perfetto.dev"));
    Ok(())
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
