//! The system's own programs: `nft`, `ip` and `conntrack`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use serde_json::Value;

use super::flows::{self, Flow};
use super::network::{self, Observed};
use super::{Failure, MARK, MARK_MASK, TABLE, ruleset};

/// Where the settings of the network are files.
const SETTINGS: &str = "/proc/sys/net";

/// With more lines of others' tables than these, ours are read apart from them: so many take as
/// long as two more processes (1,000 lines 20 ms, a process 3 to 4).
const OTHERS_LINES_MAX: usize = 300;

fn failed(what: &str, source: std::io::Error) -> Failure {
    Failure::Io { what: what.to_owned(), source }
}

/// What a program prints that is given some input.
fn run(program: &'static str, arguments: &[&str], input: &str) -> Result<String, Failure> {
    let mut command = Command::new(program);
    // Sentences and numbers are read.
    command.args(arguments).env("LC_ALL", "C");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let spawned = command.spawn();
    let mut child = spawned.map_err(|source| failed(&format!("cannot run {program}"), source))?;
    let stdin = child.stdin.take();
    let output = thread::scope(|scope| {
        // It may print before it has read everything.
        scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input.as_bytes())));
        child.wait_with_output()
    });
    let output = output.map_err(|source| failed(program, source))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let words = said.lines().next().unwrap_or("it failed and did not say why").to_owned();
    Err(Failure::Program { program, words })
}

/// Whether the programs are there.
///
/// # Errors
/// Which is not.
pub fn check() -> Result<(), Failure> {
    run("nft", &["--version"], "")?;
    run("ip", &["-V"], "")?;
    run("conntrack", &["--version"], "")?;
    let all = fs::read_to_string(Path::new(SETTINGS).join("ipv4/conf/all/rp_filter"));
    // A tenant's address is no address of the host's own routes.
    if all.is_ok_and(|all| all.trim() == "1") {
        return Err(Failure::Program {
            program: "sysctl",
            words: "net.ipv4.conf.all.rp_filter is 1, which drops what VMs send: set it to 0 or 2"
                .to_owned(),
        });
    }
    Ok(())
}

/// Puts a ruleset in force, in one transaction.
///
/// # Errors
/// What `nft` said; then nothing has changed.
pub fn put_ruleset(text: &str) -> Result<(), Failure> {
    match run("nft", &["-f", "-"], text) {
        Ok(_) => Ok(()),
        // A table that another version made may have other maps: the same, from nothing.
        Err(_) => {
            let fresh = format!("table inet {TABLE} {{}}\ndelete table inet {TABLE}\n{text}");
            run("nft", &["-f", "-"], &fresh).map(drop)
        }
    }
}

/// Reads the rules as they are in force.
#[derive(Debug, Default)]
pub struct RulesetReader {
    /// Others have so many rules that ours are read apart from them.
    is_apart: bool,
}

impl RulesetReader {
    /// Our tables, without elements and counts; none if there are none.
    #[must_use]
    pub fn shape(&mut self) -> Option<String> {
        let ours = match self.is_apart {
            true => apart(),
            // Somebody else's table may be one that this `nft` cannot read.
            false => self.among_all().unwrap_or_else(apart),
        };
        Some(ours).filter(|ours| !ours.is_empty())
    }

    /// One process reads our tables, with everybody's: `nft` that is to list several finds the last
    /// one only (from 1.0 on). It does not read elements then, which it does to list one table and
    /// not print them (before 1.1): of 10,000 grants that takes 200 ms.
    fn among_all(&mut self) -> Option<String> {
        let all = run("nft", &["-s", "-t", "list", "ruleset"], "").ok()?;
        let (ours, others) = ruleset::ours(&all);
        self.is_apart = others > OTHERS_LINES_MAX;
        Some(ours)
    }
}

/// Our tables, a process for each.
fn apart() -> String {
    let of = |family| run("nft", &["-s", "-t", "list", "table", family, TABLE], "");
    let all = ruleset::FAMILIES.map(|family| of(family).unwrap_or_default());
    ruleset::ours(&all.concat()).0
}

/// Packets by counter.
///
/// # Errors
/// What `nft` said.
pub fn counters() -> Result<Vec<(String, u64)>, Failure> {
    let text = run("nft", &["-j", "list", "counters", "table", "inet", TABLE], "")?;
    let found: Value = serde_json::from_str(&text).unwrap_or_default();
    let one = |item: &Value| {
        let counter = item.get("counter")?;
        Some((counter.get("name")?.as_str()?.to_owned(), counter.get("packets")?.as_u64()?))
    };
    let list = found.get("nftables").and_then(Value::as_array);
    Ok(list.into_iter().flatten().filter_map(one).collect())
}

/// What is there of the network.
///
/// # Errors
/// What `ip` said.
pub fn observe() -> Result<Observed, Failure> {
    let text = run("ip", &["-4", "-j", "-batch", "-"], network::QUERIES)?;
    Observed::parse(&text).map_err(|error| Failure::Program {
        program: "ip",
        words: format!("what it prints is no JSON ({error}): the one of iproute2 is needed"),
    })
}

/// Carries out commands of `ip`.
///
/// # Errors
/// What `ip` said; what came before was done.
pub fn put_network(commands: &[String]) -> Result<(), Failure> {
    if commands.is_empty() {
        return Ok(());
    }
    let text: String = commands.iter().map(|command| format!("{command}\n")).collect();
    run("ip", &["-4", "-batch", "-"], &text).map(drop)
}

/// Settings that are there, of those with these names.
#[must_use]
pub fn settings<'a>(names: impl Iterator<Item = &'a String>) -> BTreeMap<String, String> {
    let value = |name: &String| {
        let text = fs::read_to_string(Path::new(SETTINGS).join(name)).ok()?;
        Some((name.clone(), text.trim().to_owned()))
    };
    names.filter_map(value).collect()
}

/// Writes settings.
///
/// # Errors
/// The system's.
pub fn put_settings(settings: &BTreeMap<String, String>) -> Result<(), Failure> {
    for (name, value) in settings {
        let path = Path::new(SETTINGS).join(name);
        let written = fs::write(&path, value);
        written.map_err(|source| failed(&format!("cannot set {}", path.display()), source))?;
    }
    Ok(())
}

/// Connections of all ports.
///
/// # Errors
/// What `conntrack` said.
pub fn flows() -> Result<BTreeSet<Flow>, Failure> {
    let ours = format!("{MARK}/{MARK_MASK}");
    let text = run("conntrack", &["-L", "-f", "ipv4", "-p", "tcp", "-m", &ours], "")?;
    Ok(flows::parse(&text))
}

/// Ends connections.
///
/// # Errors
/// What `conntrack` said, other than that they have ended.
pub fn end(flows: &BTreeSet<Flow>) -> Result<(), Failure> {
    for flow in flows {
        let arguments = flow.arguments();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let ended = run("conntrack", &arguments, "");
        if let Err(Failure::Program { words, .. }) = &ended
            && words.contains(" 0 flow entries")
        {
            continue;
        }
        ended?;
    }
    Ok(())
}
