//! A worker: what it has to execute and what it knows of it.

use std::collections::{BTreeMap, VecDeque};

use crate::gate::Gate;
use crate::kernel::Kernel;
use crate::meter::Meter;
use crate::random::Random;

/// An operation of which nothing is known.
const UNKNOWN_NS: u64 = 50_000;

/// An operation that outlives its estimate by more than this is a surprise, not a variation.
const SURPRISE_NS: u64 = 500_000;

/// Where a session's commands come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A program on a vCPU submits them.
    Program,
    /// There is always one more: these in turn, each varied by so many thousandths.
    Endless {
        /// The kernels.
        kernels: Vec<Kernel>,
        /// Their variation.
        jitter_permille: u64,
    },
}

/// A command that has not been executed whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub(crate) kernel: Kernel,
    pub(crate) done_ns: u64,
}

/// What is in flight, in the order of starting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    pub(crate) estimate_ns: u64,
    /// What it will really take, which the worker does not know.
    pub(crate) ns: u64,
    /// The estimate is a guess.
    pub(crate) guessed: bool,
}

#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) vgpu: usize,
    pub(crate) alive: bool,
    pub(crate) vcpu: Option<usize>,
    pub(crate) gate: Gate,
    pub(crate) meter: Meter,
    pub(crate) pending: VecDeque<Pending>,
    pub(crate) flights: VecDeque<Flight>,
    /// When the oldest flight became the oldest.
    pub(crate) front_since_ns: u64,
    pub(crate) idle_since_ns: Option<u64>,
    /// Kernels submitted by the program and finished for it.
    pub(crate) submitted: u64,
    pub(crate) finished: u64,
    /// When it looks around next.
    pub(crate) poke_ns: Option<u64>,
    /// The first command to wait for the program's answer: up to this many finished.
    pub(crate) waited_for: Option<u64>,
    source: Source,
    issued: usize,
    random: Random,
    predictions: BTreeMap<u32, u64>,
}

impl Worker {
    pub(crate) fn new(vgpu: usize, source: Source, meter: Meter, random: Random) -> Self {
        Self {
            vgpu,
            alive: true,
            vcpu: None,
            gate: Gate::default(),
            meter,
            pending: VecDeque::new(),
            flights: VecDeque::new(),
            front_since_ns: 0,
            idle_since_ns: None,
            submitted: 0,
            finished: 0,
            poke_ns: None,
            waited_for: None,
            source,
            issued: 0,
            random,
            predictions: BTreeMap::new(),
        }
    }

    /// The next command to start, made up if the supply is endless.
    pub(crate) fn head(&mut self) -> Option<Pending> {
        if self.pending.is_empty()
            && self.alive
            && let Source::Endless { kernels, jitter_permille } = &self.source
        {
            let mut kernel = kernels[self.issued % kernels.len()];
            kernel.ns = self.random.jitter(kernel.ns, *jitter_permille).max(1);
            self.issued += 1;
            self.pending.push_back(Pending { kernel, done_ns: 0 });
        }
        self.pending.front().copied()
    }

    pub(crate) fn has_work(&self) -> bool {
        let endless = matches!(self.source, Source::Endless { .. });
        self.alive && (endless || !self.pending.is_empty() || !self.flights.is_empty())
    }

    /// What the command's rest will take; whether that is known rather than guessed.
    pub(crate) fn estimate(&self, pending: &Pending) -> (u64, bool) {
        let kernel = pending.kernel;
        match self.predictions.get(&kernel.key) {
            // Predictions are per whole grid; the rest is known by its blocks.
            Some(whole_ns) => {
                let rest = u128::from(kernel.ns - pending.done_ns);
                let ns = u128::from(*whole_ns) * rest / u128::from(kernel.ns.max(1));
                (u64::try_from(ns).unwrap_or(u64::MAX).max(1), true)
            }
            None => (kernel.declared_ns.unwrap_or(UNKNOWN_NS), false),
        }
    }

    /// A kernel, or a piece of one, ended at a pace at which the whole grid takes `whole_ns`.
    pub(crate) fn learn(&mut self, key: u32, whole_ns: u64) {
        let known_ns = self.predictions.entry(key).or_insert(whole_ns);
        *known_ns = *known_ns - *known_ns / 4 + whole_ns / 4;
    }

    /// By how much what is in flight outlasts its estimates.
    pub(crate) fn underestimated_ns(&self) -> u64 {
        self.flights.iter().map(|flight| flight.ns.saturating_sub(flight.estimate_ns)).sum()
    }

    /// Device time still to run of what is in flight, as far as it is known. A careful worker knows
    /// nothing of the rest of an operation that has outlived its estimate.
    pub(crate) fn backlog_ns(&self, now_ns: u64, careful: bool) -> u64 {
        let Some(front) = self.flights.front() else { return 0 };
        let ran_ns = now_ns.saturating_sub(self.front_since_ns);
        if careful && ran_ns > front.estimate_ns + SURPRISE_NS {
            return u64::MAX;
        }
        self.gate.in_flight_ns().saturating_sub(ran_ns.min(front.estimate_ns))
    }
}
