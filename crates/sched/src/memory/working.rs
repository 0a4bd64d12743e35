//! Which parts of a vGPU's memory need a slot, learned from what its operations touch.
//!
//! Of those, which are brought before a turn, where bringing is dear. A part that was touched in
//! the turns before is. A program that goes through its memory again and again touches other parts
//! in each turn: there the parts that were touched longest ago are next. How many of them are
//! brought doubles for as long as all of them were touched, and falls to those that were.

use alloc::vec::Vec;

/// A part that was not touched for so many turns needs no slot any more.
const FORGOTTEN_AFTER: u64 = 16;

/// A part that was touched in so many turns, one after the other, is expected to be in the next.
const EXPECTED_AFTER: u64 = 2;

/// The parts of a vGPU that have a slot each. Their places in it are those of its slots.
#[derive(Clone, Debug, Default)]
pub struct WorkingSet {
    parts: Vec<Part>,
    /// Looks so far.
    looks: u64,
    /// Turns so far that began with a look.
    turns: u64,
    /// How many of those touched longest ago are guessed to be next.
    ahead: usize,
    /// Those parts, for the turn that has begun.
    guessed: Vec<usize>,
    /// What was met in this turn.
    met: Met,
}

/// What a turn met, from the least that it says to the most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Met {
    /// Nothing.
    #[default]
    Nothing,
    /// What was touched last before.
    Same,
    /// Besides, what was touched longest ago: a sweep.
    Next,
    /// Anything else.
    Other,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    number: usize,
    /// The look at which it was touched last.
    touched: u64,
    /// The turn in which it was touched last, and how many in a row it was then.
    turn: u64,
    row: u64,
}

/// What a look changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Learned {
    /// There are more parts or fewer, and places have changed.
    pub resized: bool,
    /// At this place there is another part: there are no more slots.
    pub replaced: Option<usize>,
}

impl WorkingSet {
    /// A look at what was `touched` since the last one; `wanted` is met now. It has at most `most`
    /// parts: the one that was not touched for longest gives way. Without a `wanted` part a turn
    /// begins.
    pub fn learn(
        &mut self,
        touched: impl Iterator<Item = usize>,
        wanted: Option<usize>,
        most: usize,
    ) -> Learned {
        self.looks += 1;
        let (looks, turn) = (self.looks, self.turns);
        for number in touched {
            self.touch(number, looks, turn);
        }
        let Some(number) = wanted else {
            self.judge();
            self.turns += 1;
            let turns = self.turns;
            let resized = self.forget(|part| part.turn + FORGOTTEN_AFTER > turns);
            self.guess();
            return Learned { resized, replaced: None };
        };
        self.note_met(number);
        self.touch(number, looks, turn);
        if self.place(number).is_some() {
            return Learned::default();
        }
        let new = Part { number, touched: looks, turn, row: 1 };
        if self.parts.len() < most {
            self.parts.push(new);
            return Learned { resized: true, replaced: None };
        }
        let places = 0..self.parts.len();
        let oldest = places.min_by_key(|place| self.parts[*place].touched);
        if let Some(place) = oldest {
            self.parts[place] = new;
        }
        Learned { resized: false, replaced: oldest }
    }

    fn touch(&mut self, number: usize, look: u64, turn: u64) {
        if let Some(part) = self.parts.iter_mut().find(|part| part.number == number) {
            part.touch(look, turn);
        }
    }

    /// Notes a part that is met, before it counts as touched. In a sweep through the set it is the
    /// one that was touched longest ago, or the one that the sweep is in the middle of.
    fn note_met(&mut self, number: usize) {
        let touched = |part: &Part| part.touched;
        let Some(place) = self.place(number) else { return };
        let own = self.parts[place].touched;
        let newest = self.parts.iter().map(touched).max();
        let is_oldest = self.parts.iter().all(|part| own <= part.touched);
        self.met = match (is_oldest, newest == Some(own)) {
            (true, false) => self.met.max(Met::Next),
            (_, true) => self.met.max(Met::Same),
            (false, false) => Met::Other,
        };
    }

    /// A turn is over: was it as guessed?
    fn judge(&mut self) {
        let turn = self.turns;
        let is_hit = |number: &&usize| {
            self.parts.iter().any(|part| part.number == **number && part.turn == turn)
        };
        let hits = self.guessed.iter().filter(is_hit).count();
        // All that was guessed was right, and perhaps not enough.
        self.ahead = match core::mem::take(&mut self.met) {
            _ if hits < self.guessed.len() => hits,
            Met::Nothing | Met::Same => self.ahead,
            Met::Next => (2 * self.ahead).max(1).min(self.parts.len()),
            Met::Other => 0,
        };
    }

    fn guess(&mut self) {
        let mut places: Vec<usize> =
            (0..self.parts.len()).filter(|place| !self.was_expected(*place)).collect();
        places.sort_by_key(|place| self.parts[*place].touched);
        places.truncate(self.ahead);
        self.guessed = places.into_iter().map(|place| self.parts[place].number).collect();
    }

    fn was_expected(&self, place: usize) -> bool {
        let lately = |part: &Part| part.turn + 1 >= self.turns && part.row >= EXPECTED_AFTER;
        self.parts.get(place).is_some_and(lately)
    }

    /// Whether the part at a place is expected to be touched in the turn that has begun: it was in
    /// those before, or it is next on the way through the memory.
    pub fn is_expected(&self, place: usize) -> bool {
        let is_guessed = |number| self.guessed.contains(&number);
        self.was_expected(place) || self.part(place).is_some_and(is_guessed)
    }

    /// Takes in these parts, as far as there is room; whether any is new.
    pub fn fill(&mut self, parts: impl IntoIterator<Item = usize>, most: usize) -> bool {
        let before = self.parts.len();
        for number in parts {
            if self.parts.len() < most && self.place(number).is_none() {
                let (touched, turn) = (self.looks, self.turns);
                self.parts.push(Part { number, touched, turn, row: 1 });
            }
        }
        self.parts.len() != before
    }

    /// Keeps only these parts; whether any is gone.
    pub fn retain(&mut self, keep: impl Fn(usize) -> bool) -> bool {
        self.forget(|part| keep(part.number))
    }

    fn forget(&mut self, keep: impl Fn(&Part) -> bool) -> bool {
        let before = self.parts.len();
        self.parts.retain(keep);
        before != self.parts.len()
    }

    /// The part at a place.
    pub fn part(&self, place: usize) -> Option<usize> {
        self.parts.get(place).map(|part| part.number)
    }

    /// The place of a part.
    pub fn place(&self, number: usize) -> Option<usize> {
        self.parts.iter().position(|part| part.number == number)
    }

    /// How many slots it takes.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether it takes none.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}

impl Part {
    fn touch(&mut self, look: u64, turn: u64) {
        self.touched = look;
        self.row = match turn - self.turn {
            0 => self.row,
            1 => self.row + 1,
            _ => 1,
        };
        self.turn = turn;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_in_when_it_is_met_and_out_when_it_was_not_touched_for_long() {
        let mut set = WorkingSet::default();
        assert_eq!(set.learn([].into_iter(), None, 4), Learned::default());
        let grown = Learned { resized: true, replaced: None };
        assert_eq!(set.learn([].into_iter(), Some(7), 4), grown);
        assert_eq!(set.learn([].into_iter(), Some(2), 4), grown);
        assert_eq!(set.learn([9].into_iter(), Some(7), 4), Learned::default());
        assert_eq!((set.part(0), set.part(1), set.part(2)), (Some(7), Some(2), None));
        for _ in 0..15 {
            assert_eq!(set.learn([7].into_iter(), None, 4), Learned::default());
        }
        assert_eq!(set.learn([7].into_iter(), None, 4), grown);
        assert_eq!((set.part(0), set.len()), (Some(7), 1));
    }

    #[test]
    fn what_was_touched_in_the_turns_before_is_expected_and_what_was_passed_is_not() {
        let mut set = WorkingSet::default();
        for part in [1, 2] {
            set.learn([].into_iter(), Some(part), 4);
        }
        assert!(!set.is_expected(0), "its first turn says little");
        // Part 1 in each turn, part 2 in every second.
        for turn in 0..6 {
            let touched: &[usize] = if turn % 2 == 0 { &[1, 2] } else { &[1] };
            set.learn(touched.iter().copied(), None, 4);
            assert_eq!((set.is_expected(0), set.is_expected(1)), (turn > 0, false), "turn {turn}");
            set.learn([].into_iter(), Some(1), 4);
        }
        assert!(!set.is_expected(2), "there is none");
    }

    /// A program in turns of which the switch is no part: what it meets takes its own time.
    struct Turns {
        set: WorkingSet,
        /// Next on the way, and what is left of the work on it.
        at: usize,
        left: u64,
        /// All time, and that of work.
        wall: u64,
        work: u64,
    }

    const PARTS: usize = 16;
    const BRING: u64 = 21;
    const WORK: u64 = 4;
    const QUANTUM: u64 = 60;

    impl Turns {
        fn new() -> Self {
            let mut set = WorkingSet::default();
            for part in 0..PARTS {
                set.learn([].into_iter(), Some(part), PARTS);
            }
            Self { set, at: 0, left: WORK, wall: 0, work: 0 }
        }

        /// A turn in which nothing of the one before is there; `next` says where it goes on.
        fn turn(
            &mut self,
            whole: bool,
            mut next: impl FnMut(usize) -> usize,
            was: &mut Vec<usize>,
        ) {
            self.set.learn(was.drain(..), None, PARTS);
            let is_brought = |place: usize| whole || self.set.is_expected(place);
            let mut here: Vec<usize> = (0..PARTS).filter(|place| is_brought(*place)).collect();
            self.wall += BRING * here.len() as u64;
            let mut used = 0;
            while used < QUANTUM {
                if !here.contains(&self.at) {
                    used += BRING;
                    here.push(self.at);
                    self.set.learn(was.drain(..), Some(self.at), PARTS);
                }
                let now = self.left.min(QUANTUM.saturating_sub(used));
                (used, self.left, self.work) = (used + now, self.left - now, self.work + now);
                was.push(self.at);
                if self.left == 0 {
                    (self.at, self.left) = (next(self.at), WORK);
                }
            }
            self.wall += used;
        }

        fn efficiency(whole: bool, mut next: impl FnMut(usize) -> usize) -> f64 {
            let (mut turns, mut was) = (Self::new(), Vec::new());
            for _ in 0..200 {
                turns.turn(whole, &mut next, &mut was);
            }
            turns.work as f64 / turns.wall as f64
        }
    }

    #[test]
    fn who_goes_through_all_its_memory_in_a_turn_gets_all_of_it() {
        let sweep = |at: usize| (at + 1) % PARTS;
        let (own, whole) = (Turns::efficiency(false, sweep), Turns::efficiency(true, sweep));
        assert!(own > 0.95 * whole, "{own:.3} beside {whole:.3}");
    }

    #[test]
    fn nothing_is_guessed_of_who_has_no_way_through_its_memory() {
        let mut seed = 7_u64;
        let mut draw = move |_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(seed >> 33).unwrap_or(0) % PARTS
        };
        let (mut turns, mut was, mut guessed) = (Turns::new(), Vec::new(), 0);
        for _ in 0..200 {
            turns.turn(false, &mut draw, &mut was);
            guessed += turns.set.guessed.len();
        }
        assert!(guessed < 100, "{guessed} parts in 200 turns");
    }

    #[test]
    fn without_room_the_one_that_was_not_touched_for_longest_gives_way() {
        let mut set = WorkingSet::default();
        for part in 0..3 {
            set.learn([].into_iter(), Some(part), 3);
        }
        let learned = set.learn([0, 2].into_iter(), Some(8), 3);
        assert_eq!(learned, Learned { resized: false, replaced: Some(1) });
        assert_eq!((set.part(0), set.part(1), set.part(2)), (Some(0), Some(8), Some(2)));
        assert!(set.retain(|part| part != 8) && !set.retain(|part| part != 8));
        assert_eq!((set.place(2), set.place(8)), (Some(1), None));
        assert!(set.fill([2, 5, 6], 3) && !set.fill([2, 7], 3));
        assert_eq!((set.part(2), set.len()), (Some(5), 3));
    }
}
