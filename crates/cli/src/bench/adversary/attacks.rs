//! The attacks, what takes the defence against each away, and what else is put in an attacker's
//! place.

use super::losses::Outcome;

/// An attack, as `adversary` is told to do it.
pub(super) struct Attack {
    pub(super) name: &'static str,
    pub(super) paced: bool,
    pub(super) arguments: &'static [&'static str],
    /// Length of its kernels on the real clock, in thousandths of the honest kernel's.
    pub(super) permille: u32,
    /// The longest of its operations that cannot be cut, in ms.
    pub(super) uncut_ms: u32,
    /// The victim waits for each of its launches.
    pub(super) sync_victim: bool,
    /// Processes of it, each of a user of its own.
    pub(super) users: u32,
    pub(super) settings: &'static [(&'static str, &'static str)],
    /// What makes a control of it, which must fail; nothing where nobody attacks.
    pub(super) control: &'static [(&'static str, &'static str)],
    /// What else stands in its place and does a part of what it does.
    pub(super) stand_ins: &'static [StandIn],
}

/// Programs in an attacker's place: what the victim loses to them tells what its loss is of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct StandIn {
    pub(super) name: &'static str,
    pub(super) arguments: &'static [&'static str],
}

/// What a tenant does that competes by fair means, the victim before all.
pub(super) const HONEST: &[&str] = &["honest"];

const UNMANAGED: &[(&str, &str)] = &[("scheduling.policy", "unmanaged")];
/// Whoever executes goes before no program: in every control.
pub(super) const NOBODY_FIRST: &[(&str, &str)] = &[("worker.nice", "0")];
/// What is not a kernel's own execution is charged to nobody.
const FREE_LAUNCHES: &[(&str, &str)] = &[("device.free_launches", "true")];
/// Compiling takes as much of the processors as it gets.
const UNBOUNDED: &[(&str, &str)] = &[("worker.compiling", "unbounded")];
/// A session compiles in its turn, and what it holds by that moves no tag that anybody looks at.
const IN_TURN: &[(&str, &str)] =
    &[("worker.compiling", "in_turn"), ("scheduling.policy", "round_robin")];
/// What a vGPU brings is dear, and there is room for all.
const DEAR: &[(&str, &str)] =
    &[("device.memory", "512MiB"), ("device.switch_entry_ns", "512"), ("defaults.memory", "64MiB")];
/// Whoever holds the device keeps it, and nobody pays.
const KEPT_FREE: &[(&str, &str)] =
    &[("scheduling.policy", "round_robin"), ("scheduling.yield_us", "6000")];
/// The attackers' users are one tenant's.
const MAPPED: &[(&str, &str)] =
    &[("scheduling.share", "user"), ("scheduling.tenants.64100", "64100-64199")];
const UNMAPPED: &[(&str, &str)] = &[("scheduling.tenants.64100", "64100")];
const BY_USER: &[(&str, &str)] = &[("scheduling.share", "user")];

impl Attack {
    const fn paced(name: &'static str, arguments: &'static [&'static str]) -> Self {
        Self {
            name,
            paced: true,
            arguments,
            permille: 1_000,
            uncut_ms: 0,
            sync_victim: false,
            users: 0,
            settings: &[],
            control: UNMANAGED,
            stand_ins: &[],
        }
    }

    const fn real(name: &'static str, permille: u32, arguments: &'static [&'static str]) -> Self {
        Self { paced: false, permille, ..Self::paced(name, arguments) }
    }

    /// Whether an honest tenant is in the attacker's place, which should cost the victim nothing.
    pub(super) const fn is_none(&self) -> bool {
        self.control.is_empty()
    }

    /// What the victim loses in the control. As of the attack, who asks for next to nothing owes
    /// the rest; but where launches are charged to nobody it is not known how much an attacker had.
    pub(super) fn loss_of_control(&self, seen: &Outcome, fair: &Outcome) -> f64 {
        if self.control == FREE_LAUNCHES { 1.0 - seen.rate / fair.rate } else { seen.loss(fair) }
    }

    /// The same with an operation that cannot be cut.
    const fn uncut(self, uncut_ms: u32) -> Self {
        Self { uncut_ms, ..self }
    }
}

/// Copies of ordinary memory, and nothing else.
const PAGEABLE: &[&str] = &["pageable", "--sessions", "8", "--rows", "16777216"];

/// What a tenant takes that copies has three parts: its programs' processors, its workers', and
/// turns.
const COPYING: &[StandIn] = &[
    // The first alone.
    StandIn {
        name: "without_device",
        arguments: &["memory", "--sessions", "8", "--rows", "16777216"],
    },
    // The others: nothing is staged, so no program copies.
    StandIn { name: "pinned", arguments: &["pinned", "--sessions", "8", "--rows", "16777216"] },
    // All, but programs give way. Workers do not: they are the daemon's.
    StandIn {
        name: "niced",
        arguments: &["pageable", "--sessions", "8", "--rows", "16777216", "--nice", "19"],
    },
];

pub(super) const ATTACKS: &[Attack] = &[
    // What the method finds where there is nothing to be found.
    Attack { control: &[], ..Attack::real("none", 1_000, HONEST) },
    Attack::paced("kill", &["kill", "--kernel", "second"]).uncut(1_000),
    Attack::real("kill_real", 500_000, &["kill"]).uncut(1_000),
    Attack::paced("leave", &["leave", "--kernel", "second", "--ahead", "2", "--fraction", "0.02"])
        .uncut(1_000),
    Attack {
        users: 1,
        settings: BY_USER,
        ..Attack::paced("rename", &["kill", "--kernel", "second", "--names"]).uncut(1_000)
    },
    Attack::real("storm", 1, &["storm", "--sessions", "8"]),
    Attack {
        // Without turns nobody holds one while it compiles.
        control: IN_TURN,
        ..Attack::real(
            "storm_launch",
            1,
            &["storm", "--sessions", "1", "--launch", "--kernels", "2000"],
        )
    },
    Attack::real(
        "storm_uncut",
        100_000,
        &["storm", "--sessions", "1", "--launch", "--kernel", "uncut", "--kernels", "2000"],
    )
    .uncut(200),
    Attack {
        // Without turns the device goes to who comes first, and most of its time to long kernels.
        control: FREE_LAUNCHES,
        ..Attack::real(
            "graph",
            1,
            &["graph", "--sessions", "1", "--kernel", "nothing", "--kernels", "4000"],
        )
    },
    Attack::real("fills", 1, &["fills", "--sessions", "1", "--rows", "1073741822"]),
    // Each row is the first touch of a page.
    Attack::real("pages", 1, &["fills", "--sessions", "1", "--rows", "250000", "--pitch", "4096"]),
    Attack::real(
        "copies",
        1,
        &["copies", "--sessions", "1", "--rows", "250000", "--pitch", "4096"],
    ),
    // Ordinary memory: staging is work of the worker's that wants a processor and no kernel.
    Attack { stand_ins: COPYING, ..Attack::real("pageable", 1, PAGEABLE) },
    Attack::real("grow", 50_000, &["grow", "--sessions", "1", "--ahead", "1000"]).uncut(100),
    Attack {
        sync_victim: true,
        ..Attack::paced("uncut_one", &["honest", "--kernel", "uncut", "--ahead", "1"]).uncut(1_600)
    },
    Attack {
        sync_victim: true,
        ..Attack::paced("uncut_eight", &["honest", "--kernel", "uncut", "--ahead", "8"])
            .uncut(1_600)
    },
    Attack::real("tiny", 1, &["tiny", "--kernel", "tiny", "--sessions", "32"]),
    Attack {
        // Longer than a turn is, so that whoever kept its turn would idle all of it.
        settings: DEAR,
        control: KEPT_FREE,
        ..Attack::real(
            "pauses",
            1,
            &["tiny", "--kernel", "tiny", "--sessions", "3", "--parts", "5", "--pause", "0.007"],
        )
    },
    Attack {
        // Compiling wants no turn.
        control: UNBOUNDED,
        ..Attack::real("modules", 1, &["modules", "--sessions", "16"])
    },
    Attack {
        // Wherever it may run, the device's own processor too, if it has one.
        control: NOBODY_FIRST,
        ..Attack::real(
            "busy",
            1,
            &["memory", "--sessions", "8", "--rows", "16777216", "--everywhere"],
        )
    },
    Attack {
        // Calls want no turn either, and nobody goes first in any control.
        control: NOBODY_FIRST,
        ..Attack::real("calls", 1, &["calls", "--sessions", "16"])
    },
    Attack {
        // They have turns, and call in others'.
        control: NOBODY_FIRST,
        ..Attack::real("calls_launch", 1, &["calls", "--sessions", "16", "--launch"])
    },
    Attack {
        users: 1,
        settings: BY_USER,
        control: &[("limits.attaches_per_second", "100000")],
        ..Attack::real("attaches", 1, &["attaches", "--rate", "300"])
    },
    Attack { users: 4, settings: MAPPED, control: UNMAPPED, ..Attack::paced("users", HONEST) },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Figures are named after attacks and what stands in for them.
    #[test]
    fn names_tell_attacks_and_their_stand_ins_apart() {
        let names = ATTACKS.iter().flat_map(|attack| {
            let of_attack = |one: &StandIn| format!("{}_{}", one.name, attack.name);
            let stand_ins = attack.stand_ins.iter().map(of_attack);
            stand_ins.chain([attack.name.to_owned()]).collect::<Vec<_>>()
        });
        let names: Vec<String> = names.collect();
        let different: BTreeSet<&String> = names.iter().collect();
        assert_eq!(different.len(), names.len(), "{names:?}");
    }

    /// It is what stands on the other side of every comparison, by the same kernels.
    #[test]
    fn one_attacks_nobody_and_all_others_have_a_control() {
        let nobody: Vec<&Attack> = ATTACKS.iter().filter(|attack| attack.is_none()).collect();
        let [none] = nobody[..] else { panic!("{} attack nobody", nobody.len()) };
        assert_eq!((none.name, none.arguments, none.permille), ("none", HONEST, 1_000));
        assert!(!none.paced && none.users == 0 && none.settings.is_empty());
    }
}
