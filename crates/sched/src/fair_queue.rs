//! Start-time fair queueing (FairGV §3.2.1), the arithmetic that every level of sharing uses:
//! tenants on a device and vGPUs of a tenant under `fair`, and the sessions of one vGPU under every
//! policy. It needs no assumption about when the level above lets it run, so it nests.
//!
//! Flows that borrow go before others while they are at most a stated service ahead of them: a
//! bounded form of borrowed virtual time (Duda and Cheriton, SOSP 1999).

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::codec::{Codec, Malformed, Reader, codec};
use crate::heap::Heap;
use crate::key::{MaybeKey, Weight};
use crate::policy::Charge;
use crate::row::Row;
use crate::tag::Tag;

/// Flows that share by weight. `S` is a flow's start tag; service of `t` moves it by `t / weight`;
/// the waiting flow of smallest `(S, key)` is next; the virtual time `V` is the smallest `S` of the
/// flows that are awake or in their turn, and never falls; a flow that wakes gets `S = max(S, V)`
/// and goes before those that stand at `V` already.
///
/// A flow that borrows is next while its `S` is at most `borrow / weight` beyond the smallest of
/// the others. Its tag moves like any other's, so what it gets in the long run is its share. What
/// it has borrowed outlives the others' sleep: while only such flows are awake, `V` stays as far
/// behind the smallest `S` as it was when the last other one went, and moves as they are served.
///
/// A flow in its turn is not in a heap, so reports during the turn cost no reordering. A decision
/// is one insertion and one removal: O(log n), no allocation.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(crate) struct FairQueue {
    waiting: Heap<Tag, Mark>,
    running: MaybeKey,
    /// Whose turn ended last, of those that came between no others'.
    last: MaybeKey,
    flows: Row<Flow>,
    virtual_time: Tag,
    /// Who sleeps so briefly that it does not count: see [`FairQueue::anticipate`].
    anticipated: MaybeKey,
    /// Who is next within reach: see [`FairQueue::prefer`].
    preferred: MaybeKey,
    /// Those that borrow and wait. Most queues have none, and all are small for the cache's sake.
    borrowing: Option<Box<Borrowing>>,
    /// Nothing for the default.
    rules: Option<Box<Rules>>,
}

/// What a queue may do beyond the plain rule. By default, nothing; all of it enters the lag bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    /// Service that a sleeper may be behind the virtual time when it wakes, in ns.
    pub(crate) sleeper_credit_ns: u64,
    /// σ: a flow whose turn ended goes on while it is at most this much service ahead of the
    /// smallest tag, so that there are fewer switches. As service, it is the same debt at any
    /// weight.
    pub(crate) slack_ns: u64,
    /// A flow that is preferred is next while it is at most this much service ahead of the smallest
    /// tag.
    pub(crate) reach_ns: u64,
}

/// How far flows borrow, in ns of service. It enters the lag bound.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms {
    /// What a flow that borrows may be ahead of those that do not, and go before them.
    pub(crate) borrow_ns: u64,
    /// A turn: who is so much behind another borrower goes before it.
    pub(crate) turn_ns: u64,
}

/// Flows that borrow and wait.
#[derive(Clone, Debug, Default)]
struct Borrowing {
    waiting: Heap<Tag>,
    terms: Terms,
    /// While only flows that borrow are present: how far the virtual time stays behind the smallest
    /// of their tags, which is what they owe to whoever wakes. Nothing at any other time.
    debt: Tag,
}

#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    start: Tag,
    weight: Weight,
    /// What the owner of the queue knows it by.
    member: u32,
    awake: bool,
    borrows: bool,
    /// Not yet had a turn since it woke.
    woken: bool,
}

/// What the beginning of a turn needs of a flow: its member, and whether it has just woken. It is
/// beside the tag in the heap, because the flow itself may be in no cache.
#[derive(Clone, Copy, Debug, Default)]
struct Mark(u32);

impl Mark {
    fn member(self) -> u32 {
        self.0 >> 1
    }

    fn woken(self) -> bool {
        self.0 & 1 == 1
    }
}

impl Flow {
    fn mark(self) -> Mark {
        // Keys are below 2²⁰.
        Mark(self.member << 1 | u32::from(self.woken))
    }

    /// Where it waits. Who has just woken goes before its equals: otherwise it would wait for the
    /// turn in progress and for another one.
    fn rank(self) -> Tag {
        if self.woken { self.start.just_before() } else { self.start }
    }
}

impl FairQueue {
    pub(crate) fn new(virtual_time: Tag, rules: Rules) -> Self {
        Self { virtual_time, rules: Some(Box::new(rules)), ..Self::default() }
    }

    /// σ from now on, in ns.
    pub(crate) fn set_slack(&mut self, slack_ns: u64) {
        self.rules.get_or_insert_default().slack_ns = slack_ns;
    }

    fn rules(&self) -> Rules {
        self.rules.as_ref().map_or_else(Rules::default, |rules| **rules)
    }

    /// `member` is what [`Self::first`] names it by.
    pub(crate) fn add(&mut self, key: u32, member: u32, weight: Weight, ahead: Tag) {
        self.flows.grow_to(key + 1);
        self.waiting.reserve(key);
        let start = self.virtual_time.plus(ahead);
        self.flows[key as usize] = Flow { start, weight, member, ..Flow::default() };
    }

    /// Whether a flow goes before others for a time, and on which terms any flow does.
    pub(crate) fn set_borrows(&mut self, key: u32, terms: Option<Terms>) {
        let borrows = terms.is_some();
        if self.flows[key as usize].borrows == borrows {
            return;
        }
        if let Some(terms) = terms {
            let borrowing = self.borrowing.get_or_insert_default();
            borrowing.terms = terms;
            borrowing.waiting.reserve(key);
        }
        let reached = self.now();
        let waits = self.flows[key as usize].awake && !self.running.is(key);
        self.dequeue(key);
        self.flows[key as usize].borrows = borrows;
        if waits {
            self.enqueue(key);
        }
        self.keep_debt(reached);
    }

    /// Whether a flow that does not borrow is awake, in its turn, or expected back at once.
    fn has_lender(&self) -> bool {
        let lends = |key: u32| !self.flows[key as usize].borrows;
        let present = [self.running, self.anticipated].map(MaybeKey::get);
        !self.waiting.is_empty() || present.into_iter().flatten().any(lends)
    }

    /// Who is present has changed at the virtual time `reached`: what those who borrow owe stays
    /// while nobody else is there, and is in the tags otherwise.
    fn keep_debt(&mut self, reached: Tag) {
        if self.borrowing.is_none() {
            return;
        }
        let first = if self.has_lender() { None } else { self.first_present() };
        let owed = first.map(|first| {
            let owed = first.start.minus(reached).max(self.debt());
            owed.min(self.may_borrow(first).plus(self.turn(first)))
        });
        if let Some(borrowing) = &mut self.borrowing {
            borrowing.debt = owed.unwrap_or_default();
        }
    }

    fn debt(&self) -> Tag {
        self.borrowing.as_ref().map_or(Tag::ZERO, |borrowing| borrowing.debt)
    }

    fn enqueue(&mut self, key: u32) {
        let flow = &self.flows[key as usize];
        let rank = flow.rank();
        match &mut self.borrowing {
            Some(borrowing) if flow.borrows => borrowing.waiting.set(key, rank),
            _ => self.waiting.set_marked(key, rank, flow.mark()),
        }
    }

    fn dequeue(&mut self, key: u32) {
        match &mut self.borrowing {
            Some(borrowing) if self.flows[key as usize].borrows => borrowing.waiting.remove(key),
            _ => self.waiting.remove(key),
        }
    }

    /// The waiting flow of the smallest tag, borrowing or not.
    fn least(&self) -> Option<(Tag, u32)> {
        match &self.borrowing {
            None => self.waiting.peek(),
            Some(some) => [self.waiting.peek(), some.waiting.peek()].into_iter().flatten().min(),
        }
    }

    fn nobody_waits(&self) -> bool {
        self.waiting.is_empty()
            && self.borrowing.as_ref().is_none_or(|some| some.waiting.is_empty())
    }

    #[inline]
    fn first_borrower(&self) -> Option<(Tag, u32)> {
        self.borrowing.as_ref().and_then(|borrowing| borrowing.waiting.peek())
    }

    /// Who borrows and goes before a flow of tag `start` that does not, if there is one.
    fn borrower_before(&self, start: Tag) -> Option<u32> {
        let (own, key) = self.first_borrower()?;
        let ahead = self.may_borrow(self.flows[key as usize]);
        (own <= start.plus(ahead)).then_some(key)
    }

    /// The member of the flow that should have the turn of the one that has it: it borrows and
    /// would be next if that turn ended. A borrower gives way only to one that is a turn behind it.
    pub(crate) fn preempting(&self) -> Option<u32> {
        let running = self.running.get().map(|key| self.flows[key as usize])?;
        let (start, _) = self.first_borrower()?;
        if running.borrows && start.plus(self.turn(running)) > running.start {
            return None;
        }
        let others = self.waiting.peek().map(|(start, _)| start);
        let own = (!running.borrows).then_some(running.start);
        let least = others.into_iter().chain(own).min();
        let key = least.map_or_else(|| self.peek(), |least| self.borrower_before(least));
        key.map(|key| self.flows[key as usize].member)
    }

    pub(crate) fn remove(&mut self, key: u32) {
        let reached = self.now();
        self.dequeue(key);
        for kept in [&mut self.running, &mut self.last, &mut self.anticipated, &mut self.preferred]
        {
            kept.forget(key);
        }
        self.flows[key as usize].awake = false;
        self.keep_debt(reached);
    }

    pub(crate) fn is_awake(&self, key: u32) -> bool {
        self.flows[key as usize].awake
    }

    /// What the flow is ahead of the virtual time stays the same *service*: at twice the weight it
    /// is half the distance. Otherwise an old debt would break the bound at the new weight.
    pub(crate) fn reweight(&mut self, key: u32, weight: Weight) {
        self.virtual_time = self.now();
        let flow = &mut self.flows[key as usize];
        let ahead = flow.start.minus(self.virtual_time).rescaled(flow.weight, weight);
        // A corrected prediction can leave a tag behind.
        let behind = self.virtual_time.minus(flow.start).rescaled(flow.weight, weight);
        flow.start = self.virtual_time.plus(ahead).minus(behind);
        flow.weight = weight;
        if flow.awake && !self.running.is(key) {
            self.enqueue(key);
        }
        if let Some(borrowing) = &mut self.borrowing {
            // A debt is as much service as before, and so another distance.
            borrowing.debt = Tag::ZERO;
        }
        self.keep_debt(self.virtual_time);
    }

    /// A flow in its turn keeps its tag: a pause shorter than the yield limit loses nothing but the
    /// time it held.
    pub(crate) fn wake(&mut self, key: u32) {
        self.flows[key as usize].awake = true;
        if self.running.is(key) {
            return;
        }
        self.virtual_time = self.now();
        let credit_ns = self.rules().sleeper_credit_ns;
        let flow = &mut self.flows[key as usize];
        let credit = Tag::from_service(credit_ns, flow.weight);
        flow.start = flow.start.max(self.virtual_time.minus(credit));
        flow.woken = true;
        self.enqueue(key);
        self.anticipated.forget(key);
        self.keep_debt(self.virtual_time);
    }

    /// A flow that sleeps is at least so far ahead.
    pub(crate) fn delay(&mut self, key: u32, ahead: Tag) {
        let least = self.virtual_time.plus(ahead);
        let is_busy = self.running.is(key) || self.anticipated.is(key);
        let flow = &mut self.flows[key as usize];
        if !flow.awake && !is_busy {
            flow.start = flow.start.max(least);
        }
    }

    pub(crate) fn sleep(&mut self, key: u32) {
        self.virtual_time = self.now();
        self.flows[key as usize].awake = false;
        self.dequeue(key);
        self.keep_debt(self.virtual_time);
    }

    /// A flow that has just gone to sleep is likely to wake at once. Until it does, or until
    /// [`Self::end_anticipation`], it stays behind in its own time as if it were awake: the virtual
    /// time does not pass its tag. There is one such flow at a time.
    pub(crate) fn anticipate(&mut self, key: u32) {
        if !self.flows[key as usize].awake {
            let reached = self.now();
            self.anticipated = Some(key).into();
            self.keep_debt(reached);
        }
    }

    /// The service that a flow that sleeps is behind those that wait, in ns, or of the slack not
    /// yet ahead if its turn was the last and it `worked` through it: nothing unless it would be
    /// next, were it awake, but for those who borrow. It keeps its place among them, too: else all
    /// that they have borrowed would be theirs after each instant of idleness.
    pub(crate) fn owed_ns(&self, key: u32, worked: bool) -> Option<u64> {
        let flow = self.flows[key as usize];
        let (least, _) = self.least()?;
        let goes_on = worked && self.last.is(key) && !flow.borrows;
        let until = if goes_on { least.plus(self.slack(flow)) } else { least };
        (flow.start < until).then(|| until.minus(flow.start).to_service_ns(flow.weight))
    }

    /// How many flows wait.
    pub(crate) fn waiting(&self) -> usize {
        let borrowing = self.borrowing.as_ref().map_or(0, |borrowing| borrowing.waiting.len());
        self.waiting.len() + borrowing
    }

    /// Whoever was expected to go on is asleep from now on.
    pub(crate) fn end_anticipation(&mut self) {
        if self.anticipated.get().is_some() {
            let reached = self.now();
            self.anticipated = MaybeKey::NONE;
            self.keep_debt(reached);
        }
    }

    pub(crate) fn peek(&self) -> Option<u32> {
        let Some((least, key)) = self.waiting.peek() else {
            return self.first_borrower().map(|(_, key)| key);
        };
        if let Some(key) = self.borrower_before(least) {
            return Some(key);
        }
        let last = self.goes_on_before(least).or_else(|| self.preferred_before(least));
        Some(last.unwrap_or(key))
    }

    /// Whose turn was the last, if it goes before a flow of tag `start` by the slack.
    #[inline]
    fn goes_on_before(&self, start: Tag) -> Option<u32> {
        // Without slack that flow is none of a decision's business, and in no cache.
        if self.rules().slack_ns == 0 || self.running.get().is_some() {
            return None;
        }
        self.last.get().filter(|last| {
            let flow = self.flows[*last as usize];
            flow.awake && !flow.borrows && flow.start <= start.plus(self.slack(flow))
        })
    }

    /// From now on this flow is next, among those that do not borrow, while it waits and is within
    /// reach; with nothing, nobody is preferred.
    pub(crate) fn prefer(&mut self, key: Option<u32>) {
        self.preferred = key.into();
    }

    /// Who goes before a flow of tag `start` because it is preferred.
    #[inline]
    fn preferred_before(&self, start: Tag) -> Option<u32> {
        self.preferred.get().filter(|key| self.waits_within(*key, start))
    }

    fn waits_within(&self, key: u32, least: Tag) -> bool {
        let flow = self.flows[key as usize];
        let reach = Tag::from_service(self.rules().reach_ns, flow.weight);
        flow.awake && !flow.borrows && !self.running.is(key) && flow.start <= least.plus(reach)
    }

    /// Whether a flow waits and would be next now, were it preferred.
    pub(crate) fn reaches(&self, key: u32) -> bool {
        self.waiting.peek().is_some_and(|(least, _)| self.waits_within(key, least))
    }

    /// Whether a flow has the turn.
    pub(crate) fn runs(&self, key: u32) -> bool {
        self.running.is(key)
    }

    /// The member whose flow is next.
    pub(crate) fn first(&self) -> Option<u32> {
        let key = self.peek()?;
        // Mostly it is the one that waits longest, whose flow is then not looked at.
        let is_least = self.waiting.peek().is_some_and(|(_, least)| least == key);
        let own = || self.flows[key as usize].member;
        Some(if is_least { self.waiting.first_mark().member() } else { own() })
    }

    pub(crate) fn start(&mut self, key: u32) {
        debug_assert!(self.running.get().is_none(), "one turn at a time");
        let start = self.start_of(key);
        self.dequeue(key);
        self.flows[key as usize].woken = false;
        self.running = Some(key).into();
        self.virtual_time = self.now_beside(Some(start));
        if self.borrowing.is_some() {
            self.limit_debt(self.flows[key as usize]);
        }
    }

    /// The tag of a flow that waits: where it is the first, without a look at the flow.
    fn start_of(&self, key: u32) -> Tag {
        let first = self.waiting.peek().filter(|(_, first)| *first == key);
        match first {
            Some((rank, _)) if !self.waiting.first_mark().woken() => rank,
            _ => self.flows[key as usize].start,
        }
    }

    /// A turn of a flow that borrows begins with nobody there to lend: whoever wakes finds it
    /// no further ahead than it may borrow.
    fn limit_debt(&mut self, flow: Flow) {
        if !flow.borrows || self.has_lender() {
            return;
        }
        let least = flow.start.minus(self.may_borrow(flow));
        self.virtual_time = self.virtual_time.max(least);
        let most = self.first_present().map(|first| first.start.minus(self.virtual_time));
        if let Some(borrowing) = &mut self.borrowing {
            borrowing.debt = borrowing.debt.min(most.unwrap_or_default());
        }
    }

    pub(crate) fn stop(&mut self, key: u32) {
        self.last = Some(key).into();
        self.stop_between(key);
    }

    /// The end of a turn that came between others': whoever goes on by the slack still does.
    pub(crate) fn stop_between(&mut self, key: u32) {
        debug_assert!(self.running.is(key), "only a turn that began ends");
        if self.flows[key as usize].awake {
            self.running = MaybeKey::NONE;
            self.enqueue(key);
        } else {
            let reached = self.now();
            self.running = MaybeKey::NONE;
            self.keep_debt(reached);
        }
    }

    pub(crate) fn charge(&mut self, key: u32, charge: Charge) {
        let nobody_waits = self.nobody_waits();
        let flow = &mut self.flows[key as usize];
        let distance = Tag::from_service(charge.ns.unsigned_abs(), flow.weight);
        flow.start =
            if charge.ns < 0 { flow.start.minus(distance) } else { flow.start.plus(distance) };
        let alone = nobody_waits && self.anticipated.get().is_none_or(|one| one == key);
        if charge.settled && alone {
            // It was the only one awake, so its tag *is* the virtual time, even if it sleeps now,
            // but for what it had borrowed before it was alone.
            let start = flow.start;
            self.virtual_time = self.virtual_time.max(start.minus(self.debt()));
        }
        if self.flows[key as usize].awake && !self.running.is(key) {
            self.enqueue(key);
        }
    }

    pub(crate) fn runs_again(&self, key: u32, rest_ns: u64) -> bool {
        let flow = self.flows[key as usize];
        let finish = flow.start.plus(Tag::from_service(rest_ns, flow.weight));
        let ahead = if flow.borrows { self.may_borrow(flow) } else { self.slack(flow) };
        let goes_before = |(start, next): (Tag, u32), ahead: Tag| {
            (finish, key) < (start, next) || (ahead > Tag::ZERO && finish <= start.plus(ahead))
        };
        let others = self.waiting.peek().is_none_or(|least| goes_before(least, ahead));
        // Within its slack it goes on, whoever is preferred.
        let passes = |(start, _): (Tag, u32)| {
            self.rules().slack_ns == 0 && self.preferred_before(start.min(finish)).is_some()
        };
        let is_passed = !flow.borrows && self.waiting.peek().is_some_and(passes);
        let borrowers = if flow.borrows {
            self.first_borrower().is_none_or(|least| goes_before(least, Tag::ZERO))
        } else {
            self.borrower_before(finish).is_none()
        };
        flow.awake && others && borrowers && !is_passed
    }

    fn may_borrow(&self, flow: Flow) -> Tag {
        let borrow_ns = self.borrowing.as_ref().map_or(0, |borrowing| borrowing.terms.borrow_ns);
        Tag::from_service(borrow_ns, flow.weight)
    }

    fn turn(&self, flow: Flow) -> Tag {
        let turn_ns = self.borrowing.as_ref().map_or(0, |borrowing| borrowing.terms.turn_ns);
        Tag::from_service(turn_ns, flow.weight)
    }

    fn slack(&self, flow: Flow) -> Tag {
        Tag::from_service(self.rules().slack_ns, flow.weight)
    }

    /// The virtual time as of the last turn's beginning, waking or sleeping.
    pub(crate) fn virtual_time(&self) -> Tag {
        self.virtual_time
    }

    pub(crate) fn ahead(&self, key: u32) -> Tag {
        self.flows[key as usize].start.minus(self.virtual_time)
    }

    /// The virtual time as of this moment. A prediction that is taken back may lower it again, so
    /// it is kept only where it decides something.
    fn now(&self) -> Tag {
        self.now_beside(self.running.get().map(|key| self.flows[key as usize].start))
    }

    /// The same where the tag of the flow in its turn is known.
    fn now_beside(&self, own: Option<Tag>) -> Tag {
        let least = self.first_start(own).map(|first| first.minus(self.debt()));
        least.map_or(self.virtual_time, |least| self.virtual_time.max(least))
    }

    /// The tag of [`Self::first_present`], that of the flow in its turn being `own`. Each decision
    /// asks for it at each level, and a turn begins with the smallest tag as a rule: the flow of
    /// the next one, which may be in no cache, is then not looked at.
    fn first_start(&self, own: Option<Tag>) -> Option<Tag> {
        let start = |key: u32| self.flows[key as usize].start;
        let passes = |(rank, _): &(Tag, u32)| own.is_none_or(|own| *rank < own);
        let others = self.least().filter(passes).map(|(_, key)| start(key));
        let present = match (own, others) {
            (Some(own), Some(others)) => Some(own.min(others)),
            (own, others) => own.or(others),
        };
        match self.anticipated.get().map(start) {
            None => present,
            Some(one) => Some(present.map_or(one, |present| present.min(one))),
        }
    }

    /// Who has the smallest tag of those that are awake, in their turn, or expected back at once.
    fn first_present(&self) -> Option<Flow> {
        let waiting = self.least().map(|(_, key)| key);
        let present = [self.running.get(), waiting, self.anticipated.get()].into_iter().flatten();
        present.map(|key| self.flows[key as usize]).min_by_key(|flow| flow.start)
    }
}

/// In the order in which journals have the fields.
impl Codec for FairQueue {
    fn put(&self, out: &mut Vec<u8>) {
        let Self { waiting, running, last, flows, virtual_time, anticipated, preferred, .. } = self;
        flows.put(out);
        waiting.put(out);
        self.borrowing.put(out);
        virtual_time.put(out);
        (*running, *last).put(out);
        (*anticipated, *preferred).put(out);
        self.rules().put(out);
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let flows: Row<Flow> = Codec::take(input)?;
        let mut waiting: Heap<Tag, Mark> = Codec::take(input)?;
        if waiting.room() > flows.len() {
            return Err(input.malformed("queue"));
        }
        waiting.mark_all(|key| flows[key as usize].mark());
        let borrowing = Codec::take(input)?;
        let virtual_time = Codec::take(input)?;
        let (running, last) = Codec::take(input)?;
        let (anticipated, preferred) = Codec::take(input)?;
        let rules = Rules::take(input)?;
        let rules = (rules != Rules::default()).then(|| Box::new(rules));
        Ok(Self {
            waiting,
            running,
            last,
            flows,
            virtual_time,
            anticipated,
            preferred,
            borrowing,
            rules,
        })
    }
}

codec!(struct Flow { start, weight, member, awake, borrows, woken });
codec!(struct Rules { sleeper_credit_ns, slack_ns, reach_ns });
codec!(struct Terms { borrow_ns, turn_ns });
codec!(struct Borrowing { waiting, terms, debt });

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(queue: &mut FairQueue, ns: i64) -> u32 {
        let key = queue.peek().unwrap();
        queue.start(key);
        queue.charge(key, Charge { ns, settled: true });
        queue.stop(key);
        key
    }

    /// FairGV Figure 4: weights 1 and 2, time slices of 10. vGPU 1 blocks at 70, wakes at 105 with
    /// the virtual time 35.
    #[test]
    fn the_worked_example_of_the_paper() {
        let mut queue = FairQueue::default();
        queue.add(1, 1, Weight::new(1).unwrap(), Tag::ZERO);
        queue.add(2, 2, Weight::new(2).unwrap(), Tag::ZERO);
        queue.wake(1);
        queue.wake(2);
        let order: Vec<u32> = (0..7).map(|_| turn(&mut queue, 10)).collect();
        assert_eq!(order, [1, 2, 2, 1, 2, 2, 1]);
        assert_eq!(queue.flows[1].start.to_ns(), 30);
        assert_eq!(queue.flows[2].start.to_ns(), 20);
        queue.sleep(1);
        for _ in 0..3 {
            turn(&mut queue, 10);
        }
        assert_eq!(queue.now().to_ns(), 35);
        queue.wake(1);
        assert_eq!(queue.flows[1].start.to_ns(), 35);
        assert_eq!(queue.peek(), Some(1));
    }

    #[test]
    fn a_flow_that_wakes_goes_before_its_equals() {
        let mut queue = FairQueue::default();
        for key in 0..3 {
            queue.add(key, key, Weight::ONE, Tag::ZERO);
        }
        queue.wake(0);
        queue.wake(1);
        assert_eq!([turn(&mut queue, 10), turn(&mut queue, 10), turn(&mut queue, 10)], [0, 1, 0]);
        queue.wake(2);
        assert_eq!(turn(&mut queue, 10), 2);
        assert_eq!(queue.now().to_ns(), 10);
    }

    #[test]
    fn an_overrun_survives_sleep() {
        let mut queue = FairQueue::default();
        queue.add(0, 0, Weight::ONE, Tag::ZERO);
        queue.add(1, 1, Weight::ONE, Tag::ZERO);
        queue.wake(0);
        queue.wake(1);
        assert_eq!(turn(&mut queue, 1_000), 0);
        queue.sleep(0);
        turn(&mut queue, 10);
        queue.wake(0);
        assert_eq!(queue.flows[0].start.to_ns(), 1_000);
    }

    #[test]
    fn a_debt_keeps_its_service_at_a_new_weight() {
        let mut queue = FairQueue::default();
        queue.add(0, 0, Weight::ONE, Tag::ZERO);
        queue.add(1, 1, Weight::ONE, Tag::ZERO);
        queue.wake(0);
        queue.wake(1);
        turn(&mut queue, 1_000);
        queue.reweight(0, Weight::new(4).unwrap());
        assert_eq!(queue.flows[0].start.to_ns(), 250);
    }

    /// One that waits for an answer between two commands keeps what others owe it; one that sleeps
    /// does not.
    #[test]
    fn a_moment_of_idleness_loses_no_credit() {
        for (pause_is_short, expected) in [(true, 10), (false, 1_500)] {
            let mut queue = FairQueue::default();
            queue.add(0, 0, Weight::ONE, Tag::ZERO);
            queue.add(1, 1, Weight::ONE, Tag::ZERO);
            queue.wake(0);
            queue.wake(1);
            turn(&mut queue, 10);
            assert_eq!(turn(&mut queue, 1_000), 1);
            queue.sleep(0);
            queue.anticipate(0);
            if !pause_is_short {
                queue.end_anticipation();
            }
            assert_eq!(turn(&mut queue, 500), 1);
            queue.wake(0);
            assert_eq!(queue.flows[0].start.to_ns(), expected);
        }
    }

    /// Who borrows is next at once, for as long as it is at most 30 ahead; then as its weight says.
    #[test]
    fn a_borrower_goes_first_up_to_a_bound_and_gets_its_share() {
        let start = Tag::from_service(1_000, Weight::ONE);
        let mut queue = FairQueue::new(start, Rules::default());
        queue.add(0, 0, Weight::ONE, Tag::ZERO);
        queue.add(1, 1, Weight::ONE, Tag::ZERO);
        queue.set_borrows(1, Some(Terms { borrow_ns: 30, turn_ns: 10 }));
        queue.wake(0);
        queue.start(0);
        assert_eq!(queue.preempting(), None);
        queue.wake(1);
        assert_eq!(queue.preempting(), Some(1));
        queue.stop(0);
        let order: Vec<u32> = (0..10).map(|_| turn(&mut queue, 10)).collect();
        assert_eq!(order, [1, 1, 1, 1, 0, 1, 0, 1, 0, 1]);
        assert_eq!(queue.now(), queue.flows[0].start, "the virtual time is of who is behind");
        queue.set_borrows(1, None);
        let order: Vec<u32> = (0..6).map(|_| turn(&mut queue, 10)).collect();
        assert_eq!(order, [0, 0, 0, 0, 0, 1], "what it borrowed it gives back");
    }

    /// What somebody borrowed is still owed after the others slept; what it had alone is not.
    #[test]
    fn a_debt_outlives_the_sleep_of_those_it_is_owed_to() {
        let start = Tag::from_service(1_000, Weight::ONE);
        let mut queue = FairQueue::new(start, Rules::default());
        queue.add(0, 0, Weight::ONE, Tag::ZERO);
        queue.add(1, 1, Weight::ONE, Tag::ZERO);
        queue.set_borrows(1, Some(Terms { borrow_ns: 30, turn_ns: 10 }));
        queue.wake(0);
        queue.wake(1);
        assert_eq!([(); 3].map(|()| turn(&mut queue, 10)), [1, 1, 1]);
        queue.sleep(0);
        for _ in 0..50 {
            assert_eq!(turn(&mut queue, 10), 1);
        }
        queue.wake(0);
        assert_eq!(queue.flows[1].start.minus(queue.flows[0].start).to_ns(), 30);
        assert_eq!(turn(&mut queue, 10), 0, "it may borrow no more");
        queue.sleep(0);
        assert_eq!(turn(&mut queue, 10), 1);
        queue.wake(0);
        assert_eq!(queue.flows[1].start.minus(queue.flows[0].start).to_ns(), 20);
    }

    #[test]
    fn running_alone_is_no_debt() {
        let mut queue = FairQueue::default();
        queue.add(0, 0, Weight::ONE, Tag::ZERO);
        queue.add(1, 1, Weight::ONE, Tag::ZERO);
        queue.wake(0);
        queue.start(0);
        queue.sleep(0);
        queue.charge(0, Charge { ns: 1_000_000, settled: true });
        queue.stop(0);
        queue.wake(1);
        queue.wake(0);
        assert_eq!(queue.ahead(0), Tag::ZERO);
        assert_eq!(queue.ahead(1), Tag::ZERO);
    }
}
