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
    /// The nodes sign grants, of vGPUs that are made while the VM boots.
    Sign = 12 "sign";
    /// The VM is asked for, with addresses and grants in its user-data.
    Create = 2 "create";
    /// The VM's port is there.
    Port = 3 "port";
    /// The vGPUs are made on the nodes. Until then the grants are of no use.
    Grant = 1 "grant";
    /// Its host's endpoint leads the masked addresses to the nodes.
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
    Step::Sign,
    Step::Create,
    Step::Port,
    Step::Grant,
    Step::Rules,
    Step::Active,
    Step::Confirm,
];

/// How one is removed: a step, and those of which one was done if anything was begun that it
/// undoes. A node of the version before has vGPUs when grants are signed, which may be unmarked,
/// and so may the VM be.
const UNDOING: &[(Step, &[Step])] = &[
    (Step::Unrule, &[Step::Port]),
    (Step::Revoke, &[]),
    (Step::Terminate, &[]),
    (Step::Release, &[]),
];

/// Steps that leave nothing outside, or only what the next one finds: they are kept with the next.
/// Addresses are the same when they are chosen again, and grants that are signed again are as good
/// as those that a VM was made with. So the VM boots while all of it comes to the disk.
const KEPT_WITH_NEXT: &[Step] = &[Step::Address, Step::Sign, Step::Active];

/// Of steps that are to be done those that are done together: kept in one transaction, which takes
/// the disk as long as one alone.
#[must_use]
pub fn together(steps: &[Step]) -> &[Step] {
    let first = steps.iter().position(|step| !KEPT_WITH_NEXT.contains(step));
    &steps[..first.map_or(steps.len(), |at| at + 1)]
}

/// The steps that are to be done, in this order.
#[must_use]
pub fn plan(wanted: Wanted, marks: Marks) -> Vec<Step> {
    match wanted {
        Wanted::Present => MAKING.iter().copied().filter(|step| !is_done(marks, *step)).collect(),
        Wanted::Absent => UNDOING
            .iter()
            .filter(|(step, after)| !marks.has(*step) && is_begun(marks, after))
            .map(|(step, _)| *step)
            .collect(),
    }
}

/// Whether a step of making is done. The version before, which has no `sign`, had its grants when
/// the vGPUs were made.
fn is_done(marks: Marks, step: Step) -> bool {
    marks.has(step) || (step == Step::Sign && marks.has(Step::Grant))
}

/// Whether one of the steps was done, if there are any.
fn is_begun(marks: Marks, after: &[Step]) -> bool {
    after.is_empty() || after.iter().any(|step| marks.has(*step))
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

/// Whether what was done says that nothing of an instance that is removed can compute any longer:
/// it never had vGPUs, its sessions were ended by the nodes, or the VM is gone, where terminating
/// `ends` it. Whether its host's endpoint has cut it off only that one can say. An instance that
/// `makes_early` has its vGPUs before its VM, and either may be unmarked; others are given theirs
/// once the VM is marked.
#[must_use]
pub fn has_ended(marks: Marks, ends: bool, makes_early: bool) -> bool {
    let is_gone = ends && marks.has(Step::Terminate);
    let has_vgpus = makes_early || is_begun(marks, &[Step::Sign, Step::Grant]);
    is_gone || marks.has(Step::Revoke) || !has_vgpus
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What each step leaves behind, and what takes it away.
    const LEAVES: &[(Step, Step)] = &[
        (Step::Rules, Step::Unrule),
        (Step::Sign, Step::Revoke),
        (Step::Grant, Step::Revoke),
        (Step::Create, Step::Terminate),
    ];

    #[test]
    fn an_instance_is_made_in_the_order_of_the_issue() {
        let plan = plan(Wanted::Present, Marks::default());
        let names: Vec<_> = plan.iter().map(|step| step.name()).collect();
        let order = ["address", "sign", "create", "port", "grant", "rules", "active", "confirm"];
        assert_eq!(names, order);
        let mut marks = Marks::default();
        let mut kept = Vec::new();
        while let steps @ [_, ..] = &*super::plan(Wanted::Present, marks) {
            kept.push(together(steps).len());
            together(steps).iter().for_each(|step| marks = marks.with(*step));
        }
        assert_eq!(kept, [3, 1, 1, 1, 2], "address and sign with create, active with confirm");
    }

    /// Wherever the making was killed, before or after a mark, and wherever the undoing was: what
    /// was begun is taken away, and the GPUs are released last and once.
    #[test]
    fn whatever_was_begun_is_undone() {
        for made in 0..=MAKING.len() {
            let mut marks = Marks::default();
            MAKING[..made].iter().for_each(|step| marks = marks.with(*step));
            // The next ones may have been begun, as far as they are kept together.
            let begun = made + together(&MAKING[made..]).len();
            let begun: BTreeSet<Step> = MAKING[..begun].iter().copied().collect();
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
        let no_port = Marks::default().with(Step::Address).with(Step::Sign);
        assert_eq!(beside(Step::Revoke, no_port), Some(Step::Terminate));
        assert_eq!(beside(Step::Terminate, made), None);
    }

    #[test]
    fn an_instance_has_ended_when_somebody_has_said_so() {
        let ended = |marks, ends| has_ended(marks, ends, false);
        let made = MAKING.iter().fold(Marks::default(), |marks, step| marks.with(*step));
        assert!(ended(Marks::default(), true), "it never had a vGPU");
        assert!(!has_ended(Marks::default(), true, true), "it may have had one");
        assert!(has_ended(Marks::default().with(Step::Revoke), false, true));
        assert!(!ended(made, true));
        assert!(!ended(made.with(Step::Unrule), true), "nothing may have been cut");
        assert!(ended(made.with(Step::Terminate), true));
        assert!(!ended(made.with(Step::Terminate), false), "a job computes on");
        assert!(ended(made.with(Step::Revoke), false));
    }

    /// A control plane of the version before had made the vGPUs, and perhaps asked for a VM; or all
    /// was ready.
    #[test]
    fn what_the_version_before_began_is_finished_or_undone() {
        let made = Marks::default().with(Step::Address).with(Step::Grant);
        assert_eq!(plan(Wanted::Present, made)[..2], [Step::Create, Step::Port]);
        let undone = [Step::Revoke, Step::Terminate, Step::Release];
        assert_eq!(plan(Wanted::Absent, made), undone);
        assert!(!has_ended(made, true, false));
        let ready = Marks(0b111_1111);
        assert_eq!(plan(Wanted::Present, ready), []);
    }

    #[test]
    fn every_step_has_a_bit_of_its_own() {
        let bits: BTreeSet<u32> = Step::ALL.iter().map(|step| step.bit()).collect();
        assert_eq!(bits.len(), Step::ALL.len());
    }
}
