//! Who may do what on the admin socket. Pure: who asks and what is asked about is looked up before.

use super::registry::{Granted, Vgpu};
use crate::admin::Request;
use crate::config::{ByteSize, CapSetting};

/// What a caller may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Everything.
    Administrator,
    /// See what there is, and change what is its own.
    User,
}

/// Who asks, as the system says of the socket's other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The user.
    pub(crate) uid: u32,
    /// What it may do.
    pub(crate) role: Role,
}

impl Caller {
    /// The user `uid`, a member of `groups`. Root, the daemon's own user and the members of
    /// `admin_group` administrate.
    pub(crate) fn new(uid: u32, groups: &[u32], own: u32, admin_group: Option<u32>) -> Self {
        let is_member = admin_group.is_some_and(|group| groups.contains(&group));
        let role = match uid == 0 || uid == own || is_member {
            true => Role::Administrator,
            false => Role::User,
        };
        Self { uid, role }
    }

    /// Whether the caller administrates.
    pub(crate) fn administrates(self) -> bool {
        self.role == Role::Administrator
    }
}

/// What a request is about.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Subject<'a> {
    /// The vGPU that it names, if there is one.
    pub(crate) vgpu: Option<&'a Vgpu>,
    /// The user of the process that it names, if it has a session.
    pub(crate) process_user: Option<u32>,
}

/// Why a caller may not do that.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Forbidden {
    /// Administrators only.
    #[error(
        "only administrators may {0}: root, the user who runs the node, and members of \
         sockets.admin_group; ask one of them"
    )]
    Administrators(&'static str),
    /// It is somebody else's.
    #[error("{what} is user {owner}'s; only that user and administrators may change it")]
    Owner {
        /// What.
        what: String,
        /// Whose it is.
        owner: u32,
    },
    /// An administrator has decided about it.
    #[error(
        "an administrator made vGPU `{0}` or bounded it, and only administrators may remove it; ask \
         one of them"
    )]
    Granted(String),
    /// More than an administrator gave.
    #[error(
        "an administrator gave vGPU `{name}` {most} at most, not {asked}; ask for less, or an \
         administrator to set it"
    )]
    Above {
        /// The vGPU.
        name: String,
        /// What was given, in words.
        most: String,
        /// What was asked for, in words.
        asked: String,
    },
}

/// Whether `caller` may ask `request` about `subject`. What a user may choose for its own vGPUs is
/// bounded by the configuration too: see [`crate::config`].
pub(crate) fn permit(
    caller: Caller,
    request: &Request,
    subject: Subject<'_>,
) -> Result<(), Forbidden> {
    if caller.administrates() {
        return Ok(());
    }
    match request {
        Request::Node
        | Request::List
        | Request::Stats
        | Request::Timeline { .. }
        | Request::Policy { set: None }
        | Request::Doctor
        | Request::Metrics => Ok(()),
        Request::Create { owner, .. } => match owner.filter(|owner| *owner != caller.uid) {
            Some(_) => Err(Forbidden::Administrators("create vGPUs for other users")),
            None => Ok(()),
        },
        Request::Set { weight, memory_bytes, cap_ppm, .. } => {
            let Some(vgpu) = subject.vgpu else { return Ok(()) };
            owns(caller, vgpu)?;
            within(vgpu, *weight, *memory_bytes, *cap_ppm)
        }
        Request::Remove { .. } => {
            let Some(vgpu) = subject.vgpu else { return Ok(()) };
            owns(caller, vgpu)?;
            match vgpu.granted.is_empty() {
                true => Ok(()),
                false => Err(Forbidden::Granted(vgpu.name.clone())),
            }
        }
        Request::SetSession { pid, .. } => match subject.process_user {
            Some(owner) if owner != caller.uid => {
                Err(Forbidden::Owner { what: format!("process {pid}"), owner })
            }
            Some(_) | None => Ok(()),
        },
        Request::SetTenant { .. } => Err(Forbidden::Administrators("set the weights of users")),
        Request::Policy { set: Some(_) } => Err(Forbidden::Administrators("change the policy")),
        Request::Record { .. } => {
            Err(Forbidden::Administrators("record what all users' programs do"))
        }
        Request::Shutdown { .. } => Err(Forbidden::Administrators("stop the node")),
    }
}

fn owns(caller: Caller, vgpu: &Vgpu) -> Result<(), Forbidden> {
    if vgpu.owner == caller.uid {
        return Ok(());
    }
    Err(Forbidden::Owner { what: format!("vGPU `{}`", vgpu.name), owner: vgpu.owner })
}

/// Whether an owner may have that of a vGPU about which an administrator has decided.
fn within(
    vgpu: &Vgpu,
    weight: Option<u32>,
    memory_bytes: Option<u64>,
    cap_ppm: Option<u32>,
) -> Result<(), Forbidden> {
    let Granted { weight: weight_max, memory_bytes: memory_max, cap_ppm: cap_max } = vgpu.granted;
    let above = |most: String, asked: String| {
        Err(Forbidden::Above { name: vgpu.name.clone(), most, asked })
    };
    if let (Some(asked), Some(most)) = (weight, weight_max)
        && asked > most
    {
        return above(format!("weight {most}"), asked.to_string());
    }
    if let (Some(asked), Some(most)) = (memory_bytes, memory_max)
        && asked > most
    {
        return above(format!("{} of memory", ByteSize(most)), ByteSize(asked).to_string());
    }
    if let (Some(asked), Some(most)) = (cap_ppm, cap_max)
        && asked > most
    {
        return above(format!("{} of the device", CapSetting(most)), CapSetting(asked).to_string());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Caller = Caller { uid: 1000, role: Role::User };

    fn vgpu(owner: u32, granted: Granted) -> Vgpu {
        Vgpu { name: "a".to_owned(), owner, granted, ..Vgpu::default() }
    }

    fn request(json: &str) -> Request {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn root_the_daemons_user_and_the_admin_group_administrate() {
        let role = |uid, groups: &[u32]| Caller::new(uid, groups, 990, Some(27)).role;
        assert_eq!(role(0, &[0]), Role::Administrator);
        assert_eq!(role(990, &[990]), Role::Administrator);
        assert_eq!(role(1000, &[1000, 27]), Role::Administrator);
        assert_eq!(role(1000, &[1000, 28]), Role::User);
        assert_eq!(Caller::new(1000, &[0], 990, None).role, Role::User, "no group, no members");
    }

    #[test]
    fn users_see_everything_and_change_only_what_is_theirs() {
        let (own, foreign) = (vgpu(1000, Granted::default()), vgpu(1001, Granted::default()));
        let ask = |json: &str, subject: Subject<'_>| permit(USER, &request(json), subject).is_ok();
        let none = Subject::default();
        for seen in ["node", "list", "stats", "timeline", "policy", "doctor", "metrics"] {
            assert!(ask(&format!(r#"{{"op":"{seen}"}}"#), none), "{seen}");
        }
        for kept in [
            r#"{"op":"shutdown","force":true}"#,
            r#"{"op":"policy","set":"fair"}"#,
            r#"{"op":"record","seconds":1}"#,
            r#"{"op":"set_tenant","uid":1000,"weight":9}"#,
            r#"{"op":"create","name":"a","owner":1001}"#,
        ] {
            assert!(!ask(kept, none), "{kept}");
            let root = Caller { uid: 0, role: Role::Administrator };
            permit(root, &request(kept), none).unwrap();
        }
        assert!(ask(r#"{"op":"create","name":"a"}"#, none));
        for change in [r#"{"op":"set","name":"a","weight":9}"#, r#"{"op":"remove","name":"a"}"#] {
            assert!(ask(change, Subject { vgpu: Some(&own), ..none }), "{change}");
            assert!(!ask(change, Subject { vgpu: Some(&foreign), ..none }), "{change}");
        }
        let weigh = r#"{"op":"set_session","pid":7,"weight":2}"#;
        assert!(ask(weigh, Subject { process_user: Some(1000), ..none }));
        assert!(!ask(weigh, Subject { process_user: Some(1001), ..none }));
    }

    #[test]
    fn what_an_administrator_gave_bounds_its_owner() {
        let granted =
            Granted { weight: Some(3), memory_bytes: Some(1 << 30), cap_ppm: Some(250_000) };
        let own = vgpu(1000, granted);
        let ask = |json: &str| {
            permit(USER, &request(json), Subject { vgpu: Some(&own), ..Subject::default() })
        };
        ask(r#"{"op":"set","name":"a","weight":2,"memory_bytes":4096,"cap_ppm":100000}"#).unwrap();
        for (change, words) in [
            (r#""weight":4"#, "weight 3|4"),
            (r#""memory_bytes":2147483648"#, "1GiB|2GiB"),
            (r#""cap_ppm":1000000"#, "25%|none"),
        ] {
            let error = ask(&format!(r#"{{"op":"set","name":"a",{change}}}"#)).unwrap_err();
            for word in words.split('|') {
                assert!(error.to_string().contains(word), "no {word} in {error}");
            }
        }
        // Else its bounds would go with it.
        assert!(matches!(ask(r#"{"op":"remove","name":"a"}"#), Err(Forbidden::Granted(_))));
    }
}
