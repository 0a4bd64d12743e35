//! Matrix products of a warp, and moves of matrix fragments.
//!
//! `mma` fragments lie as the PTX ISA says: with `E` elements per register, lane `4g + t` holds in
//! register `r` of `A` row `g + 8 (r & 1)`, columns `tE + 4E (r / 2)…`; of `B` column `g`, rows
//! `tE + 4Er…`; of `C` and `D` row `g + 8 (r E / 2)`, columns `2t…`. The layout of `wmma` fragments
//! is the device's own: element `e` of lane `l` is element `l × n + e` of the matrix, row by row.
//!
//! Halves in `m8n8k4` are four products, each of a *pair* of quads: lanes `4p…` and `16 + 4p…`.

use weft_ptx::ir::{Fragment, ScalarType};

use super::address::{Access, Generic, Shared, Space};
use super::convert;
use super::cx::Cx;
use super::handler::{Handler, Op};
use super::ieee;
use super::rows::{LANES, lanes_of};
use crate::FaultKind;

/// Most elements of a matrix: 16 × 32.
const ELEMENTS_MAX: usize = 512;
/// Most registers of a fragment.
const REGISTERS_MAX: usize = 8;

/// A fragment: its type and registers, as eleven words of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) ty: ScalarType,
    /// Every element stands in both halves of its register.
    pub(crate) doubled: bool,
    count: u32,
    rows: [u32; REGISTERS_MAX],
}

/// Words of a piece in a list.
pub(crate) const PIECE_WORDS: usize = 3 + REGISTERS_MAX;

const TYPES: [ScalarType; 12] = [
    ScalarType::F16,
    ScalarType::BF16,
    ScalarType::TF32,
    ScalarType::F32,
    ScalarType::F64,
    ScalarType::U8,
    ScalarType::S8,
    ScalarType::S32,
    ScalarType::E4M3,
    ScalarType::E5M2,
    ScalarType::U4,
    ScalarType::S4,
];

impl Piece {
    pub(crate) fn new(ty: ScalarType, doubled: bool, registers: &[u32]) -> Option<Self> {
        if registers.len() > REGISTERS_MAX || !TYPES.contains(&ty) {
            return None;
        }
        let mut rows = [0; REGISTERS_MAX];
        rows[..registers.len()].copy_from_slice(registers);
        Some(Self { ty, doubled, count: registers.len() as u32, rows })
    }

    pub(crate) fn words(&self) -> [u32; PIECE_WORDS] {
        let mut words = [0; PIECE_WORDS];
        words[0] = TYPES.iter().position(|t| *t == self.ty).unwrap_or(0) as u32;
        words[1] = u32::from(self.doubled);
        words[2] = self.count;
        words[3..].copy_from_slice(&self.rows);
        words
    }

    fn read(cx: &Cx, at: u64) -> Self {
        let words: [u32; PIECE_WORDS] = cx.program.list(at);
        let mut rows = [0; REGISTERS_MAX];
        rows.copy_from_slice(&words[3..]);
        Self {
            ty: TYPES[words[0] as usize % TYPES.len()],
            doubled: words[1] != 0,
            count: words[2].min(REGISTERS_MAX as u32),
            rows,
        }
    }

    /// Elements in one register.
    fn per_register(&self) -> usize {
        if self.doubled || self.ty == ScalarType::F64 {
            1
        } else {
            32 / self.ty.element_bits() as usize
        }
    }

    /// Elements of one lane.
    fn elements(&self) -> usize {
        self.count as usize * self.per_register()
    }

    /// The bits that an element may have.
    fn keep(&self) -> u64 {
        u64::MAX >> (64 - self.ty.element_bits())
    }

    /// The bits of each lane's elements.
    fn load(&self, cx: &Cx) -> Vec<[u64; LANES]> {
        let per = self.per_register();
        let (bits, keep) = (self.ty.element_bits(), self.keep());
        let mut elements = Vec::with_capacity(self.elements());
        for row in &self.rows[..self.count as usize] {
            if self.ty == ScalarType::F64 {
                elements.push(cx.row64(*row));
                continue;
            }
            let register = cx.row32(*row);
            for part in 0..per as u32 {
                elements.push(register.map(|x| u64::from(x >> (part * bits)) & keep));
            }
        }
        elements
    }

    fn store(&self, cx: &mut Cx, elements: &[[u64; LANES]]) {
        let per = self.per_register();
        let bits = self.ty.element_bits();
        for (row, parts) in self.rows.iter().zip(elements.chunks(per)) {
            if self.ty == ScalarType::F64 {
                cx.put64(*row, parts[0]);
                continue;
            }
            let mut register = [0u32; LANES];
            for (part, values) in (0u32..).zip(parts) {
                for lane in 0..LANES {
                    register[lane] |= (values[lane] as u32) << (part * bits);
                    if self.doubled {
                        register[lane] |= (values[lane] as u32) << bits;
                    }
                }
            }
            cx.put32(*row, register);
        }
    }
}

/// A number of an element type.
fn value(bits: u64, ty: ScalarType) -> f64 {
    match ty {
        ScalarType::F16 => f64::from(ieee::f32_of_f16(bits as u32)),
        ScalarType::BF16 => f64::from(ieee::f32_of_bf16(bits as u32)),
        ScalarType::TF32 => f64::from(f32::from_bits(bits as u32 & !0x1fff)),
        ScalarType::F32 => f64::from(f32::from_bits(bits as u32)),
        ScalarType::F64 => f64::from_bits(bits),
        ScalarType::U8 => f64::from(bits as u8),
        ScalarType::S8 => f64::from(bits as i8),
        ScalarType::E4M3 => f64::from(super::fp8::e4m3_value(bits as u32)),
        ScalarType::E5M2 => f64::from(super::fp8::e5m2_value(bits as u32)),
        ScalarType::U4 => f64::from(bits as u8 & 15),
        ScalarType::S4 => f64::from((bits as i8) << 4 >> 4),
        _ => f64::from(bits as i32),
    }
}

/// Position of element `e` of `lane` in a fragment of `mma`.
fn position(fragment: Fragment, per_register: usize, lane: usize, e: usize) -> (usize, usize) {
    let (g, t) = (lane / 4, lane % 4);
    let (r, part) = (e / per_register, e % per_register);
    match fragment {
        Fragment::A => (g + 8 * (r & 1), t * per_register + part + 4 * per_register * (r / 2)),
        Fragment::B => (t * per_register + part + 4 * per_register * r, g),
        Fragment::C | Fragment::D => (g + 8 * (e / 2), 2 * t + e % 2),
    }
}

/// Position of element `e` of `lane` in a fragment of four products, which lie one below the
/// other. The second quad of a pair has the other four rows of `A`, `C` and `D` and the other four
/// columns of `B`.
fn paired_position(
    fragment: Fragment,
    column_major: bool,
    per_register: usize,
    lane: usize,
    e: usize,
) -> (usize, usize) {
    let (pair, t, other) = (lane % 16 / 4, lane % 4, lane / 16 * 4);
    match fragment {
        Fragment::A if column_major => (8 * pair + other + e, t),
        Fragment::A => (8 * pair + other + t, e),
        Fragment::B if column_major => (4 * pair + e, other + t),
        Fragment::B => (4 * pair + t, other + e),
        // Sums of 32 bits lie otherwise than those of 16.
        Fragment::C | Fragment::D if per_register == 1 => {
            (8 * pair + other + (t & 1) + (e & 2), (e & 4) + (t & 2) + (e & 1))
        }
        Fragment::C | Fragment::D => (8 * pair + other + t, e),
    }
}

/// A matrix in row-major order.
struct Matrix {
    columns: usize,
    bits: [u64; ELEMENTS_MAX],
}

/// Where a matrix's elements are kept.
#[derive(Clone, Copy)]
enum Order {
    /// As the ISA says for `mma`.
    Mma(Fragment),
    /// As the ISA says for four products by pairs of quads.
    Paired { fragment: Fragment, column_major: bool },
    /// The device's own.
    Own,
}

impl Order {
    /// By the flags of a product.
    fn of(flags: u64, fragment: Fragment) -> Self {
        let column_major = match fragment {
            Fragment::A => flags & A_COLUMN_MAJOR != 0,
            Fragment::B => flags & B_COLUMN_MAJOR != 0,
            Fragment::C | Fragment::D => false,
        };
        if flags & OWN_ORDER != 0 {
            Self::Own
        } else if flags & PAIRED != 0 {
            Self::Paired { fragment, column_major }
        } else {
            Self::Mma(fragment)
        }
    }
}

fn place(order: Order, piece: &Piece, columns: usize, lane: usize, e: usize) -> usize {
    let index = match order {
        Order::Mma(fragment) => {
            let (row, column) = position(fragment, piece.per_register(), lane, e);
            row * columns + column
        }
        Order::Paired { fragment, column_major } => {
            let per_register = piece.per_register();
            let (row, column) = paired_position(fragment, column_major, per_register, lane, e);
            row * columns + column
        }
        Order::Own => lane * piece.elements() + e,
    };
    index % ELEMENTS_MAX
}

fn collect(cx: &Cx, piece: &Piece, order: Order, columns: usize) -> Matrix {
    let mut matrix = Matrix { columns, bits: [0; ELEMENTS_MAX] };
    for (e, values) in piece.load(cx).iter().enumerate() {
        for lane in 0..LANES {
            matrix.bits[place(order, piece, columns, lane, e)] = values[lane];
        }
    }
    matrix
}

fn distribute(cx: &mut Cx, piece: &Piece, order: Order, matrix: &Matrix) {
    let elements: Vec<[u64; LANES]> = (0..piece.elements())
        .map(|e| {
            std::array::from_fn(|lane| matrix.bits[place(order, piece, matrix.columns, lane, e)])
        })
        .collect();
    piece.store(cx, &elements);
}

/// Flags of a product in `Op::imm`, behind m, n and k in a byte each.
pub(crate) const SATURATE: u64 = 1 << 24;
/// `wmma`
pub(crate) const OWN_ORDER: u64 = 1 << 25;
/// Four products by pairs of quads, whose factors have the layouts that follow.
pub(crate) const PAIRED: u64 = 1 << 26;
pub(crate) const A_COLUMN_MAJOR: u64 = 1 << 27;
pub(crate) const B_COLUMN_MAJOR: u64 = 1 << 28;

/// `D = A B + C`; `a` is the list of the four pieces D, A, B, C.
pub(crate) struct Product;

impl Handler for Product {
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let (m, n, k) =
            ((op.imm & 255) as usize, (op.imm >> 8 & 255) as usize, (op.imm >> 16 & 255) as usize);
        let at = |i: u64| u64::from(op.a) + i * PIECE_WORDS as u64;
        let [d, a, b, c] = [0, 1, 2, 3].map(|i| Piece::read(cx, at(i)));
        let order = |fragment| Order::of(op.imm, fragment);
        let products = if op.imm & PAIRED != 0 { 4 } else { 1 };
        let left = collect(cx, &a, order(Fragment::A), k);
        let right = collect(cx, &b, order(Fragment::B), n);
        let mut sums = collect(cx, &c, order(Fragment::C), n);
        for row in 0..products * m {
            let first = row / m * k;
            for column in 0..n {
                let terms = (0..k).map(|i| {
                    let (x, y) = (row * k + i, (first + i) * n + column);
                    (value(left.bits[x], a.ty), value(right.bits[y], b.ty))
                });
                let start = sums.bits[row * n + column];
                let saturate = op.imm & SATURATE != 0;
                sums.bits[row * n + column] = dot(terms, start, c.ty, d.ty, saturate);
            }
        }
        distribute(cx, &d, order(Fragment::D), &sums);
        pc + 1
    }
}

/// Sums products onto `start`: in `f32` for the short types, as tensor cores do.
fn dot(
    terms: impl Iterator<Item = (f64, f64)>,
    start: u64,
    from: ScalarType,
    to: ScalarType,
    saturate: bool,
) -> u64 {
    match to {
        ScalarType::S32 => {
            let sum = terms.fold(start as i32 as i64, |s, (x, y)| s + (x * y) as i64);
            let sum =
                if saturate { sum.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) } else { sum };
            u64::from(sum as u32)
        }
        ScalarType::F64 => terms.fold(f64::from_bits(start), |s, (x, y)| x.mul_add(y, s)).to_bits(),
        _ => {
            // Products of these types are exact in f64 (and in f32 but for TF32).
            let sum =
                terms.fold(value(start, from) as f32, |s, (x, y)| (f64::from(s) + x * y) as f32);
            if to == ScalarType::F16 {
                u64::from(ieee::f16_of_f32(sum))
            } else {
                u64::from(super::float::canonical(sum).to_bits())
            }
        }
    }
}

/// Layout of a matrix in memory, in `Op::imm` of a fragment move.
pub(crate) mod memory_flags {
    /// Rows and columns in bytes 0 and 1.
    pub(crate) const COLUMNS_SHIFT: u32 = 8;
    /// Consecutive elements form a column.
    pub(crate) const COLUMN_MAJOR: u64 = 1 << 16;
    pub(crate) const SHARED: u64 = 1 << 17;
    pub(crate) const STORE: u64 = 1 << 18;
}

/// `wmma.load` and `wmma.store`: `a` the 64-bit address row, `d` the piece, `b` the stride's row,
/// `c` the translation slot.
pub(crate) struct MoveMatrix;

impl Handler for MoveMatrix {
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let piece = Piece::read(cx, u64::from(op.d));
        let first = cx.first_lane() as usize;
        let (base, stride) = (cx.row64(op.a)[first], u64::from(cx.row32(op.b)[first]));
        let columns = (op.imm >> memory_flags::COLUMNS_SHIFT & 255) as usize;
        let (bytes, bits) = (u64::from(piece.ty.bytes()), u64::from(piece.ty.element_bits()));
        let store = op.imm & memory_flags::STORE != 0;
        let access_op = Op { b: 0, imm: 0, ..*op };
        let mut elements = if store { piece.load(cx) } else { vec![[0; LANES]; piece.elements()] };
        for (e, values) in elements.iter_mut().enumerate() {
            for lane in lanes_of(cx.mask) {
                let index = place(Order::Own, &piece, columns, lane, e);
                let (row, column) = (index / columns.max(1), index % columns.max(1));
                let (slow, fast) = if op.imm & memory_flags::COLUMN_MAJOR != 0 {
                    (column, row)
                } else {
                    (row, column)
                };
                let offset = (slow as u64 * stride + fast as u64) * bits;
                let address = base.wrapping_add(offset / 8);
                let access = Access { lane, address, bytes, write: store };
                let shared = op.imm & memory_flags::SHARED != 0;
                match one(cx, &access_op, access, shared, values[lane]) {
                    // Two elements of 4 bits share a byte. There are none in a store.
                    Ok(loaded) => values[lane] = loaded >> (offset % 8) & piece.keep(),
                    Err(kind) => return cx.fail(kind, lane as u32, Some(address)),
                }
            }
        }
        if !store {
            piece.store(cx, &elements);
        }
        pc + 1
    }
}

/// Loads or stores one element.
fn one(cx: &mut Cx, op: &Op, access: Access, shared: bool, value: u64) -> Result<u64, FaultKind> {
    match (shared, access.write) {
        (true, false) => Shared::load(cx, op, access),
        (true, true) => Shared::store(cx, op, access, value).map(|()| value),
        (false, false) => Generic::load(cx, op, access),
        (false, true) => Generic::store(cx, op, access, value).map(|()| value),
    }
}

/// `ldmatrix`, `stmatrix`: `a` the 64-bit address row, `d` a list of a count and rows, `b` = 1
/// transposes, `c` the translation slot, `imm` has `SHARED` and `STORE`.
pub(crate) struct MoveTiles;

impl Handler for MoveTiles {
    fn run(cx: &mut Cx, op: &Op, pc: u32) -> u32 {
        let list: [u32; 5] = cx.program.list(u64::from(op.d));
        let addresses = cx.row64(op.a);
        let store = op.imm & memory_flags::STORE != 0;
        let shared = op.imm & memory_flags::SHARED != 0;
        let access_op = Op { b: 0, imm: 0, ..*op };
        for (tile, register) in list[1..].iter().take(list[0] as usize).enumerate() {
            let mut values = if store { cx.row32(*register) } else { [0; LANES] };
            for lane in 0..LANES {
                for half in 0..2 {
                    let (r, c) = (lane / 4, lane % 4 * 2 + half);
                    let (row, column) = if op.b == 1 { (c, r) } else { (r, c) };
                    let owner = tile * 8 + row;
                    let address = addresses[owner].wrapping_add(2 * column as u64);
                    if !addresses[owner].is_multiple_of(16) {
                        let kind = FaultKind::MisalignedAddress;
                        return cx.fail(kind, owner as u32, Some(addresses[owner]));
                    }
                    let access = Access { lane: owner, address, bytes: 2, write: store };
                    let bits = u64::from(values[lane] >> (16 * half) & 0xffff);
                    match one(cx, &access_op, access, shared, bits) {
                        Ok(bits) if !store => values[lane] |= (bits as u32) << (16 * half),
                        Ok(_) => {}
                        Err(kind) => return cx.fail(kind, owner as u32, Some(address)),
                    }
                }
            }
            if !store {
                cx.put32(*register, values);
            }
        }
        pc + 1
    }
}

/// Whether all types of a product are known.
pub(crate) fn known(types: &[ScalarType]) -> bool {
    types.iter().all(|t| TYPES.contains(t) || convert::known(*t))
}
