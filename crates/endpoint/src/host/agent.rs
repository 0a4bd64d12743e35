//! The endpoint at work: takes rows, keeps them in a file, and has the system hold what they say.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use weft_api::endpoint::GrantRow;

use super::network::Observed;
use super::ruleset::{Placed, ruleset};
use super::system::RulesetReader;
use super::table::Table;
use super::{Failure, flows, network, system};

/// What an endpoint is to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where its table is kept.
    pub state: PathBuf,
    /// Interfaces to the network of the GPU nodes, over which nothing else is forwarded.
    pub uplinks: Vec<String>,
}

/// What an endpoint did since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Rulesets put in force.
    pub applied: u64,
    /// Of those, because something had changed what was there.
    pub repaired: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Connections ended, by grant.
    pub ended: u64,
    /// How long the last ruleset took, with all that goes with it.
    pub last: Duration,
}

/// The endpoint of a host.
#[derive(Debug)]
pub struct Agent {
    settings: Settings,
    table: Table,
    /// What was put in force, and the rules as the system prints them then; none if it may be
    /// something else.
    in_force: Option<InForce>,
    reader: RulesetReader,
    totals: Totals,
}

#[derive(Debug)]
struct InForce {
    ruleset: String,
    shape: Option<String>,
}

impl Agent {
    /// With the table of an earlier run, if there was one.
    ///
    /// # Errors
    /// If the system's programs are not there, or the table cannot be read.
    pub fn open(settings: Settings) -> Result<Self, Failure> {
        system::check()?;
        let unreadable = |source| Failure::Io {
            what: format!("cannot read {}", settings.state.display()),
            source,
        };
        let table = match fs::read(&settings.state) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| unreadable(std::io::Error::from(error)))?,
            Err(error) if error.kind() == ErrorKind::NotFound => Table::default(),
            Err(error) => return Err(unreadable(error)),
        };
        let (reader, totals) = (RulesetReader::default(), Totals::default());
        Ok(Self { settings, table, in_force: None, reader, totals })
    }

    /// What is wanted.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// What was done.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Rows of an instance, in the place of those that it had. Those that were are out of force
    /// when this returns, and their connections ended.
    ///
    /// # Errors
    /// Why they are not in force. They may be later: they are wanted, unless they make no sense.
    pub fn put(&mut self, instance: &str, rows: &[GrantRow]) -> Result<(), Failure> {
        let next = self.table.with(instance, rows)?;
        if next != self.table || !self.holds(instance, rows) {
            self.apply(next)?;
        }
        self.is_placed(instance, rows)
    }

    /// Whether exactly these rows are in force, as far as is known: what somebody else changed is
    /// found by [`Self::repair`].
    #[must_use]
    pub fn holds(&self, instance: &str, rows: &[GrantRow]) -> bool {
        self.table.rows(instance) == rows
            && self.in_force.is_some()
            && self.is_placed(instance, rows).is_ok()
    }

    /// No rows of an instance, and no connection of theirs.
    ///
    /// # Errors
    /// Why they may be in force.
    pub fn withdraw(&mut self, instance: &str) -> Result<(), Failure> {
        let next = self.table.without(instance);
        if next != self.table || self.in_force.is_none() {
            self.apply(next)?;
        }
        Ok(())
    }

    /// Looks whether the system still holds what it was given, and puts it right if not.
    ///
    /// # Errors
    /// Why it is not right.
    pub fn repair(&mut self) -> Result<bool, Failure> {
        let there = system::observe()?;
        let (placed, _) = there.place(self.table.ports());
        let is_so = self.in_force.as_ref().is_some_and(|known| {
            known.ruleset == ruleset(&placed, &self.settings.uplinks)
                && known.shape.is_some()
                && known.shape == self.reader.shape()
        });
        if is_so && network::commands(&placed, &there).is_empty() {
            return Ok(false);
        }
        self.totals.repaired += u64::from(self.in_force.take().is_some());
        self.apply_to(self.table.clone(), &there)?;
        Ok(true)
    }

    /// An instance whose interface is there, and its own.
    fn is_placed(&self, instance: &str, rows: &[GrantRow]) -> Result<(), Failure> {
        let Some(row) = rows.first() else { return Ok(()) };
        if self.table.number(instance).is_none() {
            return Err(Failure::Superseded(row.tap.clone()));
        }
        let is_in = |known: &InForce| known.ruleset.contains(&format!("\"{}\"", row.tap));
        if self.in_force.as_ref().is_some_and(is_in) {
            return Ok(());
        }
        Err(Failure::NoPort(row.tap.clone()))
    }

    fn keep(&mut self, next: Table) -> Result<(), Failure> {
        if next != self.table {
            let path = &self.settings.state;
            replace(path, &next).map_err(|source| Failure::Io {
                what: format!("cannot write {}", path.display()),
                source,
            })?;
            self.table = next;
        }
        self.in_force = None;
        Ok(())
    }

    fn apply(&mut self, next: Table) -> Result<(), Failure> {
        let applied = match system::observe() {
            Ok(there) => self.apply_to(next, &there),
            // It is wanted all the same.
            Err(failure) => self.keep(next).and(Err(failure)),
        };
        self.totals.failed += u64::from(applied.is_err());
        applied
    }

    /// Keeps a table, and has the system hold what it says: after a crash in between, the next
    /// start does.
    fn apply_to(&mut self, next: Table, there: &Observed) -> Result<(), Failure> {
        let begun = Instant::now();
        let (placed, absent) = there.place(next.ports());
        for port in absent {
            // Its VM is not there yet, or not any longer: a rule for it would be one for whoever
            // comes by that name.
            eprint_absent(&port.port.tap);
        }
        let uplinks = &self.settings.uplinks;
        let (text, wanted) = (ruleset(&placed, uplinks), network::settings(&placed, uplinks));
        let there_now = system::settings(wanted.keys().chain(next.found().keys()));
        let (writes, found) = network::changes(&wanted, next.found(), &there_now);
        // In one file with the rows: what settings were, from before they are changed until they
        // are that again.
        let mut known = next.found().clone();
        known.extend(found.clone());
        let is_kept = next == self.table;
        let kept = self.keep(next.with_found(known));
        // Rules first: what lets packets go on comes when they say which. Those of rows that were
        // kept already wait for no disk.
        if is_kept || kept.is_ok() {
            system::put_ruleset(&text)?;
        }
        kept?;
        system::put_settings(&writes)?;
        system::put_network(&network::commands(&placed, there))?;
        self.end_flows(&placed)?;
        self.in_force = Some(InForce { ruleset: text, shape: self.reader.shape() });
        self.totals.applied += 1;
        self.totals.last = begun.elapsed();
        let settled = self.table.settled().with_found(found);
        if settled != self.table {
            let in_force = self.in_force.take();
            self.keep(settled)?;
            self.in_force = in_force;
        }
        Ok(())
    }

    /// Connections that no row allows end. The rules drop what is sent on them already; this takes
    /// the way back from the answers.
    fn end_flows(&mut self, placed: &[Placed]) -> Result<(), Failure> {
        let stale = flows::stale(&system::flows()?, placed);
        system::end(&stale)?;
        self.totals.ended += stale.len() as u64;
        Ok(())
    }
}

#[expect(clippy::print_stderr, reason = "the program's only log")]
fn eprint_absent(tap: &str) {
    eprintln!("endpoint: there is no interface {tap}");
}

/// Writes a file that is there wholly or not at all, also after a power cut.
fn replace(path: &Path, table: &Table) -> std::io::Result<()> {
    let bytes = serde_json::to_vec(table)?;
    let fresh = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    let mut file = options.create(true).write(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, path)
}
