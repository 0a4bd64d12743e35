//! Where a node's sockets are. One order of search, for programs and for `weft`.

use std::path::PathBuf;

/// Name of the socket that tenants attach to, in its directory.
pub const TENANT_SOCKET: &str = "tenant.sock";

/// Name of the socket that `weft` speaks to, in its directory.
pub const ADMIN_SOCKET: &str = "admin.sock";

/// Directory of the machine's own node, root's.
pub const SYSTEM_DIR: &str = "/run/weft";

/// Directories in which the user `uid` looks for a node, in order: the one that is named, and
/// nowhere else then; the machine's; the user's own. `variable` reads the environment.
#[must_use]
pub fn search(variable: impl Fn(&str) -> Option<PathBuf>, uid: u32) -> Vec<PathBuf> {
    if let Some(dir) = variable("WEFT_RUNTIME_DIR") {
        return vec![dir];
    }
    let (system, own) = (PathBuf::from(SYSTEM_DIR), own_dir(variable, uid));
    if own == system { vec![system] } else { vec![system, own] }
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

    fn searched(variables: &[(&str, &str)], uid: u32) -> Vec<PathBuf> {
        let variable = |name: &str| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| PathBuf::from(value))
        };
        search(variable, uid)
    }

    #[test]
    fn the_machines_node_comes_before_the_users_own() {
        let of = |dirs: &[&str]| -> Vec<PathBuf> { dirs.iter().map(PathBuf::from).collect() };
        let xdg = ("XDG_RUNTIME_DIR", "/run/user/7");
        assert_eq!(searched(&[], 7), of(&["/run/weft", "/tmp/weft-7"]));
        assert_eq!(searched(&[xdg], 7), of(&["/run/weft", "/run/user/7/weft"]));
        // Root's node is the machine's, over SSH too.
        assert_eq!(searched(&[("XDG_RUNTIME_DIR", "/run/user/0")], 0), of(&["/run/weft"]));
        let named = [("WEFT_RUNTIME_DIR", "/x"), xdg];
        assert_eq!(searched(&named, 7), of(&["/x"]));
    }
}
