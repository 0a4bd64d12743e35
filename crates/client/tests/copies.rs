//! Copies through a fake worker: every kind of host memory, shapes, a small arena.

mod common;

use common::Fixture;
use proptest::prelude::*;
use weft_client::{Layout, Source, Stream, Target};
use weft_wire::Status;
use weft_wire::command::Shape;

const ARENA: usize = 8 << 20;

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| u8::try_from((i * 31 + i / 251) % 256).unwrap_or(0)).collect()
}

#[test]
fn pageable_copies_of_every_size_come_back() {
    let fixture = Fixture::new(ARENA);
    for bytes in [1, 383, 384, 385, 4096, 512 << 10, (512 << 10) + 1, 5_000_000, 20_000_000] {
        let data = pattern(bytes);
        let device = fixture.client.mem_alloc(bytes as u64).unwrap();
        fixture.client.copy_htod(device, &data).unwrap();
        let mut back = vec![0; bytes];
        fixture.client.copy_dtoh(&mut back, device).unwrap();
        assert!(back == data, "{bytes} bytes");
        fixture.client.mem_free(device).unwrap();
    }
}

#[test]
fn a_small_copy_travels_inside_its_command_and_waits_for_nothing() {
    let fixture = Fixture::new(ARENA);
    let device = fixture.client.mem_alloc(64).unwrap();
    fixture.settle();
    fixture.client.copy_htod(device, &[7; 64]).unwrap();
    fixture.client.context_synchronize(weft_client::Context::NULL).unwrap();
    assert_eq!(fixture.log(), ["Copy", "ContextSynchronize"]);
}

#[test]
fn an_arena_smaller_than_the_copy_is_no_obstacle() {
    let fixture = Fixture::new(1 << 20);
    let data = pattern(9_000_001);
    let device = fixture.client.mem_alloc(data.len() as u64).unwrap();
    fixture.client.copy_htod_async(device, &data, Stream::NULL).unwrap();
    let mut back = vec![0; data.len()];
    fixture.client.copy_dtoh_async(&mut back, device, Stream::NULL).unwrap();
    assert!(back == data);
}

#[test]
fn pinned_memory_is_copied_without_staging() {
    let fixture = Fixture::new(ARENA);
    let client = &fixture.client;
    let host = client.host_alloc(10_000, 0).unwrap();
    assert_eq!(client.host_device_pointer(host).unwrap(), host);
    let device = client.mem_alloc(10_000).unwrap();
    client.fill_linear(device, 2, 0xbeef, 5_000, Stream::NULL).unwrap();
    fixture.settle();
    client
        .copy_async(
            Target::Device(host),
            Source::Device(device),
            Layout::linear(10_000),
            Stream::NULL,
        )
        .unwrap();
    let mut back = vec![0; 10_000];
    client.copy_dtoh(&mut back, host).unwrap();
    assert_eq!(back, [0xef, 0xbe].repeat(5_000));
    assert_eq!(fixture.log(), ["Copy", "CopySync"]);
    client.host_free(host).unwrap();
    assert_eq!(client.host_free(host), Err(Status::INVALID_VALUE));
}

#[test]
fn a_copy_outside_an_allocation_is_refused_here() {
    let fixture = Fixture::new(ARENA);
    let device = fixture.client.mem_alloc(1000).unwrap();
    fixture.settle();
    let invalid = Err(Status::INVALID_VALUE);
    assert_eq!(fixture.client.copy_htod(device + 1, &[0; 2000]), invalid);
    assert_eq!(fixture.client.copy_htod(0x1234, &[0; 1]), invalid);
    assert_eq!(fixture.client.copy_dtoh(&mut [0; 2000], device), invalid);
    assert_eq!(fixture.client.mem_free(device + 1), invalid);
    assert!(fixture.log().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn boxes_arrive_row_by_row(
        width in 1_u64..2000, height in 1_u64..20, depth in 1_u64..4, gaps in any::<[u8; 4]>(),
    ) {
        let fixture = Fixture::new(ARENA);
        let [gap_d, gap_s, plane_d, plane_s] = gaps.map(u64::from);
        let (dst_pitch, src_pitch) = (width + gap_d, width + gap_s);
        let layout = Layout {
            shape: Shape { width, height, depth },
            dst_pitch,
            dst_slice: dst_pitch * height + plane_d,
            src_pitch,
            src_slice: src_pitch * height + plane_s,
        };
        let src = pattern(layout.src_span().unwrap().try_into().unwrap());
        let device = fixture.client.mem_alloc(layout.dst_span().unwrap()).unwrap();
        fixture.client.copy_sync(Target::Device(device), Source::Host(&src), layout.clone()).unwrap();
        // Back into the source's shape: only the rows may change.
        let mut back = vec![0; src.len()];
        let reverse = Layout {
            shape: layout.shape.clone(),
            dst_pitch: layout.src_pitch,
            dst_slice: layout.src_slice,
            src_pitch: layout.dst_pitch,
            src_slice: layout.dst_slice,
        };
        fixture.client.copy_sync(Target::Host(&mut back), Source::Device(device), reverse).unwrap();
        for (at, (sent, got)) in (0_u64..).zip(src.iter().zip(&back)) {
            let (z, rest) = (at / layout.src_slice, at % layout.src_slice);
            let (y, x) = (rest / src_pitch, rest % src_pitch);
            let inside = z < depth && y < height && x < width;
            prop_assert_eq!(*got, if inside { *sent } else { 0 });
        }
    }
}
