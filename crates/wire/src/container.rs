//! A container of module images: what `cuLinkComplete` hands out, and how a module load brings more
//! images than its command can name.
//!
//! `magic, total bytes, count, (bytes, image)…`, all numbers little-endian `u64`; the upper half of
//! the count is the most registers that the linker was told to use, or 0. The linker of the
//! device runs where the modules live, so a "linked image" is the list of its inputs.

use alloc::vec;
use alloc::vec::Vec;

/// A container is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("image container is damaged")]
pub struct Damaged;

/// First eight bytes of a container.
pub const MAGIC: [u8; 8] = *b"WEFTLINK";
/// Magic, total and count.
const HEADER_BYTES: usize = 24;
/// Most images of one container.
const IMAGES_MAX: usize = 4096;

/// Length of the container that starts with `header`, its first 16 bytes; `None` if it is none.
#[must_use]
pub fn container_bytes(header: &[u8]) -> Option<u64> {
    let (magic, rest) = header.split_at_checked(MAGIC.len())?;
    let total = rest.first_chunk::<8>()?;
    (magic == MAGIC).then(|| u64::from_le_bytes(*total))
}

/// Puts images into a container.
#[must_use]
pub fn pack<'a>(images: impl ExactSizeIterator<Item = &'a [u8]>) -> Vec<u8> {
    pack_limited(images, 0)
}

/// The same, with the most registers that a thread of the images' kernels may have; 0 if any.
#[must_use]
pub fn pack_limited<'a>(
    images: impl ExactSizeIterator<Item = &'a [u8]>,
    registers: u32,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(MAGIC);
    bytes.extend([0; 8]);
    let count = images.len() as u64 | u64::from(registers) << 32;
    bytes.extend(count.to_le_bytes());
    for image in images {
        bytes.extend((image.len() as u64).to_le_bytes());
        bytes.extend(image);
    }
    let total = (bytes.len() as u64).to_le_bytes();
    for (target, byte) in bytes.iter_mut().skip(MAGIC.len()).zip(total) {
        *target = byte;
    }
    bytes
}

/// The images of a container, or the image itself when it is none.
///
/// # Errors
/// [`Damaged`] when the lengths do not add up.
pub fn unpack(image: &[u8]) -> Result<Vec<&[u8]>, Damaged> {
    let Some(total) = container_bytes(image) else {
        return Ok(vec![image]);
    };
    let total = usize::try_from(total).map_err(|_| Damaged)?;
    let body = image.get(..total).ok_or(Damaged)?;
    let count = body.get(16..HEADER_BYTES).ok_or(Damaged)?;
    let count = count.get(..4).and_then(|low| low.try_into().ok()).ok_or(Damaged)?;
    let count = usize::try_from(u32::from_le_bytes(count)).map_err(|_| Damaged)?;
    let mut rest = body.get(HEADER_BYTES..).unwrap_or_default();
    if count > IMAGES_MAX {
        return Err(Damaged);
    }
    let mut images = Vec::with_capacity(count);
    for _ in 0..count {
        let (length, behind) = rest.split_at_checked(8).ok_or(Damaged)?;
        let parts = behind.split_at_checked(number(length)?).ok_or(Damaged)?;
        images.push(parts.0);
        rest = parts.1;
    }
    if rest.is_empty() { Ok(images) } else { Err(Damaged) }
}

/// The most registers that the linker of a container was told to use, if it was told.
#[must_use]
pub fn registers(image: &[u8]) -> Option<u32> {
    container_bytes(image)?;
    let field = image.get(20..HEADER_BYTES)?.try_into().ok()?;
    Some(u32::from_le_bytes(field)).filter(|registers| *registers > 0)
}

fn number(bytes: &[u8]) -> Result<usize, Damaged> {
    let bytes = bytes.try_into().map_err(|_| Damaged)?;
    usize::try_from(u64::from_le_bytes(bytes)).map_err(|_| Damaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGES: [&[u8]; 3] = [b"first", b"", b"a third image"];

    #[test]
    fn images_come_out_as_they_went_in() {
        for count in 0..=IMAGES.len() {
            let packed = pack(IMAGES.iter().copied().take(count));
            assert_eq!(container_bytes(&packed), Some(packed.len() as u64));
            assert_eq!(unpack(&packed), Ok(IMAGES[..count].to_vec()));
        }
    }

    #[test]
    fn a_limit_travels_with_the_images() {
        let packed = pack_limited(IMAGES.into_iter(), 38);
        assert_eq!((unpack(&packed), registers(&packed)), (Ok(IMAGES.to_vec()), Some(38)));
        assert_eq!(registers(&pack(IMAGES.into_iter())), None);
        assert_eq!(registers(b"a plain image that is long enough"), None);
    }

    #[test]
    fn every_cut_is_noticed() {
        let packed = pack(IMAGES.into_iter());
        for end in 16..packed.len() {
            assert_eq!(unpack(&packed[..end]), Err(Damaged), "cut at {end}");
        }
    }

    #[test]
    fn wrong_lengths_never_panic() {
        let packed = pack(IMAGES.into_iter());
        for at in MAGIC.len()..packed.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut damaged = packed.clone();
                damaged[at] = value;
                let _either = unpack(&damaged);
            }
        }
    }

    #[test]
    fn other_images_pass_through() {
        assert_eq!(unpack(b".version 7.5"), Ok(vec![&b".version 7.5"[..]]));
        assert_eq!(unpack(b""), Ok(vec![&b""[..]]));
    }
}
