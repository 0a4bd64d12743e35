//! The registry of placement policies.

use alloc::string::String;
use core::fmt;

use super::host::{Change, Pick, View};
use super::mix::Mix;
use super::types::Request;
use super::{best_fit, first_fit, fragmentation, gradient, host_fit, least_load};

/// Declares the registry: the order is the order of [`NAMES`], the first is the default.
macro_rules! registry {
    ($($name:literal: $module:ident, $sees:ident, $least:expr, $summary:literal;)+) => {
        const REGISTRY: &[Entry] = &[$(Entry {
            name: $name,
            summary: $summary,
            sees: Sees::$sees,
            pick: $module::pick,
            rank: $module::rank,
            least: $least,
        }),+];

        /// The names of all placement policies, for help texts and error messages.
        pub const NAMES: &[&str] = &[$($name),+];
    };
}

registry! {
    "fragmentation": fragmentation, Mix, Some(fragmentation::least),
        "where the usual requests lose least: GPUs are used up best";
    "first_fit": first_fit, Looks, None,
        "the first GPU with room, as GSaaS: few GPUs in use";
    "least_load": least_load, Looks, None,
        "the GPU with the most free memory, as GSaaS: most speed for each";
    "best_fit": best_fit, Looks, None, "the GPU with the least room left over";
    "host_fit": host_fit, All, None,
        "a model of Weng et al.'s best fit: the host with the least left over";
    "gradient": gradient, Processors, None,
        "a model of Weng et al.'s FGD: fragmentation grows least or shrinks most";
}

/// What of hosts a policy's ranks depend on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sees {
    /// The rooms of their GPUs, whichever has which, their kind, and what of the mix they have
    /// enough processors for.
    Mix,
    /// The same, and where a request asks for no GPU all of their processors; where it asks for
    /// several parts of GPUs also which GPU has which room.
    Processors,
    /// The rooms of their GPUs, whichever has which. The mix is all the same.
    Looks,
    /// More than that, and nothing of the mix.
    All,
}

struct Entry {
    name: &'static str,
    summary: &'static str,
    sees: Sees,
    /// The GPU of a host for one more shared cGPU; one with room if there is any.
    pick: Pick,
    /// How good it is to give the request to a host, the least first.
    rank: fn(&Change<'_>) -> (i64, i64),
    /// The least rank of a host on which at least so much room is left, if that is the less the
    /// fuller the host is.
    least: Option<fn(i64) -> (i64, i64)>,
}

/// A placement policy of the registry.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct PolicyId(usize);

/// A name that is no placement policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("placement policy = {name:?} is not known: it is one of {}", NAMES.join(", "))]
pub struct UnknownPolicy {
    /// The name refused.
    pub name: String,
}

/// The placement policy of that name.
///
/// # Errors
/// If there is none; the error lists those there are.
pub fn by_name(name: &str) -> Result<PolicyId, UnknownPolicy> {
    let found = NAMES.iter().position(|known| *known == name);
    found.map(PolicyId).ok_or_else(|| UnknownPolicy { name: name.into() })
}

impl PolicyId {
    /// Its name.
    pub fn name(self) -> &'static str {
        REGISTRY[self.0].name
    }

    /// What it does, in half a line.
    pub fn summary(self) -> &'static str {
        REGISTRY[self.0].summary
    }

    pub(super) fn pick(self) -> Pick {
        REGISTRY[self.0].pick
    }

    /// Whether hosts that look alike, and have processors for the same of the mix, have one rank
    /// for the request.
    pub(super) fn sees_alike(self, request: &Request) -> bool {
        match REGISTRY[self.0].sees {
            Sees::Mix | Sees::Looks => true,
            Sees::Processors if request.is_exclusive() => request.cgpus > 0,
            Sees::Processors => request.cgpus == 1,
            Sees::All => false,
        }
    }

    /// Whether ranks are other by another mix.
    pub(super) fn measures(self) -> bool {
        matches!(REGISTRY[self.0].sees, Sees::Mix | Sees::Processors)
    }

    /// The least rank that a host can have on which at least so much room is left, if fuller hosts
    /// may have lesser ones: it rises with that room.
    pub(super) fn least(self, left: i64) -> Option<(i64, i64)> {
        REGISTRY[self.0].least.map(|least| least(left))
    }

    /// How good it is to give the request to this host; none if it cannot take it.
    pub(super) fn rank(self, host: &View, request: &Request, mix: &Mix) -> Option<(i64, i64)> {
        let (mut first, mut fragmentation) = (None, None);
        let after = &host.with(request, self.pick(), mix, |choice, _| {
            first.get_or_insert(choice.gpu);
            fragmentation = choice.fragmentation;
        })?;
        Some((REGISTRY[self.0].rank)(&Change { before: host, after, first, fragmentation, mix }))
    }
}

impl fmt::Debug for PolicyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Amounts are far below 2⁶³.
pub(super) fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}
