//! Where a node's sockets are. One order of search, for programs and for `weft`.

use std::path::{Path, PathBuf};

/// Name of the socket that tenants attach to, in its directory.
pub const TENANT_SOCKET: &str = "tenant.sock";

/// Name of the socket that `weft` speaks to, in its directory.
pub const ADMIN_SOCKET: &str = "admin.sock";

/// Directory of the machine's own node, root's.
pub const SYSTEM_DIR: &str = "/run/weft";

/// Why a directory is looked into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It was named: `WEFT_RUNTIME_DIR`.
    Named,
    /// The machine's node is there.
    System,
    /// The user's own node would be there.
    Own,
}

/// A directory that may hold a node's sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The directory.
    pub dir: PathBuf,
    /// Why it is looked into.
    pub origin: Origin,
}

/// Directories in which the user `uid` looks for a node, in order: the one that is named, and
/// nowhere else then; the machine's; the user's own. `variable` reads the environment.
#[must_use]
pub fn search(variable: impl Fn(&str) -> Option<PathBuf>, uid: u32) -> Vec<Place> {
    if let Some(dir) = variable("WEFT_RUNTIME_DIR") {
        return vec![Place { dir, origin: Origin::Named }];
    }
    let system = Place { dir: SYSTEM_DIR.into(), origin: Origin::System };
    let own = Place { dir: own_dir(variable, uid), origin: Origin::Own };
    if own.dir == Path::new(SYSTEM_DIR) { vec![system] } else { vec![system, own] }
}

/// Directory in which a node of the user `uid` puts its sockets: the named one; root's is the
/// machine's, however root logged in; else `weft` in the user's run-time directory.
#[must_use]
pub fn own_dir(variable: impl Fn(&str) -> Option<PathBuf>, uid: u32) -> PathBuf {
    if let Some(dir) = variable("WEFT_RUNTIME_DIR") {
        return dir;
    }
    if uid == 0 {
        return SYSTEM_DIR.into();
    }
    match variable("XDG_RUNTIME_DIR") {
        Some(dir) => dir.join("weft"),
        None => format!("/tmp/weft-{uid}").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn searched(variables: &[(&str, &str)], uid: u32) -> Vec<(String, Origin)> {
        let variable = |name: &str| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| PathBuf::from(value))
        };
        let shown = |place: Place| (place.dir.display().to_string(), place.origin);
        search(variable, uid).into_iter().map(shown).collect()
    }

    #[test]
    fn the_machines_node_comes_before_the_users_own() {
        let system = ("/run/weft".to_owned(), Origin::System);
        let own = |dir: &str| (dir.to_owned(), Origin::Own);
        let xdg = ("XDG_RUNTIME_DIR", "/run/user/7");
        assert_eq!(searched(&[], 7), [system.clone(), own("/tmp/weft-7")]);
        assert_eq!(searched(&[xdg], 7), [system.clone(), own("/run/user/7/weft")]);
        // Root's node is the machine's, over SSH too.
        assert_eq!(searched(&[("XDG_RUNTIME_DIR", "/run/user/0")], 0), [system]);
        let named = [("WEFT_RUNTIME_DIR", "/x"), xdg];
        assert_eq!(searched(&named, 7), [("/x".to_owned(), Origin::Named)]);
    }
}
