//! What a VM is made of: the control plane's own, or what was asked for and the project may have.

use serde_json::json;
use weft_api::v1::{InstanceState, Kind, NewInstance};
use weft_control::provision::{Provisioner, VmSpec};
use weft_control::store::Machine;

use super::fake::{FakeCloud, Mishap, OTHER, TENANT};
use super::{Plane, vm, vms};
use crate::support::{quota, shared};

/// Nothing for what is not said.
fn machine(image: &str, flavor: &str, network: &str) -> Machine {
    let said = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Machine { image: said(image), flavor: said(flavor), network: said(network) }
}

#[test]
fn a_server_is_made_of_what_was_asked_for() {
    let cloud = FakeCloud::start();
    let vms = vms(&cloud);
    let asked = VmSpec { machine: machine("image2", "m2", "net2"), ..vm("i1") };
    vms.create(&asked).unwrap();
    let server = cloud.lock().servers[0].clone();
    assert_eq!((&server["imageRef"], &server["flavorRef"]), (&json!("image2"), &json!("f3")));
    assert_eq!(server["metadata"]["weft_network"], "net2");
    // Its port is on that network, and not on the control plane's.
    let (_, port) = vms.port("i1").unwrap().unwrap();
    assert_eq!(port.ip, "10.0.0.5");
    // With local cGPUs the flavor is the one that Nova counts them by.
    let local = VmSpec { host: Some("compute1".to_owned()), ..asked };
    vms.create(&VmSpec { id: "i2".to_owned(), ..local }).unwrap();
    assert_eq!(cloud.lock().servers[1]["flavorRef"], "f4");
}

#[test]
fn a_project_may_have_its_own_and_what_is_everybodys() {
    let cloud = FakeCloud::start();
    let vms = vms(&cloud);
    let offers = |project: &str, machine: &Machine| vms.offers(project, machine, None);
    for fine in [
        machine("image1", "m1", "net1"),
        machine("image2", "", ""),
        machine("image3", "", ""),
        machine("image6", "", ""),
        machine("", "m2", ""),
        machine("", "", "net2"),
        machine("", "", "net4"),
    ] {
        offers(TENANT, &fine).unwrap();
    }
    for (project, refused, words) in [
        (TENANT, machine("image4", "", ""), "no image image4 that"),
        (OTHER, machine("image2", "", ""), "no image image2 that"),
        (TENANT, machine("image5", "", ""), "is queued, not active"),
        (TENANT, machine("image7", "", ""), "no image image7 that"),
        (TENANT, machine("image9", "", ""), "no image image9 that"),
        // It may, but Nova would fetch what the image names in an administrator's name.
        (OTHER, machine("image3", "", ""), "it is an administrator"),
        (TENANT, machine("", "m2.cgpu4", ""), "`m2.cgpu4` is of local cGPUs"),
        (TENANT, machine("", "m3", ""), "no flavor `m3`"),
        (TENANT, machine("", "", "net3"), "no network net3 that"),
        (TENANT, machine("", "", "net5"), "no network net5 that"),
        (OTHER, machine("", "", "net4"), "no network net4 that"),
        (TENANT, machine("", "", "net9"), "no network net9 that"),
    ] {
        let offered = offers(project, &refused);
        let failure = offered.expect_err(words);
        assert!(failure.is_permanent && failure.words.contains(words), "{refused:?}: {failure}");
        // Nor is it made if somebody wrote it into the store.
        let asked = VmSpec { machine: refused, project: project.to_owned(), ..vm("i1") };
        assert!(vms.create(&asked).unwrap_err().is_permanent);
    }
    let three = vms.offers(TENANT, &machine("", "m2", ""), Some(3)).unwrap_err();
    assert!(three.words.contains("`m2.cgpu3`"), "{three}");
    let nobody = offers(&"4".repeat(32), &machine("", "", "net2")).unwrap_err();
    assert!(nobody.is_permanent && nobody.words.contains("no role in project"), "{nobody}");
    assert!(cloud.lock().servers.is_empty());
}

#[test]
fn what_cannot_be_had_takes_nothing() {
    let plane = Plane::new();
    let asked = |image: &str, network: &str| {
        let Machine { image, network, .. } = machine(image, "", network);
        NewInstance { image, network, ..shared(2, 1024) }
    };
    let refused = plane.ask(&asked("image4", "")).unwrap_err();
    assert_eq!(refused.kind, Kind::Invalid, "{refused}");
    let nonsense = plane.ask(&asked("image4/../image2", "")).unwrap_err();
    assert!(nonsense.detail.contains("is no id"), "{nonsense}");
    plane.cloud.fail("GET /networks", Mishap::Down, 6);
    let away = plane.ask(&asked("", "net2")).unwrap_err();
    assert_eq!(away.kind, Kind::Busy, "{away}");
    assert!(!away.detail.contains("http"), "where the cloud's services are: {away}");
    // Nobody is asked for a project that has no quota for it.
    let before = plane.cloud.asked("GET /networks");
    let most = |memory_mib| quota(1 << 40, memory_mib, 1 << 40).into();
    plane.inside.store.put_project(TENANT, most(1), None).unwrap();
    assert_eq!(plane.ask(&asked("", "net2")).unwrap_err().kind, Kind::Quota);
    assert_eq!(plane.cloud.asked("GET /networks"), before);
    plane.inside.store.put_project(TENANT, most(1 << 40), None).unwrap();
    plane.assert_empty();
    plane.cloud.fail("GET /networks", Mishap::Down, 0);
    let id = plane.begin_with(&asked("image2", "net2"));
    plane.wait(&id, InstanceState::Ready);
    assert_eq!(plane.row(&id).spec.machine, machine("image2", "", "net2"));
    assert_eq!(plane.cloud.lock().servers[0]["imageRef"], "image2");
    plane.delete(&id);
    plane.wait(&id, InstanceState::Terminated);
    plane.assert_empty();
}
