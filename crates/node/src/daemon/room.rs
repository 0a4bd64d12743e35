//! How many sessions the system's limits leave room for.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that the daemon keeps open per session: the link, the worker's process, and the
/// vGPU's frames and table.
const KEPT_PER_SESSION: u64 = 4;

/// Descriptors of everything else: sockets, files, connections, and what sessions need while they
/// open, a few at a time.
const OTHERS: u64 = 256;

/// Sessions that the limit on open files allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    /// So many.
    pub(crate) sessions: usize,
    /// The limit on open files that says so.
    pub(crate) files: u64,
}

impl Room {
    /// Raises the limit on open files as far as it goes, and says how many of the `wanted` sessions
    /// fit.
    pub(crate) fn make(wanted: usize) -> Self {
        let room = Self::of(raise());
        if room.sessions < wanted {
            tracing::warn!(
                wanted,
                room = room.sessions,
                files = room.files,
                "the limit on open files leaves room for fewer sessions than limits.sessions: \
                 raise it (LimitNOFILE=, ulimit -Hn)"
            );
        }
        room
    }

    fn of(files: u64) -> Self {
        let sessions = files.saturating_sub(OTHERS) / KEPT_PER_SESSION;
        Self { sessions: usize::try_from(sessions).unwrap_or(usize::MAX).max(1), files }
    }

    /// What keeps the node from more sessions, when `configured` are allowed.
    pub(crate) fn bound_by(&self, configured: usize) -> String {
        if self.sessions < configured {
            return format!("RLIMIT_NOFILE = {}", self.files);
        }
        "limits.sessions".to_owned()
    }
}

/// Raises the soft limit on open files to the hard one; the limit from now on.
fn raise() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: maximum, maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => maximum.unwrap_or(u64::MAX),
        Err(error) => {
            tracing::warn!(%error, "the limit on open files stays as it is");
            current.unwrap_or(u64::MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_low_limit_on_files_is_what_bounds_the_sessions() {
        let room = Room::of(1024);
        assert_eq!(room.sessions, 192);
        assert_eq!(room.bound_by(2048), "RLIMIT_NOFILE = 1024");
        assert_eq!(room.bound_by(100), "limits.sessions");
        assert_eq!(Room::of(0).sessions, 1, "a node without room for a session is none");
    }
}
