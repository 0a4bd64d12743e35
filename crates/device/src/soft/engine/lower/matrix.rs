//! Matrix instructions.

use weft_ptx::ir::{
    Address, Fragment, MatrixLayout, MatrixShape, Op as Ir, Operand, Reg, ScalarType, Space,
};

use super::super::bits;
use super::super::mma::{self, Piece, memory_flags};
use super::super::program::RowValue;
use super::function::{FunctionLowering, Refusal};
use super::words::WORDS;

type Done = Result<(), Refusal>;

impl FunctionLowering<'_> {
    pub(super) fn matrix(&mut self, op: &Ir) -> Done {
        match op {
            Ir::Mma { shape, a_layout, b_layout, d_ty, a_ty, b_ty, c_ty, sat, d, a, b, c } => {
                let types = [*d_ty, *a_ty, *b_ty, *c_ty];
                let mut flags = saturate(*sat);
                if shape.products(*a_ty) > 1 {
                    flags |= paired(*a_layout, *b_layout);
                }
                self.product(*shape, types, flags, d, [a, b, c])
            }
            Ir::WmmaMma { shape, d_ty, a_ty, b_ty, c_ty, sat, d, a, b, c, .. } => {
                let types = [*d_ty, *a_ty, *b_ty, *c_ty];
                self.product(*shape, types, saturate(*sat) | mma::OWN_ORDER, d, [a, b, c])
            }
            Ir::WmmaLoad { fragment, shape, layout, ty, space, dst, addr, stride } => {
                let rows: Vec<u32> = dst.iter().map(|r| self.dst(*r)).collect();
                let part = (*fragment, *shape, *layout, *ty);
                self.move_matrix(part, *space, *addr, *stride, &rows, false)
            }
            Ir::WmmaStore { shape, layout, ty, space, addr, src, stride } => {
                let rows = self.fragment_rows(*ty, src)?;
                let part = (Fragment::D, *shape, *layout, *ty);
                self.move_matrix(part, *space, *addr, *stride, &rows, true)
            }
            Ir::Ldmatrix { space, transposed, dst, addr } => {
                let rows: Vec<u32> = dst.iter().map(|r| self.dst(*r)).collect();
                self.move_tiles(*space, *transposed, *addr, &rows, 0)
            }
            Ir::Stmatrix { space, transposed, src, addr } => {
                let rows = self.fragment_rows(ScalarType::B32, src)?;
                self.move_tiles(*space, *transposed, *addr, &rows, memory_flags::STORE)
            }
            _ => Err(Refusal::new("not a matrix instruction")),
        }
    }

    fn fragment_rows(&mut self, ty: ScalarType, src: &[Operand]) -> Result<Vec<u32>, Refusal> {
        src.iter()
            .map(|o| if ty == ScalarType::F64 { self.r64(*o) } else { self.r32(*o) })
            .collect()
    }

    fn product(
        &mut self,
        shape: MatrixShape,
        [d_ty, a_ty, b_ty, c_ty]: [ScalarType; 4],
        flags: u64,
        d: &[Reg],
        [a, b, c]: [&Vec<Operand>; 3],
    ) -> Done {
        if !mma::known(&[d_ty, a_ty, b_ty, c_ty]) {
            return Err(Refusal::new("a matrix product of these types"));
        }
        let rows = [
            d.iter().map(|r| self.dst(*r)).collect::<Vec<_>>(),
            self.fragment_rows(a_ty, a)?,
            self.fragment_rows(b_ty, b)?,
            self.fragment_rows(c_ty, c)?,
        ];
        let mut words = Vec::new();
        for (i, (ty, rows)) in [d_ty, a_ty, b_ty, c_ty].into_iter().zip(&rows).enumerate() {
            let own = flags & mma::OWN_ORDER != 0;
            let doubled = own && ty == ScalarType::F16 && (i == 1 || i == 2);
            let piece = Piece::new(ty, doubled, rows)
                .ok_or_else(|| Refusal::new("a matrix fragment of this type"))?;
            words.extend(piece.words());
        }
        let list = self.list(&words);
        let sizes = u64::from(shape.m) | (u64::from(shape.n) << 8) | (u64::from(shape.k) << 16);
        self.emit::<mma::Product>(WORDS.a(list).imm(sizes | flags));
        Ok(())
    }

    /// The whole address of a matrix in a 64-bit row.
    fn matrix_address(&mut self, space: Space, addr: Address) -> Result<u32, Refusal> {
        let (row, offset) = self.wide_place(space, addr)?;
        if offset == 0 {
            return Ok(row);
        }
        let t = self.temp64();
        self.emit::<bits::AddImm64>(WORDS.d(t).a(row).imm(offset));
        Ok(t)
    }

    fn move_matrix(
        &mut self,
        (fragment, shape, layout, ty): (Fragment, MatrixShape, MatrixLayout, ScalarType),
        space: Space,
        addr: Address,
        stride: Option<Operand>,
        rows: &[u32],
        store: bool,
    ) -> Done {
        let (height, width) = match fragment {
            Fragment::A => (shape.m, shape.k),
            Fragment::B => (shape.k, shape.n),
            Fragment::C | Fragment::D => (shape.m, shape.n),
        };
        let doubled = ty == ScalarType::F16 && matches!(fragment, Fragment::A | Fragment::B);
        let piece = Piece::new(ty, doubled, rows)
            .ok_or_else(|| Refusal::new("a matrix fragment of this type"))?;
        let list = self.list(&piece.words());
        let address = self.matrix_address(space, addr)?;
        let packed = if layout == MatrixLayout::Row { width } else { height };
        let stride = match stride {
            Some(stride) => self.r32(stride)?,
            None => self.const32(RowValue::Bits(u64::from(packed))),
        };
        let mut imm = u64::from(height) | (u64::from(width) << memory_flags::COLUMNS_SHIFT);
        if layout == MatrixLayout::Column {
            imm |= memory_flags::COLUMN_MAJOR;
        }
        if space == Space::Shared {
            imm |= memory_flags::SHARED;
        }
        if store {
            imm |= memory_flags::STORE;
        }
        let slot = self.tlb_slot();
        self.emit::<mma::MoveMatrix>(WORDS.d(list).a(address).b(stride).c(slot).imm(imm));
        Ok(())
    }

    fn move_tiles(
        &mut self,
        space: Space,
        transposed: bool,
        addr: Address,
        rows: &[u32],
        flags: u64,
    ) -> Done {
        let mut words = vec![rows.len() as u32];
        words.extend_from_slice(rows);
        let list = self.list(&words);
        let address = self.matrix_address(space, addr)?;
        let shared = if space == Space::Shared { memory_flags::SHARED } else { 0 };
        let slot = self.tlb_slot();
        let imm = flags | shared;
        self.emit::<mma::MoveTiles>(
            WORDS.d(list).a(address).b(u32::from(transposed)).c(slot).imm(imm),
        );
        Ok(())
    }
}

fn saturate(sat: bool) -> u64 {
    if sat { mma::SATURATE } else { 0 }
}

/// Flags of four products by pairs of quads.
fn paired(a: MatrixLayout, b: MatrixLayout) -> u64 {
    let a_flag = if a == MatrixLayout::Column { mma::A_COLUMN_MAJOR } else { 0 };
    let b_flag = if b == MatrixLayout::Column { mma::B_COLUMN_MAJOR } else { 0 };
    mma::PAIRED | a_flag | b_flag
}
