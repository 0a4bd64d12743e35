//! Any bytes as a module image: unpacked within its bounds, and what comes out is parsed.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = weft_ptx::image::extent(bytes);
    if let Ok(image) = weft_ptx::image::read(bytes) {
        drop(weft_ptx::link(&image.texts));
    }
});
