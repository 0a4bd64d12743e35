//! The conformance suite on a driver: the genuine one where there is a GPU, or any other
//! `libcuda` that `WEFT_CUDA_LIBRARY` names. `cargo xtask test` names Weft's own shim with its
//! in-process device, so that this backend runs on every machine.

use std::process::Command;

use super::{CudaConfig, CudaDevice, LIBRARY_VARIABLE, devices};
use crate::soft::LocalFrames;

/// Memory that each behaviour may use, in bytes.
const QUOTA: u64 = 256 << 20;

#[test]
fn the_cuda_backend_conforms() {
    // Our shim as the driver must not look for a node; the variable is for it alone, so the test
    // runs again in a process that has it.
    if std::env::var_os(LIBRARY_VARIABLE).is_some() && std::env::var_os("WEFT_ATTACH").is_none() {
        let again = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "cuda::tests::the_cuda_backend_conforms", "--nocapture"])
            .env("WEFT_ATTACH", "direct")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&again.stderr);
        assert!(again.status.success(), "{text}{}", String::from_utf8_lossy(&again.stdout));
        assert!(text.contains("on "), "the suite did not run: {text}");
        return;
    }
    match devices(None) {
        Ok(found) if !found.is_empty() => {
            eprintln!("on {}", found[0].info.name);
            crate::conformance::all(&open);
        }
        Ok(_) => eprintln!("not run: no GPU: the driver lists no device"),
        Err(error) => {
            assert!(
                std::env::var_os(LIBRARY_VARIABLE).is_none(),
                "the named library does not work: {error}"
            );
            eprintln!("not run: no GPU: {error}");
        }
    }
}

fn open() -> CudaDevice {
    CudaDevice::open(CudaConfig {
        library: None,
        ordinal: 0,
        source: Box::new(LocalFrames::new(QUOTA)),
        range: (0x3000_0000_0000, 1 << 40),
        window: None,
        staging: None,
        kernel_ns: None,
        page: None,
    })
    .unwrap()
}
