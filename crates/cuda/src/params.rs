//! Kernel arguments as the driver API passes them: pointers to values, or one packed buffer.

use core::ffi::c_void;

use weft_wire::Status;

use crate::args::In;

/// `CU_LAUNCH_PARAM_END`.
const END: usize = 0;
/// `CU_LAUNCH_PARAM_BUFFER_POINTER`.
const BUFFER_POINTER: usize = 1;
/// `CU_LAUNCH_PARAM_BUFFER_SIZE`.
const BUFFER_SIZE: usize = 2;
/// Most entries of an `extra` list that is believed to end.
const EXTRA_MAX: usize = 16;

/// Where a kernel's parameter lies in its parameter block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Offset in bytes.
    pub(crate) offset: usize,
    /// Size in bytes.
    pub(crate) size: usize,
}

/// The two ways to pass arguments; at most one may be used.
#[derive(Debug)]
pub(crate) struct Arguments {
    values: *const *const c_void,
    extra: *const *const c_void,
}

impl Arguments {
    /// Takes `kernelParams` and `extra`.
    pub(crate) fn new(values: &In<*mut c_void>, extra: &In<*mut c_void>) -> Self {
        Self { values: values.raw().cast(), extra: extra.raw().cast() }
    }

    /// Takes `kernelParams` where there is no other way.
    pub(crate) fn only_values(values: &In<*mut c_void>) -> Self {
        Self { values: values.raw().cast(), extra: core::ptr::null() }
    }

    /// Takes both from a struct that the application passed.
    ///
    /// # Safety
    /// As for [`crate::args::Arg::from_c`].
    pub(crate) unsafe fn nested(values: *const *const c_void, extra: *const *const c_void) -> Self {
        Self { values, extra }
    }

    /// Writes the arguments of a kernel with parameters at `slots` into its parameter `block`.
    pub(crate) fn pack(
        &self,
        slots: impl IntoIterator<Item = Slot>,
        block: &mut [u8],
    ) -> Result<(), Status> {
        match (self.values.is_null(), self.extra.is_null()) {
            (false, true) => self.pack_values(slots, block),
            (true, false) => self.pack_buffer(block),
            (true, true) if block.is_empty() => Ok(()),
            (true, true) | (false, false) => Err(Status::INVALID_VALUE),
        }
    }

    fn pack_values(
        &self,
        slots: impl IntoIterator<Item = Slot>,
        block: &mut [u8],
    ) -> Result<(), Status> {
        for (index, slot) in slots.into_iter().enumerate() {
            // SAFETY: the application passes one pointer per parameter of the kernel.
            let place = unsafe { self.values.add(index) };
            // SAFETY: within the list, by the line above.
            let value = unsafe { place.read() };
            let end = slot.offset.checked_add(slot.size).ok_or(Status::INVALID_VALUE)?;
            let target = block.get_mut(slot.offset..end).ok_or(Status::INVALID_VALUE)?;
            if value.is_null() {
                return Err(Status::INVALID_VALUE);
            }
            let target = target.as_mut_ptr();
            // SAFETY: the application's value has the parameter's size, and the block is ours.
            unsafe { target.copy_from_nonoverlapping(value.cast(), slot.size) };
        }
        Ok(())
    }

    fn pack_buffer(&self, block: &mut [u8]) -> Result<(), Status> {
        let (buffer, size) = self.packed()?;
        if size < block.len() || (buffer.is_null() && !block.is_empty()) {
            return Err(Status::INVALID_VALUE);
        }
        if !block.is_empty() {
            let target = block.as_mut_ptr();
            // SAFETY: the application's buffer has `size` bytes, at least the block's length.
            unsafe { target.copy_from_nonoverlapping(buffer, block.len()) };
        }
        Ok(())
    }

    /// The buffer of `extra` and its size.
    fn packed(&self) -> Result<(*const u8, usize), Status> {
        let mut buffer = core::ptr::null::<u8>();
        let mut size = 0;
        for index in (0..EXTRA_MAX).step_by(2) {
            match self.extra_entry(index).addr() {
                END => return Ok((buffer, size)),
                BUFFER_POINTER => buffer = self.extra_entry(index + 1).cast(),
                BUFFER_SIZE => {
                    let place = self.extra_entry(index + 1).cast::<usize>();
                    if place.is_null() {
                        return Err(Status::INVALID_VALUE);
                    }
                    // SAFETY: not null, and the name before it promises a size there.
                    size = unsafe { place.read_unaligned() };
                }
                _ => return Err(Status::INVALID_VALUE),
            }
        }
        Err(Status::INVALID_VALUE)
    }

    fn extra_entry(&self, index: usize) -> *const c_void {
        // SAFETY: the list goes on until its END, which has not been met before `index`.
        let place = unsafe { self.extra.add(index) };
        // SAFETY: within the list, by the line above.
        unsafe { place.read() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: [Slot; 2] = [Slot { offset: 0, size: 4 }, Slot { offset: 8, size: 8 }];

    fn arguments(values: *const *const c_void, extra: *const *const c_void) -> Arguments {
        Arguments { values, extra }
    }

    #[test]
    fn values_land_in_their_slots() {
        let (a, b) = (0x0102_0304_u32, 5_u64);
        let values = [core::ptr::from_ref(&a).cast(), core::ptr::from_ref(&b).cast()];
        let mut block = [0; 16];
        let given = arguments(values.as_ptr(), core::ptr::null());
        given.pack(SLOTS, &mut block).unwrap();
        assert_eq!(block, [4, 3, 2, 1, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(given.pack(SLOTS, &mut block[..8]), Err(Status::INVALID_VALUE));
    }

    #[test]
    fn a_packed_buffer_is_copied() {
        let packed = [9_u8; 16];
        let size = packed.len();
        let name = core::ptr::without_provenance::<c_void>;
        let extra = [
            name(BUFFER_POINTER),
            packed.as_ptr().cast(),
            name(BUFFER_SIZE),
            core::ptr::from_ref(&size).cast(),
            name(END),
        ];
        let given = arguments(core::ptr::null(), extra.as_ptr());
        let mut block = [0; 12];
        given.pack(SLOTS, &mut block).unwrap();
        assert_eq!(block, [9; 12]);
        let mut long = [0; 20];
        assert_eq!(given.pack(SLOTS, &mut long), Err(Status::INVALID_VALUE));
        let nonsense = [name(77), name(0), name(END)];
        let given = arguments(core::ptr::null(), nonsense.as_ptr());
        assert_eq!(given.pack(SLOTS, &mut block), Err(Status::INVALID_VALUE));
    }

    #[test]
    fn only_a_kernel_without_parameters_takes_none() {
        let none = arguments(core::ptr::null(), core::ptr::null());
        assert_eq!(none.pack([], &mut []), Ok(()));
        assert_eq!(none.pack(SLOTS, &mut [0; 16]), Err(Status::INVALID_VALUE));
    }
}
