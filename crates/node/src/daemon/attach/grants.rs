//! Grants: what lets an endpoint on another host open sessions of a vGPU.
//!
//! A grant is signed with a key that only this node's state directory has. The first endpoints that
//! use it, as many as it says, are remembered by digests of keys of theirs: whoever else shows it
//! later, having overheard it or found it, is refused, also by the next daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use weft_wire::handshake;
use weft_wire::remote::{CODE_BYTES, Grant, GrantBody, NoGrant, from_hex, to_hex};

use crate::daemon::registry;

/// The most endpoints that a grant is good for: each that used it is remembered.
pub(crate) const USES_MAX: u32 = 10_000;

/// Used grants that are remembered at once. Each was made by somebody who may.
const USED_MAX: usize = 1 << 16;

/// Why a grant does not let anybody in.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GrantError {
    /// It is not this node's, or its vGPU's.
    #[error(
        "the grant {0} is not genuine, another node's, or of a vGPU that was removed: get one with \
         `weft token` on the node whose gateway this is"
    )]
    Forged(String),
    /// Its time is over.
    #[error("the grant {grant} for vGPU `{vgpu}` has expired: get another one with `weft token`")]
    Expired {
        /// How it begins.
        grant: String,
        /// The vGPU.
        vgpu: String,
    },
    /// Others have used it, as many as may.
    #[error(
        "the grant {grant} for vGPU `{vgpu}` is used up: it was made for {}, and others have used \
         it (each `weft run --remote` is one): get another one with `weft token`, or one for \
         several (--uses)",
        endpoints(*uses)
    )]
    Used {
        /// How it begins.
        grant: String,
        /// The vGPU.
        vgpu: String,
        /// For how many it was made.
        uses: u32,
    },
    /// Too many are remembered.
    #[error("the node remembers {USED_MAX} used grants and no more: wait until some have expired")]
    Full,
    /// It could not be remembered.
    #[error("the use of the grant cannot be kept, so it is refused: {0}; make room on the disk")]
    Disk(#[from] io::Error),
}

fn endpoints(uses: u32) -> String {
    if uses == 1 { "one endpoint".into() } else { format!("{uses} endpoints") }
}

/// The key, and what was used.
#[derive(Debug)]
pub(crate) struct Grants {
    key: [u8; 32],
    path: PathBuf,
    used: Mutex<BTreeMap<String, Used>>,
}

/// A grant that was used: all of it, or what came of it since.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Used {
    /// Which, in hexadecimal digits.
    id: String,
    /// When it may be forgotten.
    expires_s: u64,
    /// Digests of the endpoints' keys.
    by: BTreeSet<String>,
}

/// Tells vGPUs apart that had one name after the other.
type Seal = [u8; 16];

/// Seconds since 1970.
pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Grants {
    /// Those of a state directory; the key is made if there is none.
    pub(crate) fn open(state_dir: &Path) -> io::Result<Self> {
        let key = key_at(&state_dir.join("grants.key"))?;
        let path = state_dir.join("grants.used");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let mut used = BTreeMap::new();
        let now = now_s();
        for line in text.lines() {
            // The last line may have been cut by a crash: its endpoint was not let in.
            let Ok(one) = serde_json::from_str::<Used>(line) else { continue };
            if one.expires_s >= now {
                let fresh = Used { by: BTreeSet::new(), ..one.clone() };
                used.entry(one.id.clone()).or_insert(fresh).by.extend(one.by);
            }
        }
        let grants = Self { key, path, used: Mutex::new(used) };
        if !text.is_empty() {
            grants.write_all()?;
        }
        Ok(grants)
    }

    fn write_all(&self) -> io::Result<()> {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = Vec::new();
        for one in used.values() {
            serde_json::to_writer(&mut bytes, one)?;
            bytes.push(b'\n');
        }
        registry::replace(&self.path, &bytes)
    }

    /// A grant for the vGPU that has this seal, or for whichever has the name.
    pub(crate) fn issue(&self, body: &GrantBody, seal: Option<Seal>) -> anyhow::Result<Grant> {
        let body = handshake::to_vec(body)?;
        let code = self.code(&body, seal).finalize().into_bytes().into();
        Ok(Grant { body, code })
    }

    fn code(&self, body: &[u8], seal: Option<Seal>) -> Hmac<Sha256> {
        // Every key length is one.
        let mut code = Hmac::<Sha256>::new_from_slice(&self.key).expect("HMAC takes any key");
        match seal {
            Some(seal) => {
                code.update(b"weft grant 2\0");
                code.update(&seal);
            }
            None => code.update(b"weft grant 1\0"),
        }
        code.update(body);
        code
    }

    /// What a genuine grant says, before it expires. `seal_of` tells a vGPU's seal by its name.
    pub(crate) fn verify(
        &self,
        grant: &Grant,
        seal_of: impl Fn(&str) -> Option<Seal>,
        now: u64,
    ) -> Result<GrantBody, GrantError> {
        let forged = || GrantError::Forged(grant.beginning());
        let code: &[u8; CODE_BYTES] = &grant.code;
        let body = grant.claims().map_err(|_| forged())?;
        let is_genuine = |seal| self.code(&grant.body, seal).verify_slice(code).is_ok();
        if !is_genuine(None) && !seal_of(&body.vgpu).is_some_and(|seal| is_genuine(Some(seal))) {
            return Err(forged());
        }
        if now > body.expires_s {
            return Err(GrantError::Expired { grant: grant.beginning(), vgpu: body.vgpu });
        }
        Ok(body)
    }

    /// Lets the endpoint whose key has this digest use a grant that says this, if it may.
    pub(crate) fn admit(
        &self,
        (grant, endpoint): &(Grant, [u8; 32]),
        body: &GrantBody,
        now: u64,
    ) -> Result<(), GrantError> {
        if self.note_use(body, &to_hex(endpoint), now)? {
            return Ok(());
        }
        let (vgpu, uses) = (body.vgpu.clone(), body.uses.min(USES_MAX));
        Err(GrantError::Used { grant: grant.beginning(), vgpu, uses })
    }

    /// Whether the endpoint may use it: it has before, or others left it a use.
    fn note_use(&self, body: &GrantBody, endpoint: &str, now: u64) -> Result<bool, GrantError> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.retain(|_, one| one.expires_s >= now);
        let id = to_hex(&body.id);
        // One of an earlier version may say more.
        let uses = usize::try_from(body.uses.min(USES_MAX)).unwrap_or(usize::MAX);
        match used.get(&id) {
            Some(one) if one.by.contains(endpoint) => return Ok(true),
            Some(one) if one.by.len() >= uses => return Ok(false),
            Some(_) => {}
            None if used.len() >= USED_MAX => return Err(GrantError::Full),
            None => {}
        }
        // On disk before anybody is let in by it: this use alone, or the file would grow with the
        // square of what a grant is good for.
        let by = BTreeSet::from([endpoint.to_owned()]);
        let one = Used { id: id.clone(), expires_s: body.expires_s, by };
        let mut line = serde_json::to_vec(&one).map_err(io::Error::from)?;
        line.push(b'\n');
        let mut file = File::options().create(true).append(true).mode(0o600).open(&self.path)?;
        let before = file.metadata()?.len();
        let written = file.write_all(&line).and_then(|()| file.sync_data());
        if let Err(error) = written {
            // Half a line would spoil the next one.
            file.set_len(before)?;
            return Err(error.into());
        }
        let fresh = Used { by: BTreeSet::new(), ..one.clone() };
        used.entry(id).or_insert(fresh).by.extend(one.by);
        Ok(true)
    }
}

/// What the gateway shows of an endpoint, and where that is if the gateway says so.
pub(crate) type ShownFrom = (Option<IpAddr>, (Grant, [u8; 32]));

/// What an endpoint shows: the grant's text, a dot and the digest of its key. `None` for anything
/// else, which is an attach token or nothing.
///
/// # Errors
/// [`NoGrant`] for what an endpoint shows with its key and is none. It is no attach token either:
/// whoever reached the gateway would be taken for a program of the gateway's user.
pub(crate) fn shown(token: &str) -> Result<Option<(Grant, [u8; 32])>, NoGrant> {
    let Some((grant, endpoint)) = token.rsplit_once('.') else { return Ok(None) };
    let endpoint = from_hex(endpoint).and_then(|endpoint| endpoint.try_into().ok());
    endpoint.map(|endpoint| Ok((Grant::from_text(grant)?, endpoint))).transpose()
}

/// What the gateway shows, with the address of the host from which it was shown to the gateway
/// before it. Anything else is as [`shown`] has it, an attach token as it is.
///
/// # Errors
/// As [`shown`].
pub(crate) fn shown_from(token: &str) -> Result<Option<ShownFrom>, NoGrant> {
    let from = token.split_once('@').and_then(|(host, rest)| Some((host.parse().ok()?, rest)));
    let Some((host, rest)) = from else { return Ok(shown(token)?.map(|shown| (None, shown))) };
    Ok(shown(rest)?.map(|shown| (Some(host), shown)))
}

/// What the server of a virtual machine shows: the same for each vGPU of its machine, with spaces
/// between. `None` for anything else.
pub(crate) fn all_shown(token: &str) -> Option<Vec<(Grant, [u8; 32])>> {
    token.split(' ').map(|one| shown(one).ok().flatten()).collect()
}

/// Bytes that nobody can guess.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn key_at(path: &Path) -> io::Result<[u8; 32]> {
    match fs::read(path) {
        Ok(bytes) => <[u8; 32]>::try_from(bytes).map_err(|_| {
            let why = format!(
                "{} is no key; move it away, and all grants become worthless",
                path.display()
            );
            io::Error::new(ErrorKind::InvalidData, why)
        }),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let key = random()?;
            registry::replace(path, &key)?;
            Ok(key)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(uses: u32) -> GrantBody {
        GrantBody {
            id: [uses.to_le_bytes()[0]; 16],
            vgpu: "alice".into(),
            owner: 1000,
            weight: 1,
            memory_bytes: 0,
            uses,
            expires_s: 1000,
            server: [3; 32],
        }
    }

    fn grant(grants: &Grants, uses: u32) -> Grant {
        grants.issue(&body(uses), None).unwrap()
    }

    fn redeem(
        grants: &Grants,
        grant: &Grant,
        endpoint: [u8; 32],
        now: u64,
    ) -> Result<GrantBody, GrantError> {
        let body = grants.verify(grant, |_| None, now)?;
        grants.admit(&(grant.clone(), endpoint), &body, now)?;
        Ok(body)
    }

    #[test]
    fn a_grant_is_genuine_to_the_last_bit_and_only_here() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (grants, others) = (Grants::open(here.path()), Grants::open(there.path()));
        let (grants, others) = (grants.unwrap(), others.unwrap());
        let mut issued = grant(&grants, 1);
        assert_eq!(redeem(&grants, &issued, [1; 32], 1000).unwrap(), body(1));
        assert!(matches!(redeem(&others, &issued, [1; 32], 0), Err(GrantError::Forged(_))));
        let late = redeem(&grants, &issued, [1; 32], 1001);
        let late = late.unwrap_err().to_string();
        // Its number is what its text begins with.
        let which = format!("{}…", &issued.to_text()[..13]);
        assert!(late.contains(&which) && late.contains("has expired"), "{late}");
        for at in 0..issued.body.len() {
            issued.body[at] ^= 1;
            let forged = redeem(&grants, &issued, [1; 32], 0);
            assert!(matches!(forged, Err(GrantError::Forged(_))), "byte {at}");
            issued.body[at] ^= 1;
        }
    }

    #[test]
    fn a_grant_of_a_removed_vgpu_opens_no_later_one_of_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let grants = Grants::open(dir.path()).unwrap();
        let issued = |seal| grants.issue(&body(1), seal).unwrap();
        let (of_one, ahead) = (issued(Some([1; 16])), issued(None));
        for (grant, seal, is_good) in [
            (&of_one, Some([1; 16]), true),
            (&of_one, Some([2; 16]), false),
            (&of_one, None, false),
            // Of whichever has the name: who granted it ahead makes names of its own.
            (&ahead, None, true),
            (&ahead, Some([2; 16]), true),
        ] {
            let verified = grants.verify(grant, |name| seal.filter(|_| name == "alice"), 0);
            assert_eq!(verified.is_ok(), is_good, "{seal:?}: {verified:?}");
        }
    }

    #[test]
    fn another_endpoint_cannot_use_what_was_used_not_even_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let mut far = body(2);
        far.expires_s = now_s() + 1000;
        let issued = {
            let grants = Grants::open(dir.path()).unwrap();
            let issued = grants.issue(&far, None).unwrap();
            for endpoint in [1, 1, 2, 1] {
                redeem(&grants, &issued, [endpoint; 32], 0).unwrap();
            }
            let third = redeem(&grants, &issued, [3; 32], 0);
            let third = third.unwrap_err().to_string();
            assert!(third.contains("used up: it was made for 2 endpoints"), "{third}");
            issued
        };
        // A crash in the middle of a line.
        let mut file = File::options().append(true).open(dir.path().join("grants.used")).unwrap();
        file.write_all(b"{\"id\":\"77").unwrap();
        for _ in 0..2 {
            let grants = Grants::open(dir.path()).unwrap();
            assert!(matches!(redeem(&grants, &issued, [3; 32], 0), Err(GrantError::Used { .. })));
            redeem(&grants, &issued, [2; 32], 0).unwrap();
        }
    }

    #[test]
    fn a_grant_for_many_takes_room_for_each_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut far = body(200);
        far.expires_s = now_s() + 1000;
        let grants = Grants::open(dir.path()).unwrap();
        let issued = grants.issue(&far, None).unwrap();
        let path = dir.path().join("grants.used");
        let bytes = || fs::metadata(&path).map_or(0, |file| file.len());
        redeem(&grants, &issued, [0; 32], 0).unwrap();
        let one = bytes();
        for endpoint in 1..200 {
            redeem(&grants, &issued, [endpoint; 32], 0).unwrap();
        }
        assert_eq!(bytes(), 200 * one);
        for grants in [grants, Grants::open(dir.path()).unwrap()] {
            let late = redeem(&grants, &issued, [200; 32], 0);
            assert!(matches!(late, Err(GrantError::Used { .. })), "{late:?}");
            redeem(&grants, &issued, [7; 32], 0).unwrap();
        }
    }

    #[test]
    fn a_grant_of_an_earlier_version_for_more_is_for_as_many_as_any() {
        let dir = tempfile::tempdir().unwrap();
        let grants = Grants::open(dir.path()).unwrap();
        let far = GrantBody { uses: u32::MAX, ..body(1) };
        let by = (0..USES_MAX).map(|number| number.to_string()).collect();
        let used = Used { id: to_hex(&far.id), expires_s: far.expires_s, by };
        grants.used.lock().unwrap().insert(used.id.clone(), used);
        assert!(!grants.note_use(&far, "another", 0).unwrap());
        assert!(grants.note_use(&far, "7", 0).unwrap());
    }

    #[test]
    fn an_attach_token_is_no_grant() {
        for token in ["", "secret", "weft1", "weft1.00", "a.b"] {
            assert_eq!(shown(token), Ok(None), "{token}");
        }
        // What comes with an endpoint's key is a grant or refused, and never taken for a token.
        for grant in ["", "x", "weft1", "weft1.00"] {
            let token = format!("{grant}.{}", to_hex(&[9; 32]));
            assert_eq!(shown(&token), Err(NoGrant), "{token}");
        }
        let dir = tempfile::tempdir().unwrap();
        let text = Grants::open(dir.path()).unwrap().issue(&body(1), None).unwrap().to_text();
        assert_eq!(shown(&text), Ok(None), "it comes with a key");
        let one = format!("{text}.{}", to_hex(&[9; 32]));
        for host in ["10.0.0.7", "fd00::7"] {
            let from = shown_from(&format!("{host}@{one}")).unwrap().unwrap();
            assert_eq!(from, (Some(host.parse().unwrap()), shown(&one).unwrap().unwrap()));
            // A secret may look like it, and one with an endpoint's key is still refused.
            assert_eq!(shown_from(&format!("{host}@secret")), Ok(None));
            assert_eq!(shown_from(&format!("{host}@x.{}", to_hex(&[9; 32]))), Err(NoGrant));
        }
        // What is no address is no part of a grant.
        assert_eq!(shown_from(&format!("\u{1b}[2J@{one}")), Err(NoGrant));
        assert_eq!(shown_from(&one).unwrap().unwrap().0, None);
        assert_eq!(shown(&one).unwrap().unwrap().1, [9; 32]);
        assert_eq!(all_shown(&format!("{one} {one}")).unwrap().len(), 2);
        for token in ["", "secret", &format!("{one} "), &format!("{one} secret")] {
            assert!(all_shown(token).is_none(), "{token}");
        }
    }
}
