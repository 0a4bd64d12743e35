//! Which parts of a vGPU's memory need a slot, learned from what its operations touch.
//!
//! Of those, which are brought before a turn, where bringing is dear. To bring what is not touched
//! costs a copy; to leave what is costs a question in the middle of an operation, which is less.
//! So both guesses are careful ones:
//!
//! - A part that was touched in each of the turns before is *expected*. How many turns that must be
//!   doubles when a quarter of those that were expected was not touched, and halves with time.
//! - A program that goes through its memory again and again touches other parts in each turn: those
//!   that were touched longest ago. How many of them are *next* doubles until one was wrong. Then
//!   it falls half of the way to those that were right, and grows by one, after twice as many right
//!   turns each time that this was one too many. The part that it was in the *middle* of is brought
//!   where it went on there lately.
//!
//! What the operation *names* with which a turn begins (arguments of a launch that are addresses)
//! is brought with it, also for the first time, as long as most of what was named was touched.

mod named;

use alloc::vec::Vec;

use self::named::Named;

/// A part that was not touched for so many turns needs no slot any more.
const FORGOTTEN_AFTER: u64 = 16;

/// A part that was touched in so many turns, one after the other, is expected to be in the next:
/// at least, and at most.
const EXPECTED_AFTER: u64 = 2;
const EXPECTED_AFTER_MAX: u64 = 64;

/// Of so many expected parts and more, a quarter may be wrong.
const EVIDENCE: usize = 4;

/// Turns without so many wrong ones after which half as many turns in a row are enough.
const CALM: u64 = 64;

/// Turns that went on where the one before ended count up to this; it is guessed from half of it.
const SURE: u8 = 4;

/// Right turns after which one more part is next, from the first wrong one on: at least, and at
/// most.
const PATIENCE: u64 = 2;
const PATIENCE_MAX: u64 = 64;

/// The parts of a vGPU that have a slot each. Their places in it are those of its slots.
#[derive(Clone, Debug, Default)]
pub struct WorkingSet {
    parts: Vec<Part>,
    /// Looks so far.
    looks: u64,
    /// Turns so far that began with a look.
    turns: u64,
    /// Turns so far, those in which it lacked nothing and was not looked at among them.
    passed: u64,
    steady: Steady,
    way: Way,
    middle: Middle,
    named: Named,
    /// What was met in this turn.
    met: Met,
}

/// After how many turns a part is expected.
#[derive(Clone, Copy, Debug)]
struct Steady {
    needed: u64,
    /// Since that changed: turns, and parts that were expected and touched, or not touched.
    turns: u64,
    right: usize,
    wrong: usize,
}

/// How many parts are next on the way through the memory.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    ahead: usize,
    /// Right turns that it takes to add one; 0 doubles with each.
    patience: u64,
    /// Right turns since it changed.
    right: u64,
}

/// Whether a turn goes on in the part in which the one before ended.
#[derive(Clone, Copy, Debug, Default)]
struct Middle {
    /// That part.
    number: Option<usize>,
    /// Turns that did, less those that did not, from 0 to [`SURE`].
    went_on: u8,
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

/// Why a part is brought for a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guess {
    /// It was touched in the turns before.
    Expected,
    /// It is next on the way.
    Next,
    /// The turn before ended there.
    Middle,
    /// The operation that begins says so.
    Named,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    number: usize,
    /// The look at which it was touched last.
    touched: u64,
    /// The turn in which it was touched last, and how many in a row it was then.
    turn: u64,
    row: u64,
    /// How many turns of all had passed then.
    passed: u64,
    /// For the turn that has begun.
    guess: Option<Guess>,
}

/// What a look changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Learned {
    /// There are more parts or fewer, and places have changed.
    pub resized: bool,
    /// At this place there is another part: there are no more slots.
    pub replaced: Option<usize>,
}

impl Default for Steady {
    fn default() -> Self {
        Self { needed: EXPECTED_AFTER, turns: 0, right: 0, wrong: 0 }
    }
}

impl Steady {
    /// A turn is over in which so many of the expected parts were touched, and so many were not.
    fn judge(&mut self, right: usize, wrong: usize) {
        self.turns += 1;
        self.right += right;
        self.wrong += wrong;
        let seen = self.right + self.wrong;
        let needed = if seen >= EVIDENCE && 4 * self.wrong > seen {
            (2 * self.needed).min(EXPECTED_AFTER_MAX)
        } else if self.turns >= CALM {
            (self.needed / 2).max(EXPECTED_AFTER)
        } else {
            return;
        };
        *self = Self { needed, ..Self::default() };
    }
}

impl Way {
    /// A turn is over in which so many guesses were right and so many wrong, of `parts` in all.
    fn judge(&mut self, met: Met, hits: usize, misses: usize, parts: usize) {
        match met {
            // There is less of a way than it seemed.
            Met::Other => (self.ahead, self.right) = (self.ahead / 2, 0),
            _ if misses > 0 => {
                let patience = if misses == 1 { 2 * self.patience } else { self.patience / 2 };
                let patience = patience.clamp(PATIENCE, PATIENCE_MAX);
                *self = Self { ahead: hits + misses / 2, patience, right: 0 };
            }
            Met::Nothing | Met::Same => {}
            // All that was guessed was right, and more was needed.
            Met::Next if self.patience == 0 => self.ahead = (2 * self.ahead).max(1).min(parts),
            Met::Next => {
                self.right += 1;
                if self.right >= self.patience {
                    let patience = (self.patience / 2).max(PATIENCE);
                    *self = Self { ahead: (self.ahead + 1).min(parts), patience, right: 0 };
                }
            }
        }
    }
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
        for number in touched {
            self.touch(number);
        }
        let Some(number) = wanted else {
            self.judge();
            self.turns += 1;
            self.passed += 1;
            let passed = self.passed;
            let resized = self.forget(|part| part.passed + FORGOTTEN_AFTER > passed);
            self.guess();
            return Learned { resized, replaced: None };
        };
        self.note_met(number);
        self.touch(number);
        if self.place(number).is_some() {
            return Learned::default();
        }
        let new = self.new_part(number);
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

    /// The operation with which a turn begins names these parts: they are believed to be touched
    /// in it, as far as there is room for `most`. Whether any is new. Say so after the look with
    /// which the turn began, and after no other: what was named before is forgotten.
    pub fn name(&mut self, parts: impl IntoIterator<Item = usize>, most: usize) -> bool {
        self.named.parts = parts.into_iter().collect();
        if !self.named.is_believed() {
            return false;
        }
        let before = self.parts.len();
        // It was not touched, and is the first to give way.
        let turn = self.turns.saturating_sub(1);
        let new = Part { touched: 0, turn, row: 0, ..self.new_part(0) };
        for number in self.named.parts.clone() {
            if self.place(number).is_none() && self.parts.len() < most {
                self.parts.push(Part { number, ..new });
            }
            if let Some(place) = self.place(number) {
                self.parts[place].guess.get_or_insert(Guess::Named);
            }
        }
        self.parts.len() != before
    }

    /// Turns have passed in which it lacked nothing, and nobody looked: what was touched in any of
    /// them is told at the look that comes next.
    pub fn pass(&mut self, turns: u64) {
        self.passed += turns;
    }

    /// A part that is touched at this look.
    fn new_part(&self, number: usize) -> Part {
        let &Self { looks: touched, turns: turn, passed, .. } = self;
        Part { number, touched, turn, row: 1, passed, guess: None }
    }

    fn touch(&mut self, number: usize) {
        let (look, turn, passed) = (self.looks, self.turns, self.passed);
        if let Some(part) = self.parts.iter_mut().find(|part| part.number == number) {
            part.passed = passed;
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
        let count = |guess: Guess, is_hit: bool| {
            let parts = self.parts.iter().filter(|part| part.guess == Some(guess));
            parts.filter(|part| (part.turn == turn) == is_hit).count()
        };
        let [right, wrong] = [true, false].map(|is_hit| count(Guess::Expected, is_hit));
        let [hits, misses] = [true, false].map(|is_hit| count(Guess::Next, is_hit));
        if let Some(part) = self.parts.iter().find(|part| Some(part.number) == self.middle.number) {
            let went_on = self.middle.went_on;
            self.middle.went_on =
                if part.turn == turn { (went_on + 1).min(SURE) } else { went_on.saturating_sub(1) };
        }
        let parts = &self.parts;
        let is_touched = |part: &Part| part.turn == turn;
        self.named.judge(|number| parts.iter().any(|p| p.number == number && is_touched(p)));
        self.steady.judge(right, wrong);
        self.way.judge(core::mem::take(&mut self.met), hits, misses, self.parts.len());
    }

    /// What the turn that has begun is guessed to touch.
    fn guess(&mut self) {
        let (turns, needed) = (self.turns, self.steady.needed);
        for part in &mut self.parts {
            let is_expected = part.turn + 1 >= turns && part.row >= needed;
            part.guess = is_expected.then_some(Guess::Expected);
        }
        let order = self.in_order();
        for place in order.iter().take(self.way.ahead) {
            self.parts[*place].guess = Some(Guess::Next);
        }
        self.middle.number = order.last().map(|place| self.parts[*place].number);
        if let Some(place) = order.last().filter(|_| self.middle.went_on >= SURE / 2) {
            self.parts[*place].guess.get_or_insert(Guess::Middle);
        }
    }

    /// The places of what is not expected, as a sweep comes to them: from what was touched longest
    /// ago on. Parts that were touched between the same two looks are a run of neighbours, which
    /// may go on at the beginning of the memory.
    fn in_order(&self) -> Vec<usize> {
        let is_unexpected = |place: &usize| self.parts[*place].guess.is_none();
        let mut places: Vec<usize> = (0..self.parts.len()).filter(is_unexpected).collect();
        places.sort_unstable_by_key(|place| self.parts[*place].number);
        let mut ranks: Vec<usize> = (0..places.len()).collect();
        ranks.sort_by_key(|rank| self.parts[places[*rank]].touched);
        let touched = |rank: &usize| self.parts[places[*rank]].touched;
        for group in ranks.chunk_by_mut(|a, b| touched(a) == touched(b)) {
            group.rotate_left(longest_run(group, places.len()));
        }
        ranks.into_iter().map(|rank| places[rank]).collect()
    }

    /// Whether the part at a place is expected to be touched in the turn that has begun: it was in
    /// those before, or it is next on the way through the memory.
    pub fn is_expected(&self, place: usize) -> bool {
        self.parts.get(place).is_some_and(|part| part.guess.is_some())
    }

    /// Whether the part at a place was touched in the turn that goes on, as far as is known.
    pub fn is_touched(&self, place: usize) -> bool {
        self.parts.get(place).is_some_and(|part| part.turn == self.turns && part.row > 0)
    }

    /// The parts at two places change their places.
    pub fn exchange(&mut self, one: usize, other: usize) {
        if one.max(other) < self.parts.len() {
            self.parts.swap(one, other);
        }
    }

    /// Takes in these parts, as far as there is room; whether any is new.
    pub fn fill(&mut self, parts: impl IntoIterator<Item = usize>, most: usize) -> bool {
        let before = self.parts.len();
        for number in parts {
            if self.parts.len() < most && self.place(number).is_none() {
                self.parts.push(self.new_part(number));
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

/// Where the longest run of neighbours begins in rising numbers of `count`, the first of which is
/// the last one's neighbour.
fn longest_run(ranks: &[usize], count: usize) -> usize {
    let len = ranks.len();
    let goes_on = |at: usize| ranks[at] == (ranks[(at + len - 1) % len] + 1) % count;
    let begins: Vec<usize> = (0..len).filter(|at| !goes_on(*at)).collect();
    let ends = begins.iter().cycle().skip(1);
    let length = |begin: usize, end: usize| (end + len - begin - 1) % len;
    let longest = begins.iter().zip(ends).max_by_key(|(begin, end)| length(**begin, **end));
    longest.map_or(0, |(begin, _)| *begin)
}

#[cfg(test)]
mod tests;
