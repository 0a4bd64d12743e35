//! Policies on clusters small enough to see.

use super::{
    Cluster, CommitError, GpuKey, GrantKey, HostKey, Kinds, Locality, Mix, Mode, NAMES, Observed,
    PlaceError, Request, by_name,
};

/// Two hosts of two GPUs with 8 of memory, and 100 processors each.
fn cluster(policy: &str) -> Cluster {
    let mut cluster = Cluster::new(by_name(policy).unwrap());
    for _ in 0..2 {
        cluster.add_host(0, 100, 100, &[8, 8]).unwrap();
    }
    cluster
}

fn shared(cgpus: u32, memory: u64) -> Request {
    Request::new(cgpus, memory, Mode::Shared)
}

/// Gives the request the GPUs that the policy chooses.
fn give(cluster: &mut Cluster, grant: u64, request: &Request) -> Vec<u32> {
    let placement = cluster.place(request).unwrap();
    let gpus = placement.cgpus.iter().map(|cgpu| cgpu.gpu.0).collect();
    cluster.commit(GrantKey(grant), placement).unwrap();
    gpus
}

#[test]
fn a_vm_of_eight_cgpus_is_placed_as_in_figure_10() {
    // Four GPUs with 8 GB, cGPUs with 4 GB: first fit fills GPU by GPU, least load goes round.
    for (policy, gpus) in
        [("first_fit", [0, 0, 1, 1, 2, 2, 3, 3]), ("least_load", [0, 1, 2, 3, 0, 1, 2, 3])]
    {
        let mut node = Cluster::new(by_name(policy).unwrap());
        node.add_host(0, 12_000, 32_768, &[8; 4]).unwrap();
        assert_eq!(give(&mut node, 1, &shared(8, 4)), gpus);
        node.place(&shared(1, 1)).unwrap_err();
    }
}

/// GSaaS' Algorithm 1 as it is printed, on the free memories of GPUs with 8 each.
fn printed_algorithm_1(free: &[u64], requested: u64) -> Option<usize> {
    let mut order: Vec<usize> = (0..free.len()).collect();
    order.sort_by_key(|gpu| core::cmp::Reverse(free[*gpu]));
    order.into_iter().find(|gpu| free[*gpu] + requested <= 8)
}

#[test]
fn algorithm_1_as_printed_refuses_empty_gpus_and_accepts_full_ones() {
    assert_eq!(printed_algorithm_1(&[8, 8, 8, 8], 2), None);
    assert_eq!(printed_algorithm_1(&[0, 8, 8, 8], 2), Some(0));
    let mut ours = cluster("least_load");
    assert_eq!(give(&mut ours, 1, &shared(1, 8)), [0]);
    assert_eq!(give(&mut ours, 2, &shared(1, 2)), [2], "an empty GPU of the emptier host");
}

#[test]
fn best_fit_takes_the_tightest_gpu() {
    let mut ours = cluster("best_fit");
    assert_eq!(give(&mut ours, 1, &shared(1, 5)), [0]);
    assert_eq!(give(&mut ours, 2, &shared(1, 6)), [1]);
    assert_eq!(give(&mut ours, 3, &shared(1, 2)), [1]);
}

#[test]
fn fragmentation_keeps_empty_gpus_for_those_who_ask_for_them() {
    let whole = Request::new(2, 0, Mode::Exclusive).local();
    let halves = shared(1, 4).local();
    let mut ours = cluster("fragmentation");
    ours.learn(Mix::new(&[(whole, 1), (halves, 1)]));
    assert_eq!(ours.fragmentation(), Some(0));
    assert_eq!(give(&mut ours, 1, &halves), [0]);
    // A request for both GPUs of a host can no longer use what is left of the first host.
    assert_eq!(ours.fragmentation(), Some(6), "half of 4 + 8");
    assert_eq!(give(&mut ours, 2, &halves), [0]);
    assert_eq!(give(&mut ours, 3, &halves), [1]);
    assert_eq!(give(&mut ours, 4, &whole), [2, 3]);
    let mut spread = cluster("least_load");
    assert_eq!(give(&mut spread, 1, &halves), [0]);
    assert_eq!(give(&mut spread, 2, &halves), [2]);
    let error = spread.place(&whole).unwrap_err();
    assert_eq!(error, PlaceError::NoRoom { asked: 2, found: 1, memory: 0 });
}

/// On both hosts a GPU has room for 6 and one for 4, and the second cGPU goes to the first of two
/// equal ones: on one host that is where the first cGPU went, which is tighter then.
#[test]
fn hosts_that_gradient_tells_apart_are_not_taken_for_alike() {
    let mut ours = cluster("gradient");
    let on =
        |host, memory| Request { locality: Locality::LocalTo(HostKey(host)), ..shared(1, memory) };
    assert_eq!(give(&mut ours, 1, &on(0, 4)), [0]);
    assert_eq!(give(&mut ours, 2, &on(1, 2)), [2]);
    for gpu in [0, 2] {
        ours.set_in_service(GpuKey(gpu), false).unwrap();
    }
    assert_eq!(give(&mut ours, 3, &on(0, 2)), [1]);
    assert_eq!(give(&mut ours, 4, &on(1, 4)), [3]);
    for gpu in [0, 2] {
        ours.set_in_service(GpuKey(gpu), true).unwrap();
    }
    ours.set_mix(Mix::new(&[(shared(1, 3), 1)]));
    assert_eq!(give(&mut ours, 5, &shared(2, 2).local()), [2, 2]);
}

#[test]
fn exclusive_is_alone_and_local_is_on_one_host() {
    for policy in NAMES {
        let mut ours = cluster(policy);
        let on_second = Request { locality: Locality::LocalTo(HostKey(1)), ..shared(1, 1) };
        assert_eq!(give(&mut ours, 1, &on_second), [2], "{policy}");
        let alone = Request::new(2, 8, Mode::Exclusive);
        assert_eq!(give(&mut ours, 2, &alone.local()), [0, 1], "{policy}");
        assert_eq!(give(&mut ours, 3, &Request { cgpus: 1, ..alone }), [3], "{policy}");
        ours.place(&Request { cgpus: 1, ..alone }).unwrap_err();
        assert_eq!(
            give(&mut ours, 4, &shared(1, 7)),
            [2],
            "{policy}: GPUs given whole have no room"
        );
        ours.release(GrantKey(2)).unwrap();
        ours.place(&Request { locality: Locality::LocalTo(HostKey(0)), ..alone }).unwrap();
    }
}

#[test]
fn a_decision_falls_when_what_it_rests_on_changes() {
    let mut ours = cluster("first_fit");
    let (first, second) = (ours.place(&shared(1, 2)).unwrap(), ours.place(&shared(1, 2)).unwrap());
    ours.commit(GrantKey(1), first.clone()).unwrap();
    let error = ours.commit(GrantKey(2), second).unwrap_err();
    assert_eq!(error, CommitError::GpuChanged { gpu: GpuKey(0) });
    let again = ours.place(&shared(1, 2)).unwrap();
    let error = ours.commit(GrantKey(1), again.clone()).unwrap_err();
    assert_eq!(error, CommitError::Twice { grant: GrantKey(1) });
    ours.commit(GrantKey(2), again).unwrap();
    // The same grant after a release rests on a GPU that changed twice.
    ours.release(GrantKey(1)).unwrap();
    assert!(ours.commit(GrantKey(1), first).is_err());
    let out = ours.place(&shared(1, 2)).unwrap();
    ours.set_in_service(GpuKey(0), false).unwrap();
    assert_eq!(ours.commit(GrantKey(3), out), Err(CommitError::GpuChanged { gpu: GpuKey(0) }));
    assert_eq!(give(&mut ours, 3, &shared(1, 2)), [1]);
}

#[test]
fn processors_of_a_host_bound_local_vms_and_have_a_generation() {
    let mut ours = cluster("first_fit");
    let vm = Request { cpu_milli: 60, host_memory: 1, ..shared(1, 1).local() };
    let stale = ours.place(&Request { cgpus: 0, ..vm }).unwrap();
    assert_eq!(give(&mut ours, 1, &vm), [0]);
    assert_eq!(ours.commit(GrantKey(2), stale), Err(CommitError::HostChanged { host: HostKey(0) }));
    assert_eq!(give(&mut ours, 2, &vm), [2]);
    ours.place(&Request { cgpus: 0, ..vm }).unwrap_err();
    assert_eq!(give(&mut ours, 3, &Request { cpu_milli: 40, ..vm }), [0]);
    ours.release(GrantKey(2)).unwrap();
    assert_eq!(ours.hosts()[1].cpu_milli_free(), 100);
}

#[test]
fn several_requests_are_placed_together_or_not_at_all() {
    let mut ours = cluster("best_fit");
    let half = shared(4, 4);
    let decided = ours.place_all(&[half, half]).unwrap();
    assert!(ours.place_all(&[half, half, shared(1, 1)]).unwrap_err().0 == 2);
    let grants = (1..).map(GrantKey);
    ours.commit_all(grants.zip(decided)).unwrap();
    ours.place(&shared(1, 1)).unwrap_err();
    assert_eq!(ours.grants().count(), 2);
    // Two of them on each GPU are one change of it.
    let mut ours = cluster("first_fit");
    let decided = ours.place_all(&[shared(1, 4); 8]).unwrap();
    ours.commit_all((1..).map(GrantKey).zip(decided)).unwrap();
    assert!(ours.gpus().iter().all(|gpu| (gpu.cgpus, gpu.generation) == (2, 1)));
}

#[test]
fn what_cannot_be_meant_is_refused_with_a_reason() {
    let mut ours = cluster("first_fit");
    let mut refuse = |request| ours.place(&request).unwrap_err();
    assert_eq!(refuse(shared(0, 4)), PlaceError::Nothing);
    assert_eq!(refuse(shared(1, 0)), PlaceError::Memory);
    assert_eq!(refuse(shared(5_000, 1)), PlaceError::TooMany { asked: 5_000 });
    let nowhere = Request { locality: Locality::LocalTo(HostKey(7)), ..shared(1, 1) };
    assert_eq!(refuse(nowhere), PlaceError::UnknownHost { host: HostKey(7) });
    let other = Request { kinds: Kinds::one(3), ..shared(1, 1) };
    assert_eq!(refuse(other), PlaceError::NoRoom { asked: 1, found: 0, memory: 1 });
    assert_eq!(refuse(shared(9, 4)), PlaceError::NoRoom { asked: 9, found: 8, memory: 4 });
    assert!(by_name("random").unwrap_err().to_string().contains("least_load"));
    assert!(ours.add_host(0, 1, 1, &[0]).is_err() && ours.add_host(64, 1, 1, &[1]).is_err());
    assert!(ours.add_host(0, 1, 1, &[1; 17]).is_err() && ours.release(GrantKey(9)).is_err());
}

#[test]
fn what_could_never_be_had_is_told_from_what_finds_no_room() {
    let mut ours = cluster("first_fit");
    give(&mut ours, 1, &Request::new(4, 0, Mode::Exclusive));
    ours.set_in_service(GpuKey(0), false).unwrap();
    let alone = |cgpus| Request::new(cgpus, 8, Mode::Exclusive);
    let local = Request { cpu_milli: 100, ..shared(4, 4).local() };
    for request in [shared(1, 8), shared(8, 4), alone(4), alone(2).local(), local] {
        ours.place(&request).unwrap_err();
        assert!(ours.could_hold(&request), "{request:?}");
    }
    let other = Request { kinds: Kinds::one(3), ..shared(1, 1) };
    let nowhere = Request { locality: Locality::LocalTo(HostKey(7)), ..shared(1, 1) };
    let busy = Request { cpu_milli: 101, ..local };
    for request in [shared(1, 9), shared(9, 4), alone(5), alone(3).local(), other, nowhere, busy] {
        assert!(!ours.could_hold(&request), "{request:?}");
    }
}

#[test]
fn a_mix_is_made_again_and_again() {
    let mut seen = Observed::default();
    let made: Vec<u32> = (1..=200).filter(|_| seen.learn(&shared(1, 1)).is_some()).collect();
    assert_eq!(made, [64, 128, 192]);
}

#[test]
fn old_requests_are_forgotten() {
    let mut seen = Observed::default();
    (0..60_000).for_each(|_| seen.record(&shared(1, 1)));
    assert_eq!(seen.mix(100).classes()[0].1, 1_000_000);
    (0..200_000).for_each(|_| seen.record(&shared(1, 2)));
    let mix = seen.mix(100);
    let of = |memory| mix.classes().iter().find(|(one, _)| one.memory == memory).unwrap().1;
    assert!(of(1) < 150_000 && of(2) > 850_000, "{:?}", mix.classes());
    assert_eq!(seen.mix(50).classes().len(), 1);
    // Requests that all differ do not fill memory.
    (0..10_000).for_each(|memory| seen.record(&shared(1, memory)));
    assert!(seen.mix(100).classes().len() <= super::CLASSES_MAX);
}
