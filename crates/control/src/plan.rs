//! What is to be done about an instance: pure, from what is wanted and what was done.
//!
//! Each step may be executed again after a crash in the middle of it: what was done is marked after
//! it was done. So the undoing begins with the first step that may have been begun without being
//! marked.

use crate::store::{Marks, Wanted};

/// Declares the steps with their names; the order of the first ones is the order of making.
macro_rules! steps {
    ($($(#[$doc:meta])* $step:ident = $bit:literal $name:literal;)+) => {
        /// A step. GPUs are reserved before the first one, in the transaction that makes the
        /// instance.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Step {
            $($(#[$doc])* $step,)+
        }

        impl Step {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$step),+];

            /// Its bit among [`Marks`]; it stands in stores, so it never changes.
            #[must_use]
            pub fn bit(self) -> u32 {
                1 << match self { $(Self::$step => $bit,)+ }
            }

            /// Its name in events.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$step => $name,)+ }
            }
        }
    };
}

steps! {
    /// Masked addresses are chosen.
    Address = 0 "address";
    /// vGPUs are made on the nodes, with grants.
    Grant = 1 "grant";
    /// The VM is asked for, with addresses and grants in its user-data.
    Create = 2 "create";
    /// The VM's port is there.
    Port = 3 "port";
    /// Its host's endpoint leads the masked addresses to the nodes. The VM boots meanwhile.
    Rules = 4 "rules";
    /// The VM has booted.
    Active = 5 "active";
    /// Everything is in force, and the instance ready.
    Confirm = 6 "confirm";
    /// The endpoint knows the VM no longer.
    Unrule = 8 "unrule";
    /// The vGPUs are removed, and with them sessions and grants.
    Revoke = 9 "revoke";
    /// The VM is gone.
    Terminate = 10 "terminate";
    /// The GPUs are free.
    Release = 11 "release";
}

/// How an instance is made.
const MAKING: &[Step] = &[
    Step::Address,
    Step::Grant,
    Step::Create,
    Step::Port,
    Step::Rules,
    Step::Active,
    Step::Confirm,
];

/// How one is removed: a step, and the one without which nothing has been begun that it undoes.
const UNDOING: &[(Step, Option<Step>)] = &[
    (Step::Unrule, Some(Step::Port)),
    (Step::Revoke, Some(Step::Address)),
    (Step::Terminate, Some(Step::Grant)),
    (Step::Release, None),
];

/// The steps that are to be done, in this order.
#[must_use]
pub fn plan(wanted: Wanted, marks: Marks) -> Vec<Step> {
    match wanted {
        Wanted::Present => MAKING.iter().copied().filter(|step| !marks.has(*step)).collect(),
        Wanted::Absent => UNDOING
            .iter()
            .filter(|(step, after)| !marks.has(*step) && after.is_none_or(|after| marks.has(after)))
            .map(|(step, _)| *step)
            .collect(),
    }
}

/// A step of removing an instance that does not wait for another one: nodes end sessions while
/// rules are withdrawn, whether or not the endpoint answers, and where the nodes fail the VM is
/// ended, so that whoever can say that it has ended is asked.
#[must_use]
pub fn beside(step: Step, marks: Marks) -> Option<Step> {
    let next = if step == Step::Unrule {
        Some(Step::Revoke)
    } else {
        (step == Step::Revoke).then_some(Step::Terminate)
    };
    next.filter(|step| plan(Wanted::Absent, marks).contains(step))
}

/// Whether nothing of an instance that is removed can compute any longer: there never was a VM, its
/// sessions were ended by the nodes or, where withdrawing rules `cuts` connections, by its host's
/// endpoint, or the VM is gone.
#[must_use]
pub fn has_ended(marks: Marks, cuts: bool) -> bool {
    let is_cut = cuts && marks.has(Step::Unrule);
    let ended = [Step::Revoke, Step::Terminate].iter().any(|step| marks.has(*step));
    is_cut || ended || !marks.has(Step::Grant)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What each step leaves behind, and what takes it away.
    const LEAVES: &[(Step, Step)] = &[
        (Step::Rules, Step::Unrule),
        (Step::Grant, Step::Revoke),
        (Step::Create, Step::Terminate),
    ];

    #[test]
    fn an_instance_is_made_in_the_order_of_the_issue() {
        let plan = plan(Wanted::Present, Marks::default());
        let names: Vec<_> = plan.iter().map(|step| step.name()).collect();
        let order = ["address", "grant", "create", "port", "rules", "active", "confirm"];
        assert_eq!(names, order);
    }

    /// Wherever the making was killed, before or after a mark, and wherever the undoing was: what
    /// was begun is taken away, and the GPUs are released last and once.
    #[test]
    fn whatever_was_begun_is_undone() {
        for made in 0..=MAKING.len() {
            let mut marks = Marks::default();
            MAKING[..made].iter().for_each(|step| marks = marks.with(*step));
            // The next one may have been begun.
            let begun: BTreeSet<Step> = MAKING.iter().take(made + 1).copied().collect();
            let mut undone = Vec::new();
            while let Some(step) = plan(Wanted::Absent, marks).first().copied() {
                // Killed before the mark, it is the first one again.
                assert_eq!(plan(Wanted::Absent, marks)[0], step);
                marks = marks.with(step);
                undone.push(step);
            }
            assert_eq!(undone.last(), Some(&Step::Release));
            for (step, undo) in LEAVES.iter().filter(|(step, _)| begun.contains(step)) {
                assert!(undone.contains(undo), "{step:?} was begun with {made} done");
            }
            let distinct: BTreeSet<_> = undone.iter().collect();
            assert_eq!(distinct.len(), undone.len());
        }
    }

    /// Whatever was done beside another step, the rest is done in the same order.
    #[test]
    fn what_was_done_beside_a_step_that_fails_is_not_done_again() {
        let made = MAKING.iter().fold(Marks::default(), |marks, step| marks.with(*step));
        assert_eq!(beside(Step::Unrule, made), Some(Step::Revoke));
        let revoked = made.with(Step::Revoke);
        assert_eq!(beside(Step::Unrule, revoked), None);
        let left = [Step::Unrule, Step::Terminate, Step::Release];
        assert_eq!(plan(Wanted::Absent, revoked), left);
        // An endpoint that is away does not keep a VM whose nodes are away, too.
        assert_eq!(beside(Step::Revoke, made), Some(Step::Terminate));
        assert_eq!(beside(Step::Revoke, made.with(Step::Terminate)), None);
        assert_eq!(beside(Step::Revoke, made.with(Step::Unrule)), Some(Step::Terminate));
        let no_port = Marks::default().with(Step::Address).with(Step::Grant);
        assert_eq!(beside(Step::Revoke, no_port), Some(Step::Terminate));
        assert_eq!(beside(Step::Terminate, made), None);
    }

    #[test]
    fn an_instance_has_ended_when_somebody_has_said_so() {
        let made = MAKING.iter().fold(Marks::default(), |marks, step| marks.with(*step));
        assert!(has_ended(Marks::default(), true), "there never was a VM");
        assert!(!has_ended(made, true));
        assert!(has_ended(made.with(Step::Unrule), true));
        assert!(!has_ended(made.with(Step::Unrule), false), "nothing was cut");
        for step in [Step::Revoke, Step::Terminate] {
            assert!(has_ended(made.with(step), false));
        }
    }

    #[test]
    fn every_step_has_a_bit_of_its_own() {
        let bits: BTreeSet<u32> = Step::ALL.iter().map(|step| step.bit()).collect();
        assert_eq!(bits.len(), Step::ALL.len());
    }
}
