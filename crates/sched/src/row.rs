//! An array whose first element lies in it, not behind a pointer.
//!
//! Most vGPUs have one session and many tenants one vGPU: with 65,536 of them a decision costs
//! what its cache misses cost, and this saves one at each step down the hierarchy.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;
use core::ops::{Index, IndexMut};

use crate::codec::{Codec, Malformed, Reader};

/// A growing array.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row<T> {
    first: T,
    /// All but the first, and room for more.
    rest: Box<[T]>,
    len: u32,
}

impl<T: Clone + Default> Row<T> {
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// Makes it at least so long.
    pub(crate) fn grow_to(&mut self, len: u32) {
        self.len = self.len.max(len);
        let needed = self.len.saturating_sub(1) as usize;
        if needed > self.rest.len() {
            let mut rest = mem::take(&mut self.rest).into_vec();
            rest.resize(needed.next_power_of_two(), T::default());
            self.rest = rest.into_boxed_slice();
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        core::iter::once(&self.first).chain(&self.rest).take(self.len())
    }
}

impl<T> Index<usize> for Row<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        match index.checked_sub(1) {
            None => &self.first,
            Some(behind) => &self.rest[behind],
        }
    }
}

impl<T> IndexMut<usize> for Row<T> {
    fn index_mut(&mut self, index: usize) -> &mut T {
        match index.checked_sub(1) {
            None => &mut self.first,
            Some(behind) => &mut self.rest[behind],
        }
    }
}

impl<T: Codec + Clone + Default> Codec for Row<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.len().put(out);
        self.iter().for_each(|value| value.put(out));
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let values: Vec<T> = Vec::take(input)?;
        let mut row = Self::default();
        row.grow_to(u32::try_from(values.len()).map_err(|_| input.malformed("length"))?);
        for (place, value) in values.into_iter().enumerate() {
            row[place] = value;
        }
        Ok(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_an_array() {
        let mut row = Row::default();
        assert_eq!(row.len(), 0);
        assert_eq!(row.iter().next(), None);
        row.grow_to(1);
        row[0] = 7;
        row.grow_to(3);
        row[2] = 9;
        assert_eq!(row.iter().copied().collect::<Vec<_>>(), [7, 0, 9]);
        row.grow_to(2);
        assert_eq!(row.len(), 3);
    }
}
