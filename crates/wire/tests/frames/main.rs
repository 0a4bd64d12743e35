//! What a machine's guest may say: the fuzzer's corpus, and frames that are right but for a byte.

mod harness;

use std::path::Path;

use weft_wire::guest::{
    AnswerFrame, Begin, Begun, GuestFrame, HelloFrame, HostFrame, OpenRegion, Processors,
};
use weft_wire::handshake::PROTOCOL_VERSION;

#[test]
fn the_corpus_is_survived() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/guest_frames");
    let mut inputs = 0;
    for entry in std::fs::read_dir(corpus).unwrap() {
        harness::hear(&std::fs::read(entry.unwrap().path()).unwrap());
        inputs += 1;
    }
    assert!(inputs > 0, "the corpus is empty");
}

/// One of each that is said.
fn samples() -> Vec<Vec<u8>> {
    let begin = Begin { nonce: 7, version: PROTOCOL_VERSION };
    let open = OpenRegion {
        version: PROTOCOL_VERSION,
        region: [3; 16],
        vgpu: "team".to_owned(),
        weight: 2,
        memory_bytes: 1 << 30,
        token: "word".to_owned(),
        region_bytes: 1 << 28,
        sessions: 4,
    };
    let processors = Processors { process: 4711, threads: vec![4712, 4713] };
    let all = [
        GuestFrame::Begin(begin).to_bytes(),
        GuestFrame::Hello(HelloFrame { request: 1, hello: b"WEFT and so on" }).to_bytes(),
        GuestFrame::Close(5).to_bytes(),
        GuestFrame::Exited(-1).to_bytes(),
        HostFrame::Begun(Begun { nonce: 7, region: [3; 16] }).to_bytes(),
        HostFrame::Answer(AnswerFrame { request: 1, answer: b"yes" }).to_bytes(),
        HostFrame::Over(5).to_bytes(),
        HostFrame::Mark(63).to_bytes(),
        open.to_bytes(),
        processors.to_bytes(),
    ];
    all.into_iter().map(Result::unwrap).collect()
}

/// Each bit of each sample wrong, each sample cut anywhere, and another one behind it.
#[test]
fn what_is_nearly_right_is_survived() {
    let samples = samples();
    for sample in &samples {
        harness::hear(sample);
        for bit in 0..8 * sample.len() {
            let mut wrong = sample.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            wrong.extend(&samples[bit % samples.len()]);
            harness::hear(&wrong);
        }
        for cut in 0..sample.len() {
            harness::hear(&[&sample[..cut], &samples[cut % samples.len()]].concat());
        }
    }
}

/// Writes the samples where the fuzzer begins: `WEFT_RENEW_CORPUS=1`.
#[test]
fn the_corpus_has_the_samples() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/guest_frames");
    for (number, sample) in samples().into_iter().enumerate() {
        let path = corpus.join(format!("sample-{number}"));
        if std::env::var_os("WEFT_RENEW_CORPUS").is_some() {
            std::fs::write(&path, &sample).unwrap();
        }
        let found = std::fs::read(&path).unwrap();
        assert_eq!(found, sample, "renew it: {}", path.display());
    }
}
