//! Sessions that go to another device: their addresses, contents, globals and kernels stay.

use weft_ring::Access;

use super::super::{Geometry, SoftBackend, physical};
use super::slots::{OneVgpu, vgpu_of};
use super::*;
use crate::{BackendConfig, Destination, DeviceError, FrameRun, MovedRun, PAGE};

const FRAMES: u64 = 1024;
const OWNER: u32 = 5;

const COUNTER: &str = "
.version 6.0
.target sm_70
.address_size 64
.visible .global .align 4 .u32 total = 40;
.visible .entry count(.param .u64 data)
{
    .reg .b64 %rd<4>;
    .reg .b32 %r<4>;
    ld.param.u64 %rd1, [data];
    ld.global.u32 %r1, [total];
    add.u32 %r1, %r1, 1;
    st.global.u32 [total], %r1;
    st.global.u32 [%rd1], %r1;
    ret;
}
";

/// Memory of a device that one session has to itself.
fn frames() -> OneVgpu {
    let bytes = FRAMES * PAGE;
    vgpu_of(Geometry::new(bytes, bytes, bytes).unwrap(), OWNER)
}

impl OneVgpu {
    fn destination(&self, moved: Vec<MovedRun>) -> Destination {
        Destination {
            backend: BackendConfig::Soft(SoftBackend::default()),
            page: self.page.clone(),
            frames: self.frames.try_clone().unwrap(),
            table: self.private_file.map(Access::ReadOnly).unwrap(),
            physical: self.physical_file.map(Access::ReadOnly).unwrap(),
            geometry: self.geometry,
            moved,
        }
    }
}

/// All frames go somewhere else, in runs of three that are no longer in order.
fn scattered() -> Vec<MovedRun> {
    let runs = (0..FRAMES / 3).map(|place| MovedRun {
        from: FrameRun { first: place * 3, count: 3 },
        to: (FRAMES / 3 - 1 - place) * 3,
    });
    runs.collect()
}

/// A session with a module, whose global has counted to 41, and two megabytes of its own.
fn bench(home: &OneVgpu) -> (Bench, u64, Vec<u32>) {
    let mut device = home.session();
    let module = device.load(&[COUNTER.as_bytes()]).unwrap();
    let mut bench = Bench { device, module };
    let words: Vec<u32> = (0..1 << 19).map(|i: u32| i.wrapping_mul(0x9E37_79B9)).collect();
    let data = bench.upload(&words);
    bench.run("count", 1, 1, &[Arg::U64(data)]);
    (bench, data, words)
}

#[test]
fn contents_globals_and_kernels_are_the_same_there() {
    let (home, other) = (frames(), frames());
    let (mut bench, data, mut words) = bench(&home);
    let untouched = bench.alloc(300 * PAGE);
    bench.device.begin_move(other.destination(scattered())).unwrap();
    // Until it goes it works where it is.
    assert_eq!(bench.words(data, 2), [41, words[1]]);
    bench.device.end_move(true);
    home.frames.punch(0, (FRAMES * PAGE) as usize).unwrap();
    home.hand_to(0);
    words[0] = 41;
    assert_eq!(bench.words(data, words.len()), words);
    assert_eq!(bench.words(untouched, 2), [0, 0]);
    let is_written =
        |frame: &u64| other.frames.next_data(frame * PAGE).unwrap() == Some(frame * PAGE);
    let written = (0..FRAMES).filter(is_written).count();
    assert!((512..600).contains(&written), "{written} frames, of which many nobody wrote");
    bench.run("count", 1, 1, &[Arg::U64(data + 4)]);
    assert_eq!(bench.words(data, 2), [41, 42]);
    bench.device.free(data).unwrap();
    let fault = bench.fault("count", 1, 1, &[Arg::U64(data)]);
    assert_eq!(fault.address, Some(data));
}

/// Memory that was taken without addresses goes along, mapped or not.
#[test]
fn mapped_memory_goes_along() {
    let (home, other) = (frames(), frames());
    let (mut bench, ..) = bench(&home);
    let bytes = 16 * PAGE;
    let memory = |device: &mut SoftDevice| device.virtual_memory().unwrap().create(bytes).unwrap();
    let pattern = |value: u8| vec![value; bytes as usize];
    let (first, second) = (memory(&mut bench.device), memory(&mut bench.device));
    let at = bench.device.virtual_memory().unwrap().reserve(4 * bytes, 8 * PAGE).unwrap();
    for (value, memory) in [(1, first), (2, second)] {
        bench.device.virtual_memory().unwrap().map_memory(at, memory).unwrap();
        bench.write(at, pattern(value));
        bench.device.virtual_memory().unwrap().unmap_memory(at).unwrap();
    }
    bench.device.virtual_memory().unwrap().map_memory(at, first).unwrap();
    bench.device.begin_move(other.destination(scattered())).unwrap();
    bench.device.end_move(true);
    home.frames.punch(0, (FRAMES * PAGE) as usize).unwrap();
    home.hand_to(0);
    bench.device.virtual_memory().unwrap().map_memory(at + bytes, second).unwrap();
    let words = bench.words(at, 32 * 1024);
    assert!(words[..16 * 1024].iter().all(|word| *word == 0x0101_0101), "mapped before");
    assert!(words[16 * 1024..].iter().all(|word| *word == 0x0202_0202), "mapped afterwards");
    // Only what is mapped is there, and a kernel faults beside it.
    assert_eq!(bench.device.check_range(at + bytes - 4, 8), Ok(()));
    assert!(bench.device.check_range(at + 2 * bytes - 4, 8).is_err());
    bench.device.virtual_memory().unwrap().unmap_memory(at).unwrap();
    let fault = bench.fault("count", 1, 1, &[Arg::U64(at)]);
    assert_eq!(fault.address, Some(at));
}

#[test]
fn who_stays_after_all_has_lost_nothing() {
    let (home, other) = (frames(), frames());
    let (mut bench, data, words) = bench(&home);
    bench.device.begin_move(other.destination(scattered())).unwrap();
    bench.device.end_move(false);
    bench.run("count", 1, 1, &[Arg::U64(data)]);
    assert_eq!(bench.words(data, 2), [42, words[1]]);
    bench.device.end_move(true);
    assert_eq!(bench.words(data, 2), [42, words[1]], "there is nowhere to go any more");
}

#[test]
fn frames_without_a_place_and_work_in_flight_keep_it_where_it_is() {
    let (home, other) = (frames(), frames());
    let (mut bench, data, words) = bench(&home);
    let mut moved = scattered();
    moved.remove(moved.len() / 8);
    let refused = bench.device.begin_move(other.destination(moved)).unwrap_err();
    assert!(matches!(refused, DeviceError::Refused(_)), "{refused}");
    bench.start(bench.launch("count", 1, 1, &[Arg::U64(data)]));
    let refused = bench.device.begin_move(other.destination(scattered())).unwrap_err();
    assert!(matches!(refused, DeviceError::Refused(_)), "{refused}");
    assert_eq!(finish(&mut bench.device), [Outcome::Done]);
    assert_eq!(bench.words(data, 2), [42, words[1]]);
}

#[test]
fn a_forged_entry_there_is_a_fault() {
    let (home, other) = (frames(), frames());
    let (mut bench, data, _) = bench(&home);
    bench.device.begin_move(other.destination(scattered())).unwrap();
    bench.device.end_move(true);
    other.hand_to(physical::entry(6));
    let fault = bench.fault("count", 1, 1, &[Arg::U64(data)]);
    assert!(fault.address.is_some(), "{fault:?}");
}
