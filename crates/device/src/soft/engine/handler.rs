//! Micro-operations and their handlers.
//!
//! A lowered kernel is an array of [`Op`]s. Each carries the function that executes it for the 32
//! lanes of a warp and answers with the index of the next one, so the interpreter's loop is a
//! single indirect call per operation. Handlers are written once, as safe loops over fixed-size
//! arrays, and compiled once per [`Level`] so that the compiler can use the widest vectors of the
//! machine at hand.

use super::cx::Cx;

/// Executes one operation; answers the next index, or an [`event`].
pub(crate) type Exec = unsafe fn(&mut Cx, &Op, u32) -> u32;

/// Values of the next index that hand control back to the warp's driver.
pub(crate) mod event {
    /// The smallest event; code is never longer than this.
    pub(crate) const FIRST: u32 = 0xffff_ff00;
    /// Lanes of the active mask have left the kernel.
    pub(crate) const EXIT: u32 = FIRST;
    /// Lanes go to different places: `Cx::targets`.
    pub(crate) const DIVERGE: u32 = FIRST + 1;
    /// The lanes wait at a block barrier: `Cx::barrier`.
    pub(crate) const BARRIER: u32 = FIRST + 2;
    /// The lanes wait for other lanes of the warp, `Cx::members`, and go on at `Cx::resume`; the
    /// operation is repeated when some of them come to it.
    pub(crate) const WARP_SYNC: u32 = FIRST + 3;
    /// A fault: `Cx::fault`.
    pub(crate) const FAULT: u32 = FIRST + 4;
    /// Fuel ran out; continue at `Cx::resume`.
    pub(crate) const FUEL: u32 = FIRST + 5;
    /// Sleep until `Cx::wake_ns`, then continue with the next operation.
    pub(crate) const SLEEP: u32 = FIRST + 6;
    /// Call of `Cx::targets` (a function per lane) from `Cx::site`.
    pub(crate) const CALL: u32 = FIRST + 7;
    /// Return from a device function, or from the kernel.
    pub(crate) const RETURN: u32 = FIRST + 8;
}

/// One micro-operation.
///
/// `d`, `a`, `b`, `c` are row numbers in the files of the current frame (which file is up to the
/// handler), `imm` is whatever else the handler needs.
#[derive(Clone, Copy)]
pub(crate) struct Op {
    pub(crate) exec: Exec,
    pub(crate) d: u32,
    pub(crate) a: u32,
    pub(crate) b: u32,
    pub(crate) c: u32,
    pub(crate) imm: u64,
}

impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "op d{} a{} b{} c{} {:#x}", self.d, self.a, self.b, self.c, self.imm)
    }
}

/// The body of a handler.
pub(crate) trait Handler {
    /// Executes `op` for the active lanes of `cx`.
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32;
}

/// Which vector instructions the machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// What the target guarantees.
    Base,
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ, VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    /// The best level of this machine. `WEFT_SOFT_SIMD=base|avx2` lowers it.
    pub(crate) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let limit = std::env::var("WEFT_SOFT_SIMD").unwrap_or_default();
            let wide = std::is_x86_feature_detected!("avx512f")
                && std::is_x86_feature_detected!("avx512bw")
                && std::is_x86_feature_detected!("avx512dq")
                && std::is_x86_feature_detected!("avx512vl");
            let avx2 = std::is_x86_feature_detected!("avx2")
                && std::is_x86_feature_detected!("fma")
                && std::is_x86_feature_detected!("bmi2")
                && std::is_x86_feature_detected!("lzcnt");
            match limit.as_str() {
                "base" => Self::Base,
                "avx2" if avx2 => Self::Avx2,
                _ if wide && avx2 => Self::Avx512,
                _ if avx2 => Self::Avx2,
                _ => Self::Base,
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Self::Base
    }

    /// The compilation of `H` for this level.
    pub(crate) fn exec<H: Handler>(self) -> Exec {
        match self {
            Self::Base => run_base::<H>,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => run_avx2::<H>,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => run_avx512::<H>,
        }
    }
}

fn run_base<H: Handler>(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
    H::run(cx, op, pc)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt,f16c")]
fn run_avx2<H: Handler>(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
    H::run(cx, op, pc)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(
    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi1,bmi2,lzcnt,popcnt,f16c"
)]
fn run_avx512<H: Handler>(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
    H::run(cx, op, pc)
}
