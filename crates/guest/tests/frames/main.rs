//! A machine's server and agent with hostile peers: the fuzzer's corpus, and random sequences of
//! what can happen.

mod harness;

use std::path::PathBuf;

use proptest::collection::vec;
use proptest::prelude::*;
use weft_guest::agent::state::{Action, Service, State};
use weft_wire::guest::{AnswerFrame, Begun, GuestFrame, HostFrame};

fn corpus() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/guest_states")
}

#[test]
fn the_corpus_is_survived() {
    let mut inputs = 0;
    for entry in std::fs::read_dir(corpus()).unwrap() {
        harness::hear(&std::fs::read(entry.unwrap().path()).unwrap());
        inputs += 1;
    }
    assert!(inputs > 0, "the corpus is empty");
}

/// What once went wrong, and scripts of bytes as they come.
fn samples() -> Vec<Vec<u8>> {
    let mut samples = vec![
        // A hello of no bytes was never answered.
        vec![1, 251, 7],
        // Programs came while a host took nothing of what they said.
        vec![0, 0, 0, 7, 12, 255],
        // An agent's beginning was lost with its connection.
        vec![0, 0, 6, 0, 0, 0],
    ];
    let mut number = 1_u32;
    samples.extend((0..12).map(|_| {
        let mut next = || {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            number.to_be_bytes()[0]
        };
        (0..400).map(|_| next()).collect()
    }));
    samples
}

/// Writes the samples where the fuzzer begins: `WEFT_RENEW_CORPUS=1`.
#[test]
fn the_corpus_has_the_samples() {
    for (number, sample) in samples().into_iter().enumerate() {
        let path = corpus().join(format!("sample-{number}"));
        if std::env::var_os("WEFT_RENEW_CORPUS").is_some() {
            std::fs::write(&path, &sample).unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), sample, "renew it: {}", path.display());
    }
}

/// Else its place would be taken until the next agent begins.
#[test]
fn a_place_that_is_welcomed_for_nobody_is_let_go_of() {
    let mut agent = State::<(), ()>::new(5);
    agent.handle_written(usize::MAX);
    let begun = HostFrame::Begun(Begun { nonce: 5, region: [7; 16] });
    agent.handle_host(&begun.to_bytes().unwrap());
    assert!(matches!(agent.poll_action(), Some(Action::Compare(_))));
    agent.handle_compared(Service::Begun);
    let answer = harness::welcome(3);
    let answer = HostFrame::Answer(AnswerFrame { request: 9, answer: &answer });
    agent.handle_host(&answer.to_bytes().unwrap());
    assert!(agent.poll_action().is_none());
    assert_eq!(agent.to_host(), GuestFrame::Close(3).to_bytes().unwrap());
}

fn script() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..600)
}

proptest! {
    #[test]
    fn whatever_a_guest_says_its_server_gives_places_once_and_answers_once(script in script()) {
        harness::server(&script);
    }

    #[test]
    fn whatever_a_host_says_its_agent_forgets_no_program_and_no_place(script in script()) {
        harness::agent(&script);
    }

    #[test]
    fn whatever_breaks_between_them_agent_and_server_agree_in_the_end(script in script()) {
        harness::pair(&script);
    }
}
