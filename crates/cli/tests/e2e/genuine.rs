//! The node on a driver's device (`device.kind = "cuda"`): one context per worker, its sandbox, the
//! ledger, turns by device timestamps, the end of an endless kernel.
//!
//! The driver is Weft's own shim over a software device; see [`Node::on_driver`]. What only an
//! NVIDIA driver can show, such as its needs of the sandbox, `cargo xtask gpu` shows where there is
//! one.

use crate::support::{
    Conversation, Node, driver, eventually, finish, program, python, root, success, text_of, weft,
};

#[test]
fn programs_run_through_the_driver() {
    let node = Node::on_driver(&[]);
    for (name, arguments) in [
        ("vector_add", &[][..]),
        ("matrix_mul", &["64"]),
        ("reduction", &["4096"]),
        ("histogram", &[]),
        ("pipeline", &[]),
    ] {
        let text = success(node.run(&[], &program(name), arguments));
        assert!(text.contains("PASSED"), "{name}: {text}");
    }
    let stats = node.admin().stats().unwrap();
    assert_eq!(
        (stats.devices[0].backend.as_str(), stats.devices[0].clock.as_str()),
        ("cuda", "device")
    );
    assert!(stats.devices[0].busy_ns > 0 && stats.devices[0].executions > 0, "{stats:?}");
    assert!(stats.closure.error() < 0.005, "{stats:?}");
}

/// A look from outside finds a device whose workers fail; it is out of service until a look finds
/// it well. Here its driver's file is gone for a time.
#[test]
fn a_device_that_fails_is_out_of_service_until_it_works_again() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libcuda.so");
    std::fs::copy(driver(), &library).unwrap();
    let direct = library.with_file_name("libweft_direct.so");
    std::fs::copy(driver().with_file_name("libweft_direct.so"), direct).unwrap();
    let node = Node::on_library(&library, &[]);
    let share = ["step_285us", "60", "--window", "0.2"];
    let mut running = Conversation::start(node.run(&["--name", "a"], &program("share"), &share));
    running.line();
    let away = folder.path().join("away.so");
    std::fs::rename(&library, &away).unwrap();
    let failed = finish(node.run(&["--name", "b"], &program("vector_add"), &[]));
    assert!(!failed.status.success(), "{}", text_of(&failed));
    let device = || node.admin().stats().unwrap().devices.remove(0);
    eventually("the device to be found failing", || device().failure.is_some());
    assert!(!device().in_service);
    assert!(!running.wait().success(), "who ran on it is ended");
    let refused = text_of(&finish(node.run(&["--name", "b"], &program("vector_add"), &[])));
    assert!(refused.contains("`gpu0`") && refused.contains("failed"), "{refused}");
    let shown = |arguments: &[&str]| {
        let mut command = weft();
        success({
            command.arg("--runtime-dir").arg(node.path()).args(arguments);
            command
        })
    };
    assert!(shown(&["ls", "--devices"]).contains("failed"));
    assert!(shown(&["metrics"]).contains("weft_device_failed{device=\"gpu0\"} 1"));
    std::fs::rename(&away, &library).unwrap();
    eventually("the device to be back", || device().in_service);
    success(node.run(&["--name", "b"], &program("vector_add"), &[]));
}

#[test]
fn tinygrad_agrees_with_numpy_through_the_driver() {
    let node = Node::on_driver(&[]);
    let script = root().join("tests/programs/tinygrad_ops.py");
    let mut command = node.run(&[], &python(), &[script.to_str().unwrap(), "--few"]);
    command.env("DEV", "CUDA:PTX").env("CACHELEVEL", "0");
    let text = success(command);
    assert!(text.contains("all operations agree"), "{text}");
}

#[test]
fn tenants_share_a_driver_by_weight() {
    let node = Node::on_driver(&[]);
    let mut tenants: Vec<_> = [("one", "1"), ("three", "3")]
        .iter()
        .map(|(name, weight)| {
            Conversation::start(node.run(
                &["--name", name, "--weight", weight],
                &program("share"),
                &["step_285us", "5", "--window", "0.5"],
            ))
        })
        .collect();
    let counts: Vec<Vec<u64>> = tenants
        .iter_mut()
        .map(|tenant| {
            (0..9)
                .map_while(|_| {
                    let line: serde_json::Value = serde_json::from_str(&tenant.line()).unwrap();
                    line["window"].as_u64()
                })
                .collect()
        })
        .collect();
    for tenant in &mut tenants {
        assert!(tenant.wait().success(), "a tenant's result is wrong: {}", node.log());
    }
    // The first windows may have begun before the other tenant was there.
    let sum = |windows: &[u64]| windows[2..].iter().sum::<u64>();
    let (one, three) = (sum(&counts[0]), sum(&counts[1]));
    assert!(one > 0 && (2 * one..=4 * one).contains(&three), "1 to 3 became {one} to {three}");
}

/// A driver switches between the contexts of several workers by itself: the time of work that
/// overlaps would be paid twice.
#[test]
fn nobody_starts_on_a_driver_before_what_others_left_there_has_ended() {
    let node = Node::on_driver(&["scheduling.quantum_us=6000"]);
    let tenants: Vec<_> = [("short", "step_21us"), ("long", "step_1605us")]
        .iter()
        .map(|(name, kernel)| {
            let command = node.run(&["--name", name], &program("share"), &[kernel, "3"]);
            std::thread::spawn(move || success(command))
        })
        .collect();
    for tenant in tenants {
        tenant.join().unwrap();
    }
    let stats = node.admin().stats().unwrap();
    assert!(stats.closure.error() < 0.005, "{stats:?}");
}

#[test]
fn a_driver_keeps_to_the_ledger() {
    let node = Node::on_driver(&["device.memory=96MiB"]);
    let flags = ["--name", "small", "--memory", "64MiB"];
    let text = success(node.run(&flags, &program("hostile"), &["over_quota"]));
    assert!(text.contains("4 blocks of 16 MiB of 64 MiB"), "{text}");
    node.wait_until_empty();
    let vgpus = node.admin().list().unwrap();
    assert_eq!(vgpus[0].memory_used_bytes, 0, "{vgpus:?}");
}

#[test]
fn an_endless_kernel_ends_with_its_worker_alone() {
    let node = Node::on_driver(&["limits.kernel_ms=500"]);
    let bad = node.run(&["--name", "bad"], &program("hostile"), &["endless"]);
    let bad = std::thread::spawn(move || success(bad));
    for _ in 0..2 {
        success(node.run(&["--name", "good"], &program("vector_add"), &[]));
    }
    assert!(bad.join().unwrap().contains("CUDA_ERROR_LAUNCH_TIMEOUT"));
    node.wait_until_empty();
    assert!(node.log().contains("cannot be stopped alone"), "{}", node.log());
    success(node.run(&["--name", "bad"], &program("vector_add"), &[]));
}

#[test]
fn a_fault_on_a_driver_is_its_tenants_alone() {
    let node = Node::on_driver(&[]);
    let mut other = Conversation::start(node.run(
        &["--name", "other"],
        &program("share"),
        &["step_102us", "3", "--window", "0.2"],
    ));
    other.line();
    for case in ["trap", "out_of_bounds", "use_after_free", "stale", "garbage"] {
        success(node.run(&["--name", "bad"], &program("hostile"), &[case]));
    }
    assert!(other.wait().success());
}

#[test]
fn a_device_that_is_not_there_is_named() {
    for (settings, words) in [
        (
            vec!["device=cuda:7".to_owned(), format!("device.library={}", driver().display())],
            ["no device 7", "weft doctor"],
        ),
        (
            vec!["device=cuda".to_owned(), "device.library=/does/not/exist.so".to_owned()],
            ["/does/not/exist.so", "weft doctor"],
        ),
    ] {
        let scratch = tempfile::tempdir().unwrap();
        let mut command = weft();
        command.env("WEFT_ATTACH", "direct");
        command.arg("node").arg("--runtime-dir").arg(scratch.path());
        command.args(settings.iter().flat_map(|setting| ["--set", setting]));
        let output = finish(command);
        let text = text_of(&output);
        assert!(!output.status.success(), "{settings:?}: {text}");
        for word in words {
            assert!(text.contains(word), "{settings:?}: no `{word}` in {text}");
        }
    }
}

/// The figures of another device are not what was asked for.
#[test]
fn a_benchmark_on_a_gpu_that_is_not_there_measures_nothing() {
    for (device, library) in [("cuda", "/does/not/exist.so".into()), ("cuda:9", driver())] {
        let mut command = weft();
        command.args(["bench", "overhead", "--quick", "--programs"]).arg(program(""));
        command.env("WEFT_DEVICE", device).env("WEFT_CUDA_LIBRARY", library);
        command.env("WEFT_ATTACH", "direct");
        let output = finish(command);
        let text = text_of(&output);
        assert!(!output.status.success(), "{text}");
        assert!(text.contains(device) && text.contains("weft doctor"), "{text}");
    }
}

#[test]
fn a_direct_run_on_a_driver_has_nothing_of_ours_between() {
    let mut command = weft();
    command.args(["run", "--direct", "--device", "cuda", "--"]).arg(program("vector_add"));
    command.env("WEFT_CUDA_LIBRARY", driver()).env("WEFT_ATTACH", "direct");
    assert!(success(command).contains("PASSED"));
    let mut command = weft();
    command.args(["run", "--direct", "--device", "cuda:9", "--"]).arg(program("vector_add"));
    command.env("WEFT_CUDA_LIBRARY", driver()).env("WEFT_ATTACH", "direct");
    let output = finish(command);
    assert!(!output.status.success() && text_of(&output).contains("cuda:9"), "{output:?}");
}
