//! Tables of what handles name: the client chooses slots, the session checks them.

/// Objects by slot and generation.
#[derive(Debug)]
pub(crate) struct Table<T> {
    slots: Vec<Option<(u32, Box<T>)>>,
    bound: u32,
}

/// The slot is beyond the table or taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotTaken;

impl<T> Table<T> {
    /// A table whose slots are below `bound`.
    pub(crate) fn new(bound: u32) -> Self {
        Self { slots: Vec::new(), bound }
    }

    pub(crate) fn insert(
        &mut self,
        index: u32,
        generation: u32,
        value: T,
    ) -> Result<(), SlotTaken> {
        if index >= self.bound {
            return Err(SlotTaken);
        }
        let at = usize::try_from(index).map_err(|_| SlotTaken)?;
        if at >= self.slots.len() {
            self.slots.resize_with(at + 1, || None);
        }
        let slot = self.slots.get_mut(at).ok_or(SlotTaken)?;
        if slot.is_some() {
            return Err(SlotTaken);
        }
        *slot = Some((generation, Box::new(value)));
        Ok(())
    }

    pub(crate) fn get(&self, index: u32, generation: u32) -> Option<&T> {
        match self.slots.get(usize::try_from(index).ok()?)? {
            Some((owner, value)) if *owner == generation => Some(value),
            Some(_) | None => None,
        }
    }

    pub(crate) fn get_mut(&mut self, index: u32, generation: u32) -> Option<&mut T> {
        match self.slots.get_mut(usize::try_from(index).ok()?)? {
            Some((owner, value)) if *owner == generation => Some(value),
            Some(_) | None => None,
        }
    }

    pub(crate) fn remove(&mut self, index: u32, generation: u32) -> Option<T> {
        let slot = self.slots.get_mut(usize::try_from(index).ok()?)?;
        slot.take_if(|(owner, _)| *owner == generation).map(|(_, value)| *value)
    }

    /// Removes everything that `leaves` names and returns it.
    pub(crate) fn remove_where(&mut self, mut leaves: impl FnMut(&T) -> bool) -> Vec<T> {
        let taken = self.slots.iter_mut().filter_map(|slot| slot.take_if(|(_, v)| leaves(v)));
        taken.map(|(_, value)| *value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_generation_finds_nothing() {
        let mut table = Table::new(4);
        assert_eq!(table.insert(3, 1, "a"), Ok(()));
        assert_eq!(table.insert(3, 2, "b"), Err(SlotTaken));
        assert_eq!(table.insert(4, 1, "c"), Err(SlotTaken));
        assert_eq!(table.get(3, 2), None);
        assert_eq!(table.remove(3, 2), None);
        assert_eq!(table.remove(3, 1), Some("a"));
        assert_eq!(table.insert(3, 2, "b"), Ok(()));
        assert_eq!(table.get(3, 1), None);
        assert_eq!(table.get(3, 2), Some(&"b"));
    }
}
