//! An agent and its server, between which bytes are slow and connections break.

use std::collections::BTreeSet;

use weft_guest::agent::state::{Action, Service, State as Agent};
use weft_guest::server::state::State as Server;

use super::{Held, Places, Script, refusal, welcome};

/// Places of the region.
const PLACES: u8 = 4;

/// Both, and what is on its way between them.
struct Play {
    server: Server<Held>,
    agent: Agent<(), Held>,
    /// Places that the host and the guest hold for sessions.
    of_host: Places,
    of_guest: Places,
    to_guest: Vec<u8>,
    to_host: Vec<u8>,
    /// Sessions whose workers are gone.
    lost: BTreeSet<u8>,
}

pub(super) fn play(script: &mut Script<'_>) {
    let mut play = Play {
        server: Server::new([7; 16]),
        agent: Agent::new(5),
        of_host: Places::default(),
        of_guest: Places::default(),
        to_guest: Vec::new(),
        to_host: Vec::new(),
        lost: BTreeSet::new(),
    };
    while let Some(what) = script.next() {
        let number = usize::from(script.number());
        match what % 8 {
            0 => play.deliver_to_host(number << 9),
            1 => play.deliver_to_guest(number << 9),
            2 => play.answer(),
            3 if play.agent.lets_in(0) => play.agent.handle_hello((), b"hello"),
            4 => play.agent.handle_program_gone(script.number() % PLACES),
            5 => play.lose_worker(script.number() % PLACES),
            6 if number < 64 => play.reconnect(script),
            _ => play.server.handle_worker(script.number() % PLACES),
        }
        play.act();
    }
    play.settle();
    assert_eq!(play.agent.service(), Service::Begun, "nobody serves the guest");
    assert_eq!(play.agent.asked(), 0, "programs wait for ever");
    assert_eq!(play.of_guest.held(), play.of_host.held(), "sessions that one side has forgotten");
    for mark in 0..PLACES {
        play.agent.handle_program_gone(mark);
    }
    play.settle();
    assert_eq!(play.of_host.held(), BTreeSet::new(), "places of programs that are gone");
}

impl Play {
    fn deliver_to_host(&mut self, count: usize) {
        self.to_host.extend(self.agent.to_host());
        self.agent.handle_written(usize::MAX);
        let count = count.min(self.to_host.len());
        let _ = self.server.handle_guest(&self.to_host[..count]);
        self.to_host.drain(..count);
        let held = self.of_host.held();
        self.lost.retain(|mark| held.contains(mark));
    }

    fn deliver_to_guest(&mut self, count: usize) {
        self.server.say_due();
        self.to_guest.extend(self.server.to_guest());
        self.server.handle_written(usize::MAX);
        let count = count.min(self.to_guest.len());
        self.agent.handle_host(&self.to_guest[..count]);
        self.act();
        self.to_guest.drain(..count);
    }

    /// The node gives the first place that is free.
    fn answer(&mut self) {
        let Some(_hello) = self.server.poll_hello() else { return };
        let (places, held) = (self.of_host.clone(), self.of_host.held());
        let answer = (0..PLACES).find(|mark| !held.contains(mark)).map_or_else(refusal, welcome);
        let answered = self.server.handle_answer(&answer, |place| Ok(places.give(place.mark)));
        assert!(answered.is_ok(), "{answered:?}");
    }

    fn lose_worker(&mut self, mark: u8) {
        if self.of_host.held().contains(&mark) && self.lost.insert(mark) {
            self.server.handle_worker_gone(mark);
        }
    }

    /// The connection breaks, and some of what was on its way arrives all the same, before or
    /// after that.
    fn reconnect(&mut self, script: &mut Script<'_>) {
        let (host, guest) = (usize::from(script.number()) << 9, usize::from(script.number()) << 9);
        self.to_host.truncate(host);
        self.to_guest.truncate(guest);
        self.server.handle_machine_gone();
        self.lost.clear();
        self.agent.handle_host_gone();
    }

    fn act(&mut self) {
        while let Some(action) = self.agent.poll_action() {
            match action {
                Action::Compare(name) => {
                    self.agent.handle_compared(super::compared(name));
                }
                Action::Welcome((), _, mark) => {
                    self.agent.handle_session(mark, Some(self.of_guest.give(mark)));
                }
                Action::Refuse(..)
                | Action::PassOn(..)
                | Action::Tell(..)
                | Action::Wake(_)
                | Action::End(_) => {}
            }
        }
    }

    /// Everybody has time to say and hear everything.
    fn settle(&mut self) {
        for _ in 0..200 {
            self.deliver_to_host(usize::MAX);
            self.answer();
            self.deliver_to_guest(usize::MAX);
        }
    }
}
