//! How long the agent waits for whoever says nothing.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A program says hello within this time after it has connected.
pub(super) const HELLO_LIMIT: Duration = Duration::from_secs(10);

/// The server answers a hello within this time, the start of a worker included; programs wait a
/// little longer.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(75);

/// The server answers within this time after the agent has begun; programs are refused afterwards
/// until it does.
pub(super) const BEGIN_LIMIT: Duration = Duration::from_secs(30);

/// A host that takes nothing is not told how the machine's program ended after this time.
pub(super) const EXIT_LIMIT: Duration = Duration::from_secs(10);

/// A program, and since when it waits or is waited for.
#[derive(Debug)]
pub(super) struct Waiting<P = OwnedFd> {
    pub(super) socket: P,
    since: Instant,
}

impl<P> Waiting<P> {
    /// From now on.
    pub(super) fn since(now: Instant, socket: P) -> Self {
        Self { socket, since: now }
    }

    /// Whether that has been for too long.
    pub(super) fn is_late(&self, now: Instant, limit: Duration) -> bool {
        now.saturating_duration_since(self.since) >= limit
    }
}

/// When the first of them will have waited for too long.
pub(super) fn first_due<'a, P: 'a>(
    all: impl IntoIterator<Item = &'a Waiting<P>>,
    limit: Duration,
) -> Option<Instant> {
    all.into_iter().map(|one| one.since + limit).min()
}

#[cfg(test)]
mod tests {
    use weft_wire::guest::{AnswerFrame, Begun, GuestFrame, HostFrame};
    use weft_wire::handshake::{Answer, Placement, Welcome};

    use super::super::state::{Action, LATE, Service, State, UNANSWERED};
    use super::*;

    fn is_refused<P>(action: Option<&Action<P>>, why: &str) -> bool {
        matches!(action, Some(Action::Refuse(_, said)) if *said == why)
    }

    #[test]
    fn a_host_that_never_answers_keeps_nobody_waiting() {
        let mut agent = State::<u32, ()>::new(5);
        assert!(!agent.lets_in(0), "it may be starting");
        agent.handle_silence();
        assert!(agent.lets_in(0));
        agent.handle_hello(1, b"hello");
        assert!(is_refused(agent.poll_action().as_ref(), UNANSWERED));
        // It answers at last.
        let begun = HostFrame::Begun(Begun { nonce: 5, region: [7; 16] });
        agent.handle_host(&begun.to_bytes().unwrap());
        assert!(matches!(agent.poll_action(), Some(Action::Compare(_))));
        agent.handle_compared(Service::Begun);
        agent.handle_silence();
        assert_eq!(agent.service(), Service::Begun);
    }

    #[test]
    fn who_waits_for_an_answer_too_long_is_told_and_a_late_session_is_let_go_of() {
        let mut agent = State::<Waiting<u32>, ()>::new(5);
        agent.handle_compared(Service::Begun);
        let began = Instant::now();
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        for (program, seconds) in [(1, 0), (2, 10)] {
            agent.handle_hello(Waiting::since(at(seconds), program), b"hello");
        }
        assert_eq!(first_due(agent.waiting(), ANSWER_LIMIT), Some(at(0) + ANSWER_LIMIT));
        let now = at(0) + ANSWER_LIMIT;
        agent.give_up(|program| program.is_late(now, ANSWER_LIMIT));
        let Some(Action::Refuse(late, why)) = agent.poll_action() else { panic!("nobody") };
        assert_eq!((late.socket, why), (1, LATE));
        assert!(agent.poll_action().is_none(), "the other one has time");
        agent.handle_written(agent.to_host().len());
        let answer = HostFrame::Answer(AnswerFrame { request: 1, answer: &welcome(3) });
        agent.handle_host(&answer.to_bytes().unwrap());
        assert!(agent.poll_action().is_none());
        assert_eq!(agent.to_host(), GuestFrame::Close(3).to_bytes().unwrap());
    }

    fn welcome(mark: u8) -> Vec<u8> {
        let placement = Placement { segment_at: 4096, segment_bytes: 4096, pinned_at: 8192, mark };
        let welcome = Welcome {
            session: 1,
            vgpu: "v".into(),
            device_name: "none".into(),
            uuid: [0; 16],
            capability_major: 7,
            capability_minor: 5,
            memory_bytes: 0,
            pinned_bytes: 4096,
            managed_bytes: 0,
            attributes: Vec::new(),
            placement: Some(placement),
        };
        Answer::Welcome(welcome).to_bytes().unwrap()
    }
}
