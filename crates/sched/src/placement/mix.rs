//! What is usually asked for, and how much of a host's free memory that cannot use.
//!
//! The *expected fragmentation* of a host is the memory of its GPUs that is free and of no use to a
//! request drawn from the mix (Weng et al., USENIX ATC '23, §4): all of it if the request does not
//! fit on the host, else that on GPUs which are too full for the request. Sums of it are in memory
//! times parts per million.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::host::View;
use super::types::{GPUS_OF_HOST_MAX, KINDS_MAX, Kinds, Locality, Request};

/// The most different requests of a mix; the rarest are left out.
pub const CLASSES_MAX: usize = 512;
/// [`Observed::learn`] makes a mix after so many requests.
pub const LEARN_EVERY: u64 = 64;
/// Of the most frequent requests that are so many percent of all: rare ones are left out.
pub const LEARN_PERCENT: u64 = 95;
/// Parts that all requests of a mix are together.
pub(super) const WHOLE: u64 = 1_000_000;
/// Strides that memories are looked up by.
const STRIDES_MAX: u32 = 1 << 10;
/// Counts are halved when they reach this, so that old requests are forgotten.
const OBSERVED_MAX: u64 = 1 << 16;

/// Requests seen, with how often.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    counts: BTreeMap<Request, u64>,
    total: u64,
}

impl Observed {
    /// One more request of that shape.
    pub fn record(&mut self, request: &Request) {
        if self.counts.len() >= 2 * CLASSES_MAX && !self.counts.contains_key(request) {
            self.halve();
        }
        *self.counts.entry(*request).or_insert(0) += 1;
        self.total += 1;
        if self.total >= OBSERVED_MAX {
            self.halve();
        }
    }

    /// One more request, and at each [`LEARN_EVERY`]th the mix of the most frequent ones.
    pub fn learn(&mut self, request: &Request) -> Option<Mix> {
        self.record(request);
        self.total.is_multiple_of(LEARN_EVERY).then(|| self.mix(LEARN_PERCENT))
    }

    fn halve(&mut self) {
        self.counts.retain(|_, count| {
            *count /= 2;
            *count > 0
        });
        self.total = self.counts.values().sum();
    }

    /// How many were seen, old ones forgotten.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The mix of the most frequent ones that are so many percent of all.
    pub fn mix(&self, percent: u64) -> Mix {
        let mut classes: Vec<(Request, u64)> =
            self.counts.iter().map(|(request, count)| (*request, *count)).collect();
        classes.sort_by_key(|(request, count)| (core::cmp::Reverse(*count), *request));
        let limit = self.total.saturating_mul(percent.min(100));
        let mut sum = 0_u64;
        let wanted = classes.iter().take_while(|(_, count)| {
            let is_wanted = sum.saturating_mul(100) < limit;
            sum += count;
            is_wanted
        });
        let wanted = wanted.count().min(CLASSES_MAX);
        Mix::new(&classes[..wanted])
    }
}

/// How often a request needs a part of a GPU, by what stands in a table's row.
#[derive(Clone, Debug, Default)]
struct Table {
    /// Parts of requests for which a host of this kind and so many processors has no use at all.
    never: u64,
    /// Of requests for a part of a GPU that need at most the memory of the level, by level.
    up_to: Vec<u64>,
    /// Of each of [`Mix::several`].
    several: Vec<u64>,
}

/// Where memories that are asked for stand in their list, for strides of equal length: few are left
/// to be compared with.
#[derive(Clone, Debug, Default)]
struct Levels {
    /// A stride is two to the power of this.
    shift: u32,
    /// How many are below each stride, and all.
    below: Vec<usize>,
}

/// Requests with how often they come.
///
/// What hosts are measured by are tables, one for each number of processors and each group of kinds
/// that no request tells apart. A cluster makes them, bit by bit where it learns
/// ([`Cluster::learn`](super::Cluster::learn)): nothing is measured by a mix without them.
#[derive(Clone, Debug, Default)]
pub struct Mix {
    classes: Vec<(Request, u64)>,
    /// Their places, by processors.
    by_cpu: Vec<usize>,
    /// Memory of shared cGPUs that are asked for one at a time, ascending.
    needs: Vec<u64>,
    levels: Levels,
    /// Processors of local VMs, ascending.
    cpus: Vec<u64>,
    /// Exclusive cGPUs, and several shared ones on one host, ascending; without processors and
    /// kinds.
    several: Vec<Request>,
    /// Of each kind the group of those that no request tells from it.
    groups: Vec<usize>,
    /// Of each group one kind.
    kinds: Vec<u8>,
    /// Of each group, and of each number of `cpus` that a host has enough for.
    tables: Vec<Table>,
}

impl Mix {
    /// Of requests with how often they were seen.
    pub fn new(counts: &[(Request, u64)]) -> Self {
        let total = u128::from(counts.iter().map(|(_, count)| *count).sum::<u64>().max(1));
        let part = |count: u64| {
            u64::try_from(u128::from(count) * u128::from(WHOLE) / total).unwrap_or(WHOLE)
        };
        let mut classes = BTreeMap::new();
        for (request, count) in counts {
            *classes.entry(on_one_host(request)).or_insert(0) += part(*count);
        }
        let classes: Vec<(Request, u64)> = classes.into_iter().collect();
        Self::from_parts(&classes)
    }

    /// Of requests with their parts of a million.
    pub(super) fn from_parts(classes: &[(Request, u64)]) -> Self {
        let mut mix = Self { classes: classes.to_vec(), ..Self::default() };
        for (request, _) in classes {
            mix.cpus.push(request.cpu_milli);
            if is_part(request) {
                mix.needs.push(request.memory);
            } else if request.cgpus > 0 {
                mix.several.push(on_gpus(request));
            }
        }
        for list in [&mut mix.needs, &mut mix.cpus] {
            list.sort_unstable();
            list.dedup();
        }
        mix.levels = Levels::of(&mix.needs);
        mix.several.sort_unstable();
        mix.several.dedup();
        mix.by_cpu = (0..classes.len()).collect();
        mix.by_cpu.sort_by_key(|at| classes[*at].0.cpu_milli);
        mix.group_kinds();
        mix
    }

    fn group_kinds(&mut self) {
        let mut masks: Vec<Kinds> = self.classes.iter().map(|(request, _)| request.kinds).collect();
        masks.sort_unstable();
        masks.dedup();
        let mut known = BTreeMap::new();
        for kind in 0..KINDS_MAX {
            let wanted: Vec<bool> = masks.iter().map(|mask| mask.has(kind)).collect();
            let next = known.len();
            let group = *known.entry(wanted).or_insert(next);
            if group == next {
                self.kinds.push(kind);
            }
            self.groups.push(group);
        }
    }

    /// Requests of it, each with its part of a million.
    pub fn classes(&self) -> &[(Request, u64)] {
        &self.classes
    }

    /// Makes tables until so many of the units of [`LEARN_UNITS`](super::LEARN_UNITS) are spent;
    /// how many are left.
    pub(super) fn fill(&mut self, units: usize) -> usize {
        let mut left = units;
        while left > 0 && !self.is_filled() {
            let (table, spent) = self.next_table();
            self.tables.push(table);
            left = left.saturating_sub(spent);
        }
        left
    }

    /// Whether all tables are there.
    pub(super) fn is_filled(&self) -> bool {
        self.tables.len() >= self.kinds.len() * (self.cpus.len() + 1)
    }

    /// The table after those that are there, and what it took. It is the one before with the
    /// requests for which a host has enough processors that has one step more.
    fn next_table(&self) -> (Table, usize) {
        let (group, enough) = self.split(self.tables.len());
        let kind = self.kinds[group];
        let cpu = enough.checked_sub(1).map(|step| self.cpus[step]);
        let (Some(cpu), Some(before)) = (cpu, self.tables.last()) else {
            let table = Table {
                never: self.classes.iter().map(|(_, part)| part).sum(),
                up_to: alloc::vec![0; self.needs.len() + 1],
                several: alloc::vec![0; self.several.len()],
            };
            return (table, 1 + self.classes.len() / 16);
        };
        let mut table = before.clone();
        // Sixteen sums are written as quickly as a host is looked up.
        let mut spent = 1 + (table.up_to.len() + table.several.len()) / 16;
        let first = self.by_cpu.partition_point(|at| self.classes[*at].0.cpu_milli < cpu);
        for (request, part) in self.by_cpu[first..].iter().map(|at| &self.classes[*at]) {
            if request.cpu_milli > cpu {
                break;
            }
            spent += 1;
            if request.cgpus == 0 || !request.kinds.has(kind) {
                continue;
            }
            table.never -= part;
            if is_part(request) {
                let sums = &mut table.up_to[self.level(request.memory)..];
                sums.iter_mut().for_each(|sum| *sum += part);
                spent += sums.len() / 16;
            } else if let Ok(at) = self.several.binary_search(&on_gpus(request)) {
                table.several[at] += part;
            }
        }
        (table, spent)
    }

    /// A table's group of kinds, and for how many of `cpus` there are enough.
    fn split(&self, table: usize) -> (usize, usize) {
        let rows = self.cpus.len() + 1;
        (table / rows, table % rows)
    }

    /// How many of the memories that are asked for at most this much is enough for.
    fn level(&self, room: u64) -> usize {
        let stride = usize::try_from(room >> self.levels.shift).unwrap_or(usize::MAX);
        let below = |stride: usize| self.levels.below.get(stride).copied();
        let (Some(first), Some(end)) = (below(stride), below(stride.saturating_add(1))) else {
            return self.needs.len();
        };
        first + self.needs[first..end].partition_point(|need| *need <= room)
    }

    /// For how many of the numbers of processors that are asked for so many are enough.
    pub(super) fn enough(&self, cpu_milli: u64) -> usize {
        self.cpus.partition_point(|cpu| *cpu <= cpu_milli)
    }

    /// About what ranking a host takes that can take the request, in units of
    /// [`LEARN_UNITS`](super::LEARN_UNITS): fragmentation is worked out before and after, and for
    /// each cGPU once for all choices among the host's GPUs, which is as much as for two hosts.
    pub(super) fn price(&self, request: &Request) -> usize {
        let choices = if request.is_exclusive() { 0 } else { request.cgpus as usize };
        (4 + self.several.len()) * (1 + choices)
    }

    /// What stands for hosts of that kind and with that many processors.
    fn table(&self, host: &View) -> Option<&Table> {
        let group = self.groups.get(usize::from(host.kind))?;
        self.tables.get(group * (self.cpus.len() + 1) + self.enough(host.cpu_milli))
    }

    /// Room of a GPU times the parts of all requests for one part of a GPU that it is enough for.
    fn useful(&self, table: &Table, room: u64) -> u64 {
        room * table.up_to.get(self.level(room)).copied().unwrap_or(0)
    }

    /// Requests for several cGPUs or whole ones that the host has processors for, with their parts.
    fn several<'a>(&'a self, table: &'a Table) -> impl Iterator<Item = (&'a Request, u64)> {
        let all = self.several.iter().zip(table.several.iter().copied());
        all.filter(|(_, part)| *part > 0)
    }

    /// The host's expected fragmentation, in memory times parts per million.
    pub(super) fn fragmentation(&self, host: &View) -> u64 {
        let Some(table) = self.table(host) else { return 0 };
        let (empty, mut useless, mut sum) = (Empty::of(host), table.never + table.parts(), 0);
        for (request, part) in self.several(table) {
            let uses = Uses::of(host, &empty, request);
            if uses.fitting >= u64::from(request.cgpus) {
                sum += part * uses.left;
            } else {
                useless += part;
            }
        }
        let useful: u64 = host.rooms().iter().map(|room| self.useful(table, *room)).sum();
        sum + host.room() * useless - useful
    }

    /// The host's expected fragmentation once one of these GPUs, which have it, gave so much memory
    /// away, for each of them; of other GPUs nothing. It is a sum over GPUs, so all is summed up
    /// once, and the one GPU's share is taken out and put in again.
    pub(super) fn once_given(
        &self,
        host: &View,
        memory: u64,
        choices: &[usize],
    ) -> [u64; GPUS_OF_HOST_MAX] {
        let mut sums = [0; GPUS_OF_HOST_MAX];
        let total = host.room().saturating_sub(memory);
        let Some(table) = self.table(host) else { return sums };
        let (empty, mut useless) = (Empty::of(host), table.never + table.parts());
        for (request, part) in self.several(table) {
            let uses = Uses::of(host, &empty, request);
            if uses.fitting < u64::from(request.cgpus) {
                // What does not fit fits no better afterwards.
                useless += part;
                continue;
            }
            for gpu in choices {
                sums[*gpu] += part * uses.once_given(host, request, (*gpu, memory), total);
            }
        }
        let mut shares = [0; GPUS_OF_HOST_MAX];
        for (share, room) in shares.iter_mut().zip(host.rooms()) {
            *share = self.useful(table, *room);
        }
        let useful: u64 = shares.iter().sum();
        for gpu in choices {
            let share = self.useful(table, host.rooms()[*gpu] - memory);
            sums[*gpu] = sums[*gpu] + total * useless - (useful - shares[*gpu] + share);
        }
        sums
    }
}

impl Table {
    /// Parts of all requests for a part of a GPU.
    fn parts(&self) -> u64 {
        self.up_to.last().copied().unwrap_or(0)
    }
}

impl Levels {
    /// Of memories, ascending.
    fn of(needs: &[u64]) -> Self {
        let largest = needs.last().copied().unwrap_or(0);
        let shift = (u64::BITS - largest.leading_zeros()).saturating_sub(STRIDES_MAX.ilog2());
        let strides = (0..=largest >> shift).map(|stride| stride << shift);
        let below = strides.map(|least| needs.partition_point(|need| *need < least));
        let below: Vec<usize> = below.chain([needs.len()]).collect();
        Self { shift, below }
    }
}

/// GPUs of a host that nobody has a part of.
struct Empty {
    list: [usize; GPUS_OF_HOST_MAX],
    count: usize,
}

impl Empty {
    fn of(host: &View) -> Self {
        let mut empty = Self { list: [0; GPUS_OF_HOST_MAX], count: 0 };
        for (gpu, pair) in host.rooms().iter().zip(host.capacities()).enumerate() {
            if View::is_empty(pair) {
                empty.list[empty.count] = gpu;
                empty.count += 1;
            }
        }
        empty
    }
}

/// What a request for several cGPUs or whole ones can do with a host's GPUs.
struct Uses {
    /// How many of its cGPUs they have room for.
    fitting: u64,
    /// Room of the GPUs that are of no use to it.
    left: u64,
}

impl Uses {
    fn of(host: &View, empty: &Empty, request: &Request) -> Self {
        if !request.is_exclusive() {
            let mut uses = Self { fitting: 0, left: 0 };
            for room in host.rooms() {
                let fitting = parts_of(request, *room);
                uses.fitting += fitting;
                uses.left += if fitting == 0 { *room } else { 0 };
            }
            return uses;
        }
        let mut uses = Self { fitting: 0, left: host.room() };
        for gpu in &empty.list[..empty.count] {
            let capacity = host.capacities()[*gpu];
            if capacity >= request.memory {
                uses.fitting += 1;
                uses.left -= capacity;
            }
        }
        uses
    }

    /// What would be of no use to it of all that would then be left, if a GPU gave memory away.
    fn once_given(
        &self,
        host: &View,
        request: &Request,
        (gpu, memory): (usize, u64),
        total: u64,
    ) -> u64 {
        let (room, capacity) = (host.rooms()[gpu], host.capacities()[gpu]);
        let fitting = |room: u64| match request.is_exclusive() {
            true => u64::from(room == capacity && capacity >= request.memory),
            false => parts_of(request, room),
        };
        let (before, after, rest) = (fitting(room), fitting(room - memory), room - memory);
        if self.fitting - before + after < u64::from(request.cgpus) {
            return total;
        }
        let of_no_use = |fitting: u64, room: u64| if fitting == 0 { room } else { 0 };
        self.left - of_no_use(before, room) + of_no_use(after, rest)
    }
}

/// How many of a request's shared cGPUs a GPU has room for.
fn parts_of(request: &Request, room: u64) -> u64 {
    let memory = request.memory.max(1);
    // Dividing takes longer than all else.
    if room < memory { 0 } else { room / memory }
}

/// A request that may be spread over hosts is as many requests for one cGPU.
fn on_one_host(request: &Request) -> Request {
    let one = match request.locality {
        Locality::Remote => request.single(),
        Locality::Local | Locality::LocalTo(_) => *request,
    };
    Request { locality: Locality::Local, kinds: Kinds(one.kinds.0), host_memory: 0, ..one }
}

/// What it needs of a host's GPUs, whatever else.
fn on_gpus(request: &Request) -> Request {
    Request::new(request.cgpus, request.memory, request.mode)
}

/// One shared cGPU.
fn is_part(request: &Request) -> bool {
    request.cgpus == 1 && !request.is_exclusive()
}
