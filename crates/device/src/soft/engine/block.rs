//! A thread block: its warps, its shared memory, its barriers.

use super::cx::{BarrierResult, Cx};
use super::program::{Lifetime, Program};
use super::run::{BlockHooks, WarpEnd, run_warp, write_rows};
use super::warp::{Arrival, Frame, Split, SplitState, WarpState};

/// Where a warp is.
#[derive(Debug)]
enum Slot {
    /// Not begun.
    Fresh,
    /// Begun, and not over.
    Live(Box<WarpState>),
    /// Over, or its state is in the context.
    Done,
}

/// A barrier's current phase.
#[derive(Clone, Copy, Debug, Default)]
struct Phase {
    /// Warps that arrived.
    warps: u32,
    /// Their threads.
    arrived: u32,
    /// Threads that end the phase; 0 means all of the block.
    expected: u32,
    votes: u32,
    reduces: bool,
}

impl Phase {
    /// Whether it is over, in a block with that many threads that have not exited.
    fn full(&self, live_threads: u32) -> bool {
        if self.expected == 0 {
            return self.warps > 0 && self.arrived >= live_threads;
        }
        // Counts are of whole warps, whatever they have of threads (PTX ISA, `barrier`).
        self.warps * 32 >= self.expected
    }
}

/// Why a block stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockEnd {
    Done,
    Turn,
    /// Nothing to do before this instant.
    Asleep(u64),
    /// No thread can ever go on.
    Deadlock,
    /// `Cx::fault` says what; at this operation.
    Fault(u32),
}

/// A thread block in execution.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) index: [u32; 3],
    slots: Vec<Slot>,
    /// First slot that may not be done.
    next: usize,
    /// Slot whose turn is next, when the block's turn ended between two warps.
    resume: usize,
    phases: [Phase; 16],
    live_threads: u32,
    threads: u32,
    pub(crate) shared: Vec<u128>,
    /// Whether anybody ever arrived at a barrier.
    waited: bool,
    /// Whether a barrier completed since this was last looked at.
    released: bool,
}

impl Block {
    pub(crate) fn new(index: [u32; 3], threads: u32, shared: Vec<u128>) -> Self {
        let mut block = Self {
            index,
            slots: Vec::new(),
            next: 0,
            resume: 0,
            phases: [Phase::default(); 16],
            live_threads: threads,
            threads,
            shared,
            waited: false,
            released: false,
        };
        block.reset(index);
        block
    }

    /// Makes it the block `index` of the same launch, not begun.
    pub(crate) fn reset(&mut self, index: [u32; 3]) {
        self.index = index;
        self.next = 0;
        self.resume = 0;
        self.waited = false;
        self.phases = [Phase::default(); 16];
        self.live_threads = self.threads;
        self.slots.clear();
        self.slots.resize_with(self.threads.div_ceil(32) as usize, || Slot::Fresh);
        self.shared.fill(0);
    }

    /// Runs the block for about `turn` fuel; what is left of it comes back through `turn`.
    pub(crate) fn run(
        &mut self,
        cx: &mut Cx,
        pool: &mut Vec<Box<WarpState>>,
        kernel: u32,
        turn: &mut i64,
    ) -> BlockEnd {
        self.enter(cx);
        let end = self.turns(cx, pool, kernel, turn);
        self.leave(cx);
        end
    }

    fn enter(&mut self, cx: &mut Cx) {
        cx.launch.block = self.index;
        std::mem::swap(&mut cx.shared, &mut self.shared);
        cx.shared_host = cx.shared.as_mut_ptr().cast();
    }

    fn leave(&mut self, cx: &mut Cx) {
        std::mem::swap(&mut cx.shared, &mut self.shared);
    }

    fn turns(
        &mut self,
        cx: &mut Cx,
        pool: &mut Vec<Box<WarpState>>,
        kernel: u32,
        turn: &mut i64,
    ) -> BlockEnd {
        let program = std::sync::Arc::clone(&cx.program);
        loop {
            // Warps take turns across the block's turns too: the first may spin until another,
            // which comes later, lets it go. Half a round says nothing about progress.
            let first = std::mem::take(&mut self.resume).max(self.next);
            let mut progress = first > self.next;
            let mut wake = u64::MAX;
            for i in first..self.slots.len() {
                if !self.take(cx, &program, kernel, i) {
                    continue;
                }
                let end = run_warp(cx, &program, self, WARP_TURN.min((*turn).max(1)));
                *turn -= cx.used.max(16);
                match end {
                    // The context keeps the state for the next warp.
                    WarpEnd::Done => {
                        progress = true;
                        pool.extend(cx.spare.take());
                    }
                    WarpEnd::Turn => {
                        progress = true;
                        self.park(cx, pool, i);
                    }
                    WarpEnd::Blocked => self.park(cx, pool, i),
                    WarpEnd::Asleep(until) => {
                        wake = wake.min(until);
                        self.park(cx, pool, i);
                    }
                    WarpEnd::Fault(pc) => return BlockEnd::Fault(pc),
                }
                progress |= std::mem::take(&mut self.released);
                if *turn <= 0 {
                    self.resume = i + 1;
                    break;
                }
            }
            while self.slots.get(self.next).is_some_and(|s| matches!(s, Slot::Done)) {
                self.next += 1;
            }
            if self.next == self.slots.len() {
                return BlockEnd::Done;
            }
            if *turn <= 0 {
                return BlockEnd::Turn;
            }
            if !progress {
                return if wake == u64::MAX { BlockEnd::Deadlock } else { BlockEnd::Asleep(wake) };
            }
        }
    }

    /// Puts warp `i` into the context, whose own state is free; false if the warp is over.
    fn take(&mut self, cx: &mut Cx, program: &Program, kernel: u32, i: usize) -> bool {
        match std::mem::replace(&mut self.slots[i], Slot::Done) {
            Slot::Live(state) => cx.spare = Some(std::mem::replace(&mut cx.warp, state)),
            Slot::Fresh => self.begin(cx, program, kernel, i as u32),
            Slot::Done => return false,
        }
        true
    }

    fn park(&mut self, cx: &mut Cx, pool: &mut Vec<Box<WarpState>>, i: usize) {
        let free = cx.spare.take().or_else(|| pool.pop()).unwrap_or_default();
        self.slots[i] = Slot::Live(std::mem::replace(&mut cx.warp, free));
    }

    fn begin(&self, cx: &mut Cx, program: &Program, kernel: u32, index: u32) {
        let count = (self.threads - index * 32).min(32);
        let live = u32::MAX >> (32 - count);
        let meta = &program.functions[kernel as usize];
        let frame = Frame { function: kernel, local_top: meta.frame_bytes, ..Frame::default() };
        let warp = &mut cx.warp;
        warp.index = index;
        warp.live = live;
        warp.carry = 0;
        warp.clock = 0;
        warp.splits.clear();
        warp.arrivals = [Arrival::default(); 16];
        warp.grow_local(meta.frame_bytes);
        let split = Split {
            pc: meta.entry,
            mask: live,
            frame,
            callers: Vec::new(),
            state: SplitState::Ready,
            stamp: 0,
        };
        warp.splits.push(split);
        cx.frame = frame;
        cx.bind_frame();
        cx.mask = live;
        cx.blend = false;
        if cx.warp.launch != cx.launch.serial {
            write_rows(cx, &meta.consts, Some(Lifetime::Launch));
            write_rows(cx, &meta.consts, Some(Lifetime::Block));
            cx.warp.launch = cx.launch.serial;
            cx.warp.block = self.index;
        } else if cx.warp.block != self.index {
            write_rows(cx, &meta.consts[meta.moving..], Some(Lifetime::Block));
            cx.warp.block = self.index;
        }
        write_rows(cx, &meta.consts[meta.moving..], Some(Lifetime::Warp));
    }

    /// Counts the running warp at barrier `id` once all its lanes that have not exited came there;
    /// the result of the phase if that ends it.
    fn count(&mut self, cx: &mut Cx, id: usize) -> Option<BarrierResult> {
        let arrival = &mut cx.warp.arrivals[id];
        if arrival.lanes != 0 && cx.warp.live & !arrival.lanes == 0 {
            let arrival = std::mem::take(arrival);
            let phase = &mut self.phases[id];
            phase.warps += 1;
            phase.arrived += arrival.lanes.count_ones();
            phase.votes += arrival.votes.count_ones();
            phase.expected = phase.expected.max(arrival.threads);
            phase.reduces |= arrival.reduces;
        }
        self.phases[id].full(self.live_threads).then(|| self.complete(cx, id))
    }

    /// Ends a barrier's phase. Its waiters become ready at once, each with the result: the running
    /// warp goes on, and the barrier may end another phase before any of them runs.
    fn complete(&mut self, cx: &mut Cx, id: usize) -> BarrierResult {
        let phase = std::mem::take(&mut self.phases[id]);
        let result = BarrierResult { count: phase.votes, threads: phase.arrived };
        let reduced = phase.reduces.then_some(result);
        self.released = true;
        wake(&mut cx.warp, id, reduced);
        for slot in &mut self.slots {
            if let Slot::Live(warp) = slot {
                wake(warp, id, reduced);
            }
        }
        result
    }
}

/// Fuel of one warp's turn while others of its block could run.
const WARP_TURN: i64 = 1 << 16;

/// Wakes the lanes of a warp that wait at a barrier, unless the warp has not arrived as a whole.
fn wake(warp: &mut WarpState, barrier: usize, reduced: Option<BarrierResult>) {
    let mut woken = 0;
    let early = warp.arrivals[barrier].lanes;
    for split in &mut warp.splits {
        let waits = matches!(split.state, SplitState::Barrier(id) if id as usize == barrier);
        if waits && split.mask & early == 0 {
            split.state = SplitState::Ready;
            woken |= split.mask;
        }
    }
    if let Some(result) = reduced {
        warp.set_reduced(woken, result);
    }
    if woken == 0 {
        return;
    }
    // Splits that waited at one place go on together.
    let splits = std::mem::take(&mut warp.splits);
    for split in splits {
        let same = warp.splits.iter_mut().find(|o| {
            o.state == SplitState::Ready && split.state == SplitState::Ready && o.meets(&split)
        });
        match same {
            Some(other) => other.join(&split),
            None => warp.splits.push(split),
        }
    }
}

impl BlockHooks for Block {
    fn arrive(&mut self, cx: &mut Cx) -> bool {
        self.waited = true;
        let request = cx.barrier;
        let id = request.id as usize % 16;
        let arrival = &mut cx.warp.arrivals[id];
        arrival.lanes |= cx.mask;
        arrival.votes |= request.votes;
        arrival.threads = arrival.threads.max(request.threads);
        arrival.reduces |= request.reduces;
        match self.count(cx, id) {
            Some(result) => {
                if request.reduces {
                    cx.warp.set_reduced(cx.mask, result);
                }
                true
            }
            None => !request.wait,
        }
    }

    fn exited(&mut self, cx: &mut Cx, threads: u32) {
        self.live_threads -= threads.min(self.live_threads);
        if !self.waited {
            return;
        }
        for id in 0..16 {
            self.count(cx, id);
        }
    }
}
