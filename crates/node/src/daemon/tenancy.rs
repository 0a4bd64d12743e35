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
use std::sync::{Mutex, PoisonError};

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
    /// vGPUs that processes of mapped control groups created or use, by key.
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

    /// A process uses a vGPU: one that is in a mapped control group makes it its tenant's, for as
    /// long as this daemon lives, so that nobody moves a vGPU to another tenant by attaching from
    /// elsewhere.
    pub(crate) fn note(&self, vgpu: u32, process: u32) {
        let is_user = |(_, member): &(u32, Member)| matches!(member, Member::Users(_));
        if self.rules.iter().all(is_user) {
            return;
        }
        let text = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap_or_default();
        self.note_cgroups(vgpu, &text);
    }

    fn note_cgroups(&self, vgpu: u32, text: &str) {
        if let Some(tenant) = self.of_cgroups(text) {
            let mut by_vgpu = self.by_vgpu.lock().unwrap_or_else(PoisonError::into_inner);
            by_vgpu.entry(vgpu).or_insert(tenant);
        }
    }

    /// The user whose tenant pays for a vGPU of this owner.
    pub(crate) fn payer(&self, vgpu: u32, owner: u32) -> u32 {
        let by_vgpu = self.by_vgpu.lock().unwrap_or_else(PoisonError::into_inner);
        by_vgpu.get(&vgpu).copied().unwrap_or_else(|| self.of_user(owner))
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
    fn a_vgpu_stays_with_the_first_mapped_process_that_used_it() {
        let tenancy = tenancy(&[("8", "cgroup:/jobs"), ("9", "cgroup:/other")]);
        assert_eq!(tenancy.payer(3, 1000), 1000);
        tenancy.note_cgroups(3, "0::/jobs/1\n");
        tenancy.note_cgroups(3, "0::/other\n");
        tenancy.note_cgroups(4, "0::/elsewhere\n");
        assert_eq!((tenancy.payer(3, 1000), tenancy.payer(4, 1000)), (8, 1000));
    }
}
