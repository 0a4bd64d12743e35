//! Operations between the lanes of a warp, with member masks that differ between lanes or places.

use super::faults::kernel;
use super::{Arg, Bench};

/// Runs `body` in one warp; each lane leaves its result in `%r0`.
fn lanes(body: &str) -> Vec<u32> {
    let text = format!(
        "mov.u32 %r9, %laneid; mul.wide.u32 %rd9, %r9, 4; add.u64 %rd9, %rd1, %rd9;\n{body}\n\
         st.global.u32 [%rd9], %r0;"
    );
    let mut bench = Bench::new(&kernel("", &text));
    let out = bench.upload(&[0xdead_beef; 32]);
    bench.run("k", 1, 32, &[Arg::U64(out)]);
    bench.words(out, 32)
}

/// `%r1` = the mask of the lane's half of the warp, `%p1` = whether the lane's number is odd.
const HALVES: &str = "setp.lt.u32 %p9, %r9, 16; selp.b32 %r1, 0x0000ffff, 0xffff0000, %p9;\n\
                      and.b32 %r2, %r9, 1; setp.ne.u32 %p1, %r2, 0;";

#[test]
fn groups_of_one_warp_vote_apart() {
    let by_half = |low: u32, high: u32| [vec![low; 16], vec![high; 16]].concat();
    let body = |op: &str| format!("{HALVES}\n{op}");
    assert_eq!(
        lanes(&body("vote.sync.ballot.b32 %r0, %p1, %r1;")),
        by_half(0x0000_aaaa, 0xaaaa_0000)
    );
    // Lane 3 alone says yes.
    let any = "setp.eq.u32 %p2, %r9, 3; vote.sync.any.pred %p3, %p2, %r1; selp.u32 %r0, 1, 0, %p3;";
    assert_eq!(lanes(&body(any)), by_half(1, 0));
    let all =
        "setp.lt.u32 %p2, %r9, 16; vote.sync.all.pred %p3, %p2, %r1; selp.u32 %r0, 1, 0, %p3;";
    assert_eq!(lanes(&body(all)), by_half(1, 0));
    assert_eq!(lanes(&body("redux.sync.add.u32 %r0, %r9, %r1;")), by_half(120, 376));
    assert_eq!(lanes(&body("match.any.sync.b32 %r0, %r2, %r1; popc.b32 %r0, %r0;")), by_half(8, 8));
    let same = "shr.u32 %r3, %r9, 4; match.all.sync.b32 %r0|%p3, %r3, %r1;";
    assert_eq!(lanes(&body(same)), by_half(0x0000_ffff, 0xffff_0000));
    assert_eq!(lanes(&body("elect.sync %r0|%p3, %r1;")), by_half(0, 16));
}

#[test]
fn a_group_goes_on_without_the_lanes_of_another() {
    // Lanes 0–7 spin until lane 31 has passed its group's barrier; only then do they come to the
    // place where lanes 8–15, of their own group, wait beside lanes 16–31.
    let body = format!(
        "{HALVES}\n.shared .align 4 .b32 flag[1];\nst.shared.u32 [flag], 0;\n\
         bar.warp.sync 0xffffffff;\nsetp.ge.u32 %p2, %r9, 8;\n@%p2 bra $MEET;\n\
         $SPIN: ld.volatile.shared.u32 %r3, [flag];\nsetp.eq.u32 %p3, %r3, 0;\n@%p3 bra $SPIN;\n\
         $MEET: bar.warp.sync %r1;\nsetp.eq.u32 %p4, %r9, 31;\n@%p4 st.volatile.shared.u32 [flag], 1;\n\
         mov.u32 %r0, %r9;"
    );
    assert_eq!(lanes(&body), (0..32).collect::<Vec<_>>());
}

#[test]
fn barriers_of_a_warp_meet_at_different_places() {
    // Three arms exchange values over two barriers each; a lane that ran ahead would read early.
    let arm = |n: u32| {
        format!(
            "st.volatile.shared.u32 [%r4], %r9;\nbar.warp.sync 0xffffffff;\n\
             ld.volatile.shared.u32 %r0, [%r5];\nbar.warp.sync 0xffffffff;\n\
             add.u32 %r6, %r9, 100;\nst.volatile.shared.u32 [%r4], %r6;\n\
             bar.warp.sync 0xffffffff;\nld.volatile.shared.u32 %r7, [%r5];\n\
             mul.lo.u32 %r7, %r7, 1000;\nadd.u32 %r0, %r0, %r7;\nbra $END;\n$ARM{n}:\n"
        )
    };
    let body = format!(
        ".shared .align 4 .b32 slots[32];\nmov.u32 %r3, slots;\nshl.b32 %r4, %r9, 2;\n\
         add.u32 %r4, %r4, %r3;\nadd.u32 %r5, %r9, 11;\nand.b32 %r5, %r5, 31;\n\
         shl.b32 %r5, %r5, 2;\nadd.u32 %r5, %r5, %r3;\nrem.u32 %r2, %r9, 3;\n\
         setp.eq.u32 %p1, %r2, 1;\nsetp.eq.u32 %p2, %r2, 2;\n@%p1 bra $ARM1;\n@%p2 bra $ARM2;\n\
         {}{}{}$END:",
        arm(1),
        arm(2),
        arm(3)
    );
    let expected: Vec<u32> = (0..32)
        .map(|lane| {
            let other = (lane + 11) % 32;
            other + (other + 100) * 1000
        })
        .collect();
    assert_eq!(lanes(&body), expected);
}

/// Runs `body` in one block of `threads`; each leaves its result in `%r0`.
fn block(threads: u32, body: &str) -> Vec<u32> {
    let text = format!(
        "mov.u32 %r9, %tid.x; mul.wide.u32 %rd9, %r9, 4; add.u64 %rd9, %rd1, %rd9;\n{body}\n\
         st.global.u32 [%rd9], %r0;"
    );
    let mut bench = Bench::new(&kernel("", &text));
    let out = bench.upload(&vec![0xdead_beef; threads as usize]);
    let launch = bench.launch("k", 1, threads, &[Arg::U64(out)]);
    bench.finish_ok(launch);
    bench.words(out, threads as usize)
}

#[test]
fn a_reduction_keeps_its_result_when_others_use_the_barrier_again() {
    // Warps 0 and 1 meet and vote yes; before warp 0 goes on, 1 and 2 meet there and vote no.
    let body = "shr.u32 %r8, %r9, 5; setp.eq.u32 %p1, %r8, 1; setp.eq.u32 %p2, %r8, 2;\n\
                setp.ne.u32 %p3, %r8, 2; mov.u32 %r0, 0;\n\
                @%p2 bra $SECOND;\n\
                barrier.red.popc.u32 %r0, 1, 64, %p3;\n\
                barrier.red.and.pred %p4, 2, 64, %p3;\n\
                selp.u32 %r1, 1000, 0, %p4; add.u32 %r0, %r0, %r1;\n\
                @!%p1 bra $END;\n$SECOND: setp.eq.u32 %p3, %r8, 9;\n\
                barrier.red.popc.u32 %r2, 1, 64, %p3;\n\
                barrier.red.or.pred %p4, 2, 64, %p3;\n\
                selp.u32 %r1, 100000, 0, %p4; add.u32 %r0, %r0, %r1; add.u32 %r0, %r0, %r2;\n$END:";
    assert_eq!(block(96, body), [vec![1064; 64], vec![0; 32]].concat());
}

#[test]
fn a_warp_counts_as_a_whole_at_a_counted_barrier() {
    // The last warp has 20 threads, of which four exit and the rest come by two ways.
    let body = "mov.u32 %r0, 7; setp.lt.u32 %p1, %r9, 32; @%p1 bra $MEET;\n\
                setp.ge.u32 %p1, %r9, 48; @%p1 bra $END;\n\
                and.b32 %r1, %r9, 1; setp.ne.u32 %p2, %r1, 0; @%p2 bra $ODD;\n\
                barrier.sync 1, 64;\nmov.u32 %r0, 8;\nbra $END;\n\
                $ODD: barrier.sync 1, 64;\nmov.u32 %r0, 9;\nbra $END;\n\
                $MEET: barrier.sync 1, 64;\nmov.u32 %r0, 1;\n$END:";
    let last = (32..52).map(|t| if t >= 48 { 7 } else { 8 + t % 2 });
    assert_eq!(block(52, body), std::iter::repeat_n(1, 32).chain(last).collect::<Vec<_>>());
}

#[test]
fn half_a_warp_waits_for_its_other_half_at_a_counted_barrier() {
    // Lanes 0–15 of warp 0 come first; warps 1 and 2 meet while they wait. Warp 0 as a whole
    // meets warp 1 next, after lane 31 has set the flag.
    let body = ".shared .align 4 .b32 flag[2];\nmov.u32 %r0, 5; setp.eq.u32 %p1, %r9, 0;\n\
                @%p1 st.volatile.shared.u32 [flag], 0;\n@%p1 st.volatile.shared.u32 [flag+4], 0;\n\
                barrier.sync 0;\n\
                setp.ge.u32 %p1, %r9, 32; @%p1 bra $OTHERS;\n\
                setp.ge.u32 %p1, %r9, 16; @%p1 bra $LATE;\n\
                barrier.sync 1, 64;\nld.volatile.shared.u32 %r0, [flag];\nbra $END;\n\
                $OTHERS: barrier.sync 1, 64;\nst.volatile.shared.u32 [flag+4], 1;\n\
                setp.ge.u32 %p1, %r9, 64; @%p1 bra $END;\n\
                barrier.sync 1, 64;\nbra $END;\n\
                $LATE: ld.volatile.shared.u32 %r1, [flag+4];\nsetp.eq.u32 %p2, %r1, 0;\n\
                @%p2 bra $LATE;\nst.volatile.shared.u32 [flag], 5;\nbarrier.sync 1, 64;\n$END:";
    assert_eq!(block(96, body), vec![5; 96]);
}
