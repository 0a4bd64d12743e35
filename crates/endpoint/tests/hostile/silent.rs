//! Endpoints that do not do their part: who reads nothing, acknowledges nothing or never says that
//! it has heard of its session is not waited for without an end.

use rustix::net::sockopt::set_socket_recv_buffer_size;

use super::resuming::{Hearing, Said};
use super::*;

/// Nobody waits for that in a test.
const FOR_EVER: Duration = Duration::from_secs(24 * 3600);

/// An acknowledgement of so many frames: also how an endpoint says that it lives.
fn ack(count: u64) -> Vec<u8> {
    let mut frame = Vec::new();
    Frame::Ack(count).encode(&mut frame);
    frame
}

#[test]
fn who_reads_nothing_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { stall: Duration::from_millis(200), ..Limits::default() };
    let gateway = gateway_with(folder.path(), Duration::ZERO, limits);
    gateway.node.is_wordy.store(true, Ordering::Release);
    let socket = TcpStream::connect(gateway.address).unwrap();
    set_socket_recv_buffer_size(&socket, 4 << 10).unwrap();
    let (channel, _) = open_over(&gateway, socket);
    let ping = encoded(&Command::Ping {});
    let began = Instant::now();
    let mut call = 0;
    // It has much to say all the time, so its silence is not the reason.
    loop {
        let mut calls = Vec::new();
        for slot in 0..16 {
            call += 1;
            Frame::Command { answer: Some(AnswerTo { slot, call }), bytes: &ping }
                .encode(&mut calls);
        }
        if channel.send(&calls).is_err() {
            break;
        }
        assert!(began.elapsed() < LIMIT, "it is waited for");
    }
    eventually("the session to end", || gateway.far.open_sessions() == 0);
    gateway.node.is_wordy.store(false, Ordering::Release);
    ping_twice(&gateway);
}

/// Others are served as before.
fn ping_twice(gateway: &Gateway) {
    ping(gateway);
    ping(gateway);
}

#[test]
fn who_does_not_take_the_last_words_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { last_words: Duration::from_millis(100), ..Limits::default() };
    let gateway = gateway_with(folder.path(), FOR_EVER, limits);
    let mut hearing = Hearing::of(open(&gateway).0);
    hearing.channel.send(&ack(0)).unwrap();
    gateway.node.is_over.store(true, Ordering::Release);
    while hearing.next() != Said::Over {}
    // It lives and listens, and never says that it has heard.
    eventually("the session to end", || {
        hearing.channel.send(&ack(0)).is_err() || gateway.far.open_sessions() == 0
    });
    eventually("the session to end", || gateway.far.open_sessions() == 0);
}

#[test]
fn who_takes_the_last_words_keeps_nobody_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { last_words: FOR_EVER, ..Limits::default() };
    let gateway = gateway_with(folder.path(), FOR_EVER, limits);
    let mut hearing = Hearing::of(open(&gateway).0);
    gateway.node.is_over.store(true, Ordering::Release);
    let mut heard = 0;
    loop {
        match hearing.next() {
            Said::Handled(_) => {}
            Said::Over => break,
            Said::Answer(_) | Said::Else => heard += 1,
        }
    }
    hearing.channel.send(&ack(heard + 1)).unwrap();
    eventually("the session to end", || gateway.far.open_sessions() == 0);
}

/// Who never learnt of its session cannot come back, and who has may.
#[test]
fn a_session_of_which_nobody_has_heard_ends_soon() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { unheard: Duration::from_millis(100), ..Limits::default() };
    let gateway = gateway_with(folder.path(), FOR_EVER, limits);
    let (unheard, _) = open(&gateway);
    let (heard, Opened { session, secret, .. }) = open(&gateway);
    heard.send(&ack(0)).unwrap();
    // What came on a connection is read before its end is seen.
    heard.close();
    unheard.close();
    eventually("one session to end", || gateway.far.open_sessions() == 1);
    let (channel, reception) =
        say(&gateway, &Opening::Resume(Resume { session, secret, received: 0 }));
    assert!(matches!(reception, Reception::Resumed(0)), "{reception:?}");
    call(&channel);
}
