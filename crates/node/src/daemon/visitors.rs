//! Who is connected to the admin socket. Everybody may be, so users are bounded, each and all
//! together, and administrators have places of their own. Pure.

use std::collections::BTreeMap;

use super::roles::Caller;

/// Administrators that may be connected at once (every `weft run --name` is one for a moment).
const ADMINISTRATORS_MAX: usize = 1024;

/// Connections of other users at once.
const USERS_MAX: usize = 256;

/// Connections of one user at once.
const PER_USER_MAX: usize = 16;

/// The connections of the admin socket.
#[derive(Debug, Default)]
pub(crate) struct Visitors {
    administrators: usize,
    users: BTreeMap<u32, usize>,
}

impl Visitors {
    /// Takes a place, or says which limit is met.
    pub(crate) fn enter(&mut self, caller: Caller) -> Result<(), String> {
        if caller.administrates() {
            if self.administrators >= ADMINISTRATORS_MAX {
                return Err(format!("the node serves {ADMINISTRATORS_MAX} administrators already"));
            }
            self.administrators += 1;
            return Ok(());
        }
        let uid = caller.uid;
        let of_user = self.users.get(&uid).copied().unwrap_or(0);
        if of_user >= PER_USER_MAX {
            return Err(format!(
                "user {uid} has {PER_USER_MAX} connections to the node's admin socket already; end \
                 some of them"
            ));
        }
        if self.users.values().sum::<usize>() >= USERS_MAX {
            return Err(format!("the node answers {USERS_MAX} users already; try again"));
        }
        *self.users.entry(uid).or_default() += 1;
        Ok(())
    }

    /// Gives a place back.
    pub(crate) fn leave(&mut self, caller: Caller) {
        if caller.administrates() {
            self.administrators = self.administrators.saturating_sub(1);
        } else if let Some(count) = self.users.get_mut(&caller.uid) {
            *count -= 1;
            if *count == 0 {
                self.users.remove(&caller.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::roles::Role;

    #[test]
    fn users_crowd_out_neither_each_other_nor_administrators() {
        let mut visitors = Visitors::default();
        let user = |uid| Caller { uid, role: Role::User };
        let root = Caller { uid: 0, role: Role::Administrator };
        let taken = (0..2 * PER_USER_MAX).filter(|_| visitors.enter(user(7)).is_ok()).count();
        assert_eq!(taken, PER_USER_MAX);
        visitors.enter(user(8)).unwrap();
        for uid in 100..1000 {
            let _ = visitors.enter(user(uid));
        }
        assert_eq!(visitors.users.values().sum::<usize>(), USERS_MAX);
        visitors.enter(root).unwrap();
        visitors.leave(user(7));
        visitors.enter(user(9)).unwrap();
        assert!(visitors.enter(user(10)).is_err());
    }
}
