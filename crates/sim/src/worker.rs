//! A worker: what it has to execute and what it knows of it.

use std::collections::VecDeque;

use weft_turn::{
    Ahead, Grace, GrantKind, Holder, Meter, Pieces, PlainPage, Predictor, Slicing, is_surprise,
};

use crate::kernel::Kernel;
use crate::random::Random;

/// Thread blocks of every kernel.
pub(crate) const GRID_BLOCKS: u64 = 1 << 14;

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
    /// It was stopped in the middle, so going on costs a restore.
    pub(crate) stopped: bool,
}

impl Pending {
    pub(crate) fn new(kernel: Kernel) -> Self {
        Self { kernel, done_ns: 0, stopped: false }
    }

    /// Thread blocks that are left of it.
    pub(crate) fn blocks(&self) -> u64 {
        let rest = u128::from(self.kernel.ns - self.done_ns) * u128::from(GRID_BLOCKS);
        let blocks = rest.div_ceil(u128::from(self.kernel.ns.max(1)));
        u64::try_from(blocks).unwrap_or(GRID_BLOCKS)
    }
}

/// What is in flight, in the order of starting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    pub(crate) estimate_ns: u64,
    /// What it will really take, which the worker does not know.
    pub(crate) ns: u64,
    /// The estimate is a guess.
    pub(crate) guessed: bool,
    /// The turn ends before it: it will be stopped.
    pub(crate) outlasts: bool,
    /// On a device that can stop it, it executes no longer than this in the turn.
    pub(crate) limit_ns: u64,
    /// What it was before it started.
    pub(crate) pending: Pending,
}

#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) vgpu: usize,
    pub(crate) alive: bool,
    pub(crate) vcpu: Option<usize>,
    pub(crate) gate: Holder<PlainPage>,
    pub(crate) meter: Meter,
    pub(crate) pending: VecDeque<Pending>,
    pub(crate) flights: VecDeque<Flight>,
    /// When the oldest flight became the oldest.
    pub(crate) front_since_ns: u64,
    pub(crate) grace: Grace,
    /// Kernels submitted by the program and finished for it.
    pub(crate) submitted: u64,
    pub(crate) finished: u64,
    /// When it looks around next.
    pub(crate) poke_ns: Option<u64>,
    /// Device time of its work as the device executed it, in ns.
    pub(crate) work_ns: u64,
    /// What the checks know of it: whether it has work, whether it holds the device.
    pub(crate) noted: (bool, bool),
    /// The first command to wait for the program's answer: up to this many finished.
    pub(crate) waited_for: Option<u64>,
    source: Source,
    issued: usize,
    random: Random,
    predictor: Predictor,
    pub(crate) ahead: Ahead,
    pub(crate) pieces: Pieces,
}

impl Worker {
    pub(crate) fn new(
        vgpu: usize,
        source: Source,
        (gate, meter, grace): (Holder<PlainPage>, Meter, Grace),
        random: Random,
    ) -> Self {
        Self {
            vgpu,
            alive: true,
            vcpu: None,
            gate,
            meter,
            pending: VecDeque::new(),
            flights: VecDeque::new(),
            front_since_ns: 0,
            grace,
            submitted: 0,
            finished: 0,
            poke_ns: None,
            work_ns: 0,
            noted: (false, false),
            waited_for: None,
            source,
            issued: 0,
            random,
            predictor: Predictor::default(),
            ahead: Ahead::default(),
            pieces: Pieces::new(Slicing::Time),
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
            self.pending.push_back(Pending::new(kernel));
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
        match self.predictor.predict(kernel.key.into(), pending.blocks()) {
            Some(ns) => (ns, true),
            None => {
                let guess_ns = self.predictor.guess(kernel.key.into(), pending.blocks());
                (kernel.declared_ns.unwrap_or(guess_ns), false)
            }
        }
    }

    /// A kernel, or a piece of one, ended at a pace at which the whole grid takes `whole_ns`.
    pub(crate) fn learn(&mut self, key: u32, whole_ns: u64) {
        self.predictor.learn(key.into(), GRID_BLOCKS, whole_ns);
    }

    /// After how much of its execution the oldest operation in flight is stopped, if anything but a
    /// revocation stops it: when it has used up what was left of the turn. One that was expected to
    /// end in the turn is stopped when it has used what is behind it, too.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let front = self.flights.front().filter(|_| !self.is_renewing())?;
        let unspent_ns = self.gate.unspent_ns();
        if front.outlasts {
            return Some(front.limit_ns.saturating_add_signed(unspent_ns));
        }
        let more_ns = unspent_ns.saturating_add_unsigned(self.behind_ns()).max(0);
        Some(front.limit_ns.saturating_add_signed(more_ns))
    }

    /// It has the turn of a lone tenant, which nothing ends but a revocation.
    fn is_renewing(&self) -> bool {
        self.gate.grant().is_some_and(|grant| grant.kind == GrantKind::Renewing)
    }

    /// It holds a turn that it gives back by itself.
    pub(crate) fn has_turn(&mut self) -> bool {
        self.gate.is_holder() && !self.is_renewing()
    }

    /// How much later than the oldest operation in flight the last one ends, as far as is known.
    pub(crate) fn behind_ns(&self) -> u64 {
        let front_ns = self.flights.front().map_or(0, |front| front.estimate_ns);
        self.gate.in_flight_ns().saturating_sub(front_ns)
    }

    /// By how much what is in flight outlasts its estimates.
    pub(crate) fn underestimated_ns(&self) -> u64 {
        self.flights.iter().map(|flight| flight.ns.saturating_sub(flight.estimate_ns)).sum()
    }

    /// Device time still to run of what is in flight, as far as it is known: the oldest of it has
    /// run for `ran_ns`. A careful worker knows nothing of the rest of an operation that has
    /// outlived its estimate, nor of one that it guessed.
    pub(crate) fn backlog_ns(&self, ran_ns: u64, careful: bool) -> u64 {
        let Some(front) = self.flights.front() else { return 0 };
        if careful && (front.guessed || is_surprise(ran_ns, front.estimate_ns)) {
            return u64::MAX;
        }
        self.gate.in_flight_ns().saturating_sub(ran_ns.min(front.estimate_ns))
    }
}
