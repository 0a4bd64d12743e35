//! Devices whose memory lies in files: a full disk, and a real one. Who dies: `switching.rs`. And
//! a host that has less memory than the programs, with such files and without.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{
    Conversation, Node, can_run, eventually, finish, is_root, program, success, text_of,
};

/// A disk of so many MiB.
pub(crate) struct Disk(tempfile::TempDir);

impl Disk {
    pub(crate) fn new(mebibytes: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={mebibytes}m"), "weft-swap"]);
        mount.arg(dir.path());
        success(mount);
        Self(dir)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        let stat = rustix::fs::statvfs(self.path()).unwrap();
        (stat.f_blocks - stat.f_bfree) * stat.f_frsize
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: the node, which ends before, may take a moment to.
        let _ = Command::new("umount").arg("--lazy").arg(self.path()).status();
    }
}

/// A device of 16 slots that lends four times as much, on a disk.
fn node(disk: &Disk) -> Node {
    let dir = format!("device.swap_dir={}", disk.path().display());
    let slots = ["device.memory=16MiB", "device.slot=1MiB", "device.oversubscribe=4"];
    Node::start(&[&slots[..], &[&dir]].concat())
}

fn resident(node: &Node, vgpu: &str, mebibytes: u32) -> Command {
    let flags = ["--name", vgpu, "--memory", "48MiB"];
    node.run(&flags, &program("resident"), &[&mebibytes.to_string()])
}

/// A program with so many MiB that is at work.
fn started(node: &Node, vgpu: &str, mebibytes: u32) -> Conversation {
    let program = Conversation::start(resident(node, vgpu, mebibytes));
    assert!(program.line().contains("copy_ms"));
    program
}

fn is_intact(mut program: Conversation) {
    program.say("end");
    let said: serde_json::Value = serde_json::from_str(&program.line()).unwrap();
    assert!(program.wait().success(), "{said}");
}

/// A file system of a disk, where pages have blocks, and not one of the host's memory.
#[test]
fn programs_on_a_file_system_of_a_disk_lose_nothing_and_leave_room() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    if !is_of_a_disk(dir.path()) {
        return;
    }
    let swap_dir = format!("device.swap_dir={}", dir.path().display());
    let slots = ["device.memory=16MiB", "device.slot=1MiB", "device.oversubscribe=4", &swap_dir];
    let node = Node::start(&slots);
    let kept = files_in(&node, dir.path());
    let programs: Vec<Conversation> =
        ["a", "b", "c"].iter().map(|vgpu| started(&node, vgpu, 12)).collect();
    let (files, blocks) = files_in(&node, dir.path());
    assert!(files >= kept.0 + 3 && blocks >= 36 << 20, "{files} files of {blocks} bytes");
    programs.into_iter().for_each(is_intact);
    node.wait_until_empty();
    eventually("their files to be gone", || files_in(&node, dir.path()).1 < 1 << 20);
}

/// Files of a daemon that lie in a directory without a name, and the bytes that they take there.
fn files_in(node: &Node, dir: &Path) -> (usize, u64) {
    let open = std::fs::read_dir(format!("/proc/{}/fd", node.pid())).unwrap().flatten();
    let lies_there = open
        .filter(|file| std::fs::read_link(file.path()).is_ok_and(|target| target.starts_with(dir)));
    // Of files that are closed meanwhile nothing is told.
    let files = lies_there.filter_map(|file| std::fs::metadata(file.path()).ok());
    let bytes: Vec<u64> =
        files.map(|file| std::os::unix::fs::MetadataExt::blocks(&file) * 512).collect();
    (bytes.len(), bytes.iter().sum())
}

/// Whether files there have blocks of a disk; says so if they are the host's memory.
#[track_caller]
fn is_of_a_disk(dir: &Path) -> bool {
    /// `TMPFS_MAGIC`.
    const TMPFS: i64 = 0x0102_1994;
    let is_memory = rustix::fs::statfs(dir).unwrap().f_type == TMPFS;
    can_run(!is_memory, "the build's folder is in memory, not on a disk")
}

#[test]
fn a_full_disk_is_out_of_memory_and_who_ends_makes_room() {
    if !is_root() {
        return;
    }
    let disk = Disk::new(32);
    let node = node(&disk);
    let first = started(&node, "first", 20);
    assert!(disk.used_bytes() >= 20 << 20, "{} bytes", disk.used_bytes());
    let refused = finish(resident(&node, "second", 20));
    assert!(!refused.status.success());
    assert!(text_of(&refused).contains("OUT_OF_MEMORY"), "{}", text_of(&refused));
    // Nothing of it is left, and nobody else has lost anything.
    is_intact(first);
    node.wait_until_empty();
    eventually("room on the disk", || disk.used_bytes() < 1 << 20);
    is_intact(started(&node, "second", 20));
}

/// What each of four programs has, and the host's memory for all of them and their node, in MiB.
const CONTENTS_MIB: u32 = 32;
const HOST_MIB: u64 = 96;
const PROGRAMS: [&str; 4] = ["a", "b", "c", "d"];

/// A control group whose processes have so much of the host's memory together, and no swap.
struct ShortHost {
    folder: PathBuf,
    /// Of control groups' second version.
    is_unified: bool,
}

impl ShortHost {
    /// `None` where the system makes none.
    #[track_caller]
    fn make(name: &str) -> Option<Self> {
        let name = format!("weft-test-{name}-{}", std::process::id());
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let group = mounts.lines().find_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let [_, root, kind, options, ..] = words.as_slice() else { return None };
            let is_unified = *kind == "cgroup2";
            let is_memorys = *kind == "cgroup" && options.split(',').any(|one| one == "memory");
            (is_unified || is_memorys).then(|| Self::within(Path::new(root), &name, is_unified))?
        });
        can_run(group.is_some(), "no control group with a bound of memory can be made");
        group
    }

    fn within(root: &Path, name: &str, is_unified: bool) -> Option<Self> {
        let group = Self { folder: root.join(name), is_unified };
        if is_unified {
            // It may be there already, or not be to be had: then there is no file for the bound.
            let _ = std::fs::write(root.join("cgroup.subtree_control"), "+memory");
        }
        std::fs::create_dir(&group.folder).ok()?;
        let set = |file: &str, value: u64| {
            let file = group.folder.join(file);
            file.exists() && std::fs::write(file, value.to_string()).is_ok()
        };
        let (bound, swap) = match is_unified {
            true => ("memory.max", "memory.swap.max"),
            false => ("memory.limit_in_bytes", "memory.swappiness"),
        };
        let is_bound = set(bound, HOST_MIB << 20);
        // Without swap there may be no such file.
        set(swap, 0);
        is_bound.then_some(group)
    }

    /// A node that lends more than that, with all that it starts.
    fn node(&self, swap_dir: Option<&Path>) -> Node {
        let mut settings: Vec<String> =
            ["device.memory=64MiB", "device.slot=1MiB", "device.oversubscribe=4"]
                .map(str::to_owned)
                .into();
        settings.extend(swap_dir.map(|dir| format!("device.swap_dir={}", dir.display())));
        let node = Node::start(&settings.iter().map(String::as_str).collect::<Vec<_>>());
        for process in node.processes() {
            std::fs::write(self.folder.join("cgroup.procs"), process.to_string()).unwrap();
        }
        node
    }

    /// A number after a word in a file, or the only one of the file.
    fn count(&self, file: &str, word: &str) -> u64 {
        let text = std::fs::read_to_string(self.folder.join(file)).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(word)).unwrap_or(&text);
        value.trim().parse().unwrap_or_else(|_| panic!("no {word} in {file}: {text}"))
    }

    /// How often there was no memory left.
    fn shortages(&self) -> u64 {
        match self.is_unified {
            true => self.count("memory.events", "max "),
            false => self.count("memory.failcnt", ""),
        }
    }

    /// Processes that the system killed for that.
    fn killed(&self) -> u64 {
        let file = if self.is_unified { "memory.events" } else { "memory.oom_control" };
        self.count(file, "oom_kill ")
    }
}

impl Drop for ShortHost {
    fn drop(&mut self) {
        let remove = || std::fs::remove_dir(&self.folder).is_ok();
        if std::thread::panicking() {
            remove();
        } else {
            eventually("the control group to be empty", remove);
        }
    }
}

/// A program with its part of what the host has too little memory for.
fn demanding(node: &Node, vgpu: &str) -> Conversation {
    let flags = ["--name", vgpu, "--memory", "48MiB"];
    let mebibytes = CONTENTS_MIB.to_string();
    Conversation::start(node.run(&flags, &program("resident"), &[&mebibytes]))
}

#[test]
fn programs_with_more_than_the_hosts_memory_lose_nothing_on_a_disk() {
    let Some(host) = ShortHost::make("disk") else { return };
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    if !is_of_a_disk(dir.path()) {
        return;
    }
    let node = host.node(Some(dir.path()));
    let programs: Vec<Conversation> = PROGRAMS.iter().map(|vgpu| demanding(&node, vgpu)).collect();
    for program in &programs {
        assert!(program.line().contains("copy_ms"));
    }
    let used = node.admin().stats().unwrap().devices[0].memory_used_bytes;
    assert!(used > HOST_MIB << 20, "{used} bytes at once");
    programs.into_iter().for_each(is_intact);
    assert!(host.shortages() > 0, "the host had memory for all of it");
    assert_eq!(host.killed(), 0);
    node.wait_until_empty();
}

/// The control, and what is promised without files: the system kills whoever it likes, and that is
/// all that anybody loses.
#[test]
fn who_is_killed_because_the_host_is_short_of_memory_takes_nothing_from_others() {
    let Some(host) = ShortHost::make("memory") else { return };
    let node = host.node(None);
    let daemon = node.pid();
    let mut programs: Vec<Conversation> =
        PROGRAMS.iter().map(|vgpu| demanding(&node, vgpu)).collect();
    // All have their memory, or none any more.
    programs.retain(|program| program.line_if_any().is_some());
    eventually("somebody to be killed", || host.killed() > 0);
    let ends = programs.iter_mut().map(|program| program.answer_if_any("end"));
    let ends: Vec<String> = ends.flatten().collect();
    let intact = ends.iter().filter(|end| end.contains("\"verified\": true")).count();
    assert_eq!(intact, ends.len(), "{ends:?}");
    assert!(intact > 0, "nobody is left");
    // One worker each, and nobody else: not the daemon, and no program that had its worker.
    assert_eq!(host.killed(), (PROGRAMS.len() - intact) as u64, "{}", node.log());
    node.wait_until_empty();
    let last = demanding(&node, "last");
    assert!(last.line().contains("copy_ms"), "there is room again");
    is_intact(last);
    assert_eq!(node.pid(), daemon);
}
