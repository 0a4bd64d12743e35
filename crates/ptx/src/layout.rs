//! Layout of parameters: each at the next multiple of its alignment, as the CUDA ABI does it.

use crate::ir::{Function, Param, ParamPlace, Slot};

/// Places a value at the end of a buffer of `end` bytes; `None` if that exceeds 32 bits.
#[must_use]
pub fn append(end: &mut u32, bytes: u32, align: u32) -> Option<Slot> {
    let offset = end.checked_next_multiple_of(align.max(1))?;
    *end = offset.checked_add(bytes)?;
    Some(Slot { offset, bytes })
}

/// Where the last parameter in memory ends.
#[must_use]
pub fn end(params: &[Param]) -> Option<u32> {
    params.iter().try_fold(0u32, |end, param| match param.place {
        ParamPlace::Offset(offset) => Some(end.max(offset.checked_add(param.size_bytes)?)),
        ParamPlace::Register(_) => Some(end),
    })
}

/// Whether a call that fits one function fits the other.
#[must_use]
pub fn same_signature(a: &Function, b: &Function) -> bool {
    let same = |a: &[Param], b: &[Param]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.size_bytes == b.size_bytes)
    };
    a.kind == b.kind && same(&a.params, &b.params) && same(&a.returns, &b.returns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_aligned_and_ends_have_no_padding() {
        let mut end = 0;
        assert_eq!(append(&mut end, 1, 1), Some(Slot { offset: 0, bytes: 1 }));
        assert_eq!(append(&mut end, 8, 8), Some(Slot { offset: 8, bytes: 8 }));
        assert_eq!(append(&mut end, 12, 16), Some(Slot { offset: 16, bytes: 12 }));
        assert_eq!(end, 28);
        assert_eq!(append(&mut end, u32::MAX, 1), None);
    }
}
