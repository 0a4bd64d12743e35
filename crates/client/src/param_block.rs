//! The parameter block of a graph's kernel.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

/// A kernel's parameter values as the kernel reads them, shared by the nodes with these values.
#[derive(Debug, Clone)]
pub struct ParamBlock(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    bytes: Box<[u8]>,
    addresses: OnceLock<Box<[usize]>>,
}

impl ParamBlock {
    /// The addresses of the parameters that begin at these offsets. The list and what it leads to
    /// stay as they are until the last node with these values is changed or destroyed, as
    /// `cuGraphKernelNodeGetParams` promises.
    pub fn addresses(&self, offsets: impl Iterator<Item = usize>) -> &[usize] {
        self.0.addresses.get_or_init(|| {
            let within = offsets.filter_map(|offset| self.0.bytes.get(offset..));
            within.map(|value| value.as_ptr().addr()).collect()
        })
    }
}

impl Deref for ParamBlock {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl From<Vec<u8>> for ParamBlock {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Shared { bytes: bytes.into(), addresses: OnceLock::new() }))
    }
}

impl PartialEq for ParamBlock {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_lead_to_the_values_of_every_copy() {
        let block = ParamBlock::from(vec![1, 0, 2, 3]);
        let copy = block.clone();
        let addresses = block.addresses([0, 2, 9].into_iter()).to_vec();
        let start = copy.as_ptr().addr();
        assert_eq!(addresses, [start, start + 2], "none lies outside");
        assert_eq!(copy.addresses([1].into_iter()), addresses);
        assert_eq!(copy, ParamBlock::from(vec![1, 0, 2, 3]));
    }
}
