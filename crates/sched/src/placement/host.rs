//! A host as policies see it, and what it would be with more cGPUs on it.

use super::mix::Mix;
use super::types::{GPUS_OF_HOST_MAX, Request};

/// Memory of a host's GPUs, and what is left of its other resources.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    /// What kind its GPUs are.
    pub(super) kind: u8,
    /// Processors left, in thousandths.
    pub(super) cpu_milli: u64,
    /// Main memory left, in MiB.
    pub(super) host_memory: u64,
    /// How many GPUs.
    pub(super) gpus: usize,
    /// Memory of each GPU that may still be given away; none of one out of service.
    rooms: [u64; GPUS_OF_HOST_MAX],
    /// Memory of each GPU.
    capacities: [u64; GPUS_OF_HOST_MAX],
}

/// Which GPU takes the next cGPU of that memory: the policy's choice.
pub(super) type Pick = fn(&View, u64, &Mix) -> Option<Choice>;

/// A GPU for a cGPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub(super) gpu: usize,
    /// The host's fragmentation afterwards, if it was worked out to choose.
    pub(super) fragmentation: Option<u64>,
}

/// A host before and after it took a request.
#[derive(Debug)]
pub(super) struct Change<'a> {
    pub(super) before: &'a View,
    pub(super) after: &'a View,
    /// The GPU that took the first cGPU.
    pub(super) first: Option<usize>,
    /// The host's fragmentation afterwards, if it is known.
    pub(super) fragmentation: Option<u64>,
    pub(super) mix: &'a Mix,
}

impl From<usize> for Choice {
    fn from(gpu: usize) -> Self {
        Self { gpu, fragmentation: None }
    }
}

impl View {
    pub(super) fn new(kind: u8, cpu_milli: u64, host_memory: u64) -> Self {
        Self {
            kind,
            cpu_milli,
            host_memory,
            gpus: 0,
            rooms: [0; GPUS_OF_HOST_MAX],
            capacities: [0; GPUS_OF_HOST_MAX],
        }
    }

    /// Adds a GPU; the caller keeps to [`GPUS_OF_HOST_MAX`].
    pub(super) fn push(&mut self, room: u64, capacity: u64) {
        (self.rooms[self.gpus], self.capacities[self.gpus]) = (room, capacity);
        self.gpus += 1;
    }

    /// The host if nobody had anything of it, with these resources.
    pub(super) fn emptied(&self, cpu_milli: u64, host_memory: u64) -> Self {
        Self { cpu_milli, host_memory, rooms: self.capacities, ..*self }
    }

    pub(super) fn rooms(&self) -> &[u64] {
        &self.rooms[..self.gpus]
    }

    pub(super) fn capacities(&self) -> &[u64] {
        &self.capacities[..self.gpus]
    }

    /// Memory of all its GPUs that may still be given away.
    pub(super) fn room(&self) -> u64 {
        self.rooms().iter().sum()
    }

    /// Whether a GPU of that room and capacity can be given away as a whole.
    pub(super) fn is_empty((room, capacity): (&u64, &u64)) -> bool {
        room == capacity
    }

    /// GPUs that nobody has a part of and that have at least so much memory.
    pub(super) fn empty(&self, memory: u64) -> usize {
        let gpus = self.rooms().iter().zip(self.capacities());
        gpus.filter(|gpu| Self::is_empty(*gpu) && *gpu.1 >= memory).count()
    }

    /// GPUs with at least so much room.
    pub(super) fn with_room(&self, memory: u64) -> impl Iterator<Item = usize> + '_ {
        (0..self.gpus).filter(move |gpu| self.rooms[*gpu] >= memory)
    }

    /// Takes memory of a GPU that has it.
    pub(super) fn take(&mut self, gpu: usize, memory: u64) {
        self.rooms[gpu] -= memory;
    }

    /// The empty GPU for an exclusive cGPU: the smallest that will do.
    fn whole(&self, memory: u64) -> Option<usize> {
        let gpus = self.rooms().iter().zip(self.capacities()).enumerate();
        let fits = gpus.filter(|(_, gpu)| Self::is_empty(*gpu) && *gpu.1 >= memory);
        fits.min_by_key(|(_, (_, capacity))| **capacity).map(|(gpu, _)| gpu)
    }

    /// Whether the GPUs have room for the request.
    pub(super) fn has_room_for(&self, request: &Request) -> bool {
        let cgpus = u64::from(request.cgpus);
        if request.is_exclusive() {
            return self.empty(request.memory) as u64 >= cgpus;
        }
        let memory = request.memory.max(1);
        let mut missing = cgpus;
        for room in self.rooms().iter().filter(|room| **room >= memory) {
            missing = missing.saturating_sub(parts(*room, memory, missing));
        }
        missing == 0
    }

    /// The host once it took the request, if it can. `taken` is told of every cGPU: the choice and
    /// its memory.
    pub(super) fn with(
        &self,
        request: &Request,
        pick: Pick,
        mix: &Mix,
        mut taken: impl FnMut(Choice, u64),
    ) -> Option<Self> {
        let cpu_milli = self.cpu_milli.checked_sub(request.cpu_milli)?;
        let host_memory = self.host_memory.checked_sub(request.host_memory)?;
        // Most hosts cannot take most requests: that is to be found out first.
        if request.cgpus > 0 && !(request.kinds.has(self.kind) && self.has_room_for(request)) {
            return None;
        }
        let mut after = Self { cpu_milli, host_memory, ..*self };
        for _ in 0..request.cgpus {
            let (choice, memory) = if request.is_exclusive() {
                let gpu = after.whole(request.memory)?;
                (Choice::from(gpu), after.capacities[gpu])
            } else {
                (pick(&after, request.memory, mix)?, request.memory)
            };
            after.take(choice.gpu, memory);
            taken(choice, memory);
        }
        Some(after)
    }

    /// How many cGPUs of the request fit, up to so many as it asks for.
    pub(super) fn fitting(&self, request: &Request) -> u32 {
        let (cpu, memory) = (request.cpu_milli, request.host_memory);
        if !request.kinds.has(self.kind) || self.cpu_milli < cpu || self.host_memory < memory {
            return 0;
        }
        let fits = if request.is_exclusive() {
            self.empty(request.memory) as u64
        } else {
            self.rooms().iter().map(|room| room / request.memory.max(1)).sum()
        };
        u32::try_from(fits).unwrap_or(u32::MAX).min(request.cgpus)
    }
}

/// How many parts of that memory a GPU has room for that has room for one; of no interest beyond so
/// many. Dividing takes longer than all else, and most want one.
fn parts(room: u64, memory: u64, missing: u64) -> u64 {
    if missing <= 1 { missing } else { room / memory }
}
