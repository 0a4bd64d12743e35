//! Matrix instructions of a warp.

use super::Mods;
use crate::ir::{Fragment, MatrixLayout, MatrixShape, Op, Operand, Reg, ScalarType, Space};
use crate::parser::modifiers::scalar_type;
use crate::parser::operand::Fit;
use crate::parser::{Parsed, Parser, operand_error};

const LAYOUTS: [(&str, MatrixLayout); 2] =
    [("row", MatrixLayout::Row), ("col", MatrixLayout::Column)];

impl<'a> Parser<'a> {
    pub(super) fn matrix(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        match m.opcode() {
            "ldmatrix" | "stmatrix" => self.matrix_move(m),
            "mma" => self.mma(m),
            _ => self.wmma(m),
        }
    }

    /// `ldmatrix.sync.aligned.m8n8.x4{.trans}{.shared}.b16 {…}, [a]`
    fn matrix_move(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        synchronous(m)?;
        let small = m.flag("m8n8");
        m.check(small)?;
        let count = m.need(&[("x1", 1), ("x2", 2), ("x4", 4)])?;
        let transposed = m.flag("trans");
        let space = m.space();
        m.check(matches!(space, Space::Shared | Space::Generic))?;
        let ty = m.ty()?;
        m.check(ty == ScalarType::B16)?;
        m.finish()?;
        if m.opcode() == "ldmatrix" {
            let dst = self.fragment_dst(ScalarType::B32, count)?;
            self.comma()?;
            let (addr, space) = self.address(space)?;
            return Ok(Op::Ldmatrix { space, transposed, dst, addr });
        }
        let (addr, space) = self.address(space)?;
        self.comma()?;
        let src = self.fragment_src(ScalarType::B32, count)?;
        Ok(Op::Stmatrix { space, transposed, src, addr })
    }

    fn fragment_dst(&mut self, ty: ScalarType, count: usize) -> Parsed<Vec<Reg>> {
        let all = self.dst_vector(ty.width(), Fit::Exact)?;
        let all: Vec<Reg> = all.into_iter().flatten().collect();
        if all.len() != count {
            return operand_error(format!("a fragment of {} where {count} are needed", all.len()));
        }
        Ok(all)
    }

    fn fragment_src(&mut self, ty: ScalarType, count: usize) -> Parsed<Vec<Operand>> {
        let all = self.src_vector(ty, Fit::Exact)?;
        if all.len() != count {
            return operand_error(format!("a fragment of {} where {count} are needed", all.len()));
        }
        Ok(all)
    }

    fn mma(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        synchronous(m)?;
        let shape = m.find(shape).ok_or_else(|| m.unknown())?;
        let (a_layout, b_layout) = (m.need(&LAYOUTS)?, m.need(&LAYOUTS)?);
        let sat = m.flag("satfinite");
        let (d_ty, a_ty) = (element_type(m)?, element_type(m)?);
        let (b_ty, c_ty) = (element_type(m)?, element_type(m)?);
        m.check(mma_exists(shape, [d_ty, a_ty, b_ty, c_ty]))?;
        m.check(!sat || d_ty == ScalarType::S32)?;
        let products = shape.products(a_ty);
        m.check(products > 1 || usual(a_layout, b_layout))?;
        m.finish()?;
        let MatrixShape { m: rows, n: columns, k: depth } = shape;
        let (rows, depths) = (products * rows, products * depth);
        let d = self.fragment_dst(holder(d_ty), registers(rows, columns, d_ty))?;
        self.comma()?;
        let a = self.fragment_src(holder(a_ty), registers(rows, depth, a_ty))?;
        self.comma()?;
        let b = self.fragment_src(holder(b_ty), registers(depths, columns, b_ty))?;
        self.comma()?;
        let c = self.fragment_src(holder(c_ty), registers(rows, columns, c_ty))?;
        Ok(Op::Mma { shape, a_layout, b_layout, d_ty, a_ty, b_ty, c_ty, sat, d, a, b, c })
    }

    fn wmma(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        if m.flag("mma") {
            return self.wmma_mma(m);
        }
        let store = m.need(&[("load", false), ("store", true)])?;
        let fragment = m.need(&[
            ("a", Fragment::A),
            ("b", Fragment::B),
            ("c", Fragment::C),
            ("d", Fragment::D),
        ])?;
        m.check(store == (fragment == Fragment::D))?;
        synchronous(m)?;
        let layout = m.need(&LAYOUTS)?;
        let shape = m.find(shape).ok_or_else(|| m.unknown())?;
        let space = m.space();
        m.check(matches!(space, Space::Generic | Space::Global | Space::Shared))?;
        let ty = element_type(m)?;
        m.check(ty.element_bits() != 4 || layout == usual_layout(fragment))?;
        let count = wmma_registers(shape, fragment, ty).ok_or_else(|| m.unknown())?;
        m.finish()?;
        if store {
            let (addr, space) = self.address(space)?;
            self.comma()?;
            let src = self.fragment_src(holder(ty), count)?;
            let stride = self.stride()?;
            return Ok(Op::WmmaStore { shape, layout, ty, space, addr, src, stride });
        }
        let dst = self.fragment_dst(holder(ty), count)?;
        self.comma()?;
        let (addr, space) = self.address(space)?;
        let stride = self.stride()?;
        Ok(Op::WmmaLoad { fragment, shape, layout, ty, space, dst, addr, stride })
    }

    fn stride(&mut self) -> Parsed<Option<Operand>> {
        if !self.accept(b',')? {
            return Ok(None);
        }
        Ok(Some(self.value(ScalarType::U32, Fit::Exact)?))
    }

    /// `wmma.mma.sync.aligned.alayout.blayout.shape.dtype.ctype` for `.f16`, with all four types
    /// for the others.
    fn wmma_mma(&mut self, m: Mods<'_, 'a>) -> Parsed<Op> {
        synchronous(m)?;
        let (a_layout, b_layout) = (m.need(&LAYOUTS)?, m.need(&LAYOUTS)?);
        let shape = m.find(shape).ok_or_else(|| m.unknown())?;
        let sat = m.flag("satfinite");
        let (d_ty, second) = (m.ty()?, element_type(m)?);
        let (a_ty, b_ty, c_ty) = match m.find(element_type_named) {
            Some(third) => (second, third, m.ty()?),
            None => (ScalarType::F16, ScalarType::F16, second),
        };
        let short = a_ty.element_bits() == 4;
        m.check(!short || (a_ty == b_ty && usual(a_layout, b_layout)))?;
        let count = |fragment, ty| wmma_registers(shape, fragment, ty);
        let counts = count(Fragment::D, d_ty)
            .zip(count(Fragment::A, a_ty))
            .zip(count(Fragment::B, b_ty).zip(count(Fragment::C, c_ty)));
        let ((nd, na), (nb, nc)) = counts.ok_or_else(|| m.unknown())?;
        m.finish()?;
        let d = self.fragment_dst(holder(d_ty), nd)?;
        self.comma()?;
        let a = self.fragment_src(holder(a_ty), na)?;
        self.comma()?;
        let b = self.fragment_src(holder(b_ty), nb)?;
        self.comma()?;
        let c = self.fragment_src(holder(c_ty), nc)?;
        Ok(Op::WmmaMma { shape, a_layout, b_layout, d_ty, a_ty, b_ty, c_ty, sat, d, a, b, c })
    }
}

fn synchronous(m: Mods<'_, '_>) -> Parsed<()> {
    let both = m.flag("sync") & m.flag("aligned");
    m.check(both)
}

/// `m16n8k8`
fn shape(name: &str) -> Option<MatrixShape> {
    let (m, rest) = name.strip_prefix('m')?.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    Some(MatrixShape { m: m.parse().ok()?, n: n.parse().ok()?, k: k.parse().ok()? })
}

/// Types of elements: those of 4 bits exist in matrices only.
fn element_type_named(name: &str) -> Option<ScalarType> {
    match name {
        "u4" => Some(ScalarType::U4),
        "s4" => Some(ScalarType::S4),
        _ => scalar_type(name),
    }
}

fn element_type(m: Mods<'_, '_>) -> Parsed<ScalarType> {
    m.find(element_type_named).ok_or_else(|| m.unknown())
}

/// The layout of a factor in instructions that have one only.
fn usual_layout(fragment: Fragment) -> MatrixLayout {
    if fragment == Fragment::B { MatrixLayout::Column } else { MatrixLayout::Row }
}

fn usual(a: MatrixLayout, b: MatrixLayout) -> bool {
    a == usual_layout(Fragment::A) && b == usual_layout(Fragment::B)
}

/// The type of a register that holds elements of a type: packed into 32 bits, or one double.
fn holder(ty: ScalarType) -> ScalarType {
    if ty == ScalarType::F64 { ScalarType::F64 } else { ScalarType::B32 }
}

/// How many registers a thread of 32 holds of a matrix.
fn registers(rows: u8, columns: u8, ty: ScalarType) -> usize {
    let bits = usize::from(rows) * usize::from(columns) * ty.element_bits() as usize;
    bits / 32 / holder(ty).element_bits() as usize
}

/// The combinations that are known: (m, n, k) and the types of D, A, B, C.
fn mma_exists(shape: MatrixShape, types: [ScalarType; 4]) -> bool {
    use ScalarType as T;
    let shape = (shape.m, shape.n, shape.k);
    let [d, a, b, c] = types;
    let sums = d == c;
    match (a, b) {
        (T::F16, T::F16) => {
            let types = matches!(d, T::F16 | T::F32) && matches!(c, T::F16 | T::F32);
            let narrows = c == T::F32 && d == T::F16;
            types && (sums && matches!(shape, (16, 8, 8 | 16)) || !narrows && shape == (8, 8, 4))
        }
        (T::BF16, T::BF16) => sums && d == T::F32 && matches!(shape, (16, 8, 8 | 16)),
        (T::TF32, T::TF32) => sums && d == T::F32 && matches!(shape, (16, 8, 4 | 8)),
        (T::F64, T::F64) => sums && d == T::F64 && shape == (8, 8, 4),
        (T::U8 | T::S8, T::U8 | T::S8) => {
            sums && d == T::S32 && matches!(shape, (8, 8, 16) | (16, 8, 16 | 32))
        }
        (T::U4 | T::S4, T::U4 | T::S4) => sums && d == T::S32 && shape == (8, 8, 32),
        (T::E4M3 | T::E5M2, T::E4M3 | T::E5M2) => sums && d == T::F32 && shape == (16, 8, 32),
        _ => false,
    }
}

/// Registers of a `wmma` fragment. Those of 16-bit factors hold every element twice.
fn wmma_registers(shape: MatrixShape, fragment: Fragment, ty: ScalarType) -> Option<usize> {
    use ScalarType as T;
    let factor = matches!(fragment, Fragment::A | Fragment::B);
    let known = match (shape.m, shape.n, shape.k) {
        (16, 16, 16) | (8, 32, 16) | (32, 8, 16) => {
            if factor {
                matches!(ty, T::F16 | T::BF16 | T::U8 | T::S8)
            } else {
                matches!(ty, T::F16 | T::F32 | T::S32)
            }
        }
        (16, 16, 8) => ty == if factor { T::TF32 } else { T::F32 },
        (8, 8, 4) => ty == T::F64,
        (8, 8, 32) => {
            if factor {
                matches!(ty, T::U4 | T::S4)
            } else {
                ty == T::S32
            }
        }
        _ => false,
    };
    if !known {
        return None;
    }
    Some(match fragment {
        Fragment::A | Fragment::B if ty == T::F16 => 8,
        Fragment::A => registers(shape.m, shape.k, ty),
        Fragment::B => registers(shape.k, shape.n, ty),
        Fragment::C | Fragment::D => registers(shape.m, shape.n, ty),
    })
}
