//! Programs in containers: `docs/operations.md` mounts the directory of the sockets into one. Here
//! a mount namespace stands for a container; what a runtime adds to it does not matter for that.

use std::process::Command;

use crate::support::{Conversation, Node, has_mounts, program, success};

/// Two places of a container at which a node is looked for.
const BY_DIRECTORY: &str = "/run/weft/tenant.sock";
const BY_FILE: &str = "/run/weft.sock";

/// A container that runs a program at each socket that it is told, and says whether it worked.
/// `None` where there may be none.
fn container(node: &Node) -> Option<Conversation> {
    if !has_mounts() {
        return None;
    }
    let script = r#"
        set -e
        mount -t tmpfs -o mode=755 tmpfs /run
        mkdir /run/weft
        touch /run/weft.sock
        mount --bind "$NODE" /run/weft
        mount --bind "$NODE/tenant.sock" /run/weft.sock
        echo ready
        while read -r socket; do
            if WEFT_SOCKET=$socket "$ADD" < /dev/null > /run/said 2>&1; then
                echo works
            else
                echo "fails: $(tail -n 1 /run/said)"
            fi
        done
    "#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script]);
    command.env("NODE", node.path()).env("ADD", program("vector_add"));
    command.env("LD_LIBRARY_PATH", node.path().join("lib"));
    for variable in ["WEFT_SOCKET", "WEFT_RUNTIME_DIR", "WEFT_VGPU", "WEFT_ATTACH"] {
        command.env_remove(variable);
    }
    let container = Conversation::start(command);
    assert_eq!(container.line(), "ready");
    Some(container)
}

#[test]
fn a_mounted_directory_survives_a_new_daemon_and_a_mounted_socket_does_not() {
    let mut node = Node::start(&[]);
    // Puts the shim where the container finds it.
    success(node.run(&[], &program("vector_add"), &[]));
    let Some(mut container) = container(&node) else { return };
    let mut asked = |socket: &str| {
        container.say(socket);
        container.line()
    };
    for socket in [BY_DIRECTORY, BY_FILE] {
        assert_eq!(asked(socket), "works", "{socket} of the first daemon");
    }
    node.kill();
    node.launch();
    assert_eq!(asked(BY_DIRECTORY), "works", "the directory shows the new daemon's socket");
    // The control, and why the recipe mounts no socket.
    let file = asked(BY_FILE);
    assert!(file.starts_with("fails"), "the socket of a daemon that is gone: {file}");
}
