//! Any bytes as PTX text: parsed, linked, analysed and sliced without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(module) = weft_ptx::link(&[bytes]) {
        for function in &module.functions {
            let body = function.body.as_deref().unwrap_or_default();
            assert_eq!(weft_ptx::cfg::Cfg::new(body).block_of.len(), body.len());
        }
        if let Ok(sliced) = weft_ptx::slice::rewrite(bytes) {
            weft_ptx::parse(&sliced.text).expect("what was rewritten parses");
        }
    }
});
