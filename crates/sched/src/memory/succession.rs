//! Who is next, when the order may bend a little for the sake of memory.

/// A vGPU that could run next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its place in the layout.
    pub index: usize,
    /// Its start tag: weighted service in ns.
    pub tag_ns: u64,
    /// Its turn in the order that suits the layout, counted from the vGPU that runs now.
    pub distance: usize,
    /// Slots that stay to be written when its turn begins.
    pub visible: usize,
}

/// Of those whose tag is at most `sigma_ns` past the least one, whoever leaves the fewest slots to
/// be written; of equals the next in the order. `sigma_ns` enters the fairness bound as the σ of
/// `docs/scheduling.md`; with 0 only equal tags are exchanged.
pub fn successor(candidates: &[Candidate], sigma_ns: u64) -> Option<usize> {
    let least = candidates.iter().map(|candidate| candidate.tag_ns).min()?;
    candidates
        .iter()
        .filter(|candidate| candidate.tag_ns - least <= sigma_ns)
        .min_by_key(|candidate| (candidate.visible, candidate.distance, candidate.tag_ns))
        .map(|candidate| candidate.index)
}
