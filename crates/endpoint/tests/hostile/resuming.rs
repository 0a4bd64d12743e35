//! A session whose worker takes nothing meanwhile goes on over another connection all the same.

use weft_endpoint::frame::PIECE;
use weft_endpoint::link::HEARTBEAT;
use weft_wire::command::Command;

use super::*;

/// Long enough for another connection, however busy the machine is.
const GRACE: Duration = Duration::from_secs(3);

/// More commands than a lane has room for.
const COMMANDS: u64 = 700;

/// What a gateway has said on a connection.
pub(super) struct Hearing {
    pub(super) channel: Channel,
    room: Room,
    plain: Vec<u8>,
}

/// What is looked at of it.
#[derive(Debug, PartialEq)]
pub(super) enum Said {
    Handled(u64),
    Answer(AnswerTo),
    /// The session is over.
    Over,
    Else,
}

impl Hearing {
    pub(super) fn of(channel: Channel) -> Self {
        channel.set_patience(LIMIT).unwrap();
        Self { channel, room: Room::default(), plain: Vec::new() }
    }

    /// The next frame.
    pub(super) fn next(&mut self) -> Said {
        loop {
            if let Front::Whole(frame, length) = front(&self.plain) {
                let said = match Frame::decode(frame) {
                    Some(Frame::Ack(count)) => Said::Handled(count),
                    Some(Frame::Answer { to, .. }) => Said::Answer(to),
                    Some(Frame::Lost(_)) => Said::Over,
                    _ => Said::Else,
                };
                self.plain.drain(..length);
                return said;
            }
            let heard = self.channel.receive(&mut self.room, &mut self.plain).unwrap();
            assert_eq!(heard, Heard::Some, "the gateway hung up, or is silent");
        }
    }
}

/// Commands from `first` on, of which the last is a call.
fn commands(first: u64, call: AnswerTo) -> Vec<u8> {
    let mut frames = Vec::new();
    let note = encoded(&Command::PinnedRange { address: BASE, bytes: 64, used: 1 });
    for _ in first..COMMANDS {
        Frame::Command { answer: None, bytes: &note }.encode(&mut frames);
    }
    let ping = encoded(&Command::Ping {});
    Frame::Command { answer: Some(call), bytes: &ping }.encode(&mut frames);
    frames
}

#[test]
fn a_full_lane_costs_nobody_the_session() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = gateway_with(folder.path(), GRACE, Limits::default());
    let to = AnswerTo { slot: 3, call: 77 };
    let (channel, Opened { session, secret, .. }) = open(&gateway);
    gateway.node.is_stuck.store(true, Ordering::Release);
    channel.send(&commands(0, to)).unwrap();
    // The lane is full, and for longer than the grace time: nothing more is handled.
    let mut hearing = Hearing::of(channel);
    let (mut handled, mut since) = (0, Instant::now());
    while handled == 0 || since.elapsed() < GRACE + HEARTBEAT {
        if let Said::Handled(count) = hearing.next()
            && count != handled
        {
            (handled, since) = (count, Instant::now());
        }
    }
    assert!((1..COMMANDS).contains(&handled), "{handled}");
    // Twice: what was promised once may be promised again.
    let mut promised = 0;
    for _ in 0..2 {
        hearing.channel.close();
        let resume = Resume { session, secret, received: 0 };
        let (channel, reception) = say(&gateway, &Opening::Resume(resume));
        let Reception::Resumed(count) = reception else { panic!("{reception:?}") };
        assert!(count >= handled.max(promised), "{count} of {handled}");
        promised = count;
        hearing = Hearing::of(channel);
    }
    // What is acknowledged is never less, also where the gateway only says that it lives.
    let began = Instant::now();
    while began.elapsed() < 2 * HEARTBEAT {
        if let Said::Handled(count) = hearing.next() {
            assert!(count >= promised, "{count} after {promised}");
        }
    }
    hearing.channel.send(&commands(promised, to)).unwrap();
    gateway.node.is_stuck.store(false, Ordering::Release);
    while hearing.next() != Said::Answer(to) {}
    assert_eq!(gateway.node.taken.load(Ordering::Acquire), COMMANDS + 1, "each exactly once");
}

/// What came of a block before its connection was lost does not count, and comes once more.
#[test]
fn a_block_that_was_sent_by_half_is_sent_again_whole() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = gateway_with(folder.path(), GRACE, Limits::default());
    let to = AnswerTo { slot: 3, call: 77 };
    let (channel, Opened { session, secret, .. }) = open(&gateway);
    let mut frames = Vec::new();
    Frame::Block { offset: 0, bytes: &[6; PIECE] }.encode(&mut frames);
    channel.send(&frames[..PIECE / 2]).unwrap();
    frames.clear();
    let bytes: Vec<u8> = (0..PIECE).map(|at| u8::try_from(at % 251).unwrap()).collect();
    Frame::Block { offset: 0, bytes: &bytes }.encode(&mut frames);
    channel.close();
    let resume = Resume { session, secret, received: 0 };
    let (channel, reception) = say(&gateway, &Opening::Resume(resume));
    assert!(matches!(reception, Reception::Resumed(0)), "{reception:?}");
    let ping = encoded(&Command::Ping {});
    Frame::Command { answer: Some(to), bytes: &ping }.encode(&mut frames);
    channel.send(&frames).unwrap();
    let mut hearing = Hearing::of(channel);
    while hearing.next() != Said::Answer(to) {}
    assert_eq!(gateway.node.taken.load(Ordering::Acquire), 1, "the call");
    assert!(*gateway.node.arena.lock().unwrap() == bytes, "the block is not what was sent last");
}

/// Each connection takes the place of the last one, and none is of any use.
#[test]
fn who_comes_back_and_hangs_up_each_time_has_one_grace_time() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = gateway_with(folder.path(), Duration::from_secs(1), Limits::default());
    let (channel, Opened { session, secret, .. }) = open(&gateway);
    call(&channel);
    channel.close();
    let mut resumed = 0;
    eventually("the session to end", || {
        let resume = Opening::Resume(Resume { session, secret, received: 0 });
        let socket = TcpStream::connect(gateway.address).unwrap();
        match say_over(&gateway, socket, &resume) {
            Some((channel, Reception::Resumed(_))) => {
                resumed += 1;
                channel.close();
                false
            }
            Some((_, reception)) => matches!(reception, Reception::Refused { .. }),
            // It has just ended.
            None => false,
        }
    });
    assert!(resumed > 0, "the control");
    assert_eq!(gateway.far.open_sessions(), 0);
}
