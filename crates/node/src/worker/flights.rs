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

/// Whether what ended is a piece of an operation, or the rest of one.
#[derive(Debug, Clone, Copy)]
pub(super) struct IsPiece(pub(super) bool);

/// An operation that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Landed {
    /// What it was to take, in ns.
    pub(super) estimate_ns: u64,
    /// What it took, in ns.
    pub(super) took_ns: u64,
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

    /// Whether what is open is told before an operation of `estimate_ns` starts: it is too long to
    /// be told with it.
    pub(super) fn must_close(&self, estimate_ns: u64) -> bool {
        self.list.back().is_some_and(|last| last.is_open) && !self.ahead.may_close(estimate_ns)
    }

    /// What is open is told by itself.
    pub(super) fn close(&mut self) {
        if let Some(last) = self.list.back_mut() {
            last.is_open = false;
        }
        self.ahead.closed();
    }

    /// The oldest ones ended, which took so long each, in ns, pieces among them. What was told
    /// together is told in equal parts: here each has the part that its estimate is.
    pub(super) fn ended(&mut self, told: &[(u64, IsPiece)]) -> Vec<Landed> {
        let mut ended = Vec::with_capacity(told.len());
        while let Some(rest) = told.get(ended.len()..).filter(|rest| !rest.is_empty()) {
            let open = self.list.iter().take_while(|flight| flight.is_open).count();
            let count = (open + 1).min(rest.len());
            let flights: Vec<Flight> = self.list.drain(..count.min(self.list.len())).collect();
            let together = rest.get(..count).unwrap_or(rest);
            let took_ns: u64 = together.iter().map(|told| told.0).sum();
            let estimates = flights.iter().map(|flight| flight.estimate_ns);
            let estimate_ns = estimates.fold(0, u64::saturating_add);
            let is_piece = together.iter().any(|(_, IsPiece(is_piece))| *is_piece);
            let is_foreseen = !flights.is_empty() && flights.iter().all(|flight| !flight.is_guess);
            if is_foreseen && !is_piece {
                let operations = u32::try_from(count).unwrap_or(u32::MAX);
                self.ahead.ended(operations, estimate_ns, took_ns);
            }
            split(took_ns, estimate_ns, &flights, count, &mut ended);
        }
        ended
    }

    /// The estimate of what is told to have ended next, in ns; nothing if nothing flies.
    pub(super) fn front_ns(&self) -> Option<u64> {
        let open = self.list.iter().take_while(|flight| flight.is_open).count();
        let told = self.list.iter().take(open + 1).map(|flight| flight.estimate_ns);
        told.reduce(u64::saturating_add)
    }
}

/// Gives each of `count` operations the part of `took_ns` that its estimate is of `estimate_ns`;
/// the last has what is left.
fn split(took_ns: u64, estimate_ns: u64, flights: &[Flight], count: usize, into: &mut Vec<Landed>) {
    let mut left_ns = took_ns;
    for index in 0..count {
        let of_one_ns = flights.get(index).map_or(0, |flight| flight.estimate_ns);
        let part = u128::from(took_ns) * u128::from(of_one_ns) / u128::from(estimate_ns.max(1));
        let part_ns = u64::try_from(part).unwrap_or(u64::MAX).min(left_ns);
        let part_ns = if index + 1 == count { left_ns } else { part_ns };
        left_ns -= part_ns;
        into.push(Landed { estimate_ns: of_one_ns, took_ns: part_ns });
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
        let ended = flights.ended(&[(8, IsPiece(false)); 3]);
        let each = |estimate_ns, took_ns| Landed { estimate_ns, took_ns };
        assert_eq!(ended, [each(3, 6), each(4, 8), each(5, 10)], "by their estimates");
        assert_eq!(flights.front_ns(), Some(6));
        assert!(!flights.is_guess());
        assert_eq!(flights.ended(&[(7, IsPiece(false))]), [each(6, 7)]);
    }

    /// The worker's loop, with a device that tells what is open at the latest when it is driven: of
    /// short operations many are told together, from few at first, and none is left over.
    #[test]
    fn a_steady_stream_is_told_in_groups() {
        const EACH_NS: u64 = 21_000;
        for (is_alone, least) in [(true, 8), (false, 3)] {
            let (mut flights, mut told, mut ended) = (Flights::default(), 0, 0);
            for round in 0..8_000 {
                if round == 4_000 {
                    (told, ended) = (0, 0);
                }
                let flies_ns = |flights: &Flights| flights.len() as u64 * EACH_NS;
                loop {
                    let flies_ns = flies_ns(&flights);
                    if flights.depth(is_alone, flies_ns, EACH_NS) <= flights.len() {
                        break;
                    }
                    let is_open = flights.may_stay_open(EACH_NS);
                    flights.started(Flight { estimate_ns: EACH_NS, is_guess: false, is_open });
                }
                assert!(flies_ns(&flights) <= 500_000 + EACH_NS);
                flights.close();
                let open = flights.list.iter().take_while(|flight| flight.is_open).count();
                let together = vec![(EACH_NS, IsPiece(false)); open + 1];
                assert_eq!(flights.ended(&together).len(), together.len());
                (told, ended) = (told + 1, ended + together.len());
            }
            assert!(ended >= least * told, "{ended} operations in {told} groups");
        }
    }

    /// A device tells earlier what it was driven for: then the first part ends alone.
    #[test]
    fn what_was_told_earlier_is_told_apart() {
        let mut flights = Flights::default();
        for is_open in [true, true, false] {
            flights.started(Flight { estimate_ns: 3, is_guess: false, is_open });
        }
        let took = |ended: Vec<Landed>| ended.iter().map(|one| one.took_ns).collect::<Vec<_>>();
        assert_eq!(took(flights.ended(&[(5, IsPiece(false))])), [5]);
        assert_eq!(took(flights.ended(&[(4, IsPiece(false)), (6, IsPiece(false))])), [5, 5]);
        assert!(flights.is_empty());
    }

    /// A short operation that is told with a long one would seem to be as long.
    #[test]
    fn a_long_one_closes_nothing() {
        let mut flights = Flights::default();
        assert!(!flights.must_close(5_000_000));
        flights.started(Flight { estimate_ns: 3_000, is_guess: false, is_open: true });
        assert!(flights.must_close(5_000_000) && !flights.must_close(3_000));
        flights.close();
        assert!(!flights.must_close(5_000_000));
    }
}
