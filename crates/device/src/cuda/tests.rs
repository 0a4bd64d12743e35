//! The conformance suite on a driver: the genuine one where there is a GPU, or any other
//! `libcuda` that `WEFT_CUDA_LIBRARY` names. `cargo xtask test` names Weft's own shim with its
//! in-process device, so that this backend runs on every machine.

use std::process::Command;

use weft_ring::SharedMemory;

use super::{CudaConfig, CudaDevice, LIBRARY_VARIABLE, devices, lending_tests, swap_tests};
use crate::conformance::Behaviour;
use crate::{Device, DeviceError, Launch, LoadError, Op, Outcome, QueueId};
use crate::{FrameSource, LocalFrames};

/// Memory that each behaviour may use, in bytes.
const QUOTA: u64 = 256 << 20;

#[test]
fn the_cuda_backend_conforms() {
    if std::env::var_os(LIBRARY_VARIABLE).is_some() && std::env::var_os("WEFT_ATTACH").is_none() {
        again("cuda::tests::the_cuda_backend_conforms", &[]);
        return;
    }
    if let Ok(wanted) = std::env::var(BEHAVIOUR) {
        let (_, behaviour) = behaviours().into_iter().find(|(name, _)| *name == wanted).unwrap();
        let mut device = open();
        behaviour(&mut device);
        eprintln!("{SHOWN}");
        // One that has faulted may not survive its own clean-up.
        std::mem::forget(device);
        return;
    }
    match devices(None) {
        Ok(found) if !found.is_empty() => {
            eprintln!("on {}", found[0].info.name);
            let failed: Vec<String> =
                behaviours().into_iter().filter_map(|(name, _)| failure(name)).collect();
            assert!(failed.is_empty(), "{} behaviours:\n{}", failed.len(), failed.join("\n"));
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

/// Names what of the suite a process is to show. Each has a process of its own: after a fault a
/// genuine driver makes no more contexts in the process whose kernel it was.
const BEHAVIOUR: &str = "WEFT_TEST_BEHAVIOUR";

/// What such a process says at its end.
const SHOWN: &str = "the behaviour is shown";

/// The suite, and what is this backend's alone.
fn behaviours() -> Vec<Behaviour<CudaDevice>> {
    let mut all = crate::conformance::behaviours();
    all.extend([
        ("our_own_driver_moves_memory", our_own_driver_moves_memory as fn(&mut CudaDevice)),
        ("variables_are_paid_for", variables_are_paid_for),
        ("faults_are_charged", faults_are_charged),
    ]);
    all
}

/// What a process says in which a behaviour is not shown.
fn failure(name: &str) -> Option<String> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "cuda::tests::the_cuda_backend_conforms", "--nocapture"])
        .env(BEHAVIOUR, name)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let out = String::from_utf8_lossy(&output.stdout);
    let is_shown = output.status.success() && text.contains(SHOWN);
    (!is_shown).then(|| format!("behaviour `{name}`: {}\n{text}{out}", output.status))
}

fn our_own_driver_moves_memory(device: &mut CudaDevice) {
    let moves = device.swapping().is_some();
    assert!(moves || std::env::var_os("WEFT_ATTACH").is_none(), "our shim moves memory");
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
    };
    let before_ns = device.now_ns();
    device.start(QueueId(1), Op::Launch(launch), None).unwrap();
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

/// Runs this test again in a process with other settings, and with Weft's own shim as the driver.
/// It must not look for a node, and the settings are for it alone.
fn again(test: &str, settings: &[(&str, String)]) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("WEFT_ATTACH", "direct")
        .envs(settings.iter().map(|(name, value)| (name, value)))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stdout));
    assert!(text.contains("on "), "the suite did not run: {text}");
    text
}

/// Tenants whose memory together is more than the driver's, on Weft's own driver only: a genuine
/// GPU has more memory than a test may fill.
#[test]
fn swap_plans_are_carried_out_by_the_driver() {
    if std::env::var_os(LIBRARY_VARIABLE).is_none() {
        eprintln!("not run: {LIBRARY_VARIABLE} names no driver");
        return;
    }
    if std::env::var_os("WEFT_ATTACH").is_none() {
        let name = "cuda::tests::swap_plans_are_carried_out_by_the_driver";
        let memory = ("WEFT_MEMORY", format!("{}MiB", swap_tests::DRIVER_BYTES >> 20));
        let text = again(name, &[memory]);
        assert!(text.contains("pipelined: "), "{text}");
        return;
    }
    let found = devices(None).unwrap();
    eprintln!("on {}", found[0].info.name);
    assert!(found[0].info.memory_bytes <= swap_tests::DRIVER_BYTES, "{:?}", found[0].info);
    lending_tests::all();
    swap_tests::all();
}

fn open() -> CudaDevice {
    open_with(Box::new(LocalFrames::new(QUOTA)), QUOTA, 4 << 20, false)
}

/// A tenant that may have as much as the driver's device, in parts of the least size.
pub(super) fn tenant() -> CudaDevice {
    let bytes = swap_tests::DRIVER_BYTES;
    open_with(Box::new(LocalFrames::new(bytes)), bytes, super::CHUNK_BYTES, false)
}

pub(super) fn open_with(
    source: Box<dyn FrameSource>,
    quota: u64,
    part_bytes: u64,
    lends: bool,
) -> CudaDevice {
    CudaDevice::open(CudaConfig {
        library: None,
        ordinal: 0,
        source,
        range: (0x3000_0000_0000, 1 << 40),
        part_bytes,
        frames: Some(SharedMemory::anonymous(usize::try_from(quota).unwrap()).unwrap()),
        lends,
        window: None,
        staging: None,
        kernel_ns: None,
        page: None,
        catch_output: false,
    })
    .unwrap()
}
