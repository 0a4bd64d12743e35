//! The corpus of the fuzz target `pool_events`, and random bytes, against pools.
#![allow(unreachable_pub, reason = "the harness is included by the fuzz target too")]

mod harness;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use weft_sched::pool::policy;

fn corpus() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/pool_events")
}

/// Under each policy, of many random inputs the one that comes to most, by a fixed rule.
fn chosen() -> BTreeMap<&'static str, Vec<u8>> {
    let mut state = 1u64;
    let mut byte = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56).to_le_bytes()[0]
    };
    let mut best: BTreeMap<&str, ((usize, u64), Vec<u8>)> = BTreeMap::new();
    for _ in 0..600 {
        let data: Vec<u8> = (0..3_000).map(|_| byte()).collect();
        let reached = harness::attack(&data);
        let score = (reached.events.len() + reached.actions.len(), reached.taken);
        if best.get(reached.policy).is_none_or(|(of, _)| *of < score) {
            best.insert(reached.policy, (score, data));
        }
    }
    best.into_iter().map(|(name, (_, data))| (name, data)).collect()
}

/// Writes where the fuzzer begins: `WEFT_RENEW_CORPUS=1`. Renew it when this fails.
#[test]
fn the_corpus_breaks_nothing_and_comes_to_every_event_and_action() {
    if std::env::var_os("WEFT_RENEW_CORPUS").is_some() {
        fs::create_dir_all(corpus()).expect("a folder");
        for (name, data) in chosen() {
            fs::write(corpus().join(name), data).expect("a file");
        }
    }
    let (mut events, mut actions) = (BTreeSet::new(), BTreeSet::new());
    let mut policies = BTreeSet::new();
    for entry in fs::read_dir(corpus()).expect("the corpus is there") {
        let path = entry.expect("an entry").path();
        let reached = harness::attack(&fs::read(path).expect("a file"));
        events.extend(reached.events);
        actions.extend(reached.actions);
        policies.insert(reached.policy);
    }
    assert_eq!(events, (0..harness::EVENTS).collect());
    assert_eq!(actions, (0..harness::ACTIONS).collect());
    assert_eq!(policies, policy::NAMES.iter().copied().collect());
}

proptest! {
    #[test]
    fn no_bytes_break_a_pool(data in prop::collection::vec(any::<u8>(), 0..3_000)) {
        harness::attack(&data);
    }
}
