//! A thread block: its warps, its shared memory, its barriers.

use super::cx::{BarrierResult, Cx};
use super::program::{Lifetime, Program};
use super::run::{BlockHooks, WarpEnd, run_warp, write_rows};
use super::warp::{Frame, Split, SplitState, WarpState};

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
    arrived: u32,
    /// Threads that end the phase; 0 means all of the block.
    expected: u32,
    votes: u32,
    voters: u32,
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
    phases: [Phase; 16],
    results: [BarrierResult; 16],
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
            phases: [Phase::default(); 16],
            results: [BarrierResult::default(); 16],
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
        cx.barrier_results = self.results;
    }

    fn leave(&mut self, cx: &mut Cx) {
        std::mem::swap(&mut cx.shared, &mut self.shared);
        self.results = cx.barrier_results;
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
            let mut progress = false;
            let mut wake = u64::MAX;
            for i in self.next..self.slots.len() {
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

    /// Ends a barrier's phase. Its waiters become ready at once: the running warp goes on, and may
    /// wait at the same barrier's next phase before any of them runs.
    fn complete(&mut self, cx: &mut Cx, id: u32) {
        let phase = std::mem::take(&mut self.phases[id as usize % 16]);
        cx.barrier_results[id as usize % 16] =
            BarrierResult { count: phase.votes, threads: phase.voters };
        self.released = true;
        wake(&mut cx.warp, id);
        for slot in &mut self.slots {
            if let Slot::Live(warp) = slot {
                wake(warp, id);
            }
        }
    }
}

/// Fuel of one warp's turn while others of its block could run.
const WARP_TURN: i64 = 1 << 16;

fn wake(warp: &mut WarpState, barrier: u32) {
    let mut woken = false;
    for split in &mut warp.splits {
        if matches!(split.state, SplitState::Barrier(id) if id % 16 == barrier % 16) {
            split.state = SplitState::Ready;
            woken = true;
        }
    }
    if !woken {
        return;
    }
    // Splits that waited at one place go on together.
    let splits = std::mem::take(&mut warp.splits);
    for split in splits {
        let same = warp.splits.iter_mut().find(|o| {
            o.state == SplitState::Ready && split.state == SplitState::Ready && o.meets(&split)
        });
        match same {
            Some(other) => other.mask |= split.mask,
            None => warp.splits.push(split),
        }
    }
}

impl BlockHooks for Block {
    fn arrive(&mut self, cx: &mut Cx) -> bool {
        self.waited = true;
        let request = cx.barrier;
        let phase = &mut self.phases[request.id as usize % 16];
        let mut threads = cx.mask.count_ones();
        phase.votes += request.votes.count_ones();
        phase.voters += threads;
        if request.threads != 0 && cx.mask == cx.warp.live {
            // Barriers with a count count whole warps.
            threads = 32;
        }
        phase.arrived += threads;
        phase.expected = phase.expected.max(request.threads);
        let expected = if phase.expected == 0 { self.live_threads } else { phase.expected };
        if phase.arrived >= expected {
            self.complete(cx, request.id);
            return true;
        }
        !request.wait
    }

    fn exited(&mut self, cx: &mut Cx, threads: u32) {
        self.live_threads -= threads.min(self.live_threads);
        if !self.waited {
            return;
        }
        for id in 0..16u32 {
            let phase = self.phases[id as usize];
            if phase.arrived > 0 && phase.expected == 0 && phase.arrived >= self.live_threads {
                self.complete(cx, id);
            }
        }
    }
}
