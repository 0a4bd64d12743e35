//! What an attach writes of the registry, seen from outside: by what its files become.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::hierarchy::control;
use crate::support::{Node, program, success};

/// vGPUs that a full node has before anybody attaches.
const MANY: usize = 500;
/// Sessions whose writes are counted on each node.
const SESSIONS: u64 = 200;
/// Names that they attach under, in turn.
const NAMES: u64 = 4;

/// A file of the registry: which one it is, when it changed last, its length.
type Seen = (u64, (i64, i64), u64);

/// Counts the bytes that the files of the registry get.
struct Watch {
    directory: PathBuf,
    seen: BTreeMap<String, Seen>,
    bytes: u64,
}

impl Watch {
    fn begin(node: &Node) -> Self {
        let directory = node.path().join("state");
        Self { seen: files(&directory), directory, bytes: 0 }
    }

    /// Adds what has been written since the last look: what a file that only grew has more, and all
    /// of one that is new, was replaced or was changed without growing.
    fn look(&mut self) {
        let now = files(&self.directory);
        for (name, new) in &now {
            self.bytes += match self.seen.get(name) {
                Some(old) if old == new => 0,
                Some(old) if old.0 == new.0 && old.2 < new.2 => new.2 - old.2,
                Some(_) | None => new.2,
            };
        }
        self.seen = now;
    }
}

fn files(directory: &Path) -> BTreeMap<String, Seen> {
    let entries = std::fs::read_dir(directory).unwrap();
    let vgpus = entries.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        // A file that is being replaced is gone between the two calls.
        let data = entry.metadata().ok().filter(|_| name.starts_with("vgpus."))?;
        Some((name, (data.ino(), (data.mtime(), data.mtime_nsec()), data.len())))
    });
    vgpus.collect()
}

/// One session from its attach to its end.
fn attach(node: &Node, name: &str) {
    success(node.run(&["--name", name, "--memory", "16MiB"], &program("vector_add"), &[]));
    node.wait_until_empty();
}

/// What is written on a node.
struct Bytes {
    /// By a daemon that starts, and its first session: the whole registry.
    whole: u64,
    /// By each of the later ones, in the mean.
    session: u64,
}

/// Counts on a node with this many vGPUs beside those that the test attaches to.
fn written(vgpus: usize) -> Bytes {
    let mut node = Node::start(&[]);
    for index in 0..vgpus {
        success(control(&node, &["create", &format!("other{index}"), "--memory", "16MiB"]));
    }
    for name in 0..NAMES {
        attach(&node, &format!("v{name}"));
    }
    // The next daemon begins with the whole file. With hundreds of vGPUs that is the control: it
    // must be seen. What follows are lines, and fewer than make it write the whole file again.
    node.kill();
    let mut watch = Watch::begin(&node);
    node.launch();
    attach(&node, "v0");
    watch.look();
    let whole = std::mem::take(&mut watch.bytes);
    for session in 0..SESSIONS {
        attach(&node, &format!("v{}", session % NAMES));
        watch.look();
    }
    // The end of the last session may still be on its way to the disk; it is one of many.
    Bytes { whole, session: watch.bytes / SESSIONS }
}

#[test]
fn an_attach_writes_as_much_on_a_node_with_hundreds_of_vgpus_as_on_one_with_few() {
    let (few, many) = (written(0), written(MANY));
    // A session is written when it begins and when it ends, each time as one line.
    let session = few.session;
    assert!((100..4096).contains(&session), "{session} bytes per session beside nobody");
    let beside = many.session;
    assert!(
        4 * beside < 5 * session,
        "{beside} bytes beside {MANY} vGPUs, {session} beside nobody"
    );
    let whole = many.whole;
    assert!(whole > 50 * beside, "{whole} bytes for the whole registry, {beside} per session");
}
