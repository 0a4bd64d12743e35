//! What is learned, and what the guesses that follow from it are worth.

use alloc::boxed::Box;
use alloc::format;

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

/// What things take, in any unit, and how many parts there are.
#[derive(Clone, Copy, Debug)]
struct Costs {
    parts: usize,
    /// To bring a part, and to ask for one in the middle of an operation.
    bring: u64,
    ask: u64,
    /// Work on a part before the program goes on.
    work: u64,
    quantum: u64,
}

/// What is brought for a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Brought {
    Guessed,
    Whole,
    Nothing,
}

/// A program in turns of which the switch is no part: what it meets takes its own time.
struct Turns {
    costs: Costs,
    set: WorkingSet,
    /// Next on the way, and what is left of the work on it.
    at: usize,
    left: u64,
    /// What was touched since the last look.
    was: Vec<usize>,
    /// All time, and that of work.
    wall: u64,
    work: u64,
    /// Parts that were brought before a turn, and those of them that it did not use.
    brought: usize,
    wasted: usize,
}

const COSTS: Costs = Costs { parts: 16, bring: 21, ask: 1, work: 4, quantum: 60 };

impl Turns {
    fn new(costs: Costs) -> Self {
        let mut set = WorkingSet::default();
        for part in 0..costs.parts {
            set.learn([].into_iter(), Some(part), costs.parts);
        }
        let (at, left, was) = (0, costs.work, Vec::new());
        Self { costs, set, at, left, was, wall: 0, work: 0, brought: 0, wasted: 0 }
    }

    /// A turn in which nothing of the one before is there; `next` says where it goes on.
    fn turn(&mut self, how: Brought, next: &mut dyn FnMut(usize) -> usize) {
        let Costs { parts, bring, ask, work, quantum } = self.costs;
        self.set.learn(self.was.drain(..), None, parts);
        let is_brought = |place: &usize| match how {
            Brought::Guessed => self.set.is_expected(*place),
            Brought::Whole => true,
            Brought::Nothing => false,
        };
        let places = (0..self.set.len()).filter(is_brought);
        let mut here: Vec<usize> = places.filter_map(|place| self.set.part(place)).collect();
        let mut unused = here.clone();
        self.brought += here.len();
        self.wall += bring * here.len() as u64;
        let mut used = 0;
        while used < quantum {
            unused.retain(|part| *part != self.at);
            if !here.contains(&self.at) {
                used += ask + bring;
                here.push(self.at);
                self.set.learn(self.was.drain(..), Some(self.at), parts);
            }
            let now = self.left.min(quantum.saturating_sub(used));
            (used, self.left, self.work) = (used + now, self.left - now, self.work + now);
            self.was.push(self.at);
            if self.left == 0 {
                (self.at, self.left) = (next(self.at), work);
            }
        }
        self.wall += used;
        self.wasted += unused.len();
    }

    fn run(costs: Costs, how: Brought, next: &mut dyn FnMut(usize) -> usize) -> Self {
        let mut turns = Self::new(costs);
        (0..400).for_each(|_| turns.turn(how, next));
        turns
    }

    fn efficiency(&self) -> f64 {
        self.work as f64 / self.wall as f64
    }
}

/// How a program goes through so many parts.
type Pattern = fn(usize) -> Box<dyn FnMut(usize) -> usize>;

fn sweep(parts: usize) -> Box<dyn FnMut(usize) -> usize> {
    Box::new(move |at| (at + 1) % parts)
}

/// Every other time the first part, as weights that each step uses.
fn sweep_beside_one(parts: usize) -> Box<dyn FnMut(usize) -> usize> {
    let mut last = 0;
    Box::new(move |at| {
        if at != 0 {
            last = at;
            return 0;
        }
        last % (parts - 1) + 1
    })
}

/// A quarter of them again and again; after long another quarter.
fn quarters(parts: usize) -> Box<dyn FnMut(usize) -> usize> {
    let (few, mut steps) = ((parts / 4).max(1), 0);
    Box::new(move |_| {
        steps += 1;
        (steps / 1000 * few + steps % few) % parts
    })
}

fn draw(parts: usize) -> Box<dyn FnMut(usize) -> usize> {
    let mut seed = 7_u64;
    Box::new(move |_| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(seed >> 33).unwrap_or(0) % parts
    })
}

/// Bringing what is guessed is never much worse than the better of bringing all and nothing. Of
/// drawn parts turns use more if more is brought, which nobody finds out who guesses with care.
#[test]
fn guesses_are_worth_no_less_than_bringing_everything_or_nothing() {
    let patterns: [(&str, Pattern, f64); 4] = [
        ("sweep", sweep, 0.95),
        ("sweep beside one", sweep_beside_one, 0.95),
        ("quarters", quarters, 0.95),
        ("draw", draw, 0.7),
    ];
    let mut worse = Vec::new();
    for (parts, bring, quantum) in [4, 8, 16, 32]
        .into_iter()
        .flat_map(|parts| [10, 30, 200].map(|bring| (parts, bring)))
        .flat_map(|(parts, bring)| [200, 600, 2000].map(|quantum| (parts, bring, quantum)))
    {
        let costs = Costs { parts, bring, ask: 10, work: 70, quantum };
        for (name, pattern, least) in patterns {
            let of = |how| Turns::run(costs, how, &mut *pattern(parts)).efficiency();
            let [own, whole, nothing] =
                [Brought::Guessed, Brought::Whole, Brought::Nothing].map(of);
            if own < least * whole.max(nothing) {
                worse.push(format!(
                    "{name}, {costs:?}: {own:.3} beside {whole:.3} and {nothing:.3}"
                ));
            }
        }
    }
    assert!(worse.is_empty(), "{worse:#?}");
}

#[test]
fn who_goes_through_all_its_memory_in_a_turn_gets_all_of_it() {
    let of = |how| Turns::run(COSTS, how, &mut *sweep(COSTS.parts)).efficiency();
    let (own, whole) = (of(Brought::Guessed), of(Brought::Whole));
    assert!(own > 0.95 * whole, "{own:.3} beside {whole:.3}");
}

/// A sweep of which a turn makes some part, not always the same: nearly nothing is brought that is
/// not used, where twice as much was with a guess that doubled again after each wrong one.
#[test]
fn a_sweep_in_the_middle_of_its_memory_is_not_overtaken() {
    let costs = Costs { parts: 16, bring: 30, ask: 10, work: 70, quantum: 600 };
    let turns = Turns::run(costs, Brought::Guessed, &mut *sweep(costs.parts));
    let Turns { brought, wasted, .. } = turns;
    assert!(brought > 2000 && wasted * 20 < brought, "{wasted} of {brought} for nothing");
}

#[test]
fn nothing_is_guessed_of_who_has_no_way_through_its_memory() {
    let turns = Turns::run(COSTS, Brought::Guessed, &mut *draw(COSTS.parts));
    assert!(turns.wasted < 200, "{} parts for nothing in 400 turns", turns.wasted);
}

#[test]
fn neighbours_are_in_the_order_of_a_sweep() {
    assert_eq!(longest_run(&[0, 1, 14, 15], 16), 2);
    assert_eq!(longest_run(&[0, 1, 7, 14, 15], 16), 3);
    assert_eq!(longest_run(&[3, 4, 5], 16), 0);
    assert_eq!(longest_run(&[0, 1, 2], 3), 0);
    assert_eq!(longest_run(&[5], 16), 0);
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

/// Turns of which each begins with an operation that names four parts, drawn from four fours, and
/// touches so many of them. How many of those that are touched were brought,
/// and how many were brought for nothing, in the last half of the turns.
fn named_in_turns(touched: usize, tells: bool) -> (usize, usize) {
    let (mut set, mut was) = (WorkingSet::default(), Vec::new());
    let (mut hits, mut wasted, mut drawn) = (0, 0, 9_u32);
    for turn in 0..64 {
        set.learn(was.drain(..), None, 16);
        drawn = drawn.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let first = (drawn >> 30) as usize * 4;
        if tells {
            set.name(first..first + 4, 16);
        }
        let brought = (0..16).filter(|part| set.place(*part).is_some_and(|at| set.is_expected(at)));
        let brought: Vec<usize> = brought.collect();
        let used = first..first + touched;
        if turn >= 32 {
            hits += brought.iter().filter(|part| used.contains(part)).count();
            wasted += brought.iter().filter(|part| !used.contains(part)).count();
        }
        for part in used {
            if !brought.contains(&part) {
                set.learn(was.drain(..), Some(part), 16);
            }
            was.push(part);
        }
    }
    (hits, wasted)
}

#[test]
fn what_an_operation_names_is_brought_with_it() {
    // Who learns from turns alone guesses some of them, and wrongly about as often.
    let (hits, wasted) = named_in_turns(4, true);
    assert!(hits == 32 * 4 && wasted * 20 < hits, "{hits} of 128, {wasted} for nothing");
    let (hits, _) = named_in_turns(4, false);
    assert!(hits < 32 * 3, "{hits} of 128 without a word: the control is as good");
}

#[test]
fn who_names_much_and_touches_little_is_not_believed() {
    // 96 parts are named in vain.
    let (_, wasted) = named_in_turns(1, true);
    assert!(wasted < 96 / 10, "{wasted} parts for nothing");
}

#[test]
fn what_is_named_first_has_room_and_drives_nobody_out() {
    let mut set = WorkingSet::default();
    set.learn([].into_iter(), None, 3);
    assert!(set.name([4, 5], 3) && !set.name([4, 5], 3));
    assert!(set.is_expected(0) && set.is_expected(1), "also before anything was touched");
    set.learn([4, 5].into_iter(), None, 3);
    assert!(set.name([6, 7, 8], 3), "one more");
    assert_eq!((set.place(6), set.place(7), set.len()), (Some(2), None, 3));
}
