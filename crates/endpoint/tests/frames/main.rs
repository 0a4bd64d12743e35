//! What comes over a remote session's connection: the fuzzer's corpus, and messages that are right
//! but for a bit.

#![expect(clippy::unwrap_used, reason = "a panic is a test's report")]

mod harness;

use std::path::PathBuf;

use weft_endpoint::frame::Frame;
use weft_ring::AnswerTo;
use weft_wire::handshake::{HelloBody, Welcome, to_vec};
use weft_wire::remote::{CODE_BYTES, Grant, GrantBody, Open, Opened, Opening, Reception, Resume};

fn corpus() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/remote_frames")
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

fn grant() -> String {
    let body = GrantBody {
        id: [7; 16],
        vgpu: "team".to_owned(),
        owner: 1000,
        weight: 3,
        memory_bytes: 1 << 30,
        uses: 1,
        expires_s: 1_900_000_000,
        server: [9; 32],
    };
    Grant { body: to_vec(&body).unwrap(), code: [5; CODE_BYTES] }.to_text()
}

fn hello() -> HelloBody {
    HelloBody {
        vgpu: "team".to_owned(),
        weight: 0,
        memory_bytes: 0,
        token: String::new(),
        pid: 4711,
        program: "program".to_owned(),
        device_base: 1 << 44,
        device_bytes: 1 << 40,
        pinned_base: 1 << 45,
        pinned_bytes: 1 << 30,
    }
}

fn welcome() -> Welcome {
    Welcome {
        session: 1,
        vgpu: "team".to_owned(),
        device_name: "device".to_owned(),
        uuid: [6; 16],
        capability_major: 7,
        capability_minor: 5,
        memory_bytes: 1 << 30,
        pinned_bytes: 1 << 20,
        managed_bytes: 1 << 20,
        attributes: Vec::new(),
        placement: None,
    }
}

/// Frames of every kind, as one stream.
fn stream() -> Vec<u8> {
    let (to, bytes) = (AnswerTo { slot: 3, call: 4 }, &b"some bytes"[..]);
    let frames = [
        Frame::Ack(1 << 40),
        Frame::Command { answer: Some(to), bytes },
        Frame::Command { answer: None, bytes },
        Frame::Block { offset: 5, bytes },
        Frame::Pinned { address: 6 << 44, bytes },
        Frame::Bye,
        Frame::Answer { to, status: -7, bytes },
        Frame::Released(8),
        Frame::Progress { word: 9, value: 10 },
        Frame::Notice { word: 11, value: 12 },
        Frame::Written(13),
        Frame::Lost(14),
    ];
    let mut stream = Vec::new();
    frames.iter().for_each(|frame| frame.encode(&mut stream));
    stream
}

/// One of each that is said.
fn samples() -> Vec<Vec<u8>> {
    let open = Open { grant: grant(), key: [4; 32], hello: hello() };
    let resume = Resume { session: [1; 16], secret: [2; 32], received: 3 };
    let opened = Opened {
        session: [1; 16],
        secret: [2; 32],
        arena_bytes: 1 << 26,
        grace_ms: 10_000,
        welcome: welcome(),
    };
    let refused = Reception::Refused { code: 3, message: "no room".to_owned() };
    vec![
        stream(),
        grant().into_bytes(),
        Opening::Open(open).to_bytes().unwrap(),
        Opening::Resume(resume).to_bytes().unwrap(),
        Reception::Opened(Box::new(opened)).to_bytes().unwrap(),
        Reception::Resumed(9).to_bytes().unwrap(),
        refused.to_bytes().unwrap(),
    ]
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
            harness::hear(&wrong);
            wrong.extend(&samples[bit % samples.len()]);
            harness::hear(&wrong);
        }
        for cut in 0..sample.len() {
            harness::hear(&sample[..cut]);
            harness::hear(&[&sample[..cut], &samples[cut % samples.len()]].concat());
        }
    }
}

/// Writes the samples where the fuzzer begins: `WEFT_RENEW_CORPUS=1`.
#[test]
fn the_corpus_has_the_samples() {
    for (number, sample) in samples().into_iter().enumerate() {
        let path = corpus().join(format!("sample-{number}"));
        if std::env::var_os("WEFT_RENEW_CORPUS").is_some() {
            std::fs::write(&path, &sample).unwrap();
        }
        let found = std::fs::read(&path).unwrap();
        assert_eq!(found, sample, "renew it: {}", path.display());
    }
}
