//! Bitwise operations, shifts, fields, permutations.

use super::rows::lanes;

#[inline(always)]
fn shl32(a: u32, n: u32) -> u32 {
    if n > 31 { 0 } else { a << n }
}

#[inline(always)]
fn shr32(a: u32, n: u32) -> u32 {
    if n > 31 { 0 } else { a >> n }
}

#[inline(always)]
fn shl64(a: u64, n: u32) -> u64 {
    if n > 63 { 0 } else { a << n }
}

#[inline(always)]
fn shr64(a: u64, n: u32) -> u64 {
    if n > 63 { 0 } else { a >> n }
}

#[inline(always)]
fn funnel(a: u32, b: u32) -> u64 {
    (u64::from(b) << 32) | u64::from(a)
}

/// `bfe`: the field of `len` bits at `pos`, with the sign of its highest bit if `signed`.
#[inline(always)]
fn bfe(a: u64, pos: u32, len: u32, width: u32, signed: bool) -> u64 {
    let (pos, len) = (pos & 0xff, len & 0xff);
    let msb = width - 1;
    let sign = if !signed || len == 0 { 0 } else { a >> (pos + len - 1).min(msb) & 1 };
    let mut out = if pos > msb { 0 } else { a >> pos };
    let kept = if pos > msb { 0 } else { len.min(width - pos) };
    if kept < 64 {
        out &= (1u64 << kept) - 1;
    }
    if sign != 0 && kept < 64 {
        out |= u64::MAX << kept;
    }
    if width == 32 { out & 0xffff_ffff } else { out }
}

/// `bfi`: `a` inserted into `b` at `pos`, `len` bits.
#[inline(always)]
fn bfi(a: u64, b: u64, pos: u32, len: u32, width: u32) -> u64 {
    let (pos, len) = (pos & 0xff, len & 0xff);
    if pos >= width || len == 0 {
        return b;
    }
    let kept = len.min(width - pos);
    let field = if kept >= 64 { u64::MAX } else { (1u64 << kept) - 1 } << pos;
    ((a << pos) & field) | (b & !field)
}

fn bfind(a: u64, amount: bool, width: u32) -> u32 {
    if a == 0 {
        return u32::MAX;
    }
    let highest = 63 - a.leading_zeros();
    if amount { width - 1 - highest } else { highest }
}

fn bmsk(a: u32, b: u32, wrap: bool) -> u32 {
    let (pos, len) = if wrap { (a & 31, b & 31) } else { (a, b) };
    if pos >= 32 || len == 0 {
        return 0;
    }
    let ones = if len >= 32 { u32::MAX } else { (1 << len) - 1 };
    ones << pos
}

/// `szext`: the low `n` bits of `a`, zero- or sign-extended.
fn szext(a: u32, n: u32, flags: u64) -> u32 {
    let n = if flags & 1 != 0 { n & 31 } else { n };
    if n == 0 {
        return 0;
    }
    if n >= 32 {
        return a;
    }
    let shift = 32 - n;
    if flags & 2 != 0 { ((a << shift) as i32 >> shift) as u32 } else { a << shift >> shift }
}

fn fns(mask: u32, base: u32, offset: i32) -> u32 {
    let base = base & 31;
    if offset == 0 {
        return if mask >> base & 1 != 0 { base } else { u32::MAX };
    }
    let step: i64 = if offset > 0 { 1 } else { -1 };
    let mut left = offset.unsigned_abs();
    let mut pos = i64::from(base);
    while (0..32).contains(&pos) {
        if mask >> pos & 1 != 0 {
            left -= 1;
            if left == 0 {
                return pos as u32;
            }
        }
        pos += step;
    }
    u32::MAX
}

/// `prmt` with four selectors.
#[inline(always)]
fn prmt(a: u32, b: u32, selectors: u32) -> u32 {
    let bytes = funnel(a, b);
    let mut out = 0;
    for i in 0..4 {
        let selector = selectors >> (4 * i);
        let byte = (bytes >> (8 * (selector & 7))) as u8;
        let byte = if selector & 8 != 0 { ((byte as i8) >> 7) as u8 } else { byte };
        out |= u32::from(byte) << (8 * i);
    }
    out
}

/// Selectors of the special modes of `prmt` by mode and the low two bits of `c`.
pub(crate) fn prmt_selectors(mode: weft_ptx::ir::PrmtMode, c: u32) -> u32 {
    use weft_ptx::ir::PrmtMode;
    let table: [u32; 4] = match mode {
        PrmtMode::Generic => return c,
        PrmtMode::F4e => [0x3210, 0x4321, 0x5432, 0x6543],
        PrmtMode::B4e => [0x5670, 0x6701, 0x7012, 0x0123],
        PrmtMode::Rc8 => [0x0000, 0x1111, 0x2222, 0x3333],
        PrmtMode::Ecl => [0x3210, 0x3211, 0x3222, 0x3333],
        PrmtMode::Ecr => [0x0000, 0x1110, 0x2210, 0x3210],
        PrmtMode::Rc16 => [0x1010, 0x3232, 0x1010, 0x3232],
    };
    table[(c & 3) as usize]
}

/// A 4-entry table of 16-bit selectors, packed for `Op::imm`.
pub(crate) fn prmt_table(mode: weft_ptx::ir::PrmtMode) -> u64 {
    (0..4).map(|c| u64::from(prmt_selectors(mode, c)) << (16 * c)).sum()
}

lanes! {
    And32: u32 = (a: u32, b: u32) => a & b;
    And64: u64 = (a: u64, b: u64) => a & b;
    Or32: u32 = (a: u32, b: u32) => a | b;
    Or64: u64 = (a: u64, b: u64) => a | b;
    Xor32: u32 = (a: u32, b: u32) => a ^ b;
    Xor64: u64 = (a: u64, b: u64) => a ^ b;
    Not16: u16 = (a: u16) => !a;
    Not32: u32 = (a: u32) => !a;
    Not64: u64 = (a: u64) => !a;
    Cnot32: u32 = (a: u32) => u32::from(a == 0);
    Cnot64: u64 = (a: u64) => u64::from(a == 0);
    Popc32: u32 = (a: u32) => a.count_ones();
    Popc64: u32 = (a: u64) => a.count_ones();
    Clz32: u32 = (a: u32) => a.leading_zeros();
    Clz64: u32 = (a: u64) => a.leading_zeros();
    Brev32: u32 = (a: u32) => a.reverse_bits();
    Brev64: u64 = (a: u64) => a.reverse_bits();
    // `imm` is the truth table.
    Lop3: u32 = (a: u32, b: u32, c: u32), imm => lop3(a, b, c, imm as u32);

    Shl16: u16 = (a: u16, b: u32) => if b > 15 { 0 } else { a << b };
    Shl32: u32 = (a: u32, b: u32) => shl32(a, b);
    Shl64: u64 = (a: u64, b: u32) => shl64(a, b);
    ShrU16: u16 = (a: u16, b: u32) => if b > 15 { 0 } else { a >> b };
    ShrU32: u32 = (a: u32, b: u32) => shr32(a, b);
    ShrU64: u64 = (a: u64, b: u32) => shr64(a, b);
    ShrS16: i16 = (a: i16, b: u32) => a >> b.min(15);
    ShrS32: i32 = (a: i32, b: u32) => a >> b.min(31);
    ShrS64: i64 = (a: i64, b: u32) => a >> b.min(63);
    ShfLeftWrap: u32 = (a: u32, b: u32, c: u32) => ((funnel(a, b) << (c & 31)) >> 32) as u32;
    ShfRightWrap: u32 = (a: u32, b: u32, c: u32) => (funnel(a, b) >> (c & 31)) as u32;
    ShfLeftClamp: u32 = (a: u32, b: u32, c: u32) =>
        ((u128::from(funnel(a, b)) << c.min(32)) >> 32) as u32;
    ShfRightClamp: u32 = (a: u32, b: u32, c: u32) => (funnel(a, b) >> c.min(32)) as u32;

    BfeU32: u32 = (a: u32, b: u32, c: u32) => bfe(u64::from(a), b, c, 32, false) as u32;
    BfeS32: u32 = (a: u32, b: u32, c: u32) => bfe(u64::from(a), b, c, 32, true) as u32;
    BfeU64: u64 = (a: u64, b: u32, c: u32) => bfe(a, b, c, 64, false);
    BfeS64: u64 = (a: u64, b: u32, c: u32) => bfe(a, b, c, 64, true);
    BfindU32: u32 = (a: u32) => bfind(u64::from(a), false, 32);
    BfindAmountU32: u32 = (a: u32) => bfind(u64::from(a), true, 32);
    BfindU64: u32 = (a: u64) => bfind(a, false, 64);
    BfindAmountU64: u32 = (a: u64) => bfind(a, true, 64);
    BfindS32: u32 = (a: i32) => bfind(u64::from((a ^ (a >> 31)) as u32), false, 32);
    BfindAmountS32: u32 = (a: i32) => bfind(u64::from((a ^ (a >> 31)) as u32), true, 32);
    BfindS64: u32 = (a: i64) => bfind((a ^ (a >> 63)) as u64, false, 64);
    BfindAmountS64: u32 = (a: i64) => bfind((a ^ (a >> 63)) as u64, true, 64);
    // `imm` = 1 wraps.
    Bmsk: u32 = (a: u32, b: u32), imm => bmsk(a, b, imm != 0);
    // `imm`: bit 0 wraps, bit 1 signed.
    Szext: u32 = (a: u32, b: u32), imm => szext(a, b, imm);
    Fns: u32 = (a: u32, b: u32, c: i32) => fns(a, b, c);
    Prmt: u32 = (a: u32, b: u32, c: u32) => prmt(a, b, c);
    PrmtMode: u32 = (a: u32, b: u32, c: u32), imm =>
        prmt(a, b, (imm >> (16 * (c & 3))) as u32 & 0xffff);
    // `imm`: bits of an element, and 64 if it is signed.
    CvtPack: u32 = (a: i32, b: i32, c: u32), imm => cvt_pack(a, b, c, imm as u32);
    Pack16: u32 = (a: u32, b: u32) => (a & 0xffff) | (b << 16);
    Pack8: u32 = (a: u32, b: u32) => (a & 0xff) | ((b & 0xff) << 8);
    Pack32: u64 = (a: u32, b: u32) => funnel(a, b);
    // `imm` is the lowest bit.
    Low16: u32 = (a: u32), imm => (a >> imm) & 0xffff;
    Low8: u32 = (a: u32), imm => (a >> imm) & 0xff;
    Low32: u32 = (a: u64), imm => (a >> imm) as u32;
    Zext64: u64 = (a: u32) => u64::from(a);
    SextS8: u32 = (a: i8) => a as i32 as u32;
    SextS16: u32 = (a: i16) => a as i32 as u32;
    Sext64: i64 = (a: i32) => i64::from(a);
    AddImm64: u64 = (a: u64), imm => a.wrapping_add(imm);
    BfiRows32: u32 = (a: u32, b: u32, c: u32) =>
        bfi(u64::from(a), u64::from(b), c & 0xff, c >> 8, 32) as u32;
    BfiRows64: u64 = (a: u64, b: u64, c: u32) => bfi(a, b, c & 0xff, c >> 8, 64);
    // Position `a` and length `b` in one row.
    FieldPair: u32 = (a: u32, b: u32) => (a & 0xff) | ((b & 0xff) << 8);
}

/// `cvt.pack.sat`: `a` above `b`, each saturated to an element, under the low bits of `c`.
#[inline(always)]
fn cvt_pack(a: i32, b: i32, c: u32, spec: u32) -> u32 {
    let (bits, signed) = (spec & 31, spec & 64 != 0);
    let (least, most) =
        if signed { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) };
    let element = |value: i32| value.clamp(least, most).cast_unsigned() & ((1 << bits) - 1);
    let above = c.checked_shl(2 * bits).unwrap_or(0);
    above | (element(a) << bits) | element(b)
}

/// Looks each bit triple up in a truth table.
#[inline(always)]
fn lop3(a: u32, b: u32, c: u32, table: u32) -> u32 {
    let mut out = 0;
    for row in 0..8u32 {
        let pick = |x: u32, bit: u32| if row >> bit & 1 != 0 { x } else { !x };
        let chosen = (table >> row & 1).wrapping_neg();
        out |= pick(a, 2) & pick(b, 1) & pick(c, 0) & chosen;
    }
    out
}
