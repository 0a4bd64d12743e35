//! Our own container of module images: what `cuLinkComplete` hands out.
//!
//! `magic, total bytes, count, (bytes, image)…`, all numbers little-endian `u64`. The linker of the
//! device runs where the modules live, so a "linked image" is the list of its inputs.

use weft_wire::Status;

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
pub(crate) fn pack<'a>(images: impl ExactSizeIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(MAGIC);
    bytes.extend([0; 8]);
    bytes.extend((images.len() as u64).to_le_bytes());
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
/// `INVALID_IMAGE` for a damaged container.
pub(crate) fn unpack(image: &[u8]) -> Result<Vec<&[u8]>, Status> {
    let Some(total) = container_bytes(image) else {
        return Ok(vec![image]);
    };
    let total = usize::try_from(total).map_err(|_| Status::INVALID_IMAGE)?;
    let body = image.get(..total).ok_or(Status::INVALID_IMAGE)?;
    let count = body.get(16..HEADER_BYTES).ok_or(Status::INVALID_IMAGE)?;
    let (count, mut rest) = (number(count)?, body.get(HEADER_BYTES..).unwrap_or_default());
    if count > IMAGES_MAX {
        return Err(Status::INVALID_IMAGE);
    }
    let mut images = Vec::with_capacity(count);
    for _ in 0..count {
        let (length, behind) = rest.split_at_checked(8).ok_or(Status::INVALID_IMAGE)?;
        let parts = behind.split_at_checked(number(length)?).ok_or(Status::INVALID_IMAGE)?;
        images.push(parts.0);
        rest = parts.1;
    }
    if rest.is_empty() { Ok(images) } else { Err(Status::INVALID_IMAGE) }
}

fn number(bytes: &[u8]) -> Result<usize, Status> {
    let bytes = bytes.try_into().map_err(|_| Status::INVALID_IMAGE)?;
    usize::try_from(u64::from_le_bytes(bytes)).map_err(|_| Status::INVALID_IMAGE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn images_come_out_as_they_went_in(
            images in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..6),
        ) {
            let packed = pack(images.iter().map(Vec::as_slice));
            prop_assert_eq!(container_bytes(&packed), Some(packed.len() as u64));
            prop_assert_eq!(unpack(&packed).unwrap(), images);
            for end in 16..packed.len() {
                prop_assert!(unpack(&packed[..end]).is_err(), "cut at {}", end);
            }
        }

        #[test]
        fn damage_is_noticed_and_never_panics(
            at in 8_usize..60, value in any::<u8>(),
        ) {
            let mut packed = pack([b"first".as_slice(), b"second image"].into_iter());
            if let Some(byte) = packed.get_mut(at) {
                *byte = value;
            }
            let _either = unpack(&packed);
        }
    }

    #[test]
    fn other_images_pass_through() {
        assert_eq!(unpack(b".version 7.5").unwrap(), [b".version 7.5"]);
        assert_eq!(unpack(b"").unwrap(), [b""]);
    }
}
