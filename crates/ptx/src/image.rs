//! Images as programs hand them to the driver: PTX text, fat binaries, bundles of linked texts.
//!
//! Everything here reads bytes of an untrusted program: offsets are checked, decompressed sizes are
//! bounded before memory is taken.

use std::io::Read;

use thiserror::Error;

use crate::parser::MAX_TEXT_BYTES;

/// First word of a fat binary.
pub const FATBIN_MAGIC: u32 = 0xBA55_ED50;
/// First word of the structure that points to a fat binary (`__fatBinC_Wrapper_t`).
pub const WRAPPER_MAGIC: u32 = 0x4662_43B1;
/// First bytes of an ELF file.
pub const ELF_MAGIC: [u8; 4] = *b"\x7FELF";
/// First bytes of a bundle.
const BUNDLE_MAGIC: [u8; 8] = *b"WEFTPTX\x01";
/// The most texts in a bundle.
const MAX_BUNDLE: usize = crate::linker::MAX_TEXTS;
/// Entries of a fat binary that hold PTX.
const KIND_PTX: u16 = 1;
const FLAG_LZ4: u64 = 0x2000;
const FLAG_ZSTD: u64 = 0x8000;
/// The architecture that the software GPU reports; the newest PTX up to it is preferred.
const PREFERRED_ARCH: u32 = 75;
/// LZ4 spends at least one byte on 255 of output.
const LZ4_RATIO_MAX: u64 = 255;

/// Why there is no PTX in an image.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ImageError {
    /// Machine code only (`CUDA_ERROR_NO_BINARY_FOR_GPU`).
    #[error("the image has machine code only, and no PTX")]
    NoPtx,
    /// Neither PTX nor a container.
    #[error("the image is neither PTX text nor a fat binary")]
    Unknown,
    /// A container that ends early or contradicts itself.
    #[error("the fat binary is damaged: {0}")]
    Damaged(&'static str),
    /// Text larger than [`MAX_TEXT_BYTES`].
    #[error("the image is larger than {MAX_TEXT_BYTES} bytes")]
    TooLarge,
}

/// The texts of an image, to be linked together. (One, except in a bundle.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// PTX texts without trailing NUL.
    pub texts: Vec<Vec<u8>>,
}

/// How much memory belongs to an image of which only the address is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// This many bytes.
    Bytes(u64),
    /// Up to the first NUL.
    Text,
    /// A structure of 24 bytes: magic and version of 32 bits each, then the address of a fat
    /// binary.
    Wrapper,
}

/// The extent by the first bytes of an image. 16 bytes are enough for fat binaries and bundles,
/// 64 for ELF files; text may be shorter. `None` for an ELF header that is cut or invalid.
#[must_use]
pub fn extent(first: &[u8]) -> Option<Extent> {
    if word(first, 0) == Some(WRAPPER_MAGIC) {
        return Some(Extent::Wrapper);
    }
    if word(first, 0) == Some(FATBIN_MAGIC) {
        let header = u64::from(half(first, 6)?);
        return Some(Extent::Bytes(header.checked_add(long(first, 8)?)?));
    }
    if first.starts_with(&BUNDLE_MAGIC) {
        return Some(Extent::Bytes(long(first, 8)?.checked_add(16)?));
    }
    if first.starts_with(&ELF_MAGIC) {
        let sections = u64::from(half(first, 60)?).checked_mul(u64::from(half(first, 58)?))?;
        return Some(Extent::Bytes(long(first, 40)?.checked_add(sections)?));
    }
    Some(Extent::Text)
}

/// Reads PTX text (with or without NUL), a fat binary or a bundle, for Weft's own engine.
///
/// # Errors
/// [`ImageError::NoPtx`] for machine code, the others for what is not an image.
pub fn read(bytes: &[u8]) -> Result<Image, ImageError> {
    read_for(PREFERRED_ARCH, bytes)
}

/// As [`read`], for a device of this architecture (75: 7.5): of the texts in a fat binary, the one
/// that fits it best.
///
/// # Errors
/// As [`read`].
pub fn read_for(arch: u32, bytes: &[u8]) -> Result<Image, ImageError> {
    if bytes.starts_with(&ELF_MAGIC) {
        return Err(ImageError::NoPtx);
    }
    if word(bytes, 0) == Some(FATBIN_MAGIC) {
        return Ok(Image { texts: vec![read_fatbin(arch, bytes)?] });
    }
    if bytes.starts_with(&BUNDLE_MAGIC) {
        return read_bundle(bytes);
    }
    let text = until_nul(bytes);
    let trimmed = text.trim_ascii_start();
    if ![&b".version"[..], b"//", b"/*"].iter().any(|start| trimmed.starts_with(start)) {
        return Err(ImageError::Unknown);
    }
    if text.len() > MAX_TEXT_BYTES {
        return Err(ImageError::TooLarge);
    }
    Ok(Image { texts: vec![text.to_vec()] })
}

/// Packs texts into one image, which [`read`] takes apart: the result of `cuLinkComplete`.
///
/// Layout: magic, length of the rest (64 bits), then for each text its length (64 bits) and bytes.
#[must_use]
pub fn bundle<T: AsRef<[u8]>>(texts: &[T]) -> Vec<u8> {
    let rest: usize = texts.iter().map(|text| 8 + text.as_ref().len()).sum();
    let mut out = Vec::with_capacity(16 + rest);
    out.extend_from_slice(&BUNDLE_MAGIC);
    out.extend_from_slice(&(rest as u64).to_le_bytes());
    for text in texts {
        out.extend_from_slice(&(text.as_ref().len() as u64).to_le_bytes());
        out.extend_from_slice(text.as_ref());
    }
    out
}

fn read_bundle(bytes: &[u8]) -> Result<Image, ImageError> {
    let damaged = ImageError::Damaged("a bundle ends early");
    let mut rest = bytes.get(16..).ok_or_else(|| damaged.clone())?;
    let mut texts = Vec::new();
    while !rest.is_empty() && texts.len() < MAX_BUNDLE {
        let size = long(rest, 0).and_then(|size| usize::try_from(size).ok());
        let text = size.and_then(|size| rest.get(8..)?.split_at_checked(size));
        let Some((text, after)) = text else { return Err(damaged) };
        texts.push(text.to_vec());
        rest = after;
    }
    Ok(Image { texts })
}

/// One entry of a fat binary.
#[derive(Clone, Copy)]
struct Entry<'a> {
    arch: u32,
    flags: u64,
    compressed_bytes: u32,
    text_bytes: u64,
    payload: &'a [u8],
}

fn read_fatbin(arch: u32, bytes: &[u8]) -> Result<Vec<u8>, ImageError> {
    let early = ImageError::Damaged("it ends early");
    let header = usize::from(half(bytes, 6).ok_or_else(|| early.clone())?);
    let size = long(bytes, 8).ok_or_else(|| early.clone())?;
    let size = usize::try_from(size).map_err(|_| early.clone())?;
    let mut rest = bytes.get(header..).and_then(|rest| rest.get(..size)).ok_or(early)?;
    let mut best: Option<Entry<'_>> = None;
    let mut any = false;
    while !rest.is_empty() {
        let (kind, entry, after) = read_entry(rest).ok_or(ImageError::Damaged("a bad entry"))?;
        any = true;
        if kind == KIND_PTX
            && best.is_none_or(|best| rank(entry.arch, arch) > rank(best.arch, arch))
        {
            best = Some(entry);
        }
        rest = after;
    }
    match best {
        Some(entry) => unpack(entry),
        None if any => Err(ImageError::NoPtx),
        None => Err(ImageError::Damaged("it is empty")),
    }
}

/// Newest up to the device's architecture first, then the oldest above it.
fn rank(arch: u32, device: u32) -> (bool, i64) {
    let old = arch <= device;
    (old, if old { i64::from(arch) } else { -i64::from(arch) })
}

fn read_entry(bytes: &[u8]) -> Option<(u16, Entry<'_>, &[u8])> {
    let kind = half(bytes, 0)?;
    let header = usize::try_from(word(bytes, 4)?).ok()?;
    let size = usize::try_from(long(bytes, 8)?).ok()?;
    // The fields below lie in the first 64 bytes.
    if header < 64 {
        return None;
    }
    let (payload, after) = bytes.get(header..)?.split_at_checked(size)?;
    let entry = Entry {
        arch: word(bytes, 28)?,
        flags: long(bytes, 40)?,
        compressed_bytes: word(bytes, 16)?,
        text_bytes: long(bytes, 56)?,
        payload,
    };
    Some((kind, entry, after))
}

fn unpack(entry: Entry<'_>) -> Result<Vec<u8>, ImageError> {
    if entry.flags & (FLAG_LZ4 | FLAG_ZSTD) == 0 {
        return bounded(until_nul(entry.payload).to_vec());
    }
    // The payload is padded; the compressed size is exact.
    let size = usize::try_from(entry.compressed_bytes).unwrap_or(usize::MAX);
    let packed = entry.payload.get(..size).ok_or(ImageError::Damaged("a payload ends early"))?;
    if entry.text_bytes > MAX_TEXT_BYTES as u64 {
        return Err(ImageError::TooLarge);
    }
    let text = if entry.flags & FLAG_ZSTD != 0 { zstd(packed)? } else { lz4(packed, entry)? };
    bounded(until_nul(&text).to_vec())
}

fn bounded(text: Vec<u8>) -> Result<Vec<u8>, ImageError> {
    if text.len() > MAX_TEXT_BYTES { Err(ImageError::TooLarge) } else { Ok(text) }
}

fn zstd(packed: &[u8]) -> Result<Vec<u8>, ImageError> {
    let damaged = ImageError::Damaged("zstd data do not decompress");
    let decoder = ruzstd::decoding::StreamingDecoder::new(packed).map_err(|_| damaged.clone())?;
    let mut text = Vec::new();
    decoder.take(MAX_TEXT_BYTES as u64 + 1).read_to_end(&mut text).map_err(|_| damaged)?;
    Ok(text)
}

fn lz4(packed: &[u8], entry: Entry<'_>) -> Result<Vec<u8>, ImageError> {
    let damaged = ImageError::Damaged("LZ4 data do not decompress");
    let possible = (packed.len() as u64).saturating_mul(LZ4_RATIO_MAX);
    if entry.text_bytes > possible {
        return Err(damaged);
    }
    let size = usize::try_from(entry.text_bytes).map_err(|_| ImageError::TooLarge)?;
    lz4_flex::block::decompress(packed, size).map_err(|_| damaged)
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &[u8] = include_bytes!("../tests/corpus/image/plain.fatbin");
    const LZ4: &[u8] = include_bytes!("../tests/corpus/image/lz4.fatbin");
    const ZSTD: &[u8] = include_bytes!("../tests/corpus/image/zstd.fatbin");
    const ELF_ONLY: &[u8] = include_bytes!("../tests/corpus/image/elf_only.fatbin");
    const BOTH: &[u8] = include_bytes!("../tests/corpus/image/elf_and_ptx.fatbin");

    #[test]
    fn compressed_and_plain_fat_binaries_hold_the_same_module() {
        let module = |bytes| crate::parse(&read(bytes).unwrap().texts[0]).unwrap();
        let plain = module(PLAIN);
        assert!(plain.kernel("vector_add").is_some());
        // The compressor strips blank lines and comments, so only the line numbers differ.
        for other in [LZ4, ZSTD, BOTH] {
            let other = module(other);
            assert_eq!(other.functions.len(), plain.functions.len());
            for (a, b) in other.functions.iter().zip(&plain.functions) {
                let ops = |f: &crate::ir::Function| -> Vec<crate::ir::Op> {
                    f.body.iter().flatten().map(|instr| instr.op.clone()).collect()
                };
                assert_eq!(ops(a), ops(b));
            }
        }
    }

    #[test]
    fn machine_code_is_told_apart() {
        assert_eq!(read(ELF_ONLY), Err(ImageError::NoPtx));
        assert_eq!(read(b"\x7FELF\x02\x01"), Err(ImageError::NoPtx));
        assert_eq!(read(b"hello"), Err(ImageError::Unknown));
        assert_eq!(read(b""), Err(ImageError::Unknown));
    }

    #[test]
    fn text_ends_at_its_nul() {
        let image = read(b"// c\n.version 7.5\0garbage").unwrap();
        assert_eq!(image.texts, [b"// c\n.version 7.5".to_vec()]);
    }

    #[test]
    fn the_extent_is_the_length_of_the_file() {
        for file in [PLAIN, LZ4, ZSTD, ELF_ONLY, BOTH] {
            assert_eq!(extent(&file[..16]), Some(Extent::Bytes(file.len() as u64)));
        }
        let elf = &ELF_ONLY[80..];
        // Program headers may follow the section headers, but sections come last in a cubin.
        assert!(matches!(extent(&elf[..64]), Some(Extent::Bytes(n)) if n <= elf.len() as u64));
        assert_eq!(extent(b".version 7.5"), Some(Extent::Text));
        assert_eq!(extent(&WRAPPER_MAGIC.to_le_bytes()), Some(Extent::Wrapper));
    }

    #[test]
    fn bundles_come_apart() {
        let texts = [b"one".to_vec(), Vec::new(), b"three".to_vec()];
        let packed = bundle(&texts);
        assert_eq!(extent(&packed), Some(Extent::Bytes(packed.len() as u64)));
        assert_eq!(read(&packed).unwrap().texts, texts);
        assert!(matches!(read(&packed[..packed.len() - 1]), Err(ImageError::Damaged(_))));
    }

    #[test]
    fn every_cut_and_every_flipped_byte_is_survived() {
        for file in [PLAIN, LZ4, ZSTD] {
            for cut in 0..file.len() {
                assert!(read(&file[..cut]).is_err(), "cut at {cut}");
            }
            for at in 0..file.len() {
                let mut bytes = file.to_vec();
                bytes[at] ^= 0xFF;
                if let Ok(image) = read(&bytes) {
                    drop(crate::link(&image.texts));
                }
            }
        }
    }

    #[test]
    fn a_bomb_is_refused_before_memory_is_taken() {
        let mut bytes = LZ4.to_vec();
        bytes[16 + 56..16 + 64].copy_from_slice(&(200u64 << 20).to_le_bytes());
        assert!(matches!(read(&bytes), Err(ImageError::Damaged(_))));
        bytes[16 + 56..16 + 64].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(read(&bytes), Err(ImageError::TooLarge));
    }
}
