//! Sessions that go from device to device while their programs run, and lose nothing on the way.

use weft_node::admin::Stats;

use crate::hierarchy::{control, expect_shares, worker};
use crate::support::{Conversation, Node, eventually, finish, program, root, success, text_of};

/// A node with two software devices.
fn two(settings: &[&str]) -> Node {
    let mut all = vec!["device=soft,soft"];
    all.extend_from_slice(settings);
    Node::start(&all)
}

/// A node with a pool of two paced devices.
fn paced_pool(setting: &str) -> Node {
    let model = root().join("crates/cli/models/paced.toml");
    let device = format!("device={}", vec![format!("soft:paced:{}", model.display()); 2].join(","));
    Node::paced(&[device.as_str(), "device.0.pool=p", "device.1.pool=p", setting])
}

/// A program with so many MiB that goes on changing them until it is told to end.
fn resident(node: &Node, vgpu: &str, mebibytes: u32) -> Conversation {
    let mut command = node.run(&["--name", vgpu], &program("resident"), &[&mebibytes.to_string()]);
    command.stderr(std::process::Stdio::inherit());
    let program = Conversation::start(command);
    assert!(program.line().contains("copy_ms"));
    program
}

/// Ends it; its own verdict.
fn verdict(program: &mut Conversation) -> serde_json::Value {
    program.say("end");
    let line = program.line();
    let status = program.wait();
    let said: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert!(status.success() && said["verified"] == true, "{status}: {line}");
    said
}

fn home(node: &Node, vgpu: &str) -> String {
    let all = node.admin().list().unwrap();
    all.iter().find(|one| one.name == vgpu).unwrap().device.clone()
}

fn memory_of(stats: &Stats, device: &str) -> u64 {
    stats.devices.iter().find(|one| one.name == device).unwrap().memory_used_bytes
}

/// The other one of two.
fn other(device: &str) -> &'static str {
    if device == "gpu0" { "gpu1" } else { "gpu0" }
}

#[test]
fn a_program_is_moved_a_hundred_times_and_nothing_of_it_is_lost() {
    let node = two(&[]);
    let mut program = resident(&node, "a", 16);
    let mut admin = node.admin();
    for turn in 0..100 {
        let (from, to) = (home(&node, "a"), other(&home(&node, "a")));
        let report = admin.move_vgpu("a", to).unwrap();
        assert_eq!((report.from.as_str(), report.to.as_str(), report.sessions), (&*from, to, 1));
        assert!(report.bytes >= 16 << 20, "{report:?}");
        if turn % 10 == 0 {
            let stats = admin.stats().unwrap();
            assert_eq!(memory_of(&stats, &from), 0, "what it left is free again");
            assert!(memory_of(&stats, to) >= 16 << 20);
        }
    }
    let said = verdict(&mut program);
    assert!(said["rounds"].as_u64().unwrap() >= 100, "it worked meanwhile: {said}");
    node.wait_until_empty();
    for device in node.admin().stats().unwrap().devices {
        assert_eq!(device.memory_used_bytes, 0, "{device:?}");
    }
}

#[test]
fn shares_are_those_of_the_device_that_it_went_to() {
    let node = paced_pool("pool.p.balance_s=0");
    let mut tenants = [worker(&node, "a", "1"), worker(&node, "b", "3")];
    assert_eq!([home(&node, "a"), home(&node, "b")], ["gpu0", "gpu1"]);
    let text = success(control(&node, &["move", "a", "p"]));
    assert!(text.contains("from gpu0 to gpu1") && text.contains("stood still"), "{text}");
    expect_shares(&node, &[("a", 0.25), ("b", 0.75)]);
    success(control(&node, &["move", "b", "gpu0"]));
    expect_shares(&node, &[("a", 1.0), ("b", 1.0)]);
    // All that was used is charged, wherever it was.
    let closure = node.admin().stats().unwrap().closure;
    let unlike_ns = closure.charged_ns.abs_diff(closure.busy_ns);
    assert!(unlike_ns * 20 < closure.busy_ns, "{closure:?}");
    for tenant in &mut tenants {
        tenant.kill();
    }
}

#[test]
fn a_device_of_a_pool_that_idles_is_used_by_programs_that_run_already() {
    let node = paced_pool("pool.p.balance_s=1");
    for (vgpu, place) in [("pinned", "gpu0"), ("idle", "p"), ("a", "gpu0"), ("b", "gpu0")] {
        success(control(&node, &["create", vgpu, "--device", place]));
    }
    // As an administrator may let it go again.
    for vgpu in ["a", "b"] {
        success(control(&node, &["move", vgpu, "p"]));
        success(control(&node, &["move", vgpu, "p"]));
    }
    let names = ["pinned", "a", "b"];
    let mut tenants = names.map(|name| worker(&node, name, "1"));
    let spread = || {
        let mut homes = names.map(|name| home(&node, name));
        assert_eq!(homes[0], "gpu0", "it was put there by name");
        homes.sort_unstable();
        homes[2] == "gpu1"
    };
    eventually("one of the two that may go has gone to the idle device", spread);
    // Nobody has half a device any more that may have another one.
    for tenant in &mut tenants {
        tenant.kill();
    }
}

#[test]
fn sessions_of_a_vgpu_go_together_and_share_what_they_shared() {
    let node = two(&[]);
    let mut programs = [resident(&node, "a", 4), resident(&node, "a", 8), resident(&node, "b", 4)];
    for _ in 0..10 {
        let report = node.admin().move_vgpu("a", other(&home(&node, "a"))).unwrap();
        assert_eq!(report.sessions, 2);
    }
    for program in &mut programs {
        verdict(program);
    }
}

#[test]
fn programs_come_and_go_while_their_vgpu_is_moved() {
    let node = two(&[]);
    let mut program = resident(&node, "a", 64);
    std::thread::scope(|scope| {
        let moves = scope.spawn(|| {
            let mut admin = node.admin();
            let mut moved = 0;
            for _ in 0..20 {
                let to = other(&home(&node, "a"));
                admin.move_vgpu("a", to).unwrap();
                moved += 1;
            }
            moved
        });
        while !moves.is_finished() {
            success(node.run(&["--name", "a"], &crate::support::program("vector_add"), &[]));
        }
        assert_eq!(moves.join().unwrap(), 20);
    });
    verdict(&mut program);
}

#[test]
fn what_cannot_be_moved_stays_and_is_told_why() {
    let node = two(&["device.1.memory=16MiB", "defaults.memory=16MiB"]);
    success(control(&node, &["create", "large", "--device", "gpu0", "--memory", "64MiB"]));
    success(control(&node, &["create", "small", "--device", "gpu0"]));
    let mut program = resident(&node, "small", 4);
    let refused = |arguments: &[&str]| {
        let output = finish(control(&node, arguments));
        assert!(!output.status.success(), "{arguments:?}: {output:?}");
        text_of(&output)
    };
    assert!(refused(&["move", "large", "gpu1"]).contains("64MiB"));
    assert!(refused(&["move", "small", "gpu0"]).contains("already"));
    assert!(refused(&["move", "small", "gpu7"]).contains("gpu0, gpu1"));
    assert!(refused(&["move", "nobody", "gpu1"]).contains("nobody"));
    // Without programs it is a matter of the books.
    success(control(&node, &["create", "idle", "--device", "gpu0"]));
    let text = success(control(&node, &["move", "idle", "gpu1"]));
    assert!(text.contains("idle lives on gpu1"), "{text}");
    // A device without room for what a program has: it goes on where it is.
    let mut filler = resident(&node, "idle", 13);
    let full = refused(&["move", "small", "gpu1"]);
    assert!(full.contains("no room"), "{full}");
    assert_eq!(home(&node, "small"), "gpu0");
    verdict(&mut filler);
    // One that has more than its quota by now goes, too.
    success(control(&node, &["set", "small", "--memory", "1MiB"]));
    success(control(&node, &["move", "small", "gpu1"]));
    verdict(&mut program);
    success(control(&node, &["device", "down", "gpu1"]));
    assert!(refused(&["move", "small", "gpu1"]).contains("weft device up gpu1"));
}

#[test]
fn who_dies_on_the_way_leaves_nothing_behind() {
    let node = two(&[]);
    for round in 0..6 {
        let mut program = resident(&node, "a", 128);
        let worker = *node.workers().first().unwrap();
        let killed = if round % 2 == 0 { program.child.id() } else { worker };
        std::thread::scope(|scope| {
            let moving = scope.spawn(|| {
                let mut admin = node.admin();
                // Whether it came in time is a matter of luck.
                (0..4).filter(|_| admin.move_vgpu("a", other(&home(&node, "a"))).is_ok()).count()
            });
            if round > 1 {
                let before = home(&node, "a");
                eventually("a move", || home(&node, "a") != before || moving.is_finished());
            }
            let pid = rustix::process::Pid::from_raw(killed.cast_signed()).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            moving.join().unwrap();
        });
        program.wait();
        node.wait_until_empty();
        for device in node.admin().stats().unwrap().devices {
            assert_eq!(device.memory_used_bytes, 0, "{device:?}");
        }
    }
    success(node.run(&["--name", "a"], &program("vector_add"), &[]));
}

#[test]
fn a_daemon_that_dies_on_the_way_leaves_sessions_that_go_on() {
    let mut node = two(&[]);
    let mut programs = [resident(&node, "a", 96), resident(&node, "a", 48)];
    // Somewhere on the way: the moment is another each time.
    let began = std::time::Instant::now();
    node.admin().move_vgpu("a", other(&home(&node, "a"))).unwrap();
    let whole = began.elapsed();
    for round in 0..6_u32 {
        let to = other(&home(&node, "a"));
        let mut admin = node.admin();
        let moving = std::thread::spawn(move || admin.move_vgpu("a", to).is_ok());
        let began = std::time::Instant::now();
        let moment = whole * round / 5;
        eventually("the moment", || began.elapsed() >= moment);
        node.kill();
        moving.join().unwrap();
        node.launch();
        assert_eq!(node.admin().node().unwrap().adopted_sessions, 2);
        // Whichever way it was decided, both are on the same device and can be moved again.
        let mut admin = node.admin();
        eventually("both on one device", || {
            admin.move_vgpu("a", other(&home(&node, "a"))).is_ok_and(|report| report.sessions == 2)
        });
    }
    for program in &mut programs {
        verdict(program);
    }
    node.wait_until_empty();
    for device in node.admin().stats().unwrap().devices {
        assert_eq!(device.memory_used_bytes, 0, "{device:?}");
    }
}
