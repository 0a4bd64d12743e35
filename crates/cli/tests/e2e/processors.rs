//! Who runs on which of the host's processors, and before whom.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::hierarchy::control;
use crate::support::{
    Conversation, Node, eventually, finish, is_root, nice_of, program, success, text_of,
};

/// The processors that a thread may use, as the system writes them.
fn processors(status: impl AsRef<Path>) -> Option<String> {
    listed(&fs::read_to_string(status).ok()?)
}

fn listed(status: &str) -> Option<String> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(list.trim().to_owned())
}

/// Those of a process's first thread.
fn of_process(pid: u32) -> Option<String> {
    processors(format!("/proc/{pid}/status"))
}

/// All that the threads of a process may use.
fn of_threads(pid: u32) -> BTreeSet<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads.filter_map(|thread| processors(thread.unwrap().path().join("status"))).collect()
}

/// The first and the last of this process's processors, if it has two.
fn two() -> Option<(String, String)> {
    let list = of_process(std::process::id()).unwrap();
    let ends = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        (first.to_owned(), last.to_owned())
    };
    let (first, _) = ends(list.split(',').next()?);
    let (_, last) = ends(list.rsplit(',').next()?);
    (first != last).then_some((first, last))
}

/// A program that works for a minute once it is told to.
fn works(node: &Node, vgpu: &str) -> Conversation {
    let arguments = ["honest", "60", "--steps", "2000", "--start", "-"];
    Conversation::start(node.run(&["--name", vgpu], &program("adversary"), &arguments))
}

#[test]
fn a_device_has_processors_to_itself() {
    let Some((_, last)) = two() else { panic!("this needs two processors") };
    let own = format!("device.1.processors={last}");
    let mut node = Node::start(&["device=soft,soft", &own]);
    let daemon = of_threads(node.pid());
    let others = daemon.first().unwrap().clone();
    assert_eq!(daemon.len(), 1, "all threads of the daemon run on the same: {daemon:?}");
    assert!(!others.split([',', '-']).any(|part| part == last), "the daemon runs on {others}");
    // So do programs, whichever device they use.
    let shown = success(node.run(&[], Path::new("cat"), &["/proc/self/status"]));
    assert_eq!(listed(&shown).as_ref(), Some(&others));
    success(node.run(&["--name", "a"], &program("vector_add"), &[]));
    let mut admin = node.admin();
    let home = |admin: &mut weft_node::admin::Client| {
        admin.list().unwrap().into_iter().find(|vgpu| vgpu.name == "a").unwrap().device
    };
    assert_eq!(home(&mut admin), "gpu0");
    let mut tenant = works(&node, "a");
    eventually("its worker", || node.workers().len() == 1);
    let worker = node.workers()[0];
    eventually("the worker to run with the daemon", || {
        of_process(worker).as_ref() == Some(&others)
    });
    // Its processors are those of the device that it is on.
    admin.move_vgpu("a", "gpu1").unwrap();
    assert_eq!((home(&mut admin).as_str(), of_process(worker)), ("gpu1", Some(last.clone())));
    assert!(of_threads(worker).contains(&others), "what does not execute does not run there");
    admin.move_vgpu("a", "gpu0").unwrap();
    assert_eq!(of_process(worker), Some(others));
    tenant.kill();
    drop(admin);
    eventually("its worker to end", || node.workers().is_empty());
    // One that begins there, and one that the next daemon finds.
    success(control(&node, &["create", "b", "--device", "gpu1"]));
    let mut tenant = works(&node, "b");
    let there = |node: &Node| node.workers().first().and_then(|pid| of_process(*pid));
    eventually("a worker on the device's processor", || there(&node).as_ref() == Some(&last));
    let worker = node.workers()[0];
    node.kill();
    let first = format!("device.0.processors={last}");
    node.configure(&["device=soft,soft", &first]);
    node.launch();
    let others = of_threads(node.pid()).first().cloned();
    eventually("the worker that was found to run with the daemon", || of_process(worker) == others);
    tenant.kill();
}

#[test]
fn processors_that_are_not_there_or_all_there_are_are_refused() {
    let list = of_process(std::process::id()).unwrap();
    let refused = |processors: &str| {
        let folder = tempfile::tempdir().unwrap();
        let mut command = crate::support::weft();
        command.arg("node").arg("--runtime-dir").arg(folder.path());
        command.arg("--set").arg(format!("state_dir={}", folder.path().join("state").display()));
        command.arg("--set").arg(format!("device.processors={processors}"));
        let output = finish(command);
        assert!(!output.status.success());
        text_of(&output)
    };
    let text = refused("1023");
    assert!(text.contains("1023 are none of this daemon's") && text.contains(&list), "{text}");
    let text = refused(&list);
    // Before anything is started.
    let mut checked = crate::support::weft();
    checked.args(["node", "--check", "--set", "device.processors=1023"]);
    assert!(text_of(&finish(checked)).contains("1023 are none of this daemon's"));
    assert!(text.contains("leave one to it and to programs") && text.contains(&list), "{text}");
}

/// How many sessions that call their workers without end want more of the processors than they
/// weigh as, and some.
fn many() -> usize {
    (4 * std::thread::available_parallelism().unwrap().get()).min(64)
}

/// A program whose sessions call their workers for a minute, and never for the device.
fn calls(node: &Node, vgpu: &str) -> Conversation {
    let arguments = ["calls", "60", "--sessions", &many().to_string()];
    Conversation::start(node.run(&["--name", vgpu], &program("adversary"), &arguments))
}

/// A node that orders its workers, where each of these has its share. None where only root could.
fn ordering_node(share: &str) -> Option<Node> {
    if !is_root() {
        eprintln!("skipped: only root can raise priorities");
        return None;
    }
    Some(Node::start(&[&format!("scheduling.share={share}")]))
}

/// The nice values of a node's workers.
fn nices(node: &Node) -> Vec<i32> {
    node.workers().into_iter().filter_map(nice_of).collect()
}

/// How many of a node's workers go first.
fn first(node: &Node) -> usize {
    nices(node).into_iter().filter(|nice| *nice == -20).count()
}

/// Who asks for little outside of turns is served at once, and who asks without end after
/// everybody's programs, for as long as it does.
#[test]
fn workers_that_are_called_without_end_go_after_ordinary_programs() {
    let Some(node) = ordering_node("vgpu") else { return };
    let mut honest = works(&node, "honest");
    // It begins nothing: it is outside of turns.
    eventually("its worker to go first", || nices(&node) == [-20]);
    let own = node.workers()[0];
    let mut caller = calls(&node, "caller");
    let (mut looks, mut own_first) = (0, 0);
    eventually("a hundred looks at workers that are called", || {
        let of_caller = node.workers().into_iter().filter(|pid| *pid != own).filter_map(nice_of);
        let of_caller: Vec<i32> = of_caller.collect();
        let after = of_caller.iter().filter(|nice| **nice > 0).count();
        // One may keep the device that nobody wants, and one may be next.
        if of_caller.len() == many() && after + 2 >= many() {
            looks += 1;
            own_first += usize::from(nice_of(own) == Some(-20));
        }
        looks >= 100
    });
    assert_eq!(own_first, 100, "who does not call stays first");
    caller.kill();
    eventually("the caller's workers to end", || node.workers() == [own]);
    // What was beyond the allowance is paid back within seconds.
    let mut later = works(&node, "caller");
    eventually("its next worker to go first", || first(&node) == 2);
    [&mut honest, &mut later].into_iter().for_each(Conversation::kill);
}

/// Who has the device, who is next and whose turn ended last, where the tenant is beyond its
/// allowance: others go first in their turns alone.
#[test]
fn three_workers_of_a_device_go_first_at_most_beyond_the_allowance() {
    let Some(node) = ordering_node("user") else { return };
    let mut tenants = ["a", "b", "c", "d", "e", "f"].map(|name| works(&node, name));
    tenants.iter_mut().for_each(|tenant| tenant.say("begin"));
    let mut caller = calls(&node, "caller");
    // Workers are looked at one after the other: one becomes the next while another is looked at.
    let (mut in_a_row, mut seen) = (0, 0);
    eventually("four at most to go first for a second", || {
        let all = nices(&node);
        let first = all.iter().filter(|nice| **nice == -20).count();
        let is_right = all.len() == 6 + many() && first <= 4;
        (in_a_row, seen) =
            if is_right { (in_a_row + 1, seen + usize::from(first > 0)) } else { (0, 0) };
        in_a_row >= 200
    });
    assert!(seen > 100, "somebody went first in {seen} of 200 looks");
    tenants.iter_mut().chain([&mut caller]).for_each(Conversation::kill);
}

/// Whoever was next or had the device last goes before ordinary programs for as long as that is of
/// use to anybody.
#[test]
fn who_wants_nothing_any_more_goes_first_no_longer() {
    let Some(node) = ordering_node("user") else { return };
    let mut tenants = ["a", "b"].map(|name| works(&node, name));
    tenants.iter_mut().for_each(|tenant| tenant.say("begin"));
    // Outside of turns the user's workers go after others.
    let mut caller = calls(&node, "caller");
    let is_beyond = || nices(&node).iter().filter(|nice| **nice > 0).count() >= many();
    let first = || if is_beyond() { first(&node) } else { 0 };
    eventually("both to go first, as they take turns", || first() == 2);
    // It begins nothing any more, and what it has begun ends.
    let stopped = rustix::process::Pid::from_child(&tenants[0].child);
    rustix::process::kill_process(stopped, rustix::process::Signal::STOP).unwrap();
    let mut alone = 0;
    eventually("the other one alone to go first", || {
        alone = if first() == 1 { alone + 1 } else { 0 };
        alone >= 20
    });
    rustix::process::kill_process(stopped, rustix::process::Signal::CONT).unwrap();
    eventually("both to go first again", || first() == 2);
    tenants.iter_mut().chain([&mut caller]).for_each(Conversation::kill);
}

/// Whoever ends a session is waited for by all who wait for the device: it waits for the end ahead
/// of ordinary programs.
#[test]
fn whoever_ends_a_session_goes_first() {
    let Some(node) = ordering_node("vgpu") else { return };
    let mut tenant = works(&node, "a");
    eventually("the session's thread to go first", || nice_of_sessions(&node) == [-20]);
    tenant.say("begin");
    has_turns(&node);
    // Its program has made requests meanwhile.
    eventually("the thread to go first again", || nice_of_sessions(&node) == [-20]);
    tenant.kill();
    node.wait_until_empty();
    let ordinary = Node::start(&["worker.nice=0"]);
    let mut tenant = works(&ordinary, "a");
    tenant.say("begin");
    has_turns(&ordinary);
    for _ in 0..100 {
        assert_eq!(nice_of_sessions(&ordinary), [0]);
    }
    tenant.kill();
}

/// Waits until a vGPU has had turns.
fn has_turns(node: &Node) {
    eventually("turns", || node.admin().list().unwrap().iter().any(|vgpu| vgpu.turns > 0));
}

/// The nice values of the daemon's threads that serve sessions.
fn nice_of_sessions(node: &Node) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{}/task", node.pid())).unwrap().flatten();
    let serves = |thread: &fs::DirEntry| {
        fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.trim() == "tenant")
    };
    let number = |thread: fs::DirEntry| thread.file_name().to_str()?.parse().ok();
    threads.filter(serves).filter_map(number).filter_map(nice_of).collect()
}
