//! What a worker gives up of what the daemon's user may do: every capability and, when the daemon
//! is root, the user itself.

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, Gid, Uid};

/// The user of a worker whose own is not to be had: user namespaces map only some.
const NOBODY: u32 = 65_534;

/// Gives up all capabilities, and becomes `user` if there is one to become. The process has one
/// thread yet: the system's calls change only the calling one.
pub(crate) fn drop_all(user: Option<u32>) -> rustix::io::Result<()> {
    // What is not in the bounding set is not to be had again, whatever would be executed. Leaving
    // it takes a privilege: who lacks that has none to lose.
    for capability in CapabilitySet::all().iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) | Err(Errno::PERM | Errno::INVAL) => {}
            Err(error) => return Err(error),
        }
    }
    rustix::thread::clear_ambient_capability_set()?;
    if let Some(user) = user {
        rustix::thread::set_thread_groups(&[])?;
        match become_user(user) {
            Err(Errno::INVAL) => become_user(NOBODY)?,
            other => other?,
        }
    }
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets)
}

fn become_user(user: u32) -> rustix::io::Result<()> {
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)
}
