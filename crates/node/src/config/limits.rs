//! What one user may have, choose and hold: the administrator's bounds.
//!
//! `[limits.users.default]` is about everybody, `[limits.users.UID]` about one user; what neither
//! says has the default that [`NodeConfig::limits_of`] states. Pure: who is asked about has to be
//! known, nothing is looked up.

use serde::{Deserialize, Serialize};

use super::{
    ByteSize, CapSetting, ConfigError, NodeConfig, PPM, ShareConfig, WEIGHTS, check, invalid,
};

/// With `share = "vgpu"`: the sum of a user's weights is by default at most so many vGPUs of
/// `defaults.weight` for each device. Without a bound, a share would be as many as one has names.
const SHARES_PER_DEVICE: u64 = 4;

/// The key of `[limits.users]` that is about everybody.
const EVERYBODY: &str = "default";

/// Bounds of a user as they are configured; absent: the next source says.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UserLimitsConfig {
    /// Whether attaching creates vGPUs.
    pub create: Option<bool>,
    /// vGPUs that may be created by attaching.
    pub vgpus: Option<usize>,
    /// Sessions at once.
    pub sessions: Option<usize>,
    /// Highest weight of a vGPU.
    pub weight: Option<u32>,
    /// Highest sum of the weights of the user's vGPUs.
    pub weight_total: Option<u64>,
    /// Largest memory quota of a vGPU.
    pub memory: Option<ByteSize>,
    /// Most device memory that all vGPUs of the user hold together.
    pub memory_total: Option<ByteSize>,
    /// Most host memory that all sessions of the user hold together.
    pub host_memory: Option<ByteSize>,
    /// Most of each device's time that all vGPUs of the user have together, even of an idle one.
    #[serde(with = "super::cap::text")]
    pub cap: Option<CapSetting>,
}

/// Bounds of one user, as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserLimits {
    /// The user.
    pub uid: u32,
    /// Whether attaching creates vGPUs.
    pub create: bool,
    /// vGPUs that may be created by attaching.
    pub vgpus: usize,
    /// Sessions at once.
    pub sessions: usize,
    /// Highest weight that the user may choose for a vGPU.
    pub weight: u32,
    /// Highest sum of the weights of the user's vGPUs.
    pub weight_total: u64,
    /// Largest memory quota that the user may choose for a vGPU, in bytes.
    pub memory_bytes: u64,
    /// Most device memory that the user's vGPUs hold together, in bytes.
    pub memory_total_bytes: u64,
    /// Most host memory that the user's sessions hold together, in bytes.
    pub host_memory_bytes: u64,
    /// Most of each device's time that the user's vGPUs have together, in millionths; [`PPM`] is no
    /// cap.
    pub cap_ppm: u32,
}

/// What a user chooses for a vGPU of its own, or changes in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Choice {
    /// Weight, if it is chosen.
    pub weight: Option<u32>,
    /// Memory quota in bytes, if it is chosen.
    pub memory_bytes: Option<u64>,
    /// The weights of the user's other vGPUs together.
    pub others_weight: u64,
}

/// Why a user may not have what it chose.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// Attaching creates nothing.
    #[error(
        "user {0} may not create vGPUs by attaching (limits.users.*.create); ask an administrator \
         for one (`weft create NAME --owner {0}`)"
    )]
    Create(u32),
    /// The weight is too high.
    #[error(
        "user {uid} may give a vGPU at most weight {most}, not {asked} (limits.users.*.weight); \
         ask for less, or an administrator to set it (`weft set`)"
    )]
    Weight {
        /// The user.
        uid: u32,
        /// What it asked for.
        asked: u32,
        /// What it may have.
        most: u32,
    },
    /// All weights together are too high.
    #[error(
        "the weights of user {uid}'s vGPUs may be {most} together and would be {sum} \
         (limits.users.*.weight_total); ask for less, or remove a vGPU"
    )]
    WeightTotal {
        /// The user.
        uid: u32,
        /// What the sum would be.
        sum: u64,
        /// What it may be.
        most: u64,
    },
    /// The quota is too large.
    #[error(
        "user {uid} may give a vGPU at most {} of memory, not {} (limits.users.*.memory); ask for \
         less, or an administrator to set it (`weft set`)",
        ByteSize(*.most),
        ByteSize(*.asked)
    )]
    Memory {
        /// The user.
        uid: u32,
        /// What it asked for, in bytes.
        asked: u64,
        /// What it may have, in bytes.
        most: u64,
    },
}

impl UserLimits {
    /// Whether the user may have that.
    ///
    /// # Errors
    /// [`LimitError`] says which bound it meets.
    pub fn check(&self, choice: &Choice) -> Result<(), LimitError> {
        let uid = self.uid;
        if let Some(asked) = choice.weight {
            if asked > self.weight {
                return Err(LimitError::Weight { uid, asked, most: self.weight });
            }
            let sum = choice.others_weight.saturating_add(asked.into());
            if sum > self.weight_total {
                return Err(LimitError::WeightTotal { uid, sum, most: self.weight_total });
            }
        }
        match choice.memory_bytes {
            Some(asked) if asked > self.memory_bytes => {
                Err(LimitError::Memory { uid, asked, most: self.memory_bytes })
            }
            Some(_) | None => Ok(()),
        }
    }
}

impl NodeConfig {
    /// What a user may have. Administrators (the daemon's own user and root) are bound by what is
    /// configured for them by their number alone.
    ///
    /// Defaults: weights up to 10,000 where they only divide the user's own part, else
    /// `defaults.weight` and together four times that for each device; quotas up to that of a vGPU
    /// that asks for none; memory of all vGPUs together up to the device's.
    #[must_use]
    pub fn limits_of(&self, uid: u32, is_administrator: bool) -> UserLimits {
        let users = &self.limits.users;
        let own = users.get(&uid.to_string());
        let everybody = users.get(EVERYBODY).filter(|_| !is_administrator);
        let sources = || own.into_iter().chain(everybody);
        let highest = *WEIGHTS.end();
        let weight = match self.scheduling.share {
            ShareConfig::Vgpu if !is_administrator => self.defaults.weight,
            ShareConfig::User | ShareConfig::Vgpu => highest,
        };
        let weight_total = match self.scheduling.share {
            ShareConfig::Vgpu if !is_administrator => {
                let shares = SHARES_PER_DEVICE.saturating_mul(self.devices.len() as u64);
                shares.saturating_mul(self.defaults.weight.into())
            }
            ShareConfig::User | ShareConfig::Vgpu => u64::MAX,
        };
        let memory_bytes = match is_administrator {
            true => self.largest_memory_bytes(),
            false => self.default_memory_bytes(self.largest_memory_bytes()),
        };
        let host_memory_bytes = match is_administrator {
            true => self.limits.host_memory_bytes(),
            false => self.limits.host_memory_per_user(),
        };
        let bytes = |of: fn(&UserLimitsConfig) -> Option<ByteSize>, otherwise: u64| {
            sources().find_map(of).map_or(otherwise, |size| size.0)
        };
        UserLimits {
            uid,
            create: sources().find_map(|of| of.create).unwrap_or(true),
            vgpus: sources().find_map(|of| of.vgpus).unwrap_or(self.limits.vgpus_per_user),
            sessions: sources().find_map(|of| of.sessions).unwrap_or(self.limits.sessions_per_user),
            weight: sources().find_map(|of| of.weight).unwrap_or(weight),
            weight_total: sources().find_map(|of| of.weight_total).unwrap_or(weight_total),
            memory_bytes: bytes(|of| of.memory, memory_bytes),
            memory_total_bytes: bytes(|of| of.memory_total, self.largest_memory_bytes()),
            host_memory_bytes: bytes(|of| of.host_memory, host_memory_bytes),
            cap_ppm: sources().find_map(|of| of.cap).map_or(PPM, |cap| cap.0),
        }
    }

    /// Whether a user administrates the node whatever is configured: the daemon's own, and root.
    #[must_use]
    pub fn is_own_user(&self, uid: u32) -> bool {
        uid == 0 || uid == rustix::process::geteuid().as_raw()
    }

    pub(super) fn check_user_limits(&self) -> Result<(), ConfigError> {
        for (user, limits) in &self.limits.users {
            let key = format!("limits.users.{user}");
            if user != EVERYBODY && user.parse::<u32>().is_err() {
                return Err(invalid(&format!(
                    "{key}: `{user}` is neither the number of a user nor `{EVERYBODY}`"
                )));
            }
            if let Some(weight) = limits.weight {
                check(&format!("{key}.weight"), weight.into(), 1, (*WEIGHTS.end()).into())?;
            }
            if let Some(memory) = limits.memory {
                super::check_size(&format!("{key}.memory"), memory.0, 4096, 1 << 40)?;
            }
            if let Some(sessions) = limits.sessions {
                check(&format!("{key}.sessions"), sessions as u64, 0, 4096)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(settings: &[(&str, &str)]) -> NodeConfig {
        let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let settings: Vec<_> = settings.iter().map(own).collect();
        NodeConfig::load(None, |_| None, &settings).unwrap()
    }

    #[test]
    fn a_users_own_entry_wins_over_everybodys() {
        let config = config(&[
            ("limits.users.default.memory", "1GiB"),
            ("limits.users.default.create", "false"),
            ("limits.users.1000.memory", "2GiB"),
            ("limits.sessions_per_user", "7"),
            ("limits.users.default.cap", "25%"),
            ("limits.users.1000.cap", "none"),
        ]);
        let named = config.limits_of(1000, false);
        assert_eq!([named.cap_ppm, config.limits_of(1001, false).cap_ppm], [PPM, 250_000]);
        assert_eq!((named.memory_bytes, named.create, named.sessions), (2 << 30, false, 7));
        let other = config.limits_of(1001, false);
        assert_eq!((other.memory_bytes, other.create), (1 << 30, false));
        // Administrators are bound by what is said of them alone.
        let own = config.limits_of(0, true);
        assert_eq!((own.memory_bytes, own.create), (config.largest_memory_bytes(), true));
        assert_eq!(config.limits_of(1000, true).memory_bytes, 2 << 30);
    }

    #[test]
    fn nobody_chooses_more_than_the_defaults_unless_told() {
        let settings = [("scheduling.share", "vgpu"), ("defaults.memory", "256MiB")];
        let limits = config(&settings).limits_of(1000, false);
        let weight = |weight| Choice { weight: Some(weight), ..Choice::default() };
        assert_eq!(limits.check(&weight(1)), Ok(()));
        let refused = limits.check(&weight(10_000)).unwrap_err();
        assert!(refused.to_string().contains("limits.users.*.weight"), "{refused}");
        let memory = |bytes| Choice { memory_bytes: Some(bytes), ..Choice::default() };
        assert_eq!(limits.check(&memory(256 << 20)), Ok(()));
        let refused = limits.check(&memory(512 << 20)).unwrap_err().to_string();
        assert!(refused.contains("256MiB") && refused.contains("512MiB"), "{refused}");
        // Where weights divide a user's own part they are the user's own business.
        let limits = config(&[]).limits_of(1000, false);
        assert_eq!(limits.check(&weight(10_000)), Ok(()));
    }

    #[test]
    fn weights_of_all_vgpus_are_bounded_together() {
        let limits = config(&[("limits.users.1000.weight_total", "5")]).limits_of(1000, false);
        let choice = |others_weight| Choice { weight: Some(2), others_weight, memory_bytes: None };
        assert_eq!(limits.check(&choice(3)), Ok(()));
        assert!(matches!(limits.check(&choice(4)), Err(LimitError::WeightTotal { sum: 6, .. })));
    }

    #[test]
    fn where_every_vgpu_is_a_share_a_user_has_four_of_each_device_unless_told() {
        let share = ("scheduling.share", "vgpu");
        let total = |settings: &[(&str, &str)], administrates| {
            config(settings).limits_of(1000, administrates).weight_total
        };
        assert_eq!(total(&[share, ("defaults.weight", "3")], false), 12);
        assert_eq!(total(&[share, ("limits.users.default.weight_total", "99")], false), 99);
        assert_eq!(total(&[share], true), u64::MAX);
        assert_eq!(total(&[], false), u64::MAX, "there they only divide the user's own part");
        let limits = config(&[share]).limits_of(1000, false);
        let one_more =
            |others_weight| Choice { weight: Some(1), others_weight, memory_bytes: None };
        assert_eq!(limits.check(&one_more(3)), Ok(()));
        let refused = limits.check(&one_more(4)).unwrap_err().to_string();
        assert!(refused.contains("limits.users.*.weight_total"), "{refused}");
    }

    #[test]
    fn a_wrong_entry_is_named() {
        for (key, value) in [
            ("limits.users.alice.weight", "1"),
            ("limits.users.1.weight", "0"),
            ("limits.users.1.cap", "0%"),
        ] {
            let set = [(key.to_owned(), value.to_owned())];
            let error = NodeConfig::load(None, |_| None, &set).unwrap_err().to_string();
            assert!(error.contains(key.rsplit_once('.').unwrap().0), "{error}");
        }
    }
}
