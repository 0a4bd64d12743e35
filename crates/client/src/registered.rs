//! Memory of the program's own that the device uses in place.
//!
//! Pages of the pinned window take the place of the program's, with their content, and the worker
//! is told where: host and device use one memory under one address. A page that a range does not
//! fill may be another range's too, so the first and the last one are counted by themselves.

use std::collections::BTreeMap;

use weft_ring::{Overlay, OverlayError, PAGE};
use weft_wire::{Command, Status};

use crate::client::{Client, lock};
use crate::pointer::{Range, RangeKind};
use crate::session::Session;

/// `CU_MEMHOSTREGISTER_*` flags that exist.
const FLAGS: u32 = 0x0f;
/// `CU_MEMHOSTREGISTER_IOMEMORY` and `_READ_ONLY`: memory of another device, and memory that only
/// the host writes; no vGPU claims either (attribute 113).
const UNSUPPORTED_FLAGS: u32 = 0x0c;
/// `CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED`.
const HOST_REGISTER_SUPPORTED: u32 = 99;
/// Bytes of a page.
const PAGE_BYTES: u64 = PAGE as u64;

/// Why memory was not registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// For a reason that the status says.
    #[error("{0:?}")]
    Status(Status),
    /// It is not of a kind that can be shared with the device. The text is for the program's user.
    #[error(
        "{0}: only memory that is the program's own can be registered for the device; allocate it \
         by cuMemHostAlloc instead"
    )]
    Unfit(OverlayError),
}

impl RegisterError {
    /// What the program is told.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Status(status) => *status,
            Self::Unfit(OverlayError::Unmapped(_) | OverlayError::NotWritable(_)) => {
                Status::INVALID_VALUE
            }
            Self::Unfit(_) => Status::NOT_SUPPORTED,
        }
    }
}

impl From<Status> for RegisterError {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

/// Pages that lie in the window, by the address of the first one.
#[derive(Debug, Default)]
pub(crate) struct Registered(BTreeMap<u64, Pages>);

#[derive(Debug)]
struct Pages {
    overlay: Overlay,
    /// Ranges that they belong to.
    ranges: usize,
}

/// The pages of a range: what it fills, and a page at either end that it does not. Starts and
/// lengths in bytes.
fn pieces(address: u64, bytes: u64) -> Option<Vec<(u64, u64)>> {
    let end = address.checked_add(bytes)?;
    let (first, last) = (address / PAGE_BYTES * PAGE_BYTES, end / PAGE_BYTES * PAGE_BYTES);
    let inner = address.checked_next_multiple_of(PAGE_BYTES)?;
    end.checked_next_multiple_of(PAGE_BYTES)?;
    let mut pieces = Vec::new();
    if first < inner {
        pieces.push((first, PAGE_BYTES));
    }
    if inner < last {
        pieces.push((inner, last - inner));
    }
    if last < end && last >= inner {
        pieces.push((last, PAGE_BYTES));
    }
    Some(pieces)
}

impl Client {
    /// Lets the device use memory of the program's own where it is.
    ///
    /// # Errors
    /// [`RegisterError`]: `INVALID_VALUE`, `HOST_MEMORY_ALREADY_REGISTERED`, `OUT_OF_MEMORY`, or
    /// `NOT_SUPPORTED` by the device, for the flags or for this kind of memory.
    pub fn host_register(&self, address: u64, bytes: u64, flags: u32) -> Result<(), RegisterError> {
        let context = self.current()?;
        if address == 0 || bytes == 0 || flags & !FLAGS != 0 {
            return Err(Status::INVALID_VALUE.into());
        }
        let session = &context.session;
        if flags & UNSUPPORTED_FLAGS != 0 || session.attribute(HOST_REGISTER_SUPPORTED) == 0 {
            return Err(Status::NOT_SUPPORTED.into());
        }
        let pieces = pieces(address, bytes).ok_or(Status::INVALID_VALUE)?;
        let mut registered = lock(&session.pinned.registered);
        if self.ranges.overlaps(address, bytes) {
            return Err(Status::HOST_MEMORY_ALREADY_REGISTERED.into());
        }
        for (i, piece) in pieces.iter().enumerate() {
            if let Err(error) = session.share_pages(&mut registered, *piece) {
                let undone = session.unshare_pieces(&mut registered, &pieces[..i]);
                debug_assert!(
                    undone.is_ok() || session.side.is_lost(),
                    "they were shared just now"
                );
                return Err(error);
            }
        }
        let (kind, number) = (RangeKind::Registered(flags), self.number());
        self.ranges.insert(Range { start: address, bytes, kind, context: context.handle, number });
        Ok(())
    }

    /// Ends a registration, after the work that may use the memory.
    ///
    /// # Errors
    /// `HOST_MEMORY_NOT_REGISTERED`.
    pub fn host_unregister(&self, address: u64) -> Result<(), Status> {
        let is_registered = |range: &Range| matches!(range.kind, RangeKind::Registered(_));
        let missing = Status::HOST_MEMORY_NOT_REGISTERED;
        let session = self.home(self.ranges.find(address).ok_or(missing)?.context)?;
        let mut registered = lock(&session.pinned.registered);
        let removed = self.ranges.remove(address, is_registered);
        let range = removed.ok_or(missing)?;
        let waited = self.await_users(range.context);
        let pieces = pieces(range.start, range.bytes).unwrap_or_default();
        session.unshare_pieces(&mut registered, &pieces).and(waited)
    }
}

impl Session {
    /// Puts pages of the window in the place of the program's, unless they are there already.
    fn share_pages(
        &self,
        registered: &mut Registered,
        (start, bytes): (u64, u64),
    ) -> Result<(), RegisterError> {
        if let Some(pages) = registered.0.get_mut(&start) {
            pages.ranges += 1;
            return Ok(());
        }
        let (place, length) = (usize::try_from(start), usize::try_from(bytes));
        let (Ok(place), Ok(length)) = (place, length) else {
            return Err(Status::INVALID_VALUE.into());
        };
        let address = self.take_window(bytes)?;
        let Some(span) = self.pinned.span(address, length) else {
            return Err(Status::OUT_OF_MEMORY.into());
        };
        let overlay = Overlay::lay(span, place).map_err(|error| {
            // Pages of the window that are the program's would be cleared with it.
            if !matches!(error, OverlayError::Left(_)) {
                let given = self.give_window(address);
                debug_assert!(given.is_ok() || self.side.is_lost(), "it was taken just now");
            }
            RegisterError::Unfit(error)
        })?;
        registered.0.insert(start, Pages { overlay, ranges: 1 });
        let mapped = self.call(&Command::HostMap { host: start, address, bytes });
        mapped.map_err(|status| {
            // The refusal is what the program is told, whatever becomes of this.
            let _undone = self.take_back(registered, start, false);
            status.into()
        })
    }

    fn unshare_pieces(
        &self,
        registered: &mut Registered,
        pieces: &[(u64, u64)],
    ) -> Result<(), Status> {
        let mut outcome = Ok(());
        for (start, _) in pieces {
            let Some(pages) = registered.0.get_mut(start) else { continue };
            pages.ranges -= 1;
            if pages.ranges == 0 {
                let taken = self.take_back(registered, *start, true);
                outcome = outcome.and(taken);
            }
        }
        outcome
    }

    /// Gives the program pages of its own again, before the worker forgets and clears the window's.
    fn take_back(
        &self,
        registered: &mut Registered,
        start: u64,
        is_mapped: bool,
    ) -> Result<(), Status> {
        let Some(Pages { overlay, .. }) = registered.0.remove(&start) else { return Ok(()) };
        let address = overlay.shared().as_ptr().addr() as u64;
        // Pages that stay shared would be somebody else's once the window has them back.
        overlay.lift().map_err(|_| Status::OPERATING_SYSTEM)?;
        let unmapped = match is_mapped {
            true => self.call(&Command::HostUnmap { host: start }),
            false => Ok(()),
        };
        let given = self.give_window(address);
        unmapped.and(given)
    }

    /// In a child made by `fork`: registered memory becomes its own. A registration that another
    /// thread was about to make at the fork is not known here.
    pub(crate) fn leave_registered(&self) {
        if let Ok(registered) = self.pinned.registered.try_lock() {
            registered.0.values().for_each(|pages| pages.overlay.leave_in_child());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_where_its_pages_may_be_anothers_too() {
        let page = PAGE_BYTES;
        let of = |address, bytes| pieces(address, bytes).unwrap();
        assert_eq!(of(page, page), [(page, page)]);
        assert_eq!(of(page, 5 * page), [(page, 5 * page)]);
        assert_eq!(of(page + 8, 16), [(page, page)]);
        assert_eq!(of(page, 16), [(page, page)]);
        assert_eq!(of(page + 8, page - 8), [(page, page)]);
        assert_eq!(of(page + 8, page), [(page, page), (2 * page, page)]);
        assert_eq!(of(page, page + 8), [(page, page), (2 * page, page)]);
        let ends = [(page, page), (2 * page, 3 * page), (5 * page, page)];
        assert_eq!(of(page + 8, 4 * page), ends);
        assert_eq!(pieces(u64::MAX - 8, 16), None);
        assert_eq!(pieces(u64::MAX - 8, 4), None);
    }
}
