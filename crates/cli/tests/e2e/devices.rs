//! A node with several devices: who lives where, what each is shared by, and what a restart keeps.

use rustix::process::{Pid, Signal, kill_process};

use crate::hierarchy::{control, expect_shares, worker};
use crate::support::{Node, driver, eventually, finish, program, root, success, text_of, weft};

/// A setting for so many paced devices.
fn paced(count: usize) -> String {
    let model = root().join("crates/cli/models/paced.toml");
    format!("device={}", vec![format!("soft:paced:{}", model.display()); count].join(","))
}

/// A node with two paced devices.
fn two(settings: &[&str]) -> Node {
    let device = paced(2);
    let mut all = vec![device.as_str()];
    all.extend_from_slice(settings);
    Node::paced(&all)
}

/// The devices that these vGPUs live on.
fn homes(node: &Node, vgpus: &[&str]) -> Vec<String> {
    let all = node.admin().list().unwrap();
    let home = |name: &&str| all.iter().find(|vgpu| vgpu.name == **name).unwrap().device.clone();
    vgpus.iter().map(home).collect()
}

#[test]
fn each_device_is_divided_by_its_own_vgpus() {
    let node = two(&[]);
    let mut tenants = vec![worker(&node, "a", "1"), worker(&node, "b", "1")];
    assert_eq!(homes(&node, &["a", "b"]), ["gpu0", "gpu1"], "where there is room");
    success(control(&node, &["create", "c", "--device", "gpu1", "--weight", "3"]));
    tenants.push(worker(&node, "c", "3"));
    expect_shares(&node, &[("a", 1.0), ("b", 0.25), ("c", 0.75)]);
    // Both are busy at once: more is charged than time passes.
    let before = node.admin().stats().unwrap();
    eventually("the devices to work side by side", || {
        let after = node.admin().stats().unwrap();
        let busy_ns = after.closure.busy_ns - before.closure.busy_ns;
        let passed_ns = after.now_ns - before.now_ns;
        passed_ns > 200_000_000 && busy_ns * 10 > passed_ns * 15
    });
    let list = success(control(&node, &["ls", "--devices"]));
    for word in ["gpu0", "gpu1", "paced", "fair"] {
        assert!(list.contains(word), "no {word} in {list}");
    }
    let metrics = success(control(&node, &["metrics"]));
    assert!(metrics.contains("weft_device_busy_seconds_total{device=\"gpu1\"}"), "{metrics}");
    for tenant in &mut tenants {
        tenant.kill();
    }
}

#[test]
fn a_device_has_its_own_policy_and_quantum() {
    let node = two(&["device.1.policy=round_robin", "device.1.quantum_us=2000"]);
    let policies = || {
        let devices = node.admin().node().unwrap().devices;
        devices.into_iter().map(|device| device.policy).collect::<Vec<_>>()
    };
    assert_eq!(policies(), ["fair", "round_robin"]);
    success(control(&node, &["policy", "unmanaged", "--device", "gpu0"]));
    assert_eq!(policies(), ["unmanaged", "round_robin"]);
    success(control(&node, &["policy", "fair"]));
    assert_eq!(policies(), ["fair", "fair"]);
    for arguments in
        [&["policy", "fair", "--device", "gpu7"][..], &["create", "x", "--device", "gpu7"]]
    {
        let output = finish(control(&node, arguments));
        let text = text_of(&output);
        assert!(!output.status.success() && text.contains("gpu0, gpu1"), "{arguments:?}: {text}");
    }
    success(control(&node, &["create", "slow", "--device", "gpu1"]));
    let mut tenants = [worker(&node, "slow", "1"), worker(&node, "other", "1")];
    success(control(&node, &["create", "third", "--device", "gpu1"]));
    let mut third = worker(&node, "third", "1");
    // Turns on the second device are a third as long. The lone tenant had one without an end.
    let median_us = |device: &str| {
        let turns = node.admin().timeline(0).unwrap().turns;
        let used = turns.iter().filter(|turn| turn.device == device && turn.end_ns.is_some());
        let mut used: Vec<u64> = used.map(|turn| turn.used_ns / 1000).collect();
        used.sort_unstable();
        (used.get(used.len() / 2).copied(), used.len())
    };
    eventually("turns on the second device", || median_us("gpu1").1 > 50);
    let median = median_us("gpu1").0.unwrap();
    assert!((1_000..3_500).contains(&median), "a turn of {median} µs");
    third.kill();
    for tenant in &mut tenants {
        tenant.kill();
    }
}

#[test]
fn a_restarted_daemon_adopts_the_sessions_of_each_device() {
    let mut node = two(&[]);
    let mut tenants = [worker(&node, "a", "1"), worker(&node, "b", "1"), worker(&node, "c", "1")];
    let before = homes(&node, &["a", "b", "c"]);
    assert_eq!(before, ["gpu0", "gpu1", "gpu0"]);
    node.kill();
    node.launch();
    assert_eq!(homes(&node, &["a", "b", "c"]), before);
    assert_eq!(node.admin().node().unwrap().adopted_sessions, 3);
    expect_shares(&node, &[("a", 0.5), ("b", 1.0), ("c", 0.5)]);
    for tenant in &mut tenants {
        tenant.kill();
    }
    node.wait_until_empty();
    for device in node.admin().stats().unwrap().devices {
        assert_eq!(device.memory_used_bytes, 0, "{device:?}");
    }
}

#[test]
fn a_vgpu_whose_device_is_gone_says_so() {
    let mut node = two(&[]);
    success(control(&node, &["create", "there", "--device", "gpu1"]));
    success(node.run(&["--name", "there"], &program("vector_add"), &[]));
    node.kill();
    node.configure(&["device=soft"]);
    node.launch();
    let output = finish(node.run(&["--name", "there"], &program("vector_add"), &[]));
    let text = text_of(&output);
    for word in ["`there`", "`gpu1`", "weft rm there"] {
        assert!(!output.status.success() && text.contains(word), "no {word} in {text}");
    }
    // It can be removed, and is listed until then.
    assert_eq!(homes(&node, &["there"]), ["gpu1"]);
    success(control(&node, &["rm", "there"]));
    success(node.run(&["--name", "there"], &program("vector_add"), &[]));
    assert_eq!(homes(&node, &["there"]), ["gpu0"]);
}

/// One bad device does not keep a node from starting with the others.
#[test]
fn a_node_starts_without_a_device_that_is_not_usable() {
    let mut node = Node::start(&["device=soft,soft"]);
    success(control(&node, &["create", "there", "--device", "gpu1"]));
    node.kill();
    // The test's driver has one device.
    node.configure(&["device=soft,cuda:5"]);
    node.launch();
    let shown = success(control(&node, &["ls", "--devices"]));
    let bad = shown.lines().find(|line| line.starts_with("gpu1")).unwrap();
    assert!(bad.contains("failed") && bad.contains("cuda"), "{shown}");
    success(node.run(&["--name", "here"], &program("vector_add"), &[]));
    assert_eq!(homes(&node, &["here"]), ["gpu0"]);
    let attempts = [
        node.run(&["--name", "there"], &program("vector_add"), &[]),
        control(&node, &["device", "up", "gpu1"]),
    ];
    for attempt in attempts {
        let output = finish(attempt);
        let text = text_of(&output);
        assert!(!output.status.success() && text.contains("when the node started"), "{text}");
    }
    node.kill();
    // Without any it says so and ends.
    let mut alone = weft();
    alone.args(["node", "--device", "cuda:5", "--runtime-dir"]).arg(node.path());
    let output = finish(alone);
    assert!(!output.status.success() && text_of(&output).contains("weft doctor"));
}

#[test]
fn devices_come_and_go_and_those_with_sessions_stay_what_they_are() {
    let mut node = two(&["device.0.name=a", "device.1.name=b"]);
    for (vgpu, device) in [("on-a", "a"), ("on-b", "b")] {
        success(control(&node, &["create", vgpu, "--device", device]));
        success(node.run(&["--name", vgpu], &program("vector_add"), &[]));
    }
    let mut tenant = worker(&node, "on-b", "1");
    node.kill();
    let three = paced(3);
    let names = ["device.0.name=c", "device.1.name=b", "device.2.name=a"];
    node.configure(&[three.as_str(), "scheduling.share=vgpu", names[0], names[1], names[2]]);
    node.launch();
    assert_eq!(node.admin().node().unwrap().adopted_sessions, 1);
    success(control(&node, &["create", "on-c", "--device", "c"]));
    for vgpu in ["on-a", "on-c"] {
        success(node.run(&["--name", vgpu], &program("vector_add"), &[]));
    }
    expect_shares(&node, &[("on-b", 1.0)]);
    let stats = node.admin().stats().unwrap();
    let busy =
        |name: &str| stats.devices.iter().find(|device| device.name == name).unwrap().busy_ns;
    assert!(busy("b") > 100 * busy("a").max(busy("c")), "{:?}", stats.devices);
    // Of a device without sessions nothing is counted that an earlier daemon charged.
    let unlike_ns = stats.closure.charged_ns.abs_diff(stats.closure.busy_ns);
    assert!(unlike_ns * 20 < stats.closure.busy_ns, "{:?}", stats.closure);
    // A worker on a device of another kind is not one on this device.
    node.kill();
    node.configure(&["device=soft", "device.name=b"]);
    node.launch();
    assert_eq!(node.admin().node().unwrap().adopted_sessions, 0);
    tenant.kill();
}

#[test]
fn a_program_sees_its_vgpus_as_devices() {
    let node = two(&[]);
    let run = |names: &str, arguments: &[&str]| {
        finish(node.run(&["--name", names], &program("devices"), arguments))
    };
    let outcome = run("a,b", &["2"]);
    assert!(text_of(&outcome).contains("2 devices"), "{outcome:?}");
    assert_eq!(homes(&node, &["a", "b"]), ["gpu0", "gpu1"], "each where there is room");
    // Two vGPUs of one device are two devices too.
    let outcome = run("c,b,a", &["3"]);
    assert!(text_of(&outcome).contains("3 devices"), "{outcome:?}");
    let outcome = run("a", &["1"]);
    assert!(text_of(&outcome).contains("1 devices"), "{outcome:?}");
    let wrong = run("a,a", &["2"]);
    assert!(text_of(&wrong).contains("`a` twice"), "{wrong:?}");
}

/// Software on the real clock, paced software and a driver's device beside each other: each serves
/// its own vGPUs, and a program sees them as its devices in the order in which it names them.
#[test]
fn devices_of_every_kind_serve_one_node() {
    let node = Node::mixed();
    let vgpus = ["real", "paced", "driver"];
    for (vgpu, device) in vgpus.into_iter().zip(["gpu0", "gpu1", "gpu2"]) {
        success(control(&node, &["create", vgpu, "--device", device]));
        let text = success(node.run(&["--name", vgpu], &program("vector_add"), &[]));
        assert!(text.contains("PASSED"), "{vgpu}: {text}");
    }
    assert_eq!(homes(&node, &vgpus), ["gpu0", "gpu1", "gpu2"]);
    let devices = node.admin().stats().unwrap().devices;
    let kinds: Vec<_> =
        devices.iter().map(|device| (device.backend.as_str(), device.clock.as_str())).collect();
    assert_eq!(kinds, [("soft", "real"), ("soft", "paced"), ("cuda", "device")]);
    assert!(devices.iter().all(|device| device.busy_ns > 0), "{devices:?}");
    let list = success(control(&node, &["ls", "--devices"]));
    for (name, kind) in [("gpu0", "real"), ("gpu1", "paced"), ("gpu2", "cuda")] {
        let row = list.lines().find(|row| row.contains(name)).unwrap_or_default();
        assert!(row.contains(kind), "no {name} of {kind} in {list}");
    }
    // The driver is the first device: this one has no virtual memory management, so it chooses the
    // addresses itself, and chooses those that a software device before it would have.
    for names in ["driver,real,paced", "driver,paced,real"] {
        for arguments in [&["3"][..], &["3", "fault"]] {
            let outcome = finish(node.run(&["--name", names], &program("devices"), arguments));
            let text = text_of(&outcome);
            let all = outcome.status.success() && text.contains("3 devices");
            assert!(all, "{names} {arguments:?}: {text}");
        }
    }
}

/// Its driver's file is gone, and a worker is killed: the node looks at the device, ends and tells
/// who is on it, and nobody else notices. What becomes of a node's only device is in `genuine.rs`.
#[test]
fn a_device_that_fails_leaves_the_others_alone() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libcuda.so");
    let beside = "libweft_direct.so";
    std::fs::copy(driver(), &library).unwrap();
    std::fs::copy(driver().with_file_name(beside), library.with_file_name(beside)).unwrap();
    let node = Node::beside_library(&library);
    for (vgpu, device) in [("on-soft", "gpu0"), ("on-driver", "gpu1"), ("killed", "gpu1")] {
        success(control(&node, &["create", vgpu, "--device", device]));
    }
    let mut well = worker(&node, "on-soft", "1");
    let before = node.workers();
    let mut victim = worker(&node, "killed", "1");
    let of_victim = node.workers().into_iter().find(|pid| !before.contains(pid)).unwrap();
    let told = {
        let command = node.run(&["--name", "on-driver"], &program("share"), &["step_285us", "60"]);
        std::thread::spawn(move || finish(command))
    };
    let used_ns = |name: &str| {
        let all = node.admin().list().unwrap();
        all.iter().find(|vgpu| vgpu.name == name).unwrap().used_ns
    };
    for name in ["on-soft", "on-driver", "killed"] {
        eventually("all programs to run", || used_ns(name) > 0);
    }
    let device = || node.admin().stats().unwrap().devices.remove(1);
    assert!(device().in_service, "nothing has failed yet");
    let away = folder.path().join("away.so");
    std::fs::rename(&library, &away).unwrap();
    kill_process(Pid::from_raw(of_victim.cast_signed()).unwrap(), Signal::KILL).unwrap();
    eventually("the device to be found failing", || device().failure.is_some());
    assert!(!victim.wait().success());
    let output = told.join().unwrap();
    let text = text_of(&output);
    assert!(!output.status.success() && text.contains("this program's vGPU failed"), "{text}");
    let list = success(control(&node, &["ls", "--devices"]));
    let state = |name: &str| list.lines().find(|line| line.starts_with(name)).unwrap();
    assert!(state("gpu1").contains("failed") && !state("gpu0").contains("failed"), "{list}");
    // Whoever is on the other device goes on, and others come there.
    let before = used_ns("on-soft");
    eventually("the other device to go on", || used_ns("on-soft") > before);
    success(node.run(&["--name", "new"], &program("vector_add"), &[]));
    assert_eq!(homes(&node, &["on-soft", "on-driver", "new"]), ["gpu0", "gpu1", "gpu0"]);
    std::fs::rename(&away, &library).unwrap();
    eventually("the device to be back", || device().in_service);
    success(node.run(&["--name", "on-driver"], &program("vector_add"), &[]));
    well.kill();
}

#[test]
fn a_fault_on_one_device_leaves_the_others_of_a_program() {
    let node = two(&[]);
    let outcome = finish(node.run(&["--name", "a,b"], &program("devices"), &["2", "fault"]));
    assert!(text_of(&outcome).contains("2 devices"), "{outcome:?}");
}

#[test]
fn a_vgpu_is_created_on_a_pool() {
    let device = paced(3);
    let pools = ["device.1.pool=train", "device.2.pool=train"];
    let node = Node::paced(&[device.as_str(), pools[0], pools[1]]);
    for vgpu in ["a", "b"] {
        success(control(&node, &["create", vgpu, "--device", "train"]));
    }
    assert_eq!(homes(&node, &["a", "b"]), ["gpu1", "gpu2"]);
    let list = success(control(&node, &["ls", "--devices"]));
    assert!(list.contains("POOL") && list.contains("train"), "{list}");
    let pool = text_of(&finish(control(&node, &["device", "down", "train"])));
    assert!(pool.contains("is a pool") && pool.contains("gpu1, gpu2"), "{pool}");
    let refused = finish(control(&node, &["create", "c", "--device", "trian"]));
    let text = text_of(&refused);
    assert!(text.contains("trian") && text.contains("gpu0, gpu1, gpu2, train"), "{text}");
}

#[test]
fn a_device_goes_out_of_service_and_its_vgpus_move() {
    let device = paced(2);
    let node = Node::paced(&[device.as_str()]);
    success(control(&node, &["create", "a", "--device", "gpu0"]));
    let mut tenant = worker(&node, "a", "1");
    // Its program goes along, and is ended only where there is nowhere to go.
    success(control(&node, &["device", "down", "gpu0"]));
    assert_eq!(homes(&node, &["a"]), ["gpu1"]);
    expect_shares(&node, &[("a", 1.0)]);
    let refused = text_of(&finish(control(&node, &["device", "down", "gpu1"])));
    assert!(refused.contains("vGPU `a`") && refused.contains("--force"), "{refused}");
    expect_shares(&node, &[("a", 1.0)]);
    success(control(&node, &["device", "up", "gpu0"]));
    success(control(&node, &["move", "a", "gpu0"]));
    success(control(&node, &["device", "down", "gpu1"]));
    success(control(&node, &["device", "down", "gpu0", "--force"]));
    let ended = tenant.wait();
    assert!(!ended.success(), "{ended}");
    success(control(&node, &["device", "up", "gpu1"]));
    let list = success(control(&node, &["ls", "--devices"]));
    assert!(list.contains("down"), "{list}");
    let used_ns = || node.admin().list().unwrap()[0].used_ns;
    let before = used_ns();
    assert!(before > 0, "what was used is kept");
    // Its next program runs there, as if nothing had been.
    success(node.run(&["--name", "a"], &program("vector_add"), &[]));
    assert!(used_ns() > before);
    let nowhere = text_of(&finish(control(&node, &["create", "b", "--device", "gpu0"])));
    assert!(nowhere.contains("weft device up gpu0"), "{nowhere}");
    success(control(&node, &["device", "down", "gpu1"]));
    let stuck = finish(node.run(&["--name", "a"], &program("vector_add"), &[]));
    assert!(text_of(&stuck).contains("weft device up gpu1"), "{stuck:?}");
    success(control(&node, &["device", "up", "gpu0"]));
    success(node.run(&["--name", "a"], &program("vector_add"), &[]));
    assert_eq!(homes(&node, &["a"]), ["gpu0"]);
    success(control(&node, &["device", "down", "gpu0"]));
    let none = text_of(&finish(control(&node, &["create", "c"])));
    assert!(none.contains("no device of this node is in service"), "{none}");
    let metrics = success(control(&node, &["metrics"]));
    assert!(metrics.contains("weft_device_in_service{device=\"gpu1\"} 0"), "{metrics}");
}
