//! Addresses and memory that a program takes apart from each other.
//!
//! What the program mapped is mapped on the device as soon as it may be accessed there: until then
//! a kernel that touches it faults, as on a GPU. Both belong to a device and to no context.

use std::collections::BTreeMap;
use std::sync::Arc;

use weft_wire::reply::{Address, Physical};
use weft_wire::{Command, Status};

use crate::client::{Client, lock};
use crate::pointer::{Range, RangeKind};
use crate::session::Session;

/// Sizes, addresses and alignments are multiples of this, in bytes.
const GRANULE: u64 = 2 << 20;

/// Where the ordinal of the device lies in a handle.
const ORDINAL_SHIFT: u32 = 56;

/// Memory without an address.
#[derive(Debug)]
struct Memory {
    bytes: u64,
    released: bool,
    mappings: usize,
}

#[derive(Debug, Clone, Copy)]
struct Mapping {
    bytes: u64,
    memory: u64,
    accessible: bool,
}

/// What of a device was taken apart.
#[derive(Debug, Default)]
pub(crate) struct Apart {
    reserved: BTreeMap<u64, u64>,
    memory: BTreeMap<u64, Memory>,
    mapped: BTreeMap<u64, Mapping>,
}

impl Apart {
    /// Whether the addresses lie in one reservation.
    fn is_reserved(&self, address: u64, bytes: u64) -> bool {
        let below = self.reserved.range(..=address).next_back();
        let end = address.checked_add(bytes);
        below.is_some_and(|(start, length)| end.is_some_and(|end| end <= start + length))
    }

    fn is_touched(&self, address: u64, bytes: u64) -> bool {
        let below = self.mapped.range(..address.saturating_add(bytes)).next_back();
        below.is_some_and(|(start, mapping)| start + mapping.bytes > address)
    }

    /// The mappings that make up a range, without a gap and without more.
    fn mappings_of(&self, address: u64, bytes: u64) -> Result<Vec<(u64, Mapping)>, Status> {
        let end = address.checked_add(bytes).ok_or(Status::INVALID_VALUE)?;
        let mut at = address;
        let mut found = Vec::new();
        for (start, mapping) in self.mapped.range(address..end) {
            if *start != at {
                return Err(Status::INVALID_VALUE);
            }
            at += mapping.bytes;
            found.push((*start, *mapping));
        }
        if at == end && !found.is_empty() { Ok(found) } else { Err(Status::INVALID_VALUE) }
    }
}

fn is_whole(bytes: u64) -> Result<(), Status> {
    let whole = bytes > 0 && bytes.is_multiple_of(GRANULE);
    whole.then_some(()).ok_or(Status::INVALID_VALUE)
}

impl Client {
    /// The unit of sizes and addresses of such memory on a device, in bytes.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn apart_granularity(&self, ordinal: i32) -> Result<u64, Status> {
        self.device_get(ordinal).map(|_| GRANULE)
    }

    /// Takes device addresses, on the device of the current context, or else on the first one.
    ///
    /// # Errors
    /// `INVALID_VALUE`; `OUT_OF_MEMORY` when there are no more; `NOT_SUPPORTED` by the device.
    pub fn apart_reserve(&self, bytes: u64, alignment: u64) -> Result<u64, Status> {
        is_whole(bytes)?;
        if alignment != 0 && !alignment.is_power_of_two() {
            return Err(Status::INVALID_VALUE);
        }
        let session = match self.current() {
            Ok(context) => Arc::clone(&context.session),
            Err(Status::INVALID_CONTEXT) => Arc::clone(self.session(0)?),
            Err(status) => return Err(status),
        };
        session.healthy()?;
        let command = Command::MemReserve { bytes, alignment: alignment.max(GRANULE) };
        let Address { address } = session.call_for(&command)?;
        if !session.keeps_global(address, bytes) {
            session.call(&Command::MemUnreserve { address })?;
            return Err(Status::OUT_OF_MEMORY);
        }
        lock(&session.apart).reserved.insert(address, bytes);
        Ok(address)
    }

    /// Gives addresses back.
    ///
    /// # Errors
    /// `INVALID_VALUE` when they are not all of a reservation, or something is mapped there.
    pub fn apart_unreserve(&self, address: u64, bytes: u64) -> Result<(), Status> {
        let session = self.home_of_address(address, bytes)?;
        let mut apart = lock(&session.apart);
        if apart.reserved.get(&address) != Some(&bytes) || apart.is_touched(address, bytes) {
            return Err(Status::INVALID_VALUE);
        }
        session.call(&Command::MemUnreserve { address })?;
        apart.reserved.remove(&address);
        Ok(())
    }

    /// Takes memory of a device; its handle.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `INVALID_DEVICE`, `OUT_OF_MEMORY`; `NOT_SUPPORTED` by the device.
    pub fn apart_create(&self, bytes: u64, ordinal: i32) -> Result<u64, Status> {
        is_whole(bytes)?;
        self.device_get(ordinal)?;
        let ordinal = u8::try_from(ordinal).map_err(|_| Status::INVALID_DEVICE)?;
        let session = self.session(ordinal)?;
        session.healthy()?;
        let Physical { memory } = session.call_for(&Command::MemCreate { bytes })?;
        let created = Memory { bytes, released: false, mappings: 0 };
        lock(&session.apart).memory.insert(memory, created);
        Ok(u64::from(ordinal) << ORDINAL_SHIFT | memory)
    }

    /// Gives memory back. Where it is mapped it stays until it is unmapped.
    ///
    /// # Errors
    /// `INVALID_VALUE` for what is no handle.
    pub fn apart_release(&self, handle: u64) -> Result<(), Status> {
        let (session, memory) = self.home_of_memory(handle)?;
        let mut apart = lock(&session.apart);
        let found = apart.memory.get_mut(&memory).filter(|found| !found.released);
        let found = found.ok_or(Status::INVALID_VALUE)?;
        found.released = true;
        if found.mappings > 0 {
            return Ok(());
        }
        apart.memory.remove(&memory);
        session.call(&Command::MemRelease { memory })
    }

    /// Maps all of some memory. Nobody may access it there before [`Self::apart_allow`].
    ///
    /// # Errors
    /// `INVALID_VALUE` for addresses that are not reserved on the memory's device or where
    /// something is mapped, or when it is not all of the memory.
    pub fn apart_map(
        &self,
        address: u64,
        bytes: u64,
        offset: u64,
        handle: u64,
    ) -> Result<(), Status> {
        let (session, memory) = self.home_of_memory(handle)?;
        let mut apart = lock(&session.apart);
        let fits = address.is_multiple_of(GRANULE) && apart.is_reserved(address, bytes);
        if !fits || apart.is_touched(address, bytes) {
            return Err(Status::INVALID_VALUE);
        }
        let found = apart.memory.get_mut(&memory);
        let found = found.filter(|found| !found.released && found.bytes == bytes && offset == 0);
        found.ok_or(Status::INVALID_VALUE)?.mappings += 1;
        apart.mapped.insert(address, Mapping { bytes, memory, accessible: false });
        Ok(())
    }

    /// Unmaps whole mappings, after the work submitted before.
    ///
    /// # Errors
    /// `INVALID_VALUE` when the range is not made of them.
    pub fn apart_unmap(&self, address: u64, bytes: u64) -> Result<(), Status> {
        let session = self.home_of_address(address, bytes)?;
        let mut apart = lock(&session.apart);
        for (start, mapping) in apart.mappings_of(address, bytes)? {
            if mapping.accessible {
                session.call(&Command::MemUnmap { address: start })?;
                self.ranges.remove(start, |range| range.kind == RangeKind::Mapped);
            }
            apart.mapped.remove(&start);
            let Some(memory) = apart.memory.get_mut(&mapping.memory) else { continue };
            memory.mappings -= 1;
            if memory.released && memory.mappings == 0 {
                apart.memory.remove(&mapping.memory);
                session.call(&Command::MemRelease { memory: mapping.memory })?;
            }
        }
        Ok(())
    }

    /// Lets the device `ordinal` read and write whole mappings of its memory.
    ///
    /// # Errors
    /// `INVALID_VALUE` when the range is not made of mappings; `NOT_SUPPORTED` for another device;
    /// `INVALID_CONTEXT` without a current context.
    pub fn apart_allow(&self, address: u64, bytes: u64, ordinal: i32) -> Result<(), Status> {
        let session = self.home_of_address(address, bytes)?;
        if i32::from(session.ordinal) != ordinal {
            return Err(Status::NOT_SUPPORTED);
        }
        let context = self.current()?;
        if context.session.ordinal != session.ordinal {
            return Err(Status::INVALID_CONTEXT);
        }
        let mut apart = lock(&session.apart);
        for (start, mapping) in apart.mappings_of(address, bytes)? {
            if mapping.accessible {
                continue;
            }
            session.call(&Command::MemMap { address: start, memory: mapping.memory })?;
            apart.mapped.insert(start, Mapping { accessible: true, ..mapping });
            self.ranges.insert(Range {
                start,
                bytes: mapping.bytes,
                kind: RangeKind::Mapped,
                context: context.handle,
                number: self.number(),
            });
        }
        Ok(())
    }

    /// Whether the device `ordinal` may access what is mapped at an address.
    ///
    /// # Errors
    /// `INVALID_VALUE` when nothing is.
    pub fn apart_allows(&self, address: u64, ordinal: i32) -> Result<bool, Status> {
        let session = self.home_of_address(address, 1)?;
        let apart = lock(&session.apart);
        let below = apart.mapped.range(..=address).next_back();
        let mapping = below.filter(|(start, mapping)| address - *start < mapping.bytes);
        let (_, mapping) = mapping.ok_or(Status::INVALID_VALUE)?;
        Ok(mapping.accessible && i32::from(session.ordinal) == ordinal)
    }

    /// The session that the addresses were reserved in.
    fn home_of_address(&self, address: u64, bytes: u64) -> Result<&Arc<Session>, Status> {
        let reserves = |session: &&Arc<Session>| lock(&session.apart).is_reserved(address, bytes);
        let session = self.sessions.iter().find(reserves).ok_or(Status::INVALID_VALUE)?;
        session.healthy().map(|()| session)
    }

    /// The session that the memory is of, and its number there.
    fn home_of_memory(&self, handle: u64) -> Result<(&Arc<Session>, u64), Status> {
        let ordinal = u8::try_from(handle >> ORDINAL_SHIFT).map_err(|_| Status::INVALID_VALUE)?;
        let session = self.session(ordinal).map_err(|_| Status::INVALID_VALUE)?;
        session.healthy()?;
        Ok((session, handle & ((1 << ORDINAL_SHIFT) - 1)))
    }
}
