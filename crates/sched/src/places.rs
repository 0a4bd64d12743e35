//! Small dense numbers for members of a group, so that a group's arrays are as long as it is large.

use crate::codec::{Codec, Malformed, Reader};

use alloc::vec::Vec;

use crate::row::Row;
/// Members by place. A place is used again after its member left.
#[derive(Clone, Debug)]
pub(crate) struct Places<K> {
    members: Row<Option<K>>,
    free: Vec<u32>,
}

impl<K> Default for Places<K> {
    fn default() -> Self {
        Self { members: Row::default(), free: Vec::new() }
    }
}

impl<K: Copy> Places<K> {
    pub(crate) fn join(&mut self, member: K) -> u32 {
        if let Some(place) = self.free.pop() {
            self.members[place as usize] = Some(member);
            return place;
        }
        let place = u32::try_from(self.members.len()).expect("keys are below 2²⁰");
        self.members.grow_to(place + 1);
        self.members[place as usize] = Some(member);
        place
    }

    pub(crate) fn leave(&mut self, place: u32) {
        self.members[place as usize] = None;
        self.free.push(place);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = K> + '_ {
        self.members.iter().flatten().copied()
    }
}

impl<K: Codec + Copy> Codec for Places<K> {
    fn put(&self, out: &mut Vec<u8>) {
        self.members.put(out);
        self.free.put(out);
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { members: Row::take(input)?, free: Vec::take(input)? })
    }
}
