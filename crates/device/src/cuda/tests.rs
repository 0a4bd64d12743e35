//! The conformance suite on a driver: the genuine one where there is a GPU, or any other
//! `libcuda` that `WEFT_CUDA_LIBRARY` names. `cargo xtask test` names Weft's own shim with its
//! in-process device, so that this backend runs on every machine.

use std::process::Command;

use super::{CudaConfig, CudaDevice, LIBRARY_VARIABLE, devices};
use crate::LocalFrames;
use crate::{Device, DeviceError, Launch, LoadError, Op, Outcome, QueueId};

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
            variables_are_paid_for(&mut open());
            faults_are_charged(&mut open());
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

/// The driver takes memory for a module's variables, so the ledger has it too.
fn variables_are_paid_for(device: &mut CudaDevice) {
    let module = |bytes: u64| {
        let head = ".version 7.0\n.target sm_75\n.address_size 64\n";
        format!("{head}.global .align 4 .b8 table[{bytes}];\n.entry none() {{ ret; }}\n")
    };
    let before = device.memory_use().free;
    let loaded = device.load(&[module(8 << 20).as_bytes()]).unwrap();
    assert_eq!(device.memory_use().free, before - (8 << 20));
    let refused = device.load(&[module(QUOTA).as_bytes()]);
    let wanted = matches!(refused, Err(LoadError::Device(DeviceError::OutOfMemory { .. })));
    assert!(wanted, "{refused:?}");
    device.unload(loaded.id);
    assert_eq!(device.memory_use().free, before);
}

/// A kernel that works and then faults has used the device.
fn faults_are_charged(device: &mut CudaDevice) {
    const TEXT: &str = ".version 7.0\n.target sm_75\n.address_size 64\n\
        .entry work() {\n.reg .u32 %r<2>;\n.reg .pred %p;\nmov.u32 %r0, 0;\n\
        again:\nadd.u32 %r0, %r0, 1;\nsetp.lt.u32 %p, %r0, 100000;\n@%p bra again;\n\
        trap;\n}\n";
    let loaded = device.load(&[TEXT.as_bytes()]).unwrap();
    let launch = Launch {
        module: loaded.id,
        function: 0,
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
        params: Vec::new(),
        first_block: 0,
        max_ns: None,
    };
    let before_ns = device.now_ns();
    device.start(QueueId(1), Op::Launch(launch)).unwrap();
    let completion = loop {
        device.drive(1_000_000);
        if let Some(completion) = device.poll() {
            break completion;
        }
    };
    assert!(matches!(completion.outcome, Outcome::Fault(_)), "{completion:?}");
    // It ran for most of the time that passed, of which the launch takes some microseconds.
    let used_ns = completion.end_ns - completion.start_ns;
    let passed_ns = completion.end_ns - before_ns;
    assert!(used_ns * 2 > passed_ns, "{used_ns} of {passed_ns} ns are charged");
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
