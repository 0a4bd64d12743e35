//! Journals of random histories, begun at any moment, replay without a difference; a difference is
//! found where it is.

use std::path::Path;

use crate::model::steps::take;
use crate::model::{DEVICE, Handled, Model};
use crate::strategies::{habits, step};
use proptest::prelude::*;
use weft_sched::journal::{Replay, ReplayError, VERSION, Writer};
use weft_sched::{
    Action, Actions, Cap, Class, Config, DeviceKey, Event, EventError, Node, SessionKey, TenantKey,
    Usage, VgpuKey, Weight, policy,
};

/// A journal that begins with `header`.
fn write(header: &[u8], writer: &Writer, history: &[Handled]) -> Vec<u8> {
    let (mut file, mut writer) = (header.to_vec(), writer.clone());
    for (now_ns, event, actions) in history {
        writer.record(*now_ns, event, Ok(()), actions, &mut file);
    }
    file
}

/// Changes the actions so that they differ for certain.
fn corrupt(actions: &mut Vec<Action>, way: usize) {
    match (actions.last_mut(), way) {
        (Some(Action::Grant { budget_ns, .. }), 0) => *budget_ns ^= 1,
        (Some(Action::Timer { at_ns, .. }), 0) => *at_ns += 1,
        (Some(_), 1) => drop(actions.pop()),
        _ => actions.push(Action::DeviceIdle { device: DEVICE }),
    }
}

proptest! {
    #[test]
    fn random_histories_replay_from_anywhere(
        name in prop::sample::select(policy::NAMES),
        habits in habits(),
        before in prop::collection::vec(step(), 0..40),
        after in prop::collection::vec(step(), 1..40),
        (record, way) in (any::<prop::sample::Index>(), 0usize..3),
    ) {
        let mut model = Model::new(name, habits);
        before.iter().for_each(|step| take(&mut model, step));
        let mut header = Vec::new();
        let writer = Writer::begin(&model.node, &mut header);
        model.history = Some(Vec::new());
        after.iter().for_each(|step| take(&mut model, step));
        model.settle();

        let mut history = model.history.take().unwrap();
        let file = write(&header, &writer, &history);
        let mut replay = Replay::new(&file).unwrap();
        while replay.step().unwrap().is_some() {}
        prop_assert_eq!(replay.summary().records, history.len() as u64);
        prop_assert_eq!(replay.node().snapshot(), model.node.snapshot());

        if !history.is_empty() {
            let wrong = record.index(history.len());
            corrupt(&mut history[wrong].2, way);
            let file = write(&header, &writer, &history);
            let Err(ReplayError::Differs(difference)) = Replay::new(&file).unwrap().run() else {
                panic!("the change of record {wrong} was not found");
            };
            prop_assert_eq!(difference.record.number, wrong as u64);
        }
    }

    /// Damage is called damage, and no difference of the core's.
    #[test]
    fn damaged_journals_are_refused_or_cut_and_never_differ(
        at in any::<prop::sample::Index>(),
        mask in 1u8..,
    ) {
        let mut file = example();
        let at = at.index(file.len());
        file[at] ^= mask;
        if let Ok(replay) = Replay::new(&file) {
            match replay.run() {
                Err(ReplayError::DamagedRecord(_) | ReplayError::Malformed { .. }) => {}
                // A length that is too large.
                Ok(summary) => prop_assert!(summary.cut),
                Err(other) => panic!("{other}"),
            }
        }
    }
}

/// A history with every kind of event, recorded from the event of that number on.
fn example_from(begin: u64) -> Vec<u8> {
    let (device, session, vgpu) = (DEVICE, SessionKey(0), VgpuKey(0));
    let (tenant, weight) = (TenantKey(1), Weight::new(3).unwrap());
    let usage = Usage { used_ns: 5_000_000, in_flight_ns: 1_000, idle_ns: 7 };
    let cap = Some(Cap { share_ppm: 500_000, period_ns: 20_000_000 });
    let policy = policy::by_name("round_robin").unwrap();
    let events = [
        Event::DeviceUp { device, config: Config::default() },
        Event::AddTenant { tenant, weight },
        Event::AddVgpu { vgpu, tenant, device, weight },
        Event::SetOwner { vgpu, owner: 1000 },
        Event::AddSession { session, vgpu },
        Event::Runnable { session, estimate_ns: 300 },
        Event::SyncCalls { session, calls: 40 },
        Event::SetCap { vgpu, cap },
        Event::SetTenantCap { tenant, cap },
        Event::SetClass { vgpu, class: Class::UserFacing { sla_ns: 200_000_000 } },
        Event::Released { session, epoch: 1, usage },
        Event::Timer,
        Event::ReweightTenant { tenant, weight: Weight::ONE },
        Event::Reweight { vgpu, weight: Weight::ONE },
        Event::ReweightSession { session, weight },
        Event::OnCpu { vgpu, on: true },
        Event::Idle { session: SessionKey(9) },
        Event::SetPolicy { device, policy },
        Event::Used { session, usage },
        Event::Idle { session },
        Event::DeviceUp { device: DeviceKey(1), config: Config::default() },
        Event::MoveVgpu { vgpu, device: DeviceKey(1) },
        Event::DeviceDown { device },
        Event::Pieces { session, pieces: 3 },
        Event::Switched { session, switch_ns: 1_000_000, ahead_ns: 0 },
        Event::Paged { session, paged_ns: 500_000 },
        Event::Prefer { vgpu },
        Event::RemoveSession { session },
        Event::RemoveVgpu { vgpu },
        Event::RemoveTenant { tenant },
    ];
    let mut node = Node::new();
    let (mut file, mut actions) = (Vec::new(), Actions::new());
    let mut writer = Writer::begin(&node, &mut file);
    for (step, event) in (0u64..).zip(events) {
        if step == begin {
            file.clear();
            writer = Writer::begin(&node, &mut file);
        }
        let now_ns = step * 2_000_000;
        let result = node.handle(now_ns, event, &mut actions);
        writer.record(now_ns, &event, result, actions.as_slice(), &mut file);
        actions.clear();
    }
    file
}

fn example() -> Vec<u8> {
    example_from(0)
}

fn hex(bytes: &[u8]) -> Vec<String> {
    bytes.chunks(32).map(|line| line.iter().map(|b| format!("{b:02x}")).collect()).collect()
}

/// The format does not change by accident. After a change that is meant: raise [`VERSION`], run
/// with `WEFT_RENEW_GOLDEN=1`, read the difference.
fn is_golden(name: &str, journal: &[u8]) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let now = hex(journal);
    if std::env::var_os("WEFT_RENEW_GOLDEN").is_some() {
        std::fs::write(&file, now.join("\n") + "\n").unwrap();
    }
    let golden = std::fs::read_to_string(&file).unwrap();
    assert_eq!(now, golden.lines().collect::<Vec<_>>(), "{name}, journal version {VERSION}");
}

#[test]
fn golden_bytes() {
    is_golden("journal.hex", &example());
    // With a tenant, a cap and a turn in the state that it begins with.
    is_golden("journal_midway.hex", &example_from(10));
    Replay::new(&example_from(10)).unwrap().run().unwrap();
    let summary = Replay::new(&example()).unwrap().run().unwrap();
    assert_eq!((summary.records, summary.grants), (30, 3));
}

#[test]
fn a_cut_file_is_read_up_to_the_cut() {
    let file = example();
    let summary = Replay::new(&file[..file.len() - 1]).unwrap().run().unwrap();
    assert_eq!((summary.records, summary.cut), (29, true));
}

#[test]
fn what_is_no_journal_says_so() {
    assert_eq!(Replay::new(b"not a journal").unwrap_err(), ReplayError::NoJournal);
    let mut other = example();
    other[8] = 99;
    let error = Replay::new(&other).unwrap_err().to_string();
    assert_eq!(error, format!("the journal has version 99, this program reads version {VERSION}"));
    let mut damaged = example();
    damaged[14] ^= 1;
    assert_eq!(Replay::new(&damaged).unwrap_err(), ReplayError::Damaged);
}

#[test]
fn a_difference_names_the_record() {
    let mut node = Node::new();
    let (mut file, mut actions) = (Vec::new(), Actions::new());
    let mut writer = Writer::begin(&node, &mut file);
    let event = Event::DeviceUp { device: DEVICE, config: Config::default() };
    node.handle(5, event, &mut actions).unwrap();
    writer.record(5, &event, Err(EventError::DefaultTenant), &[], &mut file);
    let error = Replay::new(&file).unwrap().run().unwrap_err().to_string();
    assert!(error.starts_with("record 0 at 5 ns, DeviceUp { device: d0, "), "{error}");
    assert!(error.ends_with("}: expected Refused, got Done([])"), "{error}");
}
