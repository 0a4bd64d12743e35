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

/// An operation that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Landed {
    /// What it took, in ns.
    pub(super) took_ns: u64,
    /// It is a piece of an operation.
    pub(super) is_piece: bool,
    /// What it was to take, in ns.
    pub(super) estimate_ns: u64,
}

impl Landed {
    /// One that took so long, as the device tells it.
    pub(super) fn told(took_ns: u64, is_piece: bool) -> Self {
        Self { took_ns, is_piece, estimate_ns: 0 }
    }
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

    /// How many of those started last are open, and what they take, in ns.
    fn open(&self) -> (usize, u64) {
        let open = self.list.iter().rev().take_while(|flight| flight.is_open);
        open.fold((0, 0), |(count, ns), flight| (count + 1, ns.saturating_add(flight.estimate_ns)))
    }

    /// Whether the end of an operation of `estimate_ns` that starts now may be told with that of
    /// the next one.
    pub(super) fn may_stay_open(&self, estimate_ns: u64) -> bool {
        let (open, open_ns) = self.open();
        self.ahead.may_stay_open(open, open_ns, estimate_ns)
    }

    /// How many may fly at once if one of `estimate_ns` comes to these, which take `flies_ns`, on a
    /// device that runs ahead and that the session may have to itself.
    pub(super) fn depth(&mut self, is_alone: bool, flies_ns: u64, estimate_ns: u64) -> usize {
        self.ahead.depth(is_alone, self.list.len(), flies_ns, estimate_ns)
    }

    pub(super) fn started(&mut self, flight: Flight) {
        self.list.push_back(flight);
    }

    /// Whether what is open is told before an operation of `estimate_ns` starts: it is too long to
    /// be told with it.
    pub(super) fn must_close(&self, estimate_ns: u64) -> bool {
        let (open, open_ns) = self.open();
        open > 0 && !Ahead::may_close(open_ns, estimate_ns)
    }

    /// What is open is told by itself; whether anything was.
    pub(super) fn close(&mut self) -> bool {
        let last = self.list.back_mut();
        last.is_some_and(|last| std::mem::take(&mut last.is_open))
    }

    /// The oldest ones ended. What was told together is told in equal parts: each gets its
    /// estimate, and the part of the time that this is.
    pub(super) fn land(&mut self, mut all: &mut [Landed]) {
        while !all.is_empty() {
            let open = self.list.iter().take_while(|flight| flight.is_open).count();
            let (together, later) = all.split_at_mut((open + 1).min(all.len()));
            self.land_together(together);
            all = later;
        }
    }

    fn land_together(&mut self, together: &mut [Landed]) {
        let mut is_foreseen = true;
        for landed in together.iter_mut() {
            let flight = self.list.pop_front();
            landed.estimate_ns = flight.map_or(0, |flight| flight.estimate_ns);
            is_foreseen &= !landed.is_piece && flight.is_some_and(|flight| !flight.is_guess);
        }
        let took_ns: u64 = together.iter().map(|landed| landed.took_ns).sum();
        let estimates = together.iter().map(|landed| landed.estimate_ns);
        let estimate_ns = estimates.fold(0, u64::saturating_add);
        if is_foreseen {
            let operations = u32::try_from(together.len()).unwrap_or(u32::MAX);
            self.ahead.ended(operations, estimate_ns, took_ns);
        }
        let Some((last, others)) = together.split_last_mut() else { return };
        last.took_ns = took_ns;
        for landed in others {
            let part = u128::from(took_ns) * u128::from(landed.estimate_ns);
            let part_ns = u64::try_from(part / u128::from(estimate_ns.max(1)));
            landed.took_ns = part_ns.unwrap_or(u64::MAX).min(last.took_ns);
            last.took_ns -= landed.took_ns;
        }
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

    /// Lets operations end of which the device tells so many ns each; estimates and times.
    fn land(flights: &mut Flights, told: &[u64]) -> Vec<(u64, u64)> {
        let mut all: Vec<Landed> = told.iter().map(|ns| Landed::told(*ns, false)).collect();
        flights.land(&mut all);
        all.iter().map(|landed| (landed.estimate_ns, landed.took_ns)).collect()
    }

    #[test]
    fn what_is_told_next_is_all_up_to_the_first_that_is_told_by_itself() {
        let mut flights = Flights::default();
        assert_eq!(flights.front_ns(), None);
        for (estimate_ns, is_open) in [(3, true), (4, true), (5, false), (6, false)] {
            flights.started(Flight { estimate_ns, is_guess: false, is_open });
        }
        assert_eq!(flights.front_ns(), Some(12));
        let landed = land(&mut flights, &[8; 3]);
        assert_eq!(landed, [(3, 6), (4, 8), (5, 10)], "by their estimates");
        assert_eq!(flights.front_ns(), Some(6));
        assert!(!flights.is_guess());
        assert_eq!(land(&mut flights, &[7]), [(6, 7)]);
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
                land(&mut flights, &vec![EACH_NS; open + 1]);
                (told, ended) = (told + 1, ended + open + 1);
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
        assert_eq!(land(&mut flights, &[5]), [(3, 5)]);
        assert_eq!(land(&mut flights, &[4, 6]), [(3, 5), (3, 5)]);
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
