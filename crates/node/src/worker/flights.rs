//! What the device has of a session's work and has not ended.

use std::collections::VecDeque;

use weft_turn::Ahead;

/// An operation in flight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flight {
    /// What it takes, as far as anybody knows, in ns.
    pub(super) estimate_ns: u64,
    /// Nothing was known of it.
    pub(super) is_guess: bool,
    /// Its end is told with that of the next one.
    pub(super) is_open: bool,
}

/// Operations in flight, in the order of starting, and how many may be.
#[derive(Debug, Default)]
pub(super) struct Flights {
    list: VecDeque<Flight>,
    ahead: Ahead,
}

impl Flights {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether what flies is an operation of which nothing was known: those fly alone.
    pub(super) fn is_guess(&self) -> bool {
        self.list.back().is_some_and(|last| last.is_guess)
    }

    /// Whether the end of an operation of `estimate_ns` that starts now may be told with that of
    /// the next one.
    pub(super) fn may_stay_open(&self, estimate_ns: u64) -> bool {
        self.ahead.may_stay_open(estimate_ns)
    }

    /// How many may fly at once if one of `estimate_ns` comes to these, which take `flies_ns`, on a
    /// device that runs ahead and that the session may have to itself.
    pub(super) fn depth(&mut self, is_alone: bool, flies_ns: u64, estimate_ns: u64) -> usize {
        self.ahead.depth(is_alone, self.list.len(), flies_ns, estimate_ns)
    }

    pub(super) fn started(&mut self, flight: Flight) {
        self.ahead.started(flight.estimate_ns, flight.is_open);
        self.list.push_back(flight);
    }

    /// The oldest one ended and took so long: a piece of an operation, or the rest of one. Returns
    /// its estimate in ns.
    pub(super) fn ended(&mut self, took_ns: u64, is_piece: bool) -> u64 {
        let Some(flight) = self.list.pop_front() else { return 0 };
        if !flight.is_guess && !is_piece {
            self.ahead.ended(flight.estimate_ns, took_ns);
        }
        flight.estimate_ns
    }

    /// The estimate of what is told to have ended next, in ns; nothing if nothing flies.
    pub(super) fn front_ns(&self) -> Option<u64> {
        let open = self.list.iter().take_while(|flight| flight.is_open).count();
        let told = self.list.iter().take(open + 1).map(|flight| flight.estimate_ns);
        told.reduce(u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_next_is_all_up_to_the_first_that_is_told_by_itself() {
        let mut flights = Flights::default();
        assert_eq!(flights.front_ns(), None);
        for (estimate_ns, is_open) in [(3, true), (4, true), (5, false), (6, false)] {
            flights.started(Flight { estimate_ns, is_guess: false, is_open });
        }
        assert_eq!(flights.front_ns(), Some(12));
        let ended: Vec<u64> = (0..3).map(|_| flights.ended(4, false)).collect();
        assert_eq!(ended, [3, 4, 5]);
        assert_eq!(flights.front_ns(), Some(6));
        assert!(!flights.is_guess());
    }
}
