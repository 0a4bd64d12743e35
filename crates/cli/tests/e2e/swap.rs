//! Devices whose memory lies in files: a full disk, and a real one. Who dies: `switching.rs`.

use std::path::Path;
use std::process::Command;

use crate::support::{Conversation, Node, eventually, finish, is_root, program, success, text_of};

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
    let magic = rustix::fs::statfs(dir.path()).unwrap().f_type;
    if magic == TMPFS_MAGIC {
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

/// `TMPFS_MAGIC`.
const TMPFS_MAGIC: i64 = 0x0102_1994;

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
