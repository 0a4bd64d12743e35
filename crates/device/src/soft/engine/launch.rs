//! A kernel launch in execution: which blocks ran, and which run now.

use std::sync::Arc;

use super::block::{Block, BlockEnd};
use super::cx::{Cx, LaunchState};
use super::program::Program;
use super::warp::WarpState;
use crate::clock;
use crate::{Fault, FaultKind};

/// Fuel between two looks at the clock: some 50 µs of work.
const FUEL_STEP: i64 = 8192;
/// Fuel after which blocks that seem to wait for others get company: some 20 ms.
const PATIENCE: i64 = 4 << 20;
/// The same of launches that have a barrier of the grid: they will wait.
const GRID_PATIENCE: i64 = 2 * FUEL_STEP;
/// Most blocks that run at the same time.
const RESIDENT_BLOCKS_MAX: usize = 1024;

/// What a launch needs.
#[derive(Clone, Debug)]
pub(crate) struct LaunchPlan {
    pub(crate) program: Arc<Program>,
    /// Index into `Program::kernels`.
    pub(crate) kernel: u32,
    pub(crate) state: LaunchState,
    pub(crate) first_block: u64,
}

/// How far a drive got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// All blocks are done.
    Done,
    /// Stopped between blocks because `stop` said so; this block is next.
    Stopped(u64),
    /// Time is up; call again.
    Running,
    /// Nothing to do before this instant.
    Asleep(u64),
    Fault(Box<Fault>),
}

/// What became of one turn of every resident block.
enum Round {
    Active,
    Asleep(u64),
    Stuck,
    Fault(Box<Fault>),
}

/// A launch.
#[derive(Debug)]
pub(crate) struct Execution {
    plan: LaunchPlan,
    function: u32,
    next: u64,
    total: u64,
    resident: Vec<Block>,
    spare: Option<Block>,
    /// Fuel used since a block ended or began.
    stalled: i64,
    /// `Cx::touches` then.
    touches: u64,
    pool: Vec<Box<WarpState>>,
}

impl Execution {
    pub(crate) fn new(plan: LaunchPlan) -> Self {
        let function = plan.program.kernels[plan.kernel as usize].function;
        let total = plan.state.grid.iter().map(|n| u64::from(*n)).product();
        Self {
            function,
            next: plan.first_block,
            total,
            plan,
            resident: Vec::new(),
            spare: None,
            stalled: 0,
            touches: 0,
            pool: Vec::new(),
        }
    }

    /// Adds what runs to a fault that did not come from an instruction.
    pub(crate) fn describe(&self, fault: &mut Fault) {
        fault.kernel.clone_from(&self.plan.program.kernels[self.plan.kernel as usize].info.name);
        if let Some(block) = self.resident.first() {
            fault.block = block.index;
        }
    }

    /// Runs until `deadline` (device clock, ns), or between blocks until `stop` says so.
    pub(crate) fn drive(
        &mut self,
        cx: &mut Cx,
        deadline: u64,
        mut stop: impl FnMut(u64) -> bool,
    ) -> Progress {
        cx.program = Arc::clone(&self.plan.program);
        std::mem::swap(&mut cx.launch, &mut self.plan.state);
        let progress = self.blocks(cx, deadline, &mut stop);
        std::mem::swap(&mut cx.launch, &mut self.plan.state);
        progress
    }

    fn blocks(
        &mut self,
        cx: &mut Cx,
        deadline: u64,
        stop: &mut impl FnMut(u64) -> bool,
    ) -> Progress {
        loop {
            if self.resident.is_empty() {
                if self.next >= self.total {
                    return Progress::Done;
                }
                if self.next > self.plan.first_block && stop(self.next) {
                    return Progress::Stopped(self.next);
                }
                self.admit(cx);
            }
            let mut fuel = FUEL_STEP;
            match self.round(cx, &mut fuel) {
                Round::Active => {}
                Round::Fault(fault) => return Progress::Fault(fault),
                Round::Asleep(until) => return Progress::Asleep(until),
                // Threads wait for each other for ever, as they would on a GPU: it is for the
                // caller's time limit to end this.
                Round::Stuck => return Progress::Asleep(clock::now_ns() + 1_000_000),
            }
            self.stalled += FUEL_STEP - fuel;
            let waits = cx.launch.grid_workspace != 0;
            if self.stalled > if waits { GRID_PATIENCE } else { PATIENCE } {
                self.add_company(cx);
            }
            if clock::now_ns() >= deadline {
                return Progress::Running;
            }
        }
    }

    /// Lets each resident block run once, and new ones take the place of those that end.
    fn round(&mut self, cx: &mut Cx, fuel: &mut i64) -> Round {
        let mut wake = u64::MAX;
        let mut active = false;
        let mut i = 0;
        while i < self.resident.len() {
            match self.resident[i].run(cx, &mut self.pool, self.function, fuel) {
                BlockEnd::Done => {
                    self.spare = Some(self.resident.swap_remove(i));
                    self.stalled = 0;
                    return Round::Active;
                }
                BlockEnd::Turn => active = true,
                BlockEnd::Asleep(until) => wake = wake.min(until),
                BlockEnd::Deadlock => {}
                BlockEnd::Fault(pc) => return Round::Fault(self.fault(cx, i, pc)),
            }
            i += 1;
        }
        if active {
            Round::Active
        } else if wake != u64::MAX {
            Round::Asleep(wake)
        } else {
            Round::Stuck
        }
    }

    /// Makes the next block resident.
    fn admit(&mut self, cx: &Cx) {
        let launch = &cx.launch;
        let index = block_index(self.next, launch.grid);
        let block = match self.spare.take() {
            Some(mut block) => {
                block.reset(index);
                block
            }
            None => {
                let threads: u32 = launch.block_dim.iter().product();
                let units = launch.total_shared.div_ceil(16) as usize;
                Block::new(index, threads, vec![0; units])
            }
        };
        self.resident.push(block);
        self.next += 1;
        self.stalled = 0;
        self.touches = cx.touches;
    }

    /// Blocks that run long and look at shared words may wait for blocks that have not begun (a
    /// barrier of the whole grid): as many again become resident.
    fn add_company(&mut self, cx: &Cx) {
        let waits = cx.touches != self.touches;
        for _ in 0..self.resident.len() {
            if !waits || self.next >= self.total || self.resident.len() >= RESIDENT_BLOCKS_MAX {
                break;
            }
            self.admit(cx);
        }
        self.stalled = 0;
    }

    fn fault(&self, cx: &mut Cx, resident: usize, pc: u32) -> Box<Fault> {
        let program = &self.plan.program;
        let (line, text) = program.instruction(pc);
        let name = &program.kernels[self.plan.kernel as usize].info.name;
        let fault = cx.fault.take();
        let (kind, lane, address, message) = match fault {
            Some(f) => (f.kind, f.lane, f.address, f.message),
            None => (FaultKind::Device, 0, None, String::new()),
        };
        let [x, y, _] = cx.launch.block_dim;
        let thread = cx.warp.index * 32 + lane;
        Box::new(Fault {
            kind,
            kernel: name.clone(),
            block: self.resident[resident].index,
            thread: [thread % x.max(1), thread / x.max(1) % y.max(1), thread / (x * y).max(1)],
            address,
            line,
            detail: if message.is_empty() { text } else { message },
        })
    }
}

/// Position in the grid of the block with this linear number.
pub(crate) fn block_index(linear: u64, grid: [u32; 3]) -> [u32; 3] {
    let (x, y) = (u64::from(grid[0].max(1)), u64::from(grid[1].max(1)));
    let part = |v: u64| u32::try_from(v).unwrap_or(u32::MAX);
    [part(linear % x), part(linear / x % y), part(linear / (x * y))]
}
