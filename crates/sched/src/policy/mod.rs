//! Policies: who runs next. One file each, and one line in the registry below.
//!
//! A policy orders vGPUs and nothing else. Turns, budgets, caps, timers, sessions and totals are
//! the device core's (`core.rs`), which calls the hooks of [`Policy`] in this order:
//! `add` … `wake` → (`peek` → `start` → `charge`* → `stop`)* → `sleep` … `remove`, with `charge`
//! also after `stop` when a late report corrects a turn.

mod credit;
mod credit_hs;
mod credit_poll;
mod fair;
mod priority;
mod ranked;
mod round_robin;
#[cfg(test)]
mod shortest;
mod strict_co;
mod unmanaged;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::class::Class;
use crate::codec::{Codec, Malformed, Reader};
use crate::config::Config;
use crate::key::{TenantKey, VgpuKey, Weight};
use crate::tag::Tag;

/// Declares the registry: the order is the order of [`NAMES`], the first is the default.
macro_rules! registry {
    ($($(#[$attribute:meta])* $name:literal: $policy:ty, $summary:literal
       $(, promises: $promises:expr)? $(, polling: $polling:literal)?
       $(, follows processors: $follows:literal)? $(, simulator only: $reason:literal)?;)+) => {
        const REGISTRY: &[Entry] = &[$($(#[$attribute])* Entry {
            name: $name,
            summary: $summary,
            promises: [$($promises,)? NOTHING][0],
            tenants_poll: [$($polling,)? false][0],
            follows_processors: [$($follows,)? false][0],
            simulator_only: [$($reason,)? ""][0],
            build: |setup| Box::new(<$policy>::new(setup)),
            take: |input| Ok(Box::new(<$policy as Codec>::take(input)?)),
        }),+];

        /// The names of all policies, for help texts and error messages.
        pub const NAMES: &[&str] = &[$($(#[$attribute])* $name),+];
    };
}

registry! {
    "fair": fair::Fair, "weighted fair queueing by device time (FairGV)",
        promises: Promises { lag_bound: true, no_waste: true, caps: true };
    "unmanaged": unmanaged::Unmanaged, "no gate: everybody at once, the device's own queue decides",
        promises: Promises { no_waste: true, ..NOTHING };
    "round_robin": round_robin::RoundRobin, "a quantum each in turn, whatever the weight",
        promises: Promises { caps: true, ..NOTHING };
    "priority": priority::Priority, "the largest weight first, equals in turn",
        promises: Promises { caps: true, ..NOTHING };
    "credit_hs": credit_hs::CreditHs, "a model of Credit: wall-time slices by credits; tenants block";
    "credit_poll": credit_poll::CreditPoll, "a model of Credit whose tenants never block",
        polling: true;
    "strict_co": strict_co::StrictCo, "a model of Pegasus: the CPU scheduler's picks go first",
        follows processors: true,
        simulator only: "it follows every pick of the CPU scheduler, which only a simulator sees";
    #[cfg(test)]
    "shortest": shortest::Shortest, "the example of docs/scheduling.md: the fewest turns first";
}

/// What invariants hold a policy against; see the methods of [`PolicyId`].
#[derive(Clone, Copy)]
struct Promises {
    lag_bound: bool,
    no_waste: bool,
    caps: bool,
}

const NOTHING: Promises = Promises { lag_bound: false, no_waste: false, caps: false };

struct Entry {
    name: &'static str,
    summary: &'static str,
    promises: Promises,
    tenants_poll: bool,
    follows_processors: bool,
    /// Empty where a node may use it.
    simulator_only: &'static str,
    build: fn(&Setup<'_>) -> Box<dyn Policy>,
    take: fn(&mut Reader<'_>) -> Result<Box<dyn Policy>, Malformed>,
}

/// What a policy begins with.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// The virtual time that earlier policies of the device reached.
    pub virtual_time: Tag,
    /// The settings.
    pub config: &'a Config,
}

/// A policy of the registry. Serialised as its name.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "String", into = "String"))]
pub struct PolicyId(u8);

/// The policy of that name; the error lists the names there are.
pub fn by_name(name: &str) -> Result<PolicyId, UnknownPolicy> {
    (0u8..)
        .zip(NAMES)
        .find(|(_, known)| **known == name)
        .map(|(id, _)| PolicyId(id))
        .ok_or_else(|| UnknownPolicy { name: name.into() })
}

/// The policy of that name, if a node can run it.
pub fn for_node(name: &str) -> Result<PolicyId, NotForNode> {
    let policy = by_name(name).map_err(|UnknownPolicy { name }| NotForNode::Unknown { name })?;
    match policy.simulator_only() {
        None => Ok(policy),
        Some(reason) => Err(NotForNode::SimulatorOnly { name: policy.name(), reason }),
    }
}

fn node_list() -> String {
    node_names().collect::<Vec<_>>().join(", ")
}

/// The names of the policies that a node can run.
pub fn node_names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().copied().filter(|name| for_node(name).is_ok())
}

impl PolicyId {
    /// Its name.
    pub fn name(self) -> &'static str {
        self.entry().name
    }

    /// What it does, in half a line.
    pub fn summary(self) -> &'static str {
        self.entry().summary
    }

    /// Whether its model has tenants poll for replies without ever blocking. A simulator's tenants
    /// do; real ones wait as always.
    pub fn tenants_poll(self) -> bool {
        self.entry().tenants_poll
    }

    /// Why only a simulator can run it, for those that a node must refuse.
    pub fn simulator_only(self) -> Option<&'static str> {
        Some(self.entry().simulator_only).filter(|reason| !reason.is_empty())
    }

    /// Whether it bounds how far apart the vGPUs that want the device get in service over weight.
    pub fn promises_lag_bound(self) -> bool {
        self.entry().promises.lag_bound
    }

    /// Whether it leaves the device to nobody only while nobody wants it.
    pub fn promises_no_waste(self) -> bool {
        self.entry().promises.no_waste
    }

    /// Whether it accounts for work in flight, so that caps hold.
    pub fn promises_caps(self) -> bool {
        self.entry().promises.caps
    }

    /// Whether it is told whom the CPU scheduler runs ([`Event::OnCpu`](crate::Event::OnCpu)).
    pub fn follows_processors(self) -> bool {
        self.entry().follows_processors
    }

    pub(crate) fn build(self, setup: &Setup<'_>) -> Box<dyn Policy> {
        (self.entry().build)(setup)
    }

    /// Reads a policy's state.
    pub(crate) fn take_state(self, input: &mut Reader<'_>) -> Result<Box<dyn Policy>, Malformed> {
        (self.entry().take)(input)
    }

    fn entry(self) -> &'static Entry {
        &REGISTRY[usize::from(self.0)]
    }
}

/// By name: a journal outlives the order of the registry.
impl Codec for PolicyId {
    fn put(&self, out: &mut Vec<u8>) {
        String::from(self.name()).put(out);
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        by_name(&String::take(input)?).map_err(|_| input.malformed("policy"))
    }
}

impl fmt::Debug for PolicyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<PolicyId> for String {
    fn from(policy: PolicyId) -> Self {
        policy.name().into()
    }
}

impl TryFrom<String> for PolicyId {
    type Error = UnknownPolicy;

    fn try_from(name: String) -> Result<Self, UnknownPolicy> {
        by_name(&name)
    }
}

/// A name that is no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("policy = {name:?} is not known: policy is one of {}", NAMES.join(", "))]
pub struct UnknownPolicy {
    /// The name refused.
    pub name: String,
}

/// A name that is no policy for a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotForNode {
    /// It is no policy at all.
    #[error("policy = {name:?} is not known: a node runs one of {}", node_list())]
    Unknown {
        /// The name refused.
        name: String,
    },
    /// Only a simulator can run it.
    #[error(
        "policy = {name:?} runs in the simulator only: {reason}; a node runs one of {}",
        node_list()
    )]
    SimulatorOnly {
        /// Its name.
        name: &'static str,
        /// Why.
        reason: &'static str,
    },
}

/// Service to put on a vGPU's account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Held time in ns; negative when a prediction is corrected.
    pub ns: i64,
    /// It was held during the turn that goes on, so where nobody else waits the virtual time goes
    /// along. False for predictions and corrections.
    pub settled: bool,
}

/// What a vGPU is behind those that it competes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owed {
    /// Service in ns.
    pub ns: u64,
    /// Those others.
    pub rivals: Rivals,
}

/// With whom a vGPU competes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rivals {
    /// Its tenant with the others.
    Tenants,
    /// The vGPU with others of its tenant.
    Siblings,
}

/// What moves a policy's accounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charges {
    /// Device time, what was in flight at the end of a turn included. Budgets are device time,
    /// and a successor waits until its predecessor's work has all but drained.
    DeviceTime,
    /// The turn's wall time, whatever the device does: the time-slicing of schedulers that do not
    /// account for each request. A turn has no budget, it is revoked when its time is over, and its
    /// successor is granted at the release.
    WallTime,
}

/// Writes a policy's state into a journal; every type with a [`Codec`] does.
pub trait State {
    /// Appends all of it.
    fn save(&self, out: &mut Vec<u8>);
}

impl<T: Codec> State for T {
    fn save(&self, out: &mut Vec<u8>) {
        self.put(out);
    }
}

/// The order in which vGPUs get the device. Trusts its caller: keys are added before they are used.
pub trait Policy: State + fmt::Debug + Send {
    /// Whether everybody is granted the device at once. Then only `add` to `charge` are called.
    fn is_shared(&self) -> bool {
        false
    }

    /// What [`Self::charge`] is given.
    fn charges(&self) -> Charges {
        Charges::DeviceTime
    }

    /// Whether turns of interactive vGPUs begin with [`Action::Wake`](crate::Action::Wake).
    fn coschedules(&self) -> bool {
        true
    }

    /// A tenant joins, `ahead` of the virtual time. Policies without a hierarchy ignore tenants.
    fn add_tenant(&mut self, _tenant: TenantKey, _weight: Weight, _ahead: Tag) {}

    /// A tenant leaves; its vGPUs have left before.
    fn remove_tenant(&mut self, _tenant: TenantKey) {}

    /// A tenant's weight changed.
    fn reweight_tenant(&mut self, _tenant: TenantKey, _weight: Weight) {}

    /// A vGPU of a tenant comes from another device, where the tenant was so far `ahead`: while
    /// it sleeps here, it is no less ahead.
    fn delay_tenant(&mut self, _tenant: TenantKey, _ahead: Tag) {}

    /// A vGPU of a tenant joins, asleep, `ahead` of its virtual time (what it overdrew under
    /// another policy, on another device or before a restart).
    fn add(&mut self, vgpu: VgpuKey, tenant: TenantKey, weight: Weight, ahead: Tag);

    /// The virtual time of a tenant's part, which [`Self::ahead`] counts from. Nothing where the
    /// policy has none.
    fn time_of(&self, _tenant: TenantKey) -> Option<Tag> {
        None
    }

    /// A vGPU that sleeps is no less ahead than this.
    fn delay(&mut self, _vgpu: VgpuKey, _ahead: Tag) {}

    /// A vGPU leaves, whatever it was doing.
    fn remove(&mut self, vgpu: VgpuKey);

    /// A vGPU's weight changed.
    fn reweight(&mut self, vgpu: VgpuKey, weight: Weight);

    /// Whether user-facing vGPUs go before batch ones.
    fn has_classes(&self) -> bool {
        false
    }

    /// A vGPU's class, if it is another than batch or was.
    fn set_class(&mut self, _vgpu: VgpuKey, _class: Class) {}

    /// From now on a vGPU whose turn ended goes on while it is at most this much service ahead, in
    /// ns.
    fn set_slack(&mut self, _slack_ns: u64) {}

    /// Who is next once, if it waits then and is within reach ([`Config::reach_ns`]).
    fn prefer(&mut self, _vgpu: VgpuKey) {}

    /// Those that wait and would be next if preferred.
    fn within_reach(&self) -> Vec<VgpuKey> {
        Vec::new()
    }

    /// A vGPU has work again.
    fn wake(&mut self, vgpu: VgpuKey);

    /// A vGPU has no work. During its turn it keeps the turn.
    fn sleep(&mut self, vgpu: VgpuKey);

    /// A vGPU that sleeps is likely to wake at once: until it wakes or [`Self::end_anticipation`]
    /// is called it keeps its place among the others, as if it were awake and could not run. One
    /// at a time.
    fn anticipate(&mut self, _vgpu: VgpuKey) {}

    /// What a vGPU that sleeps is behind those that wait, and among whom: among tenants where
    /// nobody else of its own has work, among its tenant's vGPUs where no other tenant has.
    /// Nothing unless it would be next, were it awake. Who `worked` through its turn may be so by
    /// the slack.
    fn owed(&self, _vgpu: VgpuKey, _worked: bool) -> Option<Owed> {
        None
    }

    /// With whom a vGPU that sleeps would compete, were it awake.
    fn rivals(&self, _vgpu: VgpuKey) -> Rivals {
        Rivals::Tenants
    }

    /// Whoever was expected to go on sleeps from now on.
    fn end_anticipation(&mut self) {}

    /// Who is next among those awake. Asked when nobody is in a turn.
    fn peek(&self) -> Option<VgpuKey>;

    /// A vGPU's turn begins. At most one at a time.
    fn start(&mut self, vgpu: VgpuKey);

    /// A vGPU's turn ends: it waits again if it is awake.
    fn stop(&mut self, vgpu: VgpuKey);

    /// A vGPU consumed service, or a prediction is corrected.
    fn charge(&mut self, vgpu: VgpuKey, charge: Charge);

    /// Who would be next if the vGPU in its turn ended it after `rest_ns` more of service; it may
    /// be the same one. Nothing depends on it but who is woken in time.
    fn successor(&self, vgpu: VgpuKey, rest_ns: u64) -> Option<VgpuKey>;

    /// Time passes: called before anything else at each event, for policies that account by it.
    fn tick(&mut self, _now_ns: u64) {}

    /// A vCPU of the vGPU's tenant runs, or no longer runs ([`Event::OnCpu`](crate::Event::OnCpu)).
    fn on_cpu(&mut self, _vgpu: VgpuKey, _on: bool) {}

    /// Whether the turn of this vGPU should end now for the sake of the one [`Self::peek`] would
    /// name. Asked at every decision while others wait.
    fn preempts(&self, _vgpu: VgpuKey) -> bool {
        false
    }

    /// The virtual time, for policies that have one. It never falls.
    fn virtual_time(&self) -> Tag {
        Tag::ZERO
    }

    /// How far a vGPU's tag is ahead of the virtual time of its tenant's part.
    fn ahead(&self, _vgpu: VgpuKey) -> Tag {
        Tag::ZERO
    }

    /// How far a tenant's tag is ahead of the virtual time.
    fn tenant_ahead(&self, _tenant: TenantKey) -> Tag {
        Tag::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_and_says_what_it_does() {
        for name in NAMES {
            let policy = by_name(name).unwrap();
            assert_eq!(policy.name(), *name);
            assert!(!policy.summary().is_empty());
        }
        assert_eq!(PolicyId::default().name(), "fair");
    }

    #[test]
    fn each_policy_promises_what_it_keeps() {
        let of = |kept: fn(PolicyId) -> bool| -> Vec<&str> {
            NAMES.iter().copied().filter(|name| kept(by_name(name).unwrap())).collect()
        };
        assert_eq!(of(PolicyId::promises_lag_bound), ["fair"]);
        assert_eq!(of(PolicyId::promises_no_waste), ["fair", "unmanaged"]);
        assert_eq!(of(PolicyId::promises_caps), ["fair", "round_robin", "priority"]);
        assert_eq!(of(PolicyId::follows_processors), ["strict_co"]);
    }

    #[test]
    fn only_strict_co_needs_a_simulator() {
        let refused = NAMES.iter().filter(|name| by_name(name).unwrap().simulator_only().is_some());
        assert_eq!(refused.collect::<Vec<_>>(), [&"strict_co"]);
        assert!(!node_names().any(|name| name == "strict_co"));
        assert_eq!(
            for_node("strict_co").unwrap_err().to_string(),
            "policy = \"strict_co\" runs in the simulator only: it follows every pick of the CPU \
             scheduler, which only a simulator sees; a node runs one of fair, unmanaged, \
             round_robin, priority, credit_hs, credit_poll, shortest"
        );
        assert!(!for_node("fare").unwrap_err().to_string().contains("strict_co"));
        for_node("credit_poll").unwrap();
        assert!(for_node("fare").unwrap_err().to_string().contains("is not known"));
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = by_name("fare").unwrap_err().to_string();
        assert_eq!(
            error,
            "policy = \"fare\" is not known: policy is one of fair, unmanaged, round_robin, priority, \
             credit_hs, credit_poll, strict_co, shortest"
        );
    }
}
