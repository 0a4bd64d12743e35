//! Journals on disk: a folder of numbered files, each of which begins with the core's whole state
//! ([`weft_sched::journal`]).
//!
//! A file's name says how it begins: `000007-start.weftj` with a daemon, `000008-next.weftj` where
//! the file before it ends, `000009-lost-120.weftj` after 120 records that could not be written.

use std::io;
use std::path::{Path, PathBuf};

/// How a file of a journal begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begins {
    /// With a daemon.
    Start,
    /// Where the file before it ends.
    Next,
    /// After a gap.
    Lost {
        /// Records that are in no file.
        records: u64,
    },
}

/// One file of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalFile {
    /// Where.
    pub path: PathBuf,
    /// Its place in the order.
    pub number: u64,
    /// How it begins.
    pub begins: Begins,
}

const EXTENSION: &str = "weftj";

impl JournalFile {
    /// The file of that number in `dir`.
    pub(crate) fn new(dir: &Path, number: u64, begins: Begins) -> Self {
        let how = match begins {
            Begins::Start => "start".to_owned(),
            Begins::Next => "next".to_owned(),
            Begins::Lost { records } => format!("lost-{records}"),
        };
        Self { path: dir.join(format!("{number:06}-{how}.{EXTENSION}")), number, begins }
    }

    fn parse(path: PathBuf) -> Option<Self> {
        let name = path.file_name()?.to_str()?.strip_suffix(EXTENSION)?.strip_suffix('.')?;
        let (number, how) = name.split_once('-')?;
        let begins = match how.split_once('-') {
            None if how == "start" => Begins::Start,
            None if how == "next" => Begins::Next,
            Some(("lost", records)) => Begins::Lost { records: records.parse().ok()? },
            None | Some(_) => return None,
        };
        Some(Self { number: number.parse().ok()?, begins, path })
    }
}

/// What the name of a pool's folder begins with.
const POOL: &str = "pool-";

/// The folder of a pool's journal beside the node's in `dir`.
pub(crate) fn pool_folder(dir: &Path, pool: &str) -> PathBuf {
    dir.join(format!("{POOL}{pool}"))
}

/// The pools that have a journal beside the node's in `dir`, and their folders, by name.
///
/// # Errors
/// The system's.
pub fn pool_folders(dir: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut pools = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()?.strip_prefix(POOL));
        if let Some(name) = name.filter(|_| path.is_dir()) {
            pools.push((name.to_owned(), path.clone()));
        }
    }
    pools.sort_unstable();
    Ok(pools)
}

/// The files of the journal in `dir`, in order.
///
/// # Errors
/// The system's.
pub fn files(dir: &Path) -> io::Result<Vec<JournalFile>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        files.extend(JournalFile::parse(entry?.path()));
    }
    files.sort_by_key(|file| file.number);
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_the_order_and_how_a_file_begins() {
        let dir = tempfile::tempdir().unwrap();
        let all = [Begins::Start, Begins::Next, Begins::Lost { records: 7 }, Begins::Start];
        let made: Vec<JournalFile> = (999_999..)
            .zip(all)
            .map(|(number, begins)| JournalFile::new(dir.path(), number, begins))
            .collect();
        for file in made.iter().rev() {
            std::fs::write(&file.path, "").unwrap();
        }
        for other in ["x.weftj", "1-begin.weftj", "1-lost-x.weftj", "000001-start.new"] {
            std::fs::write(dir.path().join(other), "").unwrap();
        }
        assert_eq!(files(dir.path()).unwrap(), made);
    }
}
