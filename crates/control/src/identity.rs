//! Tokens that this control plane did not make.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use weft_api::v1::{Role, check_name};

use crate::openstack::Cloud;
use crate::openstack::keystone::Bearer;
use crate::provision::Failure;
use crate::random;
use crate::store::TokenRow;

/// What Keystone said of a token is believed for so long: one that is taken back opens for that
/// time yet.
const BELIEVED: Duration = Duration::from_secs(60);

/// The same of a token that it does not know.
const DISBELIEVED: Duration = Duration::from_secs(5);

/// Tokens that are remembered.
const REMEMBERED_MAX: usize = 10_000;

/// Tokens about which Keystone is asked at once: a small part of the requests at once, so that
/// invented tokens do not keep known ones out while it is slow.
const ASKED_MAX: usize = 32;

/// Of those the ones that one address shows: whoever invents tokens leaves places for others.
const OF_ADDRESS_MAX: usize = ASKED_MAX / 2;

/// Whoever else knows tokens.
pub trait Identity: Send + Sync + std::fmt::Debug {
    /// Who shows a token from an address, and what that lets them do; nobody if it is not known.
    ///
    /// # Errors
    /// Why nobody can tell.
    fn bearer(&self, token: &str, from: Option<IpAddr>) -> Result<Option<TokenRow>, Failure>;
}

/// Keystone's tokens.
#[derive(Debug)]
pub struct KeystoneTokens {
    cloud: Cloud,
    own_project: OnceLock<String>,
    remembered: Mutex<BTreeMap<[u8; 32], Remembered>>,
    asked: Asked,
}

/// How many tokens are being asked about, by where they were shown.
#[derive(Debug, Default)]
struct Asked(Mutex<BTreeMap<Option<IpAddr>, usize>>);

/// One of them.
#[derive(Debug)]
struct Asking<'a>(&'a Asked, Option<IpAddr>);

impl Asked {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Option<IpAddr>, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, from: Option<IpAddr>) -> Result<Asking<'_>, Failure> {
        let mut all = self.lock();
        let of_it = all.get(&from).copied().unwrap_or_default();
        if of_it >= OF_ADDRESS_MAX || all.values().sum::<usize>() >= ASKED_MAX {
            let words = "Keystone is being asked about many other tokens: try again";
            return Err(Failure::passing(words));
        }
        all.insert(from, of_it + 1);
        Ok(Asking(self, from))
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut all = self.0.lock();
        let left = all.get(&self.1).map_or(0, |count| count.saturating_sub(1));
        if left == 0 {
            all.remove(&self.1)
        } else {
            all.insert(self.1, left)
        };
    }
}

#[derive(Debug, Clone)]
struct Remembered {
    until: Instant,
    token: Option<TokenRow>,
}

impl KeystoneTokens {
    /// Of that cloud.
    #[must_use]
    pub fn new(cloud: Cloud) -> Self {
        let (remembered, asked) = (Mutex::default(), Asked::default());
        Self { cloud, own_project: OnceLock::new(), remembered, asked }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<[u8; 32], Remembered>> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn own_project(&self) -> Result<&str, Failure> {
        if let Some(known) = self.own_project.get() {
            return Ok(known);
        }
        let found = self.cloud.own_project()?;
        Ok(self.own_project.get_or_init(|| found))
    }

    fn ask(&self, token: &str, from: Option<IpAddr>) -> Result<Remembered, Failure> {
        let _asking = self.asked.begin(from)?;
        let own = self.own_project()?;
        let bearer = self.cloud.keystone().validate(token)?;
        let lasts = bearer.as_ref().map_or(DISBELIEVED, |bearer| bearer.lasts.min(BELIEVED));
        let token = bearer.and_then(|bearer| rights(&bearer, own));
        Ok(Remembered { until: Instant::now() + lasts, token })
    }
}

impl Identity for KeystoneTokens {
    fn bearer(&self, token: &str, from: Option<IpAddr>) -> Result<Option<TokenRow>, Failure> {
        // What cannot stand in a header is no token.
        if token.is_empty() || !token.chars().all(|c| c.is_ascii_graphic()) {
            return Ok(None);
        }
        let digest = random::digest(token.as_bytes());
        let now = Instant::now();
        if let Some(known) = self.lock().get(&digest)
            && known.until > now
        {
            return Ok(known.token.clone());
        }
        let fresh = self.ask(token, from)?;
        let mut remembered = self.lock();
        if remembered.len() >= REMEMBERED_MAX {
            // Those that anybody can invent go first.
            remembered.retain(|_, known| known.until > now && known.token.is_some());
            if remembered.len() >= REMEMBERED_MAX {
                remembered.clear();
            }
        }
        remembered.insert(digest, fresh.clone());
        Ok(fresh.token)
    }
}

/// What somebody with Keystone's roles may do here. A project is called by its id, which no two
/// have. An administrator is one of the control plane's own project, or of the whole system:
/// `admin` of any other project is a member of it.
fn rights(bearer: &Bearer, own_project: &str) -> Option<TokenRow> {
    let has = |role: &str| bearer.roles.iter().any(|known| known == role);
    let is_of_all = bearer.is_of_system || bearer.project.as_deref() == Some(own_project);
    let row = |project: Option<&String>, role| TokenRow {
        // In the audit, and what idempotency keys are of.
        name: match project {
            Some(project) => format!("{}@{project}", bearer.user),
            None => format!("{}@system", bearer.user),
        },
        project: project.cloned(),
        role,
        created_ms: 0,
        expires_ms: None,
    };
    if is_of_all && has("admin") {
        return Some(row(None, Role::Admin));
    }
    let project = bearer.project.as_ref().filter(|project| check_name(project).is_ok())?;
    let role = if has("member") || has("manager") || has("admin") {
        Role::Member
    } else if has("reader") {
        Role::Reader
    } else {
        return None;
    };
    Some(row(Some(project), role))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_are_asked_about_at_once_than_may_be() {
        let asked = Asked::default();
        let from = |last| Some(IpAddr::from([10, 0, 0, last]));
        let some = |last| (0..OF_ADDRESS_MAX).map(move |_| from(last));
        let mut all: Vec<Asking<'_>> = some(1).map(|from| asked.begin(from).unwrap()).collect();
        // One that shows many keeps nobody else out.
        assert!(!asked.begin(from(1)).unwrap_err().is_permanent);
        all.extend(some(2).map(|from| asked.begin(from).unwrap()));
        asked.begin(from(3)).unwrap_err();
        all.pop();
        drop(asked.begin(from(3)).unwrap());
        asked.begin(from(3)).unwrap();
        drop(all);
        assert!(asked.lock().is_empty());
    }

    fn bearer(project: Option<&str>, is_of_system: bool, roles: &[&str]) -> Bearer {
        Bearer {
            user: "u1".to_owned(),
            project: project.map(str::to_owned),
            is_of_system,
            roles: roles.iter().map(|role| (*role).to_owned()).collect(),
            lasts: BELIEVED,
        }
    }

    #[test]
    fn keystones_roles_are_rights_in_their_project_only() {
        for (project, is_of_system, roles, expected) in [
            (Some("own"), false, &["admin"][..], Some((None, Role::Admin))),
            (None, true, &["admin", "reader"], Some((None, Role::Admin))),
            // An administrator of a tenant is nobody's but the tenant's.
            (Some("p1"), false, &["admin", "reader"], Some((Some("p1"), Role::Member))),
            (Some("p1"), false, &["member", "reader"], Some((Some("p1"), Role::Member))),
            (Some("p1"), false, &["reader"], Some((Some("p1"), Role::Reader))),
            (Some("own"), false, &["reader"], Some((Some("own"), Role::Reader))),
            (Some("p1"), false, &["swiftoperator"], None),
            (Some("p1"), false, &[], None),
            (Some("../p"), false, &["member"], None),
            (None, true, &["reader"], None),
            (None, false, &["admin"], None),
        ] {
            let found = rights(&bearer(project, is_of_system, roles), "own");
            let found = found.as_ref().map(|row| (row.project.as_deref(), row.role));
            assert_eq!(found, expected, "{project:?} {is_of_system} {roles:?}");
        }
    }

    /// The same user's keys in two projects are two.
    #[test]
    fn a_user_has_a_name_in_each_project() {
        let name =
            |project| rights(&bearer(Some(project), false, &["member"]), "own").unwrap().name;
        assert_ne!(name("p1"), name("p2"));
    }
}
