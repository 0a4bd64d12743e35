//! Device memory and events that processes of one vGPU share, and that nobody else gets at.

use crate::support::{Conversation, Node, eventually, finish, program, success, text_of};

/// A process of the vGPU `shared` that exports memory, and the handle.
fn exporter(node: &Node) -> (Conversation, String) {
    let command = node.run(&["--name", "shared"], &program("ipc"), &["export"]);
    let exporter = Conversation::start(command);
    let handle = exporter.line();
    (exporter, handle)
}

fn asked(conversation: &mut Conversation, question: &str) -> String {
    conversation.say(question);
    conversation.line()
}

#[test]
fn processes_of_one_vgpu_share_memory() {
    let node = Node::start(&[]);
    let (mut exporter, handle) = exporter(&node);
    let used = || node.admin().list().unwrap()[0].memory_used_bytes;
    let before = used();
    let open = || node.run(&["--name", "shared"], &program("ipc"), &["open", &handle]);
    assert!(success(open()).contains("opened"));
    assert_eq!(asked(&mut exporter, "check 9"), "same", "what the other process wrote");
    eventually("shared memory to be paid for once", || used() == before);
    let own = asked(&mut exporter, "open");
    assert_eq!(own, "CUDA_ERROR_INVALID_HANDLE", "a process has its own memory already");
    assert!(exporter.wait().success());
    let late = finish(open());
    assert!(text_of(&late).contains("refused: CUDA_ERROR_INVALID_HANDLE"), "{late:?}");
}

#[test]
fn no_handle_opens_another_vgpus_memory() {
    let node = Node::start(&[]);
    let (mut exporter, handle) = exporter(&node);
    let other = finish(node.run(&["--name", "other"], &program("ipc"), &["open", &handle]));
    assert!(text_of(&other).contains("refused: CUDA_ERROR_INVALID_HANDLE"), "{other:?}");
    let forged = node.run(&["--name", "shared"], &program("ipc"), &["forge", &handle]);
    assert!(success(forged).contains("all refused"));
    assert_eq!(asked(&mut exporter, "check 7"), "same");
}

#[test]
fn memory_that_is_freed_is_out_of_reach() {
    let node = Node::start(&[]);
    let (mut exporter, handle) = exporter(&node);
    let hold = node.run(&["--name", "shared"], &program("ipc"), &["hold", &handle]);
    let mut holder = Conversation::start(hold);
    assert_eq!(holder.line(), "open");
    assert_eq!(asked(&mut holder, ""), "CUDA_SUCCESS 7");
    assert_eq!(asked(&mut exporter, "free"), "CUDA_SUCCESS");
    assert_eq!(asked(&mut holder, ""), "CUDA_ERROR_ILLEGAL_ADDRESS 7");
    let late = finish(node.run(&["--name", "shared"], &program("ipc"), &["open", &handle]));
    assert!(text_of(&late).contains("refused: CUDA_ERROR_INVALID_HANDLE"), "{late:?}");
}

#[test]
fn processes_of_one_vgpu_wait_for_each_others_events() {
    let node = Node::start(&[]);
    let run = |arguments: &[&str]| {
        Conversation::start(node.run(&["--name", "shared"], &program("ipc"), arguments))
    };
    let mut recorder = run(&["record"]);
    let handle = recorder.line();
    let mut waiter = run(&["await", &handle]);
    assert_eq!(waiter.line(), "open");
    assert_eq!(asked(&mut waiter, "query"), "CUDA_SUCCESS", "there is no record");
    assert_eq!(asked(&mut recorder, "record"), "CUDA_SUCCESS");
    assert_eq!(asked(&mut waiter, "query"), "CUDA_ERROR_NOT_READY");
    assert_eq!(asked(&mut waiter, "wait"), "CUDA_SUCCESS");
    assert_eq!(asked(&mut waiter, "stream"), "CUDA_ERROR_NOT_READY");
    waiter.say("sync");
    assert_eq!(asked(&mut recorder, "go"), "CUDA_SUCCESS");
    assert_eq!(waiter.line(), "CUDA_SUCCESS", "the one that waited");
    eventually("the stream that waited to go on", || {
        asked(&mut waiter, "stream") == "CUDA_SUCCESS"
    });
    // The other way round: the recorder sees what the process that opened the event records.
    assert_eq!(asked(&mut recorder, "record"), "CUDA_SUCCESS");
    assert_eq!(asked(&mut waiter, "wait"), "CUDA_SUCCESS");
    assert_eq!(asked(&mut waiter, "record"), "CUDA_SUCCESS");
    assert_eq!(asked(&mut recorder, "query"), "CUDA_ERROR_NOT_READY");
    assert_eq!(asked(&mut recorder, "go"), "CUDA_SUCCESS");
    assert_eq!(asked(&mut waiter, "sync"), "CUDA_SUCCESS");
    let other = node.run(&["--name", "other"], &program("ipc"), &["await", &handle]);
    let other = finish(other);
    assert!(text_of(&other).contains("refused: CUDA_ERROR_INVALID_HANDLE"), "{other:?}");
    // A process that is gone keeps nobody waiting.
    assert_eq!(asked(&mut recorder, "record"), "CUDA_SUCCESS");
    assert_eq!(asked(&mut waiter, "wait"), "CUDA_SUCCESS");
    recorder.kill();
    eventually("the stream to go on without it", || asked(&mut waiter, "stream") == "CUDA_SUCCESS");
    assert!(waiter.wait().success());
}
