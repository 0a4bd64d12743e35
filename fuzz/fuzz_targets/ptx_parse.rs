//! Any bytes as PTX text: parsed, linked and analysed without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(module) = weft_ptx::link(&[bytes]) {
        for function in &module.functions {
            let body = function.body.as_deref().unwrap_or_default();
            assert_eq!(weft_ptx::cfg::Cfg::new(body).block_of.len(), body.len());
        }
    }
});
