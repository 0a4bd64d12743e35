//! An array whose first element lies in it, not behind a pointer.
//!
//! Most vGPUs have one session and many tenants one vGPU: with 65,536 of them a decision costs
//! what its cache misses cost, and this saves one at each step down the hierarchy.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

use crate::codec::{Codec, Malformed, Reader};

/// A growing array.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row<T> {
    first: T,
    rest: Option<Box<Rest<T>>>,
    len: u32,
}

/// All but the first.
#[derive(Clone, Debug)]
struct Rest<T>(Vec<T>);

impl<T> Default for Rest<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Clone + Default> Row<T> {
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// Makes it at least so long.
    pub(crate) fn grow_to(&mut self, len: u32) {
        if len > self.len {
            self.len = len;
        }
        if len > 1 {
            let rest = &mut self.rest.get_or_insert_default().0;
            rest.resize(self.len as usize - 1, T::default());
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        core::iter::once(&self.first).chain(self.rest()).take(self.len())
    }
}

impl<T> Row<T> {
    fn rest(&self) -> &[T] {
        self.rest.as_ref().map_or(&[], |rest| &rest.0)
    }
}

impl<T> Index<usize> for Row<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        match index.checked_sub(1) {
            None => &self.first,
            Some(behind) => &self.rest()[behind],
        }
    }
}

impl<T> IndexMut<usize> for Row<T> {
    fn index_mut(&mut self, index: usize) -> &mut T {
        match index.checked_sub(1) {
            None => &mut self.first,
            Some(behind) => &mut self.rest.as_mut().expect("it is not so long").0[behind],
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
