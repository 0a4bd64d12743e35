//! The scripts that Slurm runs before, in and after a job (`examples/slurm`), with a control plane,
//! a node and programs that are real, and commands of Slurm's that say what a test wants.
//! `tests/slurm/run.sh` has a real Slurm run them.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::cloud::{Cloud, is_passable};
use crate::support::{Node, driver, eventually, finish, has_network, provided, text_of};

/// What a compute node does for a job. Where Slurm's scripts keep things is the job's alone here.
const COMPUTE_NODE: &str = r#"
mount -t tmpfs -o mode=755 tmpfs /run || exit 1
PATH=$PLACE/bin:$BIN:$PATH
run() { sh "$EXAMPLES/$1"; echo "$1 ended with $?"; }
as() {
    sh "$EXAMPLES/task-prolog" > "$PLACE/task"
    (while read -r line; do eval "$line"; done < "$PLACE/task"
     echo "$2 has <${WEFT_VGPU:-}>"
     setpriv --reuid="$1" --clear-groups "$PROGRAMS/vector_add"; echo "$2 ended with $?")
}
run prolog
[ -z "${TASK:-}" ] || { as "$SLURM_JOB_UID" program; as "$STRANGER" stranger; }
run epilog
run epilog
echo "left: <$(ls -A /run/weft-slurm 2> /dev/null)>"
"#;

/// Slurm's commands. `scontrol` says what the job asks for; what the others are told is kept.
const COMMANDS: [(&str, &str); 3] = [
    (
        "scontrol",
        "case $1 in show) echo \"JobId=$4 TresPerNode=$GRES Restarts=0\";; *) echo \"scontrol $*\" \
         >> \"$PLACE/said\";; esac",
    ),
    ("scancel", "echo \"scancel $*\" >> \"$PLACE/said\""),
    ("squeue", "case $* in *--version*) echo slurm 0;; *) echo RUNNING;; esac"),
];

struct Slurm {
    place: TempDir,
    cloud: Cloud,
}

fn script(path: &Path, text: &str) {
    std::fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

/// Whether other users than root get to the programs.
fn is_open() -> bool {
    ["WEFT_TEST_BIN", "WEFT_TEST_PROGRAMS"].iter().all(|name| is_passable(&provided(name)))
}

impl Slurm {
    fn new() -> Self {
        let place = tempfile::Builder::new().prefix("weft-slurm-").tempdir().unwrap();
        std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o711)).unwrap();
        for folder in ["bin", "lib"] {
            std::fs::create_dir(place.path().join(folder)).unwrap();
        }
        for (name, text) in COMMANDS {
            script(&place.path().join("bin").join(name), text);
        }
        symlink(driver(), place.path().join("lib/libcuda.so.1")).unwrap();
        let squeue = place.path().join("bin/squeue").display().to_string();
        let node = Node::start(&["remote.listen=127.0.0.1:0", "remote.user=0"]);
        let cloud = Cloud::start_with(node, None, &["--provisioner", "slurm", "--squeue", &squeue]);
        Self { place, cloud }
    }

    /// What comes of a job that asks for `gres`, and of its program if it has one.
    fn job(&self, number: u32, gres: &str, has_task: bool) -> String {
        let place = self.place.path();
        let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/slurm");
        let (bin, programs) = (provided("WEFT_TEST_BIN"), provided("WEFT_TEST_PROGRAMS"));
        let (user, stranger) = if is_open() { ("64001", "64002") } else { ("0", "64002") };
        let settings = format!(
            "GSAAS_URL={}\nGSAAS_TOKEN_FILE={}\nPROJECT=team\nPOOLMEM=256\nLIBRARIES={}\n",
            self.cloud.url(),
            self.cloud.token("team").display(),
            place.join("lib").display()
        );
        std::fs::write(place.join("slurm.conf"), settings).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", COMPUTE_NODE]);
        command.envs([("PLACE", place), ("BIN", &bin), ("PROGRAMS", &programs)]);
        command.env("EXAMPLES", examples).env("WEFT_SLURM_CONF", place.join("slurm.conf"));
        command.env("SLURM_JOB_ID", number.to_string()).env("SLURMD_NODENAME", "n1");
        command.env("SLURM_JOB_UID", user).env("STRANGER", stranger).env("GRES", gres);
        command.envs(has_task.then_some(("TASK", "1")));
        text_of(&finish(command))
    }

    /// What Slurm was told to do.
    fn said(&self) -> String {
        std::fs::read_to_string(self.said_file()).unwrap_or_default()
    }

    fn said_file(&self) -> PathBuf {
        self.place.path().join("said")
    }
}

#[test]
fn a_job_has_its_cgpus_from_the_prolog_to_the_epilog() {
    if !has_network() {
        return;
    }
    let slurm = Slurm::new();
    let text = slurm.job(7, "gres/weft:2", true);
    for words in [
        "prolog ended with 0",
        "vector_add: PASSED",
        "program ended with 0",
        "epilog ended with 0",
        "left: <>",
    ] {
        assert!(text.contains(words), "{words}: {text}\n{}", slurm.cloud.log());
    }
    assert!(text.contains("program has <cgpu-") && text.contains("-0,cgpu-"), "{text}");
    // It gets as far as the program: it may read that, and use no endpoint of the job's.
    let stranger = text.split("stranger ended with ").nth(1).unwrap_or_default();
    let is_refused = !["0", "126", "127"].contains(&stranger.lines().next().unwrap_or("0"));
    assert!(is_refused || !is_open(), "another user uses them, or tried nothing: {text}");
    assert_eq!(text.matches("epilog ended with 0").count(), 2, "it may run twice: {text}");
    eventually("the cGPUs to be given back", || slurm.cloud.admin().list().unwrap().is_empty());
    assert_eq!(slurm.said(), "");
    // A job that asks for none, or for others, has none.
    let text = slurm.job(8, "gres/gpu:1", false);
    assert!(text.contains("prolog ended with 0") && text.contains("left: <>"), "{text}");
    assert!(!slurm.cloud.gsaas("admin", &["-list"]).1.contains("slurm-8"));
}

#[test]
fn a_job_that_cannot_have_its_cgpus_is_cancelled_or_waits() {
    if !has_network() {
        return;
    }
    let mut slurm = Slurm::new();
    let text = slurm.job(9, "gres/weft:5", false);
    assert!(text.contains("prolog ended with 0") && text.contains("left: <>"), "{text}");
    let said = slurm.said();
    assert!(said.contains("scontrol update job=9 comment=weft: "), "{said}");
    assert!(said.contains("would have 5 cGPUs, and its quota is 4"), "{said}");
    assert!(said.ends_with("scancel 9\n"), "{said}");
    std::fs::remove_file(slurm.said_file()).unwrap();
    // Nobody answers: the node is drained, and the job kept.
    slurm.cloud.end();
    let text = slurm.job(10, "gres/weft:1", false);
    assert!(text.contains("prolog ended with 1") && text.contains("left: <>"), "{text}");
    assert_eq!(slurm.said(), "");
}
