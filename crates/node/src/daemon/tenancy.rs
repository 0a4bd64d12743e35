//! Which tenant pays for whom: users that one person can make are one tenant.
//!
//! A rootless container runs its programs as users of its owner's sub-uid range, so every one of
//! them would be a tenant with a share of its own. An operator maps users, control groups and
//! containers to the tenant of one user (`scheduling.tenants`); without that a sub-uid belongs to
//! the user whom `/etc/subuid` gave it to.

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::config::{Member, Members, SchedulingConfig};

/// A system's users; `/etc/subuid` may name them.
const PASSWD: &str = "/etc/passwd";

/// The mapping, and whom the vGPUs of mapped processes belong to.
#[derive(Debug, Default)]
pub(crate) struct Tenancy {
    /// The operator's: tenant and member.
    rules: Vec<(u32, Member)>,
    /// The system's: users and who made them.
    ranges: Vec<(RangeInclusive<u32>, u32)>,
    /// Tenants of the vGPUs that have, or had, sessions, by key: what the scheduling core bills.
    by_vgpu: Mutex<BTreeMap<u32, u32>>,
}

impl Tenancy {
    /// As configured, with the sub-uids of this system.
    pub(crate) fn of(config: &SchedulingConfig) -> Self {
        let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let subuid = config.subuid.as_deref().map(read).unwrap_or_default();
        Self::new(&config.tenants, &subuid, &read(Path::new(PASSWD)))
    }

    fn new(tenants: &BTreeMap<String, Members>, subuid: &str, passwd: &str) -> Self {
        let rules = tenants.iter().flat_map(|(tenant, Members(members))| {
            // What is no number was refused with the configuration.
            let tenant = tenant.parse::<u32>().ok();
            members.iter().filter_map(move |member| Some((tenant?, member.clone())))
        });
        let ranges = subuid.lines().filter_map(|line| range(line, passwd)).collect();
        Self { rules: rules.collect(), ranges, by_vgpu: Mutex::default() }
    }

    /// The user whose tenant a user belongs to.
    pub(crate) fn of_user(&self, user: u32) -> u32 {
        let has = |member: &Member| matches!(member, Member::Users(users) if users.contains(&user));
        if let Some((tenant, _)) = self.rules.iter().find(|(_, member)| has(member)) {
            return *tenant;
        }
        let made = self.ranges.iter().find(|(range, owner)| range.contains(&user) && *owner != 0);
        made.map_or(user, |(_, owner)| *owner)
    }

    /// The user whose tenant a process in these control groups (`/proc/PID/cgroup`) belongs to, if
    /// any rule says so.
    fn of_cgroups(&self, text: &str) -> Option<u32> {
        let paths = || text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        let has = |member: &Member| paths().any(|path| member.has_cgroup(path));
        self.rules.iter().find(|(_, member)| has(member)).map(|(tenant, _)| *tenant)
    }

    /// The user whose tenant a user's process belongs to; 0 is a process that nobody knows.
    pub(crate) fn of_process(&self, user: u32, process: u32) -> u32 {
        let is_user = |(_, member): &(u32, Member)| matches!(member, Member::Users(_));
        if self.rules.iter().all(is_user) {
            return self.of_user(user);
        }
        let text = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap_or_default();
        self.of_cgroups(&text).unwrap_or_else(|| self.of_user(user))
    }

    /// A vGPU is placed: the first time that says which tenant it is of until it is removed, so
    /// that nobody moves it to another one by attaching from elsewhere. Answers that tenant.
    pub(crate) fn settle(&self, vgpu: u32, tenant: u32) -> u32 {
        *self.by_vgpu().entry(vgpu).or_insert(tenant)
    }

    /// The tenant that a vGPU was placed in, if it was.
    pub(crate) fn settled(&self, vgpu: u32) -> Option<u32> {
        self.by_vgpu().get(&vgpu).copied()
    }

    /// A vGPU is removed: its key may be another's next.
    pub(crate) fn forget(&self, vgpu: u32) {
        self.by_vgpu().remove(&vgpu);
    }

    /// The user whose tenant pays for a vGPU of this owner.
    pub(crate) fn payer(&self, vgpu: u32, owner: u32) -> u32 {
        self.settled(vgpu).unwrap_or_else(|| self.of_user(owner))
    }

    /// Whether a vGPU of this owner counts among those of a tenant. One that a process of a mapped
    /// control group uses still counts for its owner, who else might create without end and have
    /// such processes use what is there.
    pub(crate) fn counts_for(&self, tenant: u32, vgpu: u32, owner: u32) -> bool {
        self.payer(vgpu, owner) == tenant || self.of_user(owner) == tenant
    }

    fn by_vgpu(&self) -> MutexGuard<'_, BTreeMap<u32, u32>> {
        self.by_vgpu.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A tenant, for people, of whose users one asks.
pub(crate) fn in_words(tenant: u32, user: u32) -> String {
    match tenant == user {
        true => format!("user {user}"),
        false => format!("the tenant of user {tenant} (with user {user})"),
    }
}

/// A line of `/etc/subuid`: `USER:FIRST:COUNT`, the user by name or number.
fn range(line: &str, passwd: &str) -> Option<(RangeInclusive<u32>, u32)> {
    let mut fields = line.trim().split(':');
    let (user, first, count) = (fields.next()?, fields.next()?, fields.next()?);
    let first = first.parse::<u32>().ok()?;
    let last = first.checked_add(count.parse::<u32>().ok()?.checked_sub(1)?)?;
    let by_name = || {
        passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            let is_user = fields.next() == Some(user);
            is_user.then(|| fields.nth(1)?.parse::<u32>().ok()).flatten()
        })
    };
    Some((first..=last, user.parse::<u32>().ok().or_else(by_name)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n";
    const SUBUID: &str = "alice:100000:65536\n1001:165536:65536\nbob:1:1\nroot:500000:9\nbad\n";

    fn tenancy(rules: &[(&str, &str)]) -> Tenancy {
        let members = |text: &&str| Members::parse(text).unwrap();
        let rules = rules.iter().map(|(tenant, text)| ((*tenant).to_owned(), members(text)));
        Tenancy::new(&rules.collect(), SUBUID, PASSWD)
    }

    #[test]
    fn a_sub_uid_belongs_to_the_user_who_was_given_it() {
        let tenancy = tenancy(&[]);
        let seen = [1000, 100_000, 165_535, 165_536, 99_999, 500_001].map(|u| tenancy.of_user(u));
        // What belongs to root stays a user: those are everybody's rootful containers.
        assert_eq!(seen, [1000, 1000, 1000, 1001, 99_999, 500_001]);
    }

    #[test]
    fn an_operators_rule_wins_over_the_system() {
        let tenancy = tenancy(&[("7", "100000-100009,5"), ("8", "cgroup:/jobs")]);
        assert_eq!([100_009, 100_010, 5].map(|user| tenancy.of_user(user)), [7, 1000, 7]);
        assert_eq!(tenancy.of_cgroups("3:cpu:/x\n0::/jobs/12\n"), Some(8));
        assert_eq!(tenancy.of_cgroups("0::/jobs2\n"), None);
    }

    #[test]
    fn a_vgpu_stays_with_the_tenant_that_it_was_placed_in_until_it_is_removed() {
        let tenancy = tenancy(&[("8", "cgroup:/jobs"), ("9", "cgroup:/other")]);
        assert_eq!((tenancy.payer(3, 1000), tenancy.settled(3)), (1000, None));
        assert_eq!(tenancy.settle(3, 8), 8);
        assert_eq!(tenancy.settle(3, 9), 8);
        assert_eq!((tenancy.payer(3, 1000), tenancy.payer(4, 1000)), (8, 1000));
        assert!([8, 1000].iter().all(|tenant| tenancy.counts_for(*tenant, 3, 100_000)));
        assert!(!tenancy.counts_for(9, 3, 100_000));
        tenancy.forget(3);
        assert_eq!(tenancy.payer(3, 1001), 1001, "the key is another vGPU's");
    }

    #[test]
    fn a_process_that_nobody_knows_is_its_users() {
        let tenancy = tenancy(&[("8", "cgroup:/jobs")]);
        assert_eq!([tenancy.of_process(1001, 0), tenancy.of_process(100_000, 0)], [1001, 1000]);
    }
}
