//! Devices that lend more memory than they have, to unmodified programs that keep watch over
//! theirs: `resident` changes and checks its memory until it is told to end.

use rustix::process::{Pid, Signal, kill_process};
use weft_node::admin::MemoryReport;

use crate::benchmark::{measured, number};
use crate::support::{
    Conversation, Node, eventually, finish, program, python, root, success, text_of, weft,
};

/// A device of 16 slots that lends four times as much.
const SMALL: &[&str] = &[
    "device.memory=16MiB",
    "device.slot=1MiB",
    "device.oversubscribe=4",
    "device.placement=exact",
];

/// A program with so many MiB.
fn resident(node: &Node, vgpu: &str, mebibytes: u32) -> Conversation {
    let flags = ["--name", vgpu, "--memory", "48MiB"];
    let mut command = node.run(&flags, &program("resident"), &[&mebibytes.to_string()]);
    command.stderr(std::process::Stdio::inherit());
    let program = Conversation::start(command);
    assert!(program.line().contains("copy_ms"));
    program
}

/// Ends it, and holds it to what it says about its memory.
fn is_intact(program: &mut Conversation) {
    program.say("end");
    let said: serde_json::Value = serde_json::from_str(&program.line()).unwrap();
    assert!(program.wait().success(), "{said}");
    assert!(said["rounds"].as_u64().unwrap() > 0, "{said}");
}

fn memory(node: &Node) -> MemoryReport {
    node.admin().stats().unwrap().devices[0].memory.clone()
}

fn run_until_copied(node: &Node, slots: u64) {
    let before = memory(node).copied_slots;
    eventually("slots to be copied", || memory(node).copied_slots > before + slots);
}

#[test]
fn four_programs_with_three_times_the_devices_memory_lose_nothing() {
    let node = Node::start(SMALL);
    let mut programs: Vec<Conversation> =
        ["a", "b", "c", "d"].iter().map(|vgpu| resident(&node, vgpu, 12)).collect();
    run_until_copied(&node, 500);
    let report = memory(&node);
    assert_eq!((report.slots.len(), report.slot_bytes), (16, 1 << 20));
    assert!(report.slots.iter().any(|slot| slot.users.len() > 1), "{report:?}");
    programs.iter_mut().for_each(is_intact);
    node.wait_until_empty();
    eventually("its slots to be nobody's", || {
        memory(&node).slots.iter().all(|slot| slot.owner.is_none() && slot.users.is_empty())
    });
}

#[test]
fn a_program_with_more_memory_than_the_device_has_it() {
    let node = Node::start(SMALL);
    let mut program = resident(&node, "large", 40);
    // Of several rounds, of which the program must have ended one.
    eventually("parts to give way", || memory(&node).replaced_parts > 400);
    is_intact(&mut program);
}

#[test]
fn what_is_not_lent_is_a_clear_error() {
    let node = Node::start(SMALL);
    let flags = ["--name", "small", "--memory", "48MiB"];
    let text = success(node.run(&flags, &program("hostile"), &["over_quota"]));
    assert!(text.contains("of 48 MiB"), "{text}");
    let mut holder = resident(&node, "holder", 40);
    let text = success(node.run(&flags, &program("vector_add"), &[]));
    assert!(!text.is_empty());
    is_intact(&mut holder);
}

/// Programs at once, each of which must succeed: what they printed, and the most memory that all
/// vGPUs had meanwhile.
fn all_at_once(node: &Node, programs: Vec<std::process::Command>) -> (Vec<String>, u64) {
    let count = programs.len();
    let (done, outputs) = std::sync::mpsc::channel();
    for command in programs {
        let done = done.clone();
        std::thread::spawn(move || done.send(finish(command)));
    }
    let (mut texts, mut most) = (Vec::new(), 0);
    eventually("all programs to end", || {
        let stats = node.admin().stats().unwrap();
        most = most.max(stats.devices[0].memory_used_bytes);
        for output in outputs.try_iter() {
            let text = text_of(&output);
            assert!(output.status.success(), "{text}");
            texts.push(text);
        }
        texts.len() == count
    });
    (texts, most)
}

#[test]
fn programs_with_two_and_four_times_the_devices_memory_lose_nothing_under_any_placement() {
    for (placement, times) in [
        ("exact", 2),
        ("exact", 4),
        ("scores", 4),
        ("scattered", 4),
        ("pipelined", 4),
        ("whole", 4),
        ("demand", 4),
    ] {
        let (lent, own) = (format!("device.oversubscribe={times}"), format!("{}MiB", 4 * times));
        let placed = format!("device.placement={placement}");
        let node = Node::start(&["device.memory=16MiB", "device.slot=1MiB", &lent, &placed]);
        let blocks = (4 * times - 1).to_string();
        // One works on little of its memory, one on half of it, two on all of it.
        let working = ["1", "4", &blocks, &blocks];
        let programs = ["a", "b", "c", "d"].iter().zip(working).map(|(vgpu, working)| {
            let flags = ["--name", vgpu, "--memory", &own];
            let arguments = [&blocks, working, "1.5", "--start", "-"];
            Conversation::start(node.run(&flags, &program("working"), &arguments))
        });
        let mut programs: Vec<Conversation> = programs.collect();
        // They have their memory, all of it at once.
        programs.iter().for_each(|program| assert!(program.line().contains("ready")));
        let used = node.admin().stats().unwrap().devices[0].memory_used_bytes;
        let wanted = (4 * (4 * times - 1)) << 20;
        assert!(used >= wanted, "{placement}: {used} bytes at once, of {wanted}");
        programs.iter_mut().for_each(|program| program.say("0"));
        for program in &mut programs {
            let said = program.line();
            assert!(program.wait().success(), "{placement}: {said}");
            assert!(said.contains("\"verified\": true"), "{placement}: {said}");
        }
        let report = memory(&node);
        assert!(report.copied_slots > 100, "{placement}: {report:?}");
        // Written ahead only where the placement says so.
        assert_eq!(report.ahead_slots > 0, placement == "pipelined", "{placement}: {report:?}");
    }
}

/// Signals a program.
fn signal(program: &Conversation, signal: Signal) {
    let pid = Pid::from_raw(program.child.id().cast_signed()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Whether a program that was told to stop has, and not ended.
fn has_stopped(program: &Conversation) -> bool {
    let mut state = String::new();
    eventually("a program to stop or to end", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", program.child.id()));
        // The state is behind the name, which may have anything in it.
        let stat = stat.unwrap_or_default();
        let rest = stat.rsplit_once(") ").map_or("X", |(_, rest)| rest);
        state = rest.chars().take(1).collect();
        ["T", "Z", "X"].contains(&state.as_str())
    });
    state == "T"
}

/// An unmodified program that is stopped while it has so much device memory. One that ended before
/// that was seen is run again.
fn held_with_its_memory(node: &Node, (name, size): (&str, u64), bytes: u64) -> Conversation {
    let used = || {
        let vgpus = memory(node).vgpus;
        vgpus.iter().find(|vgpu| vgpu.name == name).map_or(0, |vgpu| vgpu.used_bytes)
    };
    let start = || {
        let flags = ["--name", name, "--memory", "24MiB"];
        Conversation::start(node.run(&flags, &program(name), &[&size.to_string()]))
    };
    let mut running = start();
    eventually("a program to have its memory", || {
        if let Some(status) = running.child.try_wait().unwrap() {
            assert!(status.success(), "{name}: {status}");
            running = start();
        }
        if used() < bytes {
            return false;
        }
        signal(&running, Signal::STOP);
        let has_all = has_stopped(&running) && used() >= bytes;
        if !has_all {
            signal(&running, Signal::CONT);
        }
        has_all
    });
    running
}

/// What a program prints up to its verdict; it must succeed.
fn verdict(program: &mut Conversation) {
    while !program.line().contains("PASSED") {}
    assert!(program.wait().success());
}

/// Eight slots, of which the programs have two and four times as many at one moment: they are
/// stopped until all have their memory, and then go on beside others.
#[test]
fn unmodified_clients_with_two_and_four_times_eight_slots_compute_what_they_should() {
    for (times, placement) in [(2, "exact"), (4, "exact"), (4, "pipelined"), (4, "demand")] {
        let (lent, placed) = (
            format!("device.oversubscribe={}", times + 1),
            format!("device.placement={placement}"),
        );
        let slots = ["device.memory=8MiB", "device.slot=1MiB", &lent, &placed];
        let node = Node::start(&slots);
        // Sums, a reduction and a histogram: 4, 2 and 3 MiB of each size.
        let examples = [("vector_add", 350_000, 4), ("reduction", 1 << 19, 2)];
        let examples = examples.into_iter().chain([("histogram", 3 << 20, 3)]);
        let mut programs: Vec<Conversation> = examples
            .map(|(name, size, mebibytes)| {
                held_with_its_memory(&node, (name, times * size), (times * mebibytes) << 20)
            })
            .collect();
        let used = node.admin().stats().unwrap().devices[0].memory_used_bytes;
        assert!(used >= times * (8 << 20), "{placement}: {used} bytes at once of {times} x 8 MiB");
        let train = root().join("examples/python/train.py");
        let flags = ["--name", "train", "--memory", "4MiB"];
        let mut training = node.run(&flags, &python(), &[train.to_str().unwrap(), "1"]);
        training.env("DEV", "CUDA:PTX");
        let training = std::thread::spawn(move || success(training));
        programs.iter().for_each(|program| signal(program, Signal::CONT));
        programs.iter_mut().for_each(verdict);
        let text = training.join().unwrap();
        assert!(text.contains("\"verified\": true"), "{placement}: {text}");
        let copied = memory(&node).copied_slots;
        assert!(copied > times * 8, "{placement}: {copied} slots copied at {times} times");
    }
}

#[test]
fn unmodified_clients_that_share_one_slot_compute_what_they_should() {
    let settings = ["device.memory=1MiB", "device.slot=1MiB", "device.oversubscribe=64"];
    let node = Node::start(&settings);
    // The first one alone has 4.6 MiB.
    let examples: [(&str, &[&str]); 5] = [
        ("vector_add", &["400000"]),
        ("matrix_mul", &[]),
        ("reduction", &["524288"]),
        ("histogram", &["2097152"]),
        ("pipeline", &[]),
    ];
    let run = |(name, arguments): &(&str, &[&str])| {
        node.run(&["--name", name, "--memory", "16MiB"], &program(name), arguments)
    };
    let mut programs: Vec<_> = examples.iter().map(run).collect();
    let train = root().join("examples/python/train.py");
    for vgpu in ["train1", "train2"] {
        let flags = ["--name", vgpu, "--memory", "16MiB"];
        let mut command = node.run(&flags, &python(), &[train.to_str().unwrap(), "2"]);
        command.env("DEV", "CUDA:PTX");
        programs.push(command);
    }
    let (texts, most) = all_at_once(&node, programs);
    let passed = |text: &&String| text.contains("PASSED") || text.contains("\"verified\": true");
    assert_eq!(texts.iter().filter(passed).count(), 7, "{texts:?}");
    assert!(most >= 4 << 20, "at most {most} bytes at once: not four times the device");
}

#[test]
fn weft_memory_draws_who_has_which_slot() {
    let node = Node::start(SMALL);
    let mut programs: Vec<Conversation> =
        ["a", "b"].iter().map(|vgpu| resident(&node, vgpu, 12)).collect();
    run_until_copied(&node, 20);
    let show = |flags: &[&str]| {
        let mut command = weft();
        command.arg("--runtime-dir").arg(node.path()).arg("memory").args(flags);
        finish(command)
    };
    let text = text_of(&show(&[]));
    assert!(text.contains("gpu0: ") && text.contains("slots of 1MiB in use"), "{text}");
    let map = text.lines().nth(1).unwrap();
    assert!(map.contains(['a', 'A']) && map.contains(['b', 'B']), "{text}");
    let json = show(&["gpu0", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let memory = &json[0]["memory"];
    assert_eq!(memory["slots"].as_array().unwrap().len(), 16, "{json}");
    let (used, resident) =
        (&memory["vgpus"][0]["used_bytes"], &memory["vgpus"][0]["resident_bytes"]);
    assert!(used.as_u64() >= Some(12 << 20) && resident.as_u64() <= used.as_u64(), "{json}");
    let refused = show(&["gpu7"]);
    assert!(!refused.status.success() && text_of(&refused).contains("the devices are gpu0"));
    programs.iter_mut().for_each(is_intact);
}

/// Managed memory has slots like any other, and is the host's and the kernels' whoever has them.
#[test]
fn managed_memory_is_the_hosts_and_the_kernels_beside_programs_that_switch() {
    let node = Node::start(SMALL);
    let mut programs: Vec<Conversation> =
        ["a", "b"].iter().map(|vgpu| resident(&node, vgpu, 12)).collect();
    run_until_copied(&node, 20);
    let flags = ["--name", "managed", "--memory", "48MiB"];
    let text = success(node.run(&flags, &program("managed"), &["8", "6"]));
    assert!(text.contains("PASSED"), "{text}");
    programs.iter_mut().for_each(is_intact);
}

#[test]
fn a_program_with_more_managed_memory_than_the_device_has_it_and_pays_for_it() {
    let node = Node::start(SMALL);
    let flags = ["--name", "managed", "--memory", "48MiB"];
    let before = memory(&node).replaced_parts;
    let text = success(node.run(&flags, &program("managed"), &["40", "4"]));
    assert!(text.contains("PASSED"), "{text}");
    let replaced = memory(&node).replaced_parts - before;
    // Each of four rounds goes through 40 parts, of which 16 have slots.
    assert!(replaced >= 4 * (40 - 16), "{replaced} parts gave way");
    let refused = node.run(&flags, &program("managed"), &["64", "1"]).output().unwrap();
    assert!(!refused.status.success());
    assert!(text_of(&refused).contains("CUDA_ERROR_OUT_OF_MEMORY"), "{}", text_of(&refused));
}

/// `weft bench memory --only clients_2x`, short, and the same of four times.
fn clients_are_measured(times: u32) {
    let only = format!("clients_{times}x");
    let (interpreter, train) = (python(), root().join("examples/python/train.py"));
    let flags = [
        "--only".as_ref(),
        only.as_ref(),
        "--python".as_ref(),
        interpreter.as_os_str(),
        "--train".as_ref(),
        train.as_os_str(),
    ];
    let document = measured("memory", &flags);
    let of = |name: &str| number(&document, "figures", name);
    assert_eq!((of("clients_verified"), of("clients_trainers")), (1.0, 1.0), "{document}");
    let memory = of(&format!("{only}_memory_over_device_modelled"));
    assert!(memory >= f64::from(times), "{document}");
    for way in ["exact", "whole"] {
        for what in ["steps", "runs"] {
            let rate = of(&format!("{only}_{what}_per_s_{way}_modelled"));
            assert!(rate > 0.0, "{what} with {way}: {document}");
        }
    }
    assert!(of(&format!("{only}_over_swap_modelled")) > 0.0, "{document}");
    // The control: in equal parts of the device they do not run.
    assert!(number(&document, "controls", &format!("refused_{only}_static")) > 0.0, "{document}");
}

#[test]
fn unmodified_clients_with_twice_the_devices_memory_are_measured() {
    clients_are_measured(2);
}

#[test]
fn unmodified_clients_with_four_times_the_devices_memory_are_measured() {
    clients_are_measured(4);
}
