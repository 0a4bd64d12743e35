use std::net::IpAddr;

use weft_api::node::{Elsewhere, Place};
use weft_sched::{TenantState, VgpuKey};

use super::*;
use crate::daemon::persist::Schedule;
use crate::daemon::process::WorkerProcess;
use crate::daemon::registry::name_of_user;
use crate::daemon::roles::{Caller, Role};
use crate::daemon::tests::{ALICE, BOB, FIRST_SUB_UID, Fixture};

const ROOT: Caller = Caller { uid: 0, payer: 0, role: Role::Administrator };

/// How many of Alice's sub-uids get a reservation, each on a vGPU of its own.
fn reservations_of_sub_uids(node: &Fixture) -> usize {
    (FIRST_SUB_UID..FIRST_SUB_UID + 64).filter(|uid| node.reservation(*uid, "").is_ok()).count()
}

#[test]
fn users_that_one_has_made_leave_half_of_the_sessions_and_vgpus_to_others() {
    for key in ["limits.sessions", "limits.vgpus"] {
        let node = Fixture::new(&[(key, "8"), ("limits.sessions_per_user", "8")]);
        assert_eq!(reservations_of_sub_uids(&node), 4, "{key}");
        let refused = node.reservation(ALICE, "").unwrap_err();
        assert_eq!(refused.code, RefusalCode::Exhausted);
        // A first one needs no more than a free place.
        node.reservation(BOB, "").unwrap();
    }
}

#[test]
fn users_that_one_has_made_have_the_limits_of_that_one_together() {
    let of_alice = format!("limits.users.{ALICE}.sessions");
    let node = Fixture::new(&[(&of_alice, "3")]);
    assert_eq!(reservations_of_sub_uids(&node), 3);
    let refused = node.reservation(FIRST_SUB_UID + 9, "").unwrap_err().to_string();
    for word in [format!("user {ALICE}"), format!("user {}", FIRST_SUB_UID + 9)] {
        assert!(refused.contains(&word), "no {word} in {refused}");
    }
    let of_alice = format!("limits.users.{ALICE}.vgpus");
    let node = Fixture::new(&[(&of_alice, "3")]);
    assert_eq!(reservations_of_sub_uids(&node), 3);
}

#[test]
fn host_memory_is_a_tenants_and_who_has_none_left_creates_nothing() {
    let node = Fixture::new(&[("limits.users.default.host_memory", "9MiB")]);
    assert_eq!(reservations_of_sub_uids(&node), 2);
    assert_eq!(node.daemon.tables().registry.iter().count(), 2);
    node.reservation(BOB, "").unwrap();
}

#[test]
fn device_memory_is_a_tenants() {
    let node = Fixture::new(&[("limits.users.default.memory_total", "1MiB")]);
    let (first, second) =
        (node.reservation(ALICE, "").unwrap(), node.reservation(FIRST_SUB_UID, "").unwrap());
    let mut tables = node.daemon.tables();
    let frames = (1 << 20) / weft_device::PAGE;
    tables.frames(first.device).take(first.key, frames, 1, false).unwrap();
    assert_eq!(tables.frames(second.device).take(second.key, 1, 1, false), Err(LedgerError::Quota));
}

/// Alice's tenant has a vGPU of 1, one of a sub-uid of 3, and one without a session; Bob's has one.
/// The result is the schedule at the end, with the keys of the three.
fn placed_under_a_cap(share: &str) -> (Schedule, [u32; 3]) {
    let of_alice = format!("limits.users.{ALICE}.cap");
    let node = Fixture::new(&[(&of_alice, "25%"), ("scheduling.share", share)]);
    let first = node.reservation(ALICE, "").unwrap();
    let second = node.reservation(ALICE, "another").unwrap();
    let third = node.reservation(FIRST_SUB_UID, "third").unwrap();
    node.ask(r#"{"op":"set","name":"third","weight":3}"#, ROOT);
    let bob = node.reservation(BOB, "").unwrap();
    node.daemon.cancel_reservation(&second);
    (node.end(), [&first, &third, &bob].map(|reservation| reservation.vgpu.key))
}

fn share_of(cap: Option<Cap>) -> Option<u32> {
    cap.map(|cap| cap.share_ppm)
}

/// Whatever its vGPUs are called, those of sub-uids included.
#[test]
fn a_users_cap_is_its_tenants() {
    let (schedule, vgpus) = placed_under_a_cap("user");
    let placed = vgpus.map(|key| {
        let vgpu = schedule.core.vgpus.iter().find(|state| state.vgpu == VgpuKey(key)).unwrap();
        let is_its = |state: &&TenantState| state.tenant == vgpu.tenant;
        let tenant = schedule.core.tenants.iter().find(is_its).unwrap();
        (share_of(vgpu.cap), share_of(tenant.cap))
    });
    assert_eq!(placed, [(None, Some(250_000)), (None, Some(250_000)), (None, None)]);
}

#[test]
fn where_every_vgpu_competes_for_itself_a_cap_is_divided_by_weight() {
    let (schedule, vgpus) = placed_under_a_cap("vgpu");
    let placed = vgpus.map(|key| {
        let vgpu = schedule.core.vgpus.iter().find(|state| state.vgpu == VgpuKey(key)).unwrap();
        share_of(vgpu.cap)
    });
    // One of the three is gone, and no other one was asked since.
    assert_eq!(placed, [Some(62_500), Some(187_500), None]);
    // Each answers with its tenant's others for what they overdrew.
    let owner = |key| schedule.core.vgpus.iter().find(|state| state.vgpu == VgpuKey(key))?.owner;
    assert_eq!(vgpus.map(owner), [Some(ALICE), Some(ALICE), Some(BOB)]);
}

#[test]
fn nobody_answers_for_what_an_administrator_made_for_others() {
    assert_eq!(debtor(ALICE), Some(ALICE));
    assert_eq!(debtor(0), None);
    assert_eq!(debtor(rustix::process::geteuid().as_raw()), None);
}

#[test]
fn a_removed_vgpus_tenant_is_not_that_of_the_next_one_with_its_key() {
    let node = Fixture::new(&[]);
    let reservation = node.reservation(FIRST_SUB_UID, "x").unwrap();
    let key = reservation.vgpu.key;
    assert_eq!(node.daemon.tenancy.settled(key), Some(ALICE));
    node.daemon.cancel_reservation(&reservation);
    node.ask(r#"{"op":"remove","name":"x"}"#, ROOT);
    let reservation = node.reservation(BOB, "y").unwrap();
    assert_eq!((reservation.vgpu.key, reservation.payer), (key, BOB));
    assert_eq!(node.daemon.tenancy.settled(key), Some(BOB));
}

#[test]
fn the_first_session_says_which_tenant_pays_and_the_core_bills_that_one() {
    let node = Fixture::new(&[]);
    let name = name_of_user(FIRST_SUB_UID);
    node.ask(&format!(r#"{{"op":"create","name":"{name}","owner":{FIRST_SUB_UID}}}"#), ROOT);
    node.ask(&format!(r#"{{"op":"set","name":"{name}","weight":3}}"#), ROOT);
    let key = node.daemon.tables().registry.find(&name).unwrap().key;
    assert_eq!(node.daemon.tenancy.settled(key), None, "nobody has used it");
    node.reservation(FIRST_SUB_UID, "").unwrap();
    assert_eq!(node.daemon.tenancy.settled(key), Some(ALICE));
    // The vGPU is no vGPU of Alice's, but of her tenant.
    node.ask(&format!(r#"{{"op":"set_tenant","uid":{ALICE},"weight":7}}"#), ROOT);
    let tenant = TenantKey(node.daemon.tables().registry.user(ALICE).key);
    let schedule = node.end();
    let vgpu = schedule.core.vgpus.iter().find(|state| state.vgpu == VgpuKey(key)).unwrap();
    assert_eq!((vgpu.tenant, vgpu.weight.get()), (tenant, 3));
    let tenant = schedule.core.tenants.iter().find(|state| state.tenant == tenant).unwrap();
    assert_eq!(tenant.weight.get(), 7);
}

/// All of another host's programs come through one process, the gateway.
#[test]
fn the_gateways_control_group_does_not_say_who_pays_for_another_hosts_program() {
    // This process, which stands for whoever relays, is in a group of Bob's.
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let mut groups = groups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let group = groups.find(|path| path.len() > 1 && !path.contains(','));
    let rule = format!("cgroup:{}", group.unwrap_or("/nobodys"));
    let node = Fixture::new(&[(&format!("scheduling.tenants.{BOB}"), &rule)]);
    let reserve = |name, place, address: Option<IpAddr>| {
        let elsewhere = Elsewhere { place, address, claimed_pid: 0 };
        let relay = peer::Credentials { pid: Some(std::process::id()), uid: ALICE, gid: ALICE };
        let hello = weft_wire::handshake::HelloBody::question(name);
        node.daemon.reserve_session(&hello, &relay, Some(elsewhere)).unwrap().payer
    };
    let gateways = Some(IpAddr::from([10, 0, 0, 7]));
    assert_eq!(reserve("far", Place::Host, gateways), ALICE);
    // Where groups have a namespace of their own this one is their root, and no rule names that.
    let own = if group.is_some() { BOB } else { ALICE };
    assert_eq!(reserve("shown", Place::Host, None), own, "it has shown a grant itself");
    assert_eq!(reserve("guest", Place::Machine, None), own, "its server is the machine's own");
}

#[test]
fn who_has_given_host_memory_back_is_measured_before_its_tenant_is_refused() {
    let node = Fixture::new(&[("limits.users.default.host_memory", "13MiB")]);
    let reservation = node.reservation(ALICE, "").unwrap();
    let mut process = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    {
        let mut tables = node.daemon.tables();
        let worker = WorkerProcess::new(Process::open(process.id()).unwrap(), process.id());
        tables.sessions.get_mut(&reservation.key).unwrap().worker = Some(Arc::new(worker));
        // What it took when it asked last; it has gone idle since.
        tables.host.measure(reservation.key, 12 << 20);
    }
    node.reservation(FIRST_SUB_UID, "").unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
}

/// A worker has touched device memory, pinned memory and what is its own.
#[test]
fn what_lies_in_a_machines_region_is_not_its_sessions_too() {
    let resident = Resident { all_bytes: 100 << 20, shared_bytes: 90 << 20 };
    let device_bytes = 30 << 20;
    assert_eq!(counted_bytes(resident, false, device_bytes), 70 << 20);
    assert_eq!(counted_bytes(resident, true, device_bytes), 10 << 20);
}
