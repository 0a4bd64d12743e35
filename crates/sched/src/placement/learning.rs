//! A mix that is learnt: ranks by it are made a few at a time, and decisions are by the mix before
//! until all are there.
//!
//! A decision never compares ranks by two mixes, nor goes by the ranks of one and chooses among a
//! host's GPUs by another: all rankings and the mix change together. Hosts that change meanwhile
//! are ranked anew on both sides.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::mix::Mix;
use super::rankings::{Building, Changes, Entry, Ground};
use super::types::Request;

/// What a decision spends on the mix that is being learnt, at most but for the last rank. One is
/// what it takes to look a host's rank up, some 25 ns, so all are 0.2 ms.
pub const LEARN_UNITS: usize = 8_192;
/// Shapes for which hosts are ranked by a new mix before it is in force: those that were asked for
/// last, as many as there are requests from one mix to the next. Others are ranked when they are
/// asked for again.
pub(super) const SHAPES_LEARNT: usize = 64;

/// A mix with the rankings by it so far.
#[derive(Clone, Debug)]
pub(super) struct Learning {
    mix: Mix,
    /// Shapes that are to be ranked, with when they were last asked for; the last of them first.
    shapes: Vec<(u64, Request)>,
    building: Option<Building>,
    entries: BTreeMap<Request, Entry>,
}

/// The same by another mix.
fn by<'a>(ground: Ground<'a>, mix: &'a Mix) -> Ground<'a> {
    Ground { mix, ..ground }
}

impl Learning {
    pub(super) fn new(mix: Mix, shapes: Vec<(u64, Request)>) -> Self {
        Self { mix, shapes, building: None, entries: BTreeMap::new() }
    }

    pub(super) fn mix(&self) -> &Mix {
        &self.mix
    }

    pub(super) fn into_parts(self) -> (Mix, BTreeMap<Request, Entry>) {
        (self.mix, self.entries)
    }

    /// No rank is to be made any longer.
    pub(super) fn forget(&mut self) {
        self.shapes.clear();
        self.building = None;
        self.entries.clear();
    }

    /// Whether hosts are still to be ranked by this mix.
    pub(super) fn has_shapes(&self) -> bool {
        self.building.is_some() || !self.shapes.is_empty()
    }

    /// Goes on until so much is spent; whether all is there. `others` are the rankings by the mix
    /// that is in force.
    pub(super) fn go_on(
        &mut self,
        units: usize,
        others: &BTreeMap<Request, Entry>,
        changes: &Changes,
        ground: Ground<'_>,
    ) -> bool {
        let mut left = self.mix.fill(units);
        if !self.mix.is_filled() {
            return false;
        }
        let ground = by(ground, &self.mix);
        if let Some(building) = &mut self.building {
            building.follow(changes, ground);
        }
        loop {
            let next = || {
                let (used, request) = self.shapes.pop()?;
                Some(Building::new(&request, used, changes, ground))
            };
            let Some(mut building) = self.building.take().or_else(next) else { return true };
            let other = others.get(&building.request);
            left = building.go_on(left, other, changes, ground);
            if !building.is_done(ground.policy) {
                self.building = Some(building);
                return false;
            }
            self.entries.insert(building.request, building.entry);
        }
    }

    /// A shape was asked for: its ranks by this mix are brought up to date with the others, so that
    /// not all that changes until the mix is in force is left to be done then.
    pub(super) fn keep(
        &mut self,
        request: &Request,
        used: u64,
        changes: &Changes,
        ground: Ground<'_>,
    ) {
        if let Some(entry) = self.entries.get_mut(request) {
            entry.keep(request, used, changes, by(ground, &self.mix));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::ranking::{Rank, Standing};
    use super::super::{Cluster, GpuKey, GrantKey, Locality, Mode, by_name};
    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Give(Request),
        Release(u64),
        Service(usize, bool),
        Add(Vec<u64>),
        Learn(Vec<(Request, u64)>),
        Policy(&'static str),
    }

    /// Those whose ranks are other by another mix, and one to which it is all the same.
    const POLICIES: [&str; 3] = ["fragmentation", "gradient", "best_fit"];

    fn shape() -> impl Strategy<Value = Request> {
        let mode = prop::sample::select(vec![Mode::Exclusive, Mode::Shared]);
        (1u32..3, 1u64..6, mode, any::<bool>(), 0u64..3).prop_map(
            |(cgpus, memory, mode, is_local, cpu_milli)| {
                let shape = Request { cpu_milli, ..Request::new(cgpus, memory, mode) };
                if is_local { shape.local() } else { shape }
            },
        )
    }

    fn gpus() -> impl Strategy<Value = Vec<u64>> {
        let alike = (3u64..9, 1usize..5).prop_map(|(memory, gpus)| vec![memory; gpus]);
        prop_oneof![2 => alike, 1 => prop::collection::vec(3u64..9, 1..5)]
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            16 => shape().prop_map(Step::Give),
            6 => (0u64..40).prop_map(Step::Release),
            2 => (any::<usize>(), any::<bool>()).prop_map(|(gpu, is)| Step::Service(gpu, is)),
            1 => gpus().prop_map(Step::Add),
            4 => prop::collection::vec((shape(), 1u64..9), 0..6).prop_map(Step::Learn),
            1 => prop::sample::select(POLICIES.to_vec()).prop_map(Step::Policy),
        ]
    }

    fn add(cluster: &mut Cluster, gpus: &[u64]) {
        let hosts = u64::try_from(cluster.hosts().len()).unwrap();
        cluster.add_host(0, 4 + hosts % 3, 9, gpus).unwrap();
    }

    /// The host of a request's first cGPU, by the ranks of all hosts.
    fn first_host(cluster: &Cluster, request: &Request) -> Option<u32> {
        let one = if request.locality == Locality::Remote { request.single() } else { *request };
        let Cluster { policy, mix, hosts, .. } = cluster;
        let ranks = hosts.iter().map(|host| policy.rank(&host.view, &one, mix));
        least((0..).zip(ranks))
    }

    fn least(ranks: impl Iterator<Item = (u32, Rank)>) -> Option<u32> {
        let ranked = ranks.filter_map(|(host, rank)| Some((rank?, host)));
        ranked.min().map(|(_, host)| host)
    }

    /// Takes a step; whether a decision was that of somebody who ranks all hosts by the mix that is
    /// in force.
    fn take(cluster: &mut Cluster, step: &Step, grant: u64) -> bool {
        match step {
            Step::Give(request) => {
                let mut at_once = cluster.clone();
                at_once.set_mix(cluster.mix().clone());
                let first = first_host(cluster, request);
                let placed = cluster.place(request);
                let is_same = at_once.place(request) == placed;
                if let Ok(placement) = placed {
                    let gpu = placement.cgpus[0].gpu.0 as usize;
                    assert_eq!(Some(cluster.gpus[gpu].host.0), first, "{request:?}");
                    cluster.commit(GrantKey(grant), placement).unwrap();
                }
                return is_same;
            }
            Step::Release(grant) => {
                // One that found no room is not there.
                let _ = cluster.release(GrantKey(*grant));
            }
            Step::Service(gpu, is) => {
                let gpu = u32::try_from(gpu % cluster.gpus().len()).unwrap();
                cluster.set_in_service(GpuKey(gpu), *is).unwrap();
            }
            Step::Add(gpus) => add(cluster, gpus),
            Step::Learn(counts) => cluster.learn(Mix::new(counts)),
            Step::Policy(name) => cluster.set_policy(by_name(name).unwrap()),
        }
        true
    }

    /// Decides until nothing is learnt; how many decisions that took.
    fn learnt(cluster: &mut Cluster) -> usize {
        let mut decisions = 0;
        while cluster.is_learning() {
            decisions += 1;
            assert!(decisions < 20_000, "it takes no end");
            // It goes on whether there is room or not.
            let _ = cluster.place(&Request::new(1, 1, Mode::Shared));
        }
        decisions
    }

    proptest! {
        #[test]
        fn decisions_are_by_the_mix_in_force_and_in_the_end_all_ranks_are_by_the_last(
            policy in prop::sample::select(POLICIES.to_vec()),
            hosts in prop::collection::vec(gpus(), 1..30),
            units in 1usize..300,
            steps in prop::collection::vec(step(), 1..100),
        ) {
            let mut cluster = Cluster::new(by_name(policy).unwrap());
            hosts.iter().for_each(|gpus| add(&mut cluster, gpus));
            cluster.set_learn_step(units);
            let mut wanted = Vec::new();
            for (grant, step) in (0..).zip(&steps) {
                if let Step::Learn(counts) = step {
                    wanted = Mix::new(counts).classes().to_vec();
                }
                prop_assert!(take(&mut cluster, step, grant), "{step:?}");
            }
            learnt(&mut cluster);
            prop_assert_eq!(cluster.mix().classes(), wanted);
            let Cluster { policy, mix, hosts, rankings, looks, .. } = &mut cluster;
            let ground = Ground { hosts, looks, policy: *policy, mix };
            for (request, best, standings) in rankings.ranked(ground) {
                let each = hosts.iter().map(|host| policy.rank(&host.view, &request, mix));
                let each: Vec<Rank> = each.collect();
                prop_assert_eq!(best, least((0..).zip(each.iter().copied())), "{:?}", request);
                for (rank, standing) in each.into_iter().zip(standings) {
                    let is_right = match standing {
                        Standing::Unknown => policy.least(0).is_some(),
                        Standing::Out => rank.is_none(),
                        Standing::AtLeast(least) => rank.is_some_and(|rank| rank >= least),
                        Standing::Is(known) => rank == Some(known),
                    };
                    prop_assert!(is_right, "{request:?}: {rank:?} and {standing:?}");
                }
            }
        }
    }

    /// Between two decisions more changes than are kept: the host that changed first is among those
    /// that were ranked before, or among those that are to be.
    #[test]
    fn a_host_that_changed_before_all_others_is_not_taken_for_what_it_was() {
        changed_before_all_others("gradient", 4);
        changed_before_all_others("fragmentation", 2);
    }

    fn changed_before_all_others(policy: &str, decisions_min: usize) {
        let shape = Request::new(1, 8, Mode::Exclusive);
        let mut cluster = Cluster::new(by_name(policy).unwrap());
        for _ in 0..3 {
            cluster.add_host(0, 100, 100, &[8]).unwrap();
        }
        cluster.set_learn_step(1);
        cluster.place(&shape).unwrap();
        let mix = Mix::new(&[(Request::new(1, 2, Mode::Shared), 1)]);
        cluster.learn(mix.clone());
        let mut decisions = 0;
        while cluster.is_learning() {
            let mut changed = cluster.clone();
            changed.set_in_service(GpuKey(0), false).unwrap();
            for _ in 0..4 {
                for gpu in [1, 2] {
                    for is in [false, true] {
                        changed.set_in_service(GpuKey(gpu), is).unwrap();
                    }
                }
            }
            learnt(&mut changed);
            let mut at_once = changed.clone();
            at_once.set_mix(mix.clone());
            assert_eq!(changed.place(&shape), at_once.place(&shape), "after {decisions} decisions");
            decisions += 1;
            let _ = cluster.place(&Request::new(1, 1, Mode::Shared));
        }
        assert!(decisions >= decisions_min, "it was learnt in {decisions} decisions");
    }

    /// A thousand hosts and three shapes that were asked for, by a policy that has all hosts
    /// ranked: 3,027 units, with three for tables.
    fn thousand() -> (Cluster, [Request; 3]) {
        let mut cluster = Cluster::new(by_name("gradient").unwrap());
        for _ in 0..1_000 {
            cluster.add_host(0, 100, 100, &[8, 8]).unwrap();
        }
        cluster.set_learn_step(100);
        (cluster, [1, 2, 3].map(|memory| Request::new(1, memory, Mode::Shared)))
    }

    #[test]
    fn no_decision_makes_more_of_a_mix_than_it_may() {
        let (mut cluster, shapes) = thousand();
        let mix = Mix::new(&[(shapes[0], 1)]);
        let mut nobody_asked = cluster.clone();
        nobody_asked.learn(mix.clone());
        assert!(!nobody_asked.is_learning(), "nothing is to be ranked: it is in force at once");
        for shape in &shapes {
            cluster.place(shape).unwrap();
        }
        cluster.learn(mix);
        assert!(cluster.mix().classes().is_empty(), "the mix before is in force");
        let decisions = learnt(&mut cluster);
        assert!((29..=31).contains(&decisions), "{decisions} of 100 units each");
        assert_eq!(cluster.mix().classes().len(), 1);
    }

    #[test]
    fn mixes_that_come_sooner_than_they_are_learnt_keep_none_from_being_learnt() {
        let (mut cluster, shapes) = thousand();
        for shape in &shapes {
            cluster.place(shape).unwrap();
        }
        let mut in_force = Vec::new();
        for number in 1..=400 {
            cluster.learn(Mix::new(&[(Request::new(1, number, Mode::Shared), 1)]));
            cluster.place(&shapes[0]).unwrap();
            in_force.extend(cluster.mix().classes().iter().map(|(class, _)| class.memory));
        }
        assert!(in_force.is_sorted(), "a later one is in force later: {in_force:?}");
        in_force.dedup();
        // Both the call and the decision make 100 units: sixteen rounds for each.
        assert!((20..=30).contains(&in_force.len()), "{in_force:?}");
        assert!(in_force.last().is_some_and(|last| *last > 360), "{in_force:?}");
    }
}
