//! `weft replay`: the scheduling core against a journal.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use weft_node::journal::{Begins, JournalFile, files, pool_folders};
use weft_sched::invariants::{TraceLag, TraceSummary};
use weft_sched::journal::{Outcome, PoolReplay, PoolWriter, Replay, Summary, Writer, is_of_pool};

use crate::output::{line, note};

/// What a replay without a difference went through.
#[derive(Debug, Default, Serialize)]
struct Report {
    files: u64,
    records: u64,
    actions: u64,
    grants: u64,
    /// Files that end within a record, as after a crash.
    cut: u64,
    /// Records that the daemon could not write.
    lost: u64,
    lag: Lag,
    /// The pools' journals, by name.
    pools: BTreeMap<String, PoolJournal>,
}

/// What the replay of a pool's journal went through.
#[derive(Debug, Default, Serialize)]
struct PoolJournal {
    files: u64,
    records: u64,
    actions: u64,
    /// Tasks that a device began.
    runs: u64,
    cut: u64,
    lost: u64,
}

/// The lag bound of the design, from what the device reported.
#[derive(Debug, Default, Serialize)]
struct Lag {
    /// Reports of service under `fair`, which promises the bound.
    reports: u64,
    /// Reports at which two members of a level were further apart than the bound.
    beyond: u64,
    /// The largest lag over its bound.
    worst_over_bound: f64,
    /// The longest command that cannot be cut, in µs, as was said.
    longest_us: u64,
}

/// `weft replay`
pub(crate) fn replay(journal: &Path, longest_us: Option<u64>, json: bool) -> Result<()> {
    let lag = Lag { longest_us: longest_us.unwrap_or(0), ..Lag::default() };
    let mut report = Report { lag, ..Report::default() };
    let first = parts(journal)?;
    let begins_pool = first.first().map(|file| read(&file.path)).transpose()?;
    if begins_pool.is_some_and(|bytes| is_of_pool(&bytes)) {
        let name = journal.display().to_string();
        report.pools.insert(name, replay_pool(journal)?);
    } else {
        let mut node = Replayed::default();
        each(journal, &mut node, |bytes| one(bytes, &mut report.lag))?;
        report.add(&node);
    }
    if journal.is_dir() {
        for (pool, folder) in pool_folders(journal)? {
            report.pools.insert(pool, replay_pool(&folder)?);
        }
    }
    show(&report, json)?;
    let Lag { reports, beyond, longest_us: longest, .. } = report.lag;
    if beyond > 0 && longest_us.is_some() {
        bail!(
            "the lag bound was passed at {beyond} of {reports} reports of service, although no \
             command was longer than {longest} µs"
        );
    }
    Ok(())
}

/// What the files of one journal came to.
#[derive(Debug, Default)]
struct Replayed {
    files: u64,
    lost: u64,
    cut: u64,
    sum: Summary,
}

/// Replays the files of a journal one after the other with `one`, which gives the state at a file's
/// end as the next one begins.
fn each(
    journal: &Path,
    replayed: &mut Replayed,
    mut one: impl FnMut(&[u8]) -> Result<(Summary, Vec<u8>)>,
) -> Result<()> {
    let mut end = None;
    for file in parts(journal)? {
        let bytes = read(&file.path)?;
        let shown = file.path.display();
        if let Begins::Lost { records } = file.begins {
            note(&format!("{shown}: {records} records before it were lost"));
            replayed.lost += records;
        }
        let goes_on = file.begins == Begins::Next;
        if end.take().is_some_and(|end: Vec<u8>| goes_on && !bytes.starts_with(&end)) {
            bail!("{shown}: it does not begin with the state at the end of the file before it");
        }
        let (summary, state) = one(&bytes).with_context(|| format!("{shown}"))?;
        replayed.files += 1;
        replayed.cut += u64::from(summary.cut);
        replayed.sum.records += summary.records;
        replayed.sum.actions += summary.actions;
        replayed.sum.grants += summary.grants;
        end = (!summary.cut).then_some(state);
    }
    Ok(())
}

/// Replays a pool's journal.
fn replay_pool(journal: &Path) -> Result<PoolJournal> {
    let mut replayed = Replayed::default();
    each(journal, &mut replayed, |bytes| {
        let mut replay = PoolReplay::new(bytes)?;
        let summary = replay.run()?;
        let mut state = Vec::new();
        PoolWriter::begin(replay.pool(), &mut state);
        Ok((summary, state))
    })?;
    let Replayed { files, lost, cut, sum: Summary { records, actions, grants: runs, .. } } =
        replayed;
    Ok(PoolJournal { files, records, actions, runs, cut, lost })
}

fn show(report: &Report, json: bool) -> Result<()> {
    if json {
        line(&serde_json::to_string_pretty(report)?);
        return Ok(());
    }
    let Report { files, records, actions, grants, cut, lost, lag, pools } = report;
    line(&format!(
        "no difference: {records} records, {actions} actions, {grants} turns in {files} files \
         ({cut} cut short, {lost} records lost)"
    ));
    for (pool, PoolJournal { files, records, actions, runs, cut, lost }) in pools {
        line(&format!(
            "pool {pool}: no difference: {records} records, {actions} actions, {runs} runs of \
             tasks in {files} files ({cut} cut short, {lost} records lost)"
        ));
    }
    let Lag { reports, beyond, worst_over_bound, longest_us } = lag;
    if *reports > 0 {
        line(&format!(
            "lag: at most {worst_over_bound:.3} of the bound (q + σ + l)/w + (q + σ + l)/w with \
             l = {longest_us} µs; beyond it at {beyond} of {reports} reports of service"
        ));
    }
    if *beyond > 0 {
        note("l is the longest command that the device could not cut; say it with --longest-us");
    }
    Ok(())
}

impl Report {
    fn add(&mut self, node: &Replayed) {
        let Replayed { files, lost, cut, sum: Summary { records, actions, grants, .. } } = *node;
        self.files += files;
        self.lost += lost;
        self.cut += cut;
        self.records += records;
        self.actions += actions;
        self.grants += grants;
    }
}

/// The files of a journal: of a folder, or the one.
pub(crate) fn parts(journal: &Path) -> Result<Vec<JournalFile>> {
    let shown = journal.display();
    let metadata = fs::metadata(journal).with_context(|| format!("cannot read {shown}"))?;
    if !metadata.is_dir() {
        let (path, begins) = (journal.to_owned(), Begins::Start);
        return Ok(vec![JournalFile { path, number: 1, begins }]);
    }
    let files = files(journal).with_context(|| format!("cannot read {shown}"))?;
    if files.is_empty() {
        bail!("there is no journal in {shown}; `weft node --journal DIR` keeps one");
    }
    Ok(files)
}

/// A whole file of a journal.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Replays one file; the state at its end comes encoded.
fn one(bytes: &[u8], lag: &mut Lag) -> Result<(Summary, Vec<u8>)> {
    let mut replay = Replay::new(bytes)?;
    let mut trace = TraceLag::new(replay.node(), lag.longest_us.saturating_mul(1_000));
    while let Some(record) = replay.step()? {
        if let Outcome::Done(actions) = &record.outcome {
            // Counted; a lag is told at the end.
            let _beyond = trace.observe(&record.event, actions, replay.node());
        }
    }
    let TraceSummary { reports, beyond, worst_millionths } = trace.summary();
    lag.reports += reports;
    lag.beyond += beyond;
    #[expect(clippy::cast_precision_loss, reason = "a ratio with six digits")]
    let worst = worst_millionths as f64 / 1e6;
    lag.worst_over_bound = lag.worst_over_bound.max(worst);
    let mut state = Vec::new();
    Writer::begin(replay.node(), &mut state);
    Ok((replay.summary(), state))
}

#[cfg(test)]
mod tests {
    use weft_sched::{
        Actions, Config, DeviceKey, Event, Node, SessionKey, TenantKey, Usage, VgpuKey, Weight,
    };

    use super::*;

    /// A journal of three vGPUs that take turns, and what it replays to.
    fn journal() -> Vec<u8> {
        let mut node = Node::new();
        let (mut actions, mut file) = (Actions::new(), Vec::new());
        let mut writer = Writer::begin(&node, &mut file);
        let mut now_ns = 0;
        let mut tell = |node: &mut Node, event: Event| {
            now_ns += 100_000;
            let result = node.handle(now_ns, event, &mut actions);
            writer.record(now_ns, &event, result, actions.as_slice(), &mut file);
            actions.clear();
        };
        let device = DeviceKey(0);
        tell(&mut node, Event::DeviceUp { device, config: Config::default() });
        for key in 0..3 {
            let (vgpu, tenant) = (VgpuKey(key), TenantKey::DEFAULT);
            let weight = Weight::new(key + 1).unwrap();
            tell(&mut node, Event::AddVgpu { vgpu, tenant, device, weight });
            tell(&mut node, Event::AddSession { session: SessionKey(key), vgpu });
            tell(&mut node, Event::Runnable { session: SessionKey(key), estimate_ns: 1_000 });
        }
        let mut used_ns = [0; 3];
        for _ in 0..100 {
            let Some(&session) = node.holders(device).first() else { break };
            let used = &mut used_ns[session.0 as usize];
            *used += 6_000_000;
            let usage = Usage { used_ns: *used, in_flight_ns: 0, idle_ns: 0 };
            let epoch = node.next_epoch(device).unwrap() - 1;
            tell(&mut node, Event::Released { session, epoch, usage });
        }
        file
    }

    #[test]
    fn a_journal_replays_and_its_end_is_what_the_next_begins_with() {
        let bytes = journal();
        let (summary, end) = one(&bytes, &mut Lag::default()).unwrap();
        assert!(summary.records >= 100 && summary.grants >= 100, "{summary:?}");
        let mut lag = Lag::default();
        one(&bytes, &mut lag).unwrap();
        assert!(lag.reports >= 100 && lag.beyond == 0, "{lag:?}");
        assert!((0.3..=1.0).contains(&lag.worst_over_bound), "{lag:?}");
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("000001-start.weftj"), &bytes).unwrap();
        fs::write(dir.path().join("000002-next.weftj"), &end).unwrap();
        replay(dir.path(), None, true).unwrap();
        // Another beginning is not the end of the first.
        fs::write(dir.path().join("000002-next.weftj"), &bytes).unwrap();
        let error = replay(dir.path(), None, true).unwrap_err().to_string();
        assert!(error.contains("000002") && error.contains("state"), "{error}");
    }

    #[test]
    fn what_is_no_journal_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let message = |error: anyhow::Error| format!("{error:#}");
        assert!(message(replay(dir.path(), None, false).unwrap_err()).contains("no journal in"));
        let file = dir.path().join("000001-start.weftj");
        for (bytes, word) in
            [(&b"hello"[..], "no journal"), (b"WEFTJRNL\xff\xff", "version"), (b"", "no journal")]
        {
            fs::write(&file, bytes).unwrap();
            let error = message(replay(&file, None, false).unwrap_err());
            assert!(error.contains(word) && error.contains("000001"), "{error}");
        }
        let mut damaged = journal();
        damaged[14] ^= 1;
        fs::write(&file, &damaged).unwrap();
        assert!(message(replay(&file, None, false).unwrap_err()).contains("damaged"));
    }

    /// Damage anywhere is a message or another journal, never a crash; a cut is no error.
    #[test]
    fn damage_never_crashes() {
        let whole = journal();
        let header = {
            let node = Node::new();
            let mut bytes = Vec::new();
            Writer::begin(&node, &mut bytes);
            bytes.len()
        };
        for len in header..whole.len() {
            one(&whole[..len], &mut Lag::default()).unwrap();
        }
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            usize::try_from(random >> 16).unwrap()
        };
        for _ in 0..3_000 {
            let mut bytes = whole.clone();
            for _ in 0..=next() % 3 {
                let at = header + next() % (bytes.len() - header);
                bytes[at] ^= 1 << (next() % 8);
            }
            // Whatever it says: that it comes back is the test.
            let _ = one(&bytes, &mut Lag::default());
            let garbage: Vec<u8> = (0..next() % 64).map(|_| next().to_le_bytes()[0]).collect();
            one(&garbage, &mut Lag::default()).unwrap_err();
        }
    }
}
