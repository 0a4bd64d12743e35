//! Hosts that differ in nothing that most policies look at but processors: of many that are alike
//! one is ranked.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::cluster::Host;
use super::host::View;
use super::ranking::Rank;
use super::rankings::Ground;
use super::types::{GPUS_OF_HOST_MAX, Request};

/// Ranks that are kept while hosts are ranked, of each look with each number of processors.
const KEPT_MAX: usize = 1 << 18;

/// What a host looks like: which of its GPUs of one size has which room is all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    kind: u8,
    count: usize,
    /// Capacity and room of each GPU, ascending.
    gpus: [(u64, u64); GPUS_OF_HOST_MAX],
}

impl Look {
    fn of(view: &View) -> Self {
        let (kind, count) = (view.kind, view.gpus);
        let mut gpus = [(0, 0); GPUS_OF_HOST_MAX];
        for (gpu, pair) in gpus.iter_mut().zip(view.capacities().iter().zip(view.rooms())) {
            *gpu = (*pair.0, *pair.1);
        }
        gpus[..count].sort_unstable();
        Self { kind, count, gpus }
    }

    /// A number by which looks are found. Two may have the same one.
    fn mark(&self) -> u64 {
        // Multiplied by an odd number no difference is lost, and rotated none stays on the left.
        let mix =
            |sum: u64, part: u64| (sum ^ part).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        let gpus = self.gpus[..self.count].iter();
        gpus.fold(u64::from(self.kind), |sum, (capacity, room)| mix(mix(sum, *capacity), *room))
    }
}

/// The looks that hosts have, numbered.
#[derive(Clone, Debug, Default)]
pub(super) struct Looks {
    /// By mark. Of looks with one mark the first that came has a number.
    numbers: BTreeMap<u64, u32>,
    /// By number.
    looks: Vec<Look>,
    /// By number, how many hosts have it.
    hosts: Vec<u32>,
    /// Numbers that no look has.
    free: Vec<u32>,
}

impl Looks {
    /// A host looks so from here on; the number of that, if there is one.
    pub(super) fn enter(&mut self, view: &View) -> Option<u32> {
        let look = Look::of(view);
        let mark = look.mark();
        if let Some(number) = self.numbers.get(&mark) {
            let at = *number as usize;
            let is_same = self.looks.get(at) == Some(&look);
            self.hosts[at] += u32::from(is_same);
            return is_same.then_some(*number);
        }
        let number = match self.free.pop() {
            Some(number) => {
                (self.looks[number as usize], self.hosts[number as usize]) = (look, 1);
                number
            }
            None => {
                self.looks.push(look);
                self.hosts.push(1);
                u32::try_from(self.hosts.len() - 1).ok()?
            }
        };
        self.numbers.insert(mark, number);
        Some(number)
    }

    /// Whether several hosts look so.
    fn is_shared(&self, number: u32) -> bool {
        self.hosts.get(number as usize).is_some_and(|hosts| *hosts > 1)
    }

    /// A host does not look so any longer.
    pub(super) fn leave(&mut self, number: Option<u32>) {
        let Some(number) = number else { return };
        let hosts = &mut self.hosts[number as usize];
        *hosts -= 1;
        if *hosts == 0 {
            self.numbers.remove(&self.looks[number as usize].mark());
            self.free.push(number);
        }
    }
}

/// Ranks of looks for a request, by what the mix has enough processors for before and after it.
#[derive(Clone, Debug)]
pub(super) struct Known {
    columns: Vec<Column>,
    /// How many looks there were; none where each host is to be looked at.
    looks: usize,
}

/// Those of hosts with such processors, by look; none where no host was looked at.
#[derive(Clone, Debug)]
struct Column {
    processors: (usize, usize),
    /// Empty as long as to write it takes longer than all took that it would have spared at most.
    ranks: Vec<Option<Rank>>,
    /// What that took.
    missed: usize,
}

impl Known {
    /// Of no look yet.
    pub(super) fn new(request: &Request, ground: Ground<'_>) -> Self {
        let is_alike = ground.policy.sees_alike(request);
        let looks = if is_alike { ground.looks.hosts.len() } else { 0 };
        Self { columns: Vec::new(), looks }
    }

    /// A host's rank, and what it took to know it, in units of
    /// [`LEARN_UNITS`](super::LEARN_UNITS). Numbers of looks may be those of others later: a host
    /// that changed since [`Self::new`] must not be asked for here.
    pub(super) fn rank(
        &mut self,
        host: &Host,
        request: &Request,
        ground: Ground<'_>,
    ) -> (Rank, usize) {
        // What no other host looks like is worked out once, and kept by the ranking.
        let is_kept = |look: &u32| self.looks > 0 && ground.looks.is_shared(*look);
        let Some(look) = host.look.filter(is_kept) else {
            return ground.worked_out(host, request);
        };
        let after = host.view.cpu_milli.checked_sub(request.cpu_milli);
        let Some(after) = after.filter(|_| host.view.host_memory >= request.host_memory) else {
            return (None, 1);
        };
        let processors = match ground.policy.measures() {
            true => (ground.mix.enough(host.view.cpu_milli), ground.mix.enough(after)),
            false => (0, 0),
        };
        let (slot, spent) = self.slot(look, processors, ground.mix.price(request));
        match slot {
            Some(Some(rank)) => (*rank, spent),
            Some(unknown) => {
                let (rank, more) = ground.worked_out(host, request);
                *unknown = Some(rank);
                (rank, spent + more)
            }
            None => ground.worked_out(host, request),
        }
    }

    /// Where the rank of a look is kept, and what it took to find that; none if there would be too
    /// many, or few are asked for so far.
    fn slot(
        &mut self,
        look: u32,
        processors: (usize, usize),
        price: usize,
    ) -> (Option<&mut Option<Rank>>, usize) {
        let found = self.columns.iter().position(|column| column.processors == processors);
        let at = match found {
            Some(at) => at,
            None if (self.columns.len() + 1) * self.looks > KEPT_MAX => return (None, 1),
            None => {
                self.columns.push(Column { processors, ranks: Vec::new(), missed: 0 });
                self.columns.len() - 1
            }
        };
        let column = &mut self.columns[at];
        let mut spent = 1;
        if column.ranks.is_empty() {
            // Eight of them are written as quickly as a host is looked up.
            let costs = self.looks / 8;
            if column.missed < costs {
                column.missed += price;
                return (None, 1);
            }
            column.ranks = alloc::vec![None; self.looks];
            spent += costs;
        }
        (column.ranks.get_mut(look as usize), spent)
    }
}

#[cfg(test)]
mod tests {
    use super::super::policy::{NAMES, by_name};
    use super::super::types::{GrantKey, Locality, Mode};
    use super::super::{Cluster, Observed};
    use super::*;

    fn view(rooms: &[(u64, u64)]) -> View {
        let mut view = View::new(0, 0, 0);
        rooms.iter().for_each(|(room, capacity)| view.push(*room, *capacity));
        view
    }

    #[test]
    fn hosts_look_alike_whichever_gpu_has_which_room() {
        let mut looks = Looks::default();
        let one = looks.enter(&view(&[(3, 8), (8, 8)]));
        assert_eq!(looks.enter(&view(&[(8, 8), (3, 8)])), one);
        let other = looks.enter(&view(&[(3, 9), (8, 9)]));
        assert!(one.is_some() && other.is_some() && one != other);
        let mixed = looks.enter(&view(&[(3, 8), (8, 9)]));
        assert_eq!(looks.enter(&view(&[(8, 9), (3, 8)])), mixed, "sizes go with their rooms");
        assert_ne!(looks.enter(&view(&[(3, 9), (8, 8)])), mixed, "the same rooms of other GPUs");
        looks.leave(one);
        assert_eq!(looks.enter(&view(&[(3, 8), (8, 8)])), one, "a host looks so");
        looks.leave(one);
        looks.leave(one);
        assert_eq!(looks.enter(&view(&[(1, 8), (8, 8)])), one, "no host looked so any longer");
        assert_eq!((looks.hosts.len(), looks.numbers.len()), (4, 4));
    }

    /// Of many hosts few are looked at, and all have the ranks that they would have had.
    #[test]
    fn hosts_that_look_alike_have_the_rank_that_each_would_have() {
        let mut cluster = Cluster::new(by_name("fragmentation").unwrap());
        let mut seen = Observed::default();
        for host in 0..60 {
            let gpus = if host % 3 == 0 { [16, 8, 16, 9] } else { [16; 4] };
            cluster.add_host(host % 2, 8_000, 64, &gpus).unwrap();
        }
        let shapes: Vec<Request> = (0..24_u64)
            .map(|number| {
                let mode = if number % 5 == 0 { Mode::Exclusive } else { Mode::Shared };
                let cgpus = u32::from(number % 11 != 0) + u32::from(number % 3 == 0);
                let cpu_milli = 500 * (number % 4);
                let shape = Request::new(cgpus, 1 + number % 9, mode);
                Request { cpu_milli, locality: Locality::Local, ..shape }
            })
            .collect();
        for (number, shape) in (0..).zip(shapes.iter().cycle().take(200)) {
            seen.record(shape);
            if number == 90 {
                cluster.set_mix(seen.mix(100));
            }
            if let Ok(placement) = cluster.place(shape) {
                cluster.commit(GrantKey(number), placement).unwrap();
            }
            if number % 3 == 0 {
                // One that found no room is not there.
                let _ = cluster.release(GrantKey(number / 2));
            }
        }
        assert!(cluster.looks.numbers.len() < cluster.hosts.len(), "some look alike");
        for policy in NAMES.iter().map(|name| by_name(name).unwrap()) {
            for shape in &shapes {
                let (hosts, looks, mix) = (&cluster.hosts, &cluster.looks, &cluster.mix);
                let each = hosts.iter().map(|one| policy.rank(&one.view, shape, mix));
                let ground = Ground { hosts, looks, policy, mix };
                let mut known = Known::new(shape, ground);
                let ranks = hosts.iter().map(|one| known.rank(one, shape, ground).0);
                assert!(each.eq(ranks), "{policy:?} {shape:?}");
            }
        }
    }
}
