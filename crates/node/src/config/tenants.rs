//! Who belongs to which tenant besides the tenant's own user.

use std::fmt;
use std::ops::RangeInclusive;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// Members of a tenant, as `scheduling.tenants.UID` lists them: `100000-165535`, `2000`,
/// `cgroup:/user.slice/user-1000.slice`, `container:4f1c`, separated by commas.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Members(pub Vec<Member>);

/// Some members of a tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Member {
    /// Users, by number.
    Users(RangeInclusive<u32>),
    /// Processes in this control group or in one below it.
    Cgroup(String),
    /// Processes in a control group that has a part with this beginning of a container's id.
    Container(String),
}

/// Shortest beginning of a container's id that is taken: less would fit others by accident.
const CONTAINER_ID_MIN: usize = 8;

impl Members {
    /// Reads a list.
    ///
    /// # Errors
    /// Says which entry cannot be read, and what entries look like.
    pub fn parse(text: &str) -> Result<Self, String> {
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        entries.map(Member::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl Member {
    fn parse(entry: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{entry}` is none of: a user's number, a range of them such as 100000-165535, \
                 cgroup:/PATH, container:ID (at least {CONTAINER_ID_MIN} digits of it)"
            )
        };
        if let Some(path) = entry.strip_prefix("cgroup:") {
            let path = path.trim_end_matches('/');
            return if path.starts_with('/') {
                Ok(Self::Cgroup(path.to_owned()))
            } else {
                Err(wrong())
            };
        }
        if let Some(id) = entry.strip_prefix("container:") {
            let is_id = id.len() >= CONTAINER_ID_MIN && id.bytes().all(|c| c.is_ascii_hexdigit());
            return if is_id { Ok(Self::Container(id.to_owned())) } else { Err(wrong()) };
        }
        let (first, last) = entry.split_once('-').unwrap_or((entry, entry));
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong());
        let (first, last) = (number(first)?, number(last)?);
        if first <= last { Ok(Self::Users(first..=last)) } else { Err(wrong()) }
    }

    /// Whether a process is a member that stands in this control group.
    #[must_use]
    pub fn has_cgroup(&self, path: &str) -> bool {
        match self {
            Self::Users(_) => false,
            Self::Cgroup(above) => path
                .strip_prefix(above)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
            Self::Container(id) => path.split('/').any(|part| {
                // `docker-4f1c….scope`, `libpod-4f1c…`, or the plain id.
                part.split(['-', '.', ':']).any(|word| word.starts_with(id.as_str()))
            }),
        }
    }
}

impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, member) in self.0.iter().enumerate() {
            let separator = if place == 0 { "" } else { ", " };
            match member {
                Member::Users(users) if users.start() == users.end() => {
                    write!(f, "{separator}{}", users.start())?;
                }
                Member::Users(users) => write!(f, "{separator}{}-{}", users.start(), users.end())?,
                Member::Cgroup(path) => write!(f, "{separator}cgroup:{path}")?,
                Member::Container(id) => write!(f, "{separator}container:{id}")?,
            }
        }
        Ok(())
    }
}

impl Serialize for Members {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl Visitor<'_> for List {
            type Value = Members;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("members such as \"100000-165535, cgroup:/user.slice\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Members, E> {
                Members::parse(text).map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, user: i64) -> Result<Members, E> {
                Members::parse(&user.to_string()).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(List)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_members_is_read_and_a_wrong_one_is_named() {
        let text = "100000-165535, 7,cgroup:/user.slice/user-1000.slice/,container:4f1c0a2b";
        let Members(members) = Members::parse(text).unwrap();
        assert_eq!(members[0], Member::Users(100_000..=165_535));
        assert_eq!(members[1], Member::Users(7..=7));
        assert_eq!(members[2], Member::Cgroup("/user.slice/user-1000.slice".to_owned()));
        assert_eq!(members[3], Member::Container("4f1c0a2b".to_owned()));
        for wrong in ["9-3", "alice", "cgroup:here", "container:4f", "container:not-hex-at-all"] {
            assert!(Members::parse(wrong).unwrap_err().contains(wrong), "{wrong}");
        }
    }

    #[test]
    fn a_cgroup_has_what_is_below_it_and_no_namesake() {
        let Members(members) = Members::parse("cgroup:/a/b,container:4f1c0a2b").unwrap();
        for inside in ["/a/b", "/a/b/c"] {
            assert!(members[0].has_cgroup(inside), "{inside}");
        }
        assert!(!members[0].has_cgroup("/a/bc"));
        for inside in ["/system.slice/docker-4f1c0a2b99.scope", "/x/4f1c0a2b77/y"] {
            assert!(members[1].has_cgroup(inside), "{inside}");
        }
        assert!(!members[1].has_cgroup("/system.slice/docker-99.scope"));
    }
}
