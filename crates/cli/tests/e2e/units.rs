//! The units for systemd in `examples/systemd`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{finish, provided, text_of};

/// Where the units have the programs.
const INSTALLED: &str = "/usr/local/bin/";

fn units() -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/systemd");
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.clone(), std::fs::read_to_string(&path).unwrap())).collect()
}

/// The programs take every option that a unit gives them.
#[test]
fn programs_know_what_their_units_say() {
    let mut commands = 0;
    for (path, text) in units() {
        let lines = text.lines().filter(|line| line.starts_with("ExecStart"));
        for (_, line) in lines.filter_map(|line| line.split_once(INSTALLED)) {
            // Words that systemd puts in are not the unit's.
            let line = line.replace("%i", "name");
            let mut words = line.split_whitespace().filter(|word| !word.starts_with("$O"));
            let program = provided("WEFT_TEST_BIN").join(words.next().unwrap());
            let mut command = Command::new(program);
            command.args(words).arg("--help");
            let output = finish(command);
            assert!(output.status.success(), "{}: {line}: {}", path.display(), text_of(&output));
            commands += 1;
        }
    }
    assert_eq!(commands, 7);
}

/// systemd understands them, and they name nothing that it does not know.
#[test]
fn systemd_takes_the_units() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        eprintln!("not run: there is no systemd-analyze here");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let bin = format!("{}/", provided("WEFT_TEST_BIN").display());
    for (path, text) in units() {
        let copy = folder.path().join(path.file_name().unwrap());
        std::fs::write(&copy, text.replace(INSTALLED, &bin)).unwrap();
        let mut command = Command::new("systemd-analyze");
        command.args(["verify", "--man=no"]).arg(&copy);
        let output = finish(command);
        let said = text_of(&output);
        // Units of this machine's own are looked at too, and are not ours.
        let ours = said.lines().any(|line| line.contains("weft"));
        assert!(output.status.success() && !ours, "{}: {said}", path.display());
    }
}
