//! Messages about tasks: the fuzzer's corpus, and messages that are right but for a bit.

mod harness;

use std::path::PathBuf;

use weft_tasks::protocol::{
    Argument, Event, KernelInfo, Open, Opened, RefusalCode, Request, Submission, VERSION,
};

fn corpus() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/task_messages")
}

fn requests() -> Vec<Request> {
    let submission = Submission {
        task: 7,
        module: 1,
        kernel: "saxpy".into(),
        grid: [4, 2, 1],
        block: [256, 1, 1],
        shared_bytes: 1024,
        arguments: vec![
            Argument::Buffer { bytes: 4096, input: Some(0), output: Some(4096) },
            Argument::Buffer { bytes: 16, input: None, output: None },
            Argument::Scalar(vec![0, 0, 64, 64]),
            Argument::Scalar(vec![0, 4, 0, 0]),
        ],
        memory_bytes: 8192,
        estimate_ns: 1_000_000,
    };
    vec![
        Request::Load { module: 1, bytes: 900 },
        Request::Unload { module: 1 },
        Request::Submit(submission),
        Request::Cancel { task: 7 },
    ]
}

fn events() -> Vec<Event> {
    let kernel = KernelInfo {
        name: "saxpy".into(),
        parameters: vec![8, 8, 4, 4],
        threads_max: 1024,
        shared_bytes: 0,
        whole: Some("it reads %gridid".into()),
    };
    let message = || "what happened".to_owned();
    vec![
        Event::Loaded { module: 1, kernels: vec![kernel] },
        Event::LoadRefused { module: 1, message: message() },
        Event::Accepted { task: 7 },
        Event::Refused { task: 7, code: RefusalCode::QueueFull, message: message() },
        Event::Done { task: 7, used_ns: 5, latency_ns: 9, device: "gpu0".into(), runs: 2 },
        Event::Failed { task: 7, status: 700, message: message() },
        Event::Cancelled { task: 7 },
    ]
}

/// One of each that is said.
fn samples() -> Vec<Vec<u8>> {
    let (accelerator, token, program) = ("resnet".into(), "word".into(), "app".into());
    let open = Open { weft_tasks: VERSION, accelerator, token, program };
    let devices = vec!["gpu0".into(), "gpu1".into()];
    let pool = "vision".into();
    let welcome = Opened::Welcome { pool, devices, tasks_max: 64, bytes_max: 1 << 28 };
    let refused = Opened::Refused { message: "no accelerator".into(), again: true };
    let mut all = vec![serde_json::to_vec(&open), serde_json::to_vec(&welcome)];
    all.push(serde_json::to_vec(&refused));
    all.extend(requests().iter().map(serde_json::to_vec));
    all.extend(events().iter().map(serde_json::to_vec));
    all.into_iter().map(Result::unwrap).collect()
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

/// Each bit of each sample wrong, and each sample cut anywhere.
#[test]
fn what_is_nearly_right_is_survived() {
    let mut messages = 0;
    for sample in samples() {
        assert!(harness::hear(&sample), "{}", String::from_utf8_lossy(&sample));
        for bit in 0..8 * sample.len() {
            let mut wrong = sample.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            messages += usize::from(harness::hear(&wrong));
        }
        for cut in 0..sample.len() {
            assert!(!harness::hear(&sample[..cut]), "{}", String::from_utf8_lossy(&sample[..cut]));
        }
    }
    // A digit or a letter more or less is often a message still.
    assert!(messages > 1_000, "{messages}");
}

/// Writes the samples where the fuzzer begins: `WEFT_RENEW_CORPUS=1`.
#[test]
fn the_corpus_has_the_samples() {
    for (number, sample) in samples().into_iter().enumerate() {
        let path = corpus().join(format!("sample-{number:02}"));
        if std::env::var_os("WEFT_RENEW_CORPUS").is_some() {
            std::fs::create_dir_all(corpus()).unwrap();
            std::fs::write(&path, &sample).unwrap();
        }
        let found = std::fs::read(&path).unwrap();
        assert_eq!(found, sample, "renew it: {}", path.display());
    }
}
