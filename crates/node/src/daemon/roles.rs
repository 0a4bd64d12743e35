//! Who may do what on the admin socket. Pure: who asks and what is asked about is looked up before.

use super::registry::{Change, Granted, Vgpu};
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
    /// The user whose tenant it belongs to: what it does is bounded as that tenant's.
    pub(crate) payer: u32,
    /// What it may do.
    pub(crate) role: Role,
}

impl Caller {
    /// The user `uid` of the tenant of `payer`, a member of `groups`. Root, the daemon's own user
    /// and the members of `admin_group` administrate.
    pub(crate) fn new(
        uid: u32,
        payer: u32,
        groups: &[u32],
        own: u32,
        admin_group: Option<u32>,
    ) -> Self {
        let is_member = admin_group.is_some_and(|group| groups.contains(&group));
        let role = match uid == 0 || uid == own || is_member {
            true => Role::Administrator,
            false => Role::User,
        };
        Self { uid, payer, role }
    }

    /// Whether the caller administrates.
    pub(crate) fn administrates(self) -> bool {
        self.role == Role::Administrator
    }
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

/// Who is user-facing interrupts others, and makes their kernels be cut.
const USER_FACING: &str = "make vGPUs user-facing (--sla)";

/// Whether `caller` may ask `request` at all. What is asked about a vGPU or a process is permitted
/// by the functions below, which take what they decide about: they are asked under the lock under
/// which it is done.
pub(crate) fn permit(caller: Caller, request: &Request) -> Result<(), Forbidden> {
    if caller.administrates() {
        return Ok(());
    }
    match request {
        Request::Node
        | Request::List
        | Request::Stats
        | Request::Timeline { .. }
        | Request::Policy { set: None, .. }
        | Request::Doctor
        | Request::Metrics
        | Request::Set { .. }
        | Request::Remove { .. }
        | Request::Grant(_)
        | Request::SetSession { .. } => Ok(()),
        Request::Create { sla_ns: Some(1..), .. } if !caller.administrates() => {
            Err(Forbidden::Administrators(USER_FACING))
        }
        Request::Create { owner, .. } => match owner.filter(|owner| *owner != caller.uid) {
            Some(_) => Err(Forbidden::Administrators("create vGPUs for other users")),
            None => Ok(()),
        },
        Request::CreateAccelerator(asked) => match (asked.owner, asked.sla_ns) {
            (_, Some(1..)) => Err(Forbidden::Administrators(USER_FACING)),
            (Some(owner), _) if owner != caller.uid => {
                Err(Forbidden::Administrators("create virtual accelerators for other users"))
            }
            _ => Ok(()),
        },
        Request::SetTenant { .. } => Err(Forbidden::Administrators("set the weights of users")),
        Request::Policy { set: Some(_), .. } => Err(Forbidden::Administrators("change the policy")),
        Request::SetDevice { .. } => {
            Err(Forbidden::Administrators("take devices out of service, or put them back"))
        }
        Request::GrantAhead(_) => {
            Err(Forbidden::Administrators("make grants for vGPUs that are not there"))
        }
        Request::Close { .. } => {
            Err(Forbidden::Administrators("close vGPUs that they remove afterwards"))
        }
        Request::Move { .. } => Err(Forbidden::Administrators("move vGPUs between devices")),
        Request::Record { .. } => {
            Err(Forbidden::Administrators("record what all users' programs do"))
        }
        Request::Shutdown { .. } => Err(Forbidden::Administrators("stop the node")),
    }
}

/// Whether `caller` may change that of a vGPU. What a user may choose for its own vGPUs is bounded
/// by the configuration too: see [`crate::config`].
pub(crate) fn permit_change(caller: Caller, vgpu: &Vgpu, change: &Change) -> Result<(), Forbidden> {
    if caller.administrates() {
        return Ok(());
    }
    owns(caller, vgpu)?;
    if change.sla_ns.is_some_and(|sla_ns| sla_ns > 0) {
        return Err(Forbidden::Administrators(USER_FACING));
    }
    within(vgpu, change)
}

/// Whether `caller` may remove a vGPU.
pub(crate) fn permit_removal(caller: Caller, vgpu: &Vgpu) -> Result<(), Forbidden> {
    if caller.administrates() {
        return Ok(());
    }
    owns(caller, vgpu)?;
    match vgpu.granted.is_empty() {
        true => Ok(()),
        false => Err(Forbidden::Granted(vgpu.name.clone())),
    }
}

/// Whether `caller` may let programs of other hosts use a vGPU.
pub(crate) fn permit_grant(caller: Caller, vgpu: &Vgpu) -> Result<(), Forbidden> {
    if caller.administrates() { Ok(()) } else { owns(caller, vgpu) }
}

/// Whether `caller` may weigh process `pid` of user `owner`.
pub(crate) fn permit_weighing(caller: Caller, pid: u32, owner: u32) -> Result<(), Forbidden> {
    if caller.administrates() || owner == caller.uid {
        return Ok(());
    }
    Err(Forbidden::Owner { what: format!("process {pid}"), owner })
}

fn owns(caller: Caller, vgpu: &Vgpu) -> Result<(), Forbidden> {
    if vgpu.owner == caller.uid {
        return Ok(());
    }
    Err(Forbidden::Owner { what: format!("vGPU `{}`", vgpu.name), owner: vgpu.owner })
}

/// Whether an owner may have that of a vGPU about which an administrator has decided.
fn within(vgpu: &Vgpu, change: &Change) -> Result<(), Forbidden> {
    let Change { weight, memory_bytes, cap_ppm, .. } = *change;
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

    const USER: Caller = Caller { uid: 1000, payer: 1000, role: Role::User };

    fn vgpu(owner: u32, granted: Granted) -> Vgpu {
        Vgpu { name: "a".to_owned(), owner, granted, ..Vgpu::default() }
    }

    fn request(json: &str) -> Request {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn root_the_daemons_user_and_the_admin_group_administrate() {
        let role = |uid, groups: &[u32]| Caller::new(uid, uid, groups, 990, Some(27)).role;
        assert_eq!(role(0, &[0]), Role::Administrator);
        assert_eq!(role(990, &[990]), Role::Administrator);
        assert_eq!(role(1000, &[1000, 27]), Role::Administrator);
        assert_eq!(role(1000, &[1000, 28]), Role::User);
        assert_eq!(
            Caller::new(1000, 1000, &[0], 990, None).role,
            Role::User,
            "no group, no members"
        );
    }

    #[test]
    fn users_see_everything_and_change_only_what_is_theirs() {
        let (own, foreign) = (vgpu(1000, Granted::default()), vgpu(1001, Granted::default()));
        let ask = |json: &str| permit(USER, &request(json)).is_ok();
        for seen in ["node", "list", "stats", "timeline", "policy", "doctor", "metrics"] {
            assert!(ask(&format!(r#"{{"op":"{seen}"}}"#)), "{seen}");
        }
        for kept in [
            r#"{"op":"shutdown","force":true}"#,
            r#"{"op":"policy","set":"fair"}"#,
            r#"{"op":"record","seconds":1}"#,
            r#"{"op":"set_tenant","uid":1000,"weight":9}"#,
            r#"{"op":"create","name":"a","owner":1001}"#,
            r#"{"op":"grant_ahead","name":"a","valid_s":1,"uses":1}"#,
            r#"{"op":"close","name":"a"}"#,
        ] {
            assert!(!ask(kept), "{kept}");
            let root = Caller { uid: 0, payer: 0, role: Role::Administrator };
            permit(root, &request(kept)).unwrap();
        }
        assert!(ask(r#"{"op":"create","name":"a"}"#));
        let change = Change { weight: Some(9), ..Change::default() };
        permit_change(USER, &own, &change).unwrap();
        permit_change(USER, &foreign, &change).unwrap_err();
        permit_removal(USER, &own).unwrap();
        permit_removal(USER, &foreign).unwrap_err();
        permit_weighing(USER, 7, 1000).unwrap();
        permit_weighing(USER, 7, 1001).unwrap_err();
    }

    /// Who is user-facing interrupts others: that is not for everybody to choose.
    #[test]
    fn only_administrators_make_vgpus_user_facing() {
        let own = vgpu(1000, Granted::default());
        let ask = |sla_ns| permit_change(USER, &own, &Change { sla_ns, ..Change::default() });
        assert!(matches!(ask(Some(1_000_000)), Err(Forbidden::Administrators(_))));
        ask(Some(0)).unwrap();
        let create = |sla_ns: u64| {
            permit(USER, &request(&format!(r#"{{"op":"create","name":"a","sla_ns":{sla_ns}}}"#)))
        };
        assert!(matches!(create(1_000_000), Err(Forbidden::Administrators(_))));
        create(0).unwrap();
    }

    #[test]
    fn what_an_administrator_gave_bounds_its_owner() {
        let granted =
            Granted { weight: Some(3), memory_bytes: Some(1 << 30), cap_ppm: Some(250_000) };
        let own = vgpu(1000, granted);
        let ask = |weight, memory_bytes, cap_ppm| {
            let change = Change { weight, memory_bytes, cap_ppm, ..Change::default() };
            permit_change(USER, &own, &change)
        };
        ask(Some(2), Some(4096), Some(100_000)).unwrap();
        for (asked, words) in [
            (ask(Some(4), None, None), "weight 3|4"),
            (ask(None, Some(2 << 30), None), "1GiB|2GiB"),
            (ask(None, None, Some(1_000_000)), "25%|none"),
        ] {
            let error = asked.unwrap_err();
            for word in words.split('|') {
                assert!(error.to_string().contains(word), "no {word} in {error}");
            }
        }
        // Else its bounds would go with it.
        assert!(matches!(permit_removal(USER, &own), Err(Forbidden::Granted(_))));
    }
}
