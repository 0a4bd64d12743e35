//! Loads, stores, atomics, addresses.

use weft_ptx::ir::{
    Address, AtomOp, Base, MemOrder, Op as Ir, Operand, Pred, Reg, ScalarType, Space, Width,
};

use super::super::address::{
    A32, A64, Generic, LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, STRICT, Shared,
};
use super::super::atom::{self, Kind};
use super::super::local::{self, LoadLocal, StoreLocal};
use super::super::memory_ops::{Load, LoadVector, Store, StoreVector};
use super::super::program::RowValue;
use super::super::{bits, control, special, testp};
use super::function::{FunctionLowering, Refusal};
use super::words::WORDS;

type Done = Result<(), Refusal>;

/// An address as rows: a base row of 64 or 32 bits plus an offset.
#[derive(Clone, Copy)]
struct Place {
    row: u32,
    wide: bool,
    offset: u64,
}

/// Which handlers an access uses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Global, constant or generic; the flag forbids other windows.
    Generic {
        strict: bool,
    },
    Shared,
    Local,
}

impl Reach {
    /// `Op::b` of an access.
    fn strictness(self) -> u32 {
        if self == (Self::Generic { strict: true }) { STRICT } else { 0 }
    }
}

/// Emits the handler for elements of this size.
macro_rules! sized {
    ($self:ident, $handler:ident, $bytes:expr, ($($kind:ty),*), $operands:tt) => {
        match $bytes {
            1 => sized!(@ $self, $handler<$($kind),*, u8>, $operands),
            2 => sized!(@ $self, $handler<$($kind),*, u16>, $operands),
            4 => sized!(@ $self, $handler<$($kind),*, u32>, $operands),
            _ => sized!(@ $self, $handler<$($kind),*, u64>, $operands),
        }
    };
    (@ $self:ident, $handler:ty, ($d:expr, $a:expr, $b:expr, $c:expr, $imm:expr)) => {
        $self.emit::<$handler>(WORDS.d($d).a($a).b($b).c($c).imm($imm))
    };
}

/// Emits the handler for a place outside of local memory.
macro_rules! access {
    ($self:ident, $handler:ident, $reach:expr, $place:expr, $bytes:expr, ($d:expr, $slot:expr)) => {{
        let (reach, Place { row, wide, offset }): (Reach, Place) = ($reach, $place);
        let strict = reach.strictness();
        match (reach, wide) {
            (Reach::Shared, true) => {
                sized!($self, $handler, $bytes, (Shared, A64), ($d, row, 0, 0, offset));
            }
            (Reach::Shared, false) => {
                sized!($self, $handler, $bytes, (Shared, A32), ($d, row, 0, 0, offset));
            }
            (_, _) => {
                sized!($self, $handler, $bytes, (Generic, A64), ($d, row, strict, $slot, offset));
            }
        }
    }};
}

/// The value of a kernel parameter as a row, if a load of it is one.
pub(super) fn param_value(offset: i64, ty: ScalarType, width: Width) -> Option<RowValue> {
    let offset = u32::try_from(offset).ok()?;
    let bytes = ty.bytes();
    if bytes > 8 || matches!(width, Width::B128 | Width::Pred) {
        return None;
    }
    // Narrow registers are zero-extended in their rows, so the sign must stop at their width.
    let signed = ty.is_signed() && bytes * 8 < width.bits() && width.bits() >= 32;
    if ty.is_signed() && bytes * 8 < width.bits() && width.bits() < 32 {
        return None;
    }
    Some(RowValue::Param { offset, bytes, signed })
}

impl FunctionLowering<'_> {
    pub(super) fn memory(&mut self, op: &Ir) -> Done {
        match op {
            Ir::CvtaTo { space, dst, a } => self.cvta(*space, *dst, *a, true),
            Ir::CvtaFrom { space, dst, a } => self.cvta(*space, *dst, *a, false),
            Ir::Isspacep { space, dst, a } => {
                let row = self.r64(*a)?;
                let window = match space {
                    Space::Shared => SHARED_WINDOW,
                    Space::Local => LOCAL_WINDOW,
                    Space::Param => PARAM_WINDOW,
                    Space::Global | Space::Generic => 0,
                    Space::Const => u64::MAX,
                };
                self.emit::<testp::IsSpace>(WORDS.d(self.dst(*dst)).a(row).imm(window));
                Ok(())
            }
            Ir::Ld { space, ty, order, dst, addr, .. } => {
                if *order != MemOrder::Weak {
                    self.emit::<special::Touch>(WORDS);
                }
                self.load(*space, *ty, dst, *addr)
            }
            Ir::St { space, ty, addr, src, .. } => self.store(*space, *ty, *addr, src),
            Ir::Atom { op, ty, space, ftz, dst, addr, b, c, .. } => {
                self.atom((*op, *ty, *ftz), *space, *dst, *addr, (*b, *c))
            }
            Ir::Fence { .. } => {
                self.emit::<special::Fence>(WORDS);
                Ok(())
            }
            Ir::CpAsync { bytes, dst, src, src_bytes, ignore_src } => {
                self.cp_async(*bytes, (*dst, *src), *src_bytes, *ignore_src)
            }
            Ir::CpAsyncCommit | Ir::CpAsyncWait { .. } => {
                self.emit::<control::Nop>(WORDS);
                Ok(())
            }
            Ir::Alloca { dst, size, align } => {
                let size = self.r64(*size)?;
                self.emit::<local::Alloca>(WORDS.d(self.dst(*dst)).a(size).imm((*align).into()));
                Ok(())
            }
            Ir::StackSave { dst } => {
                self.emit::<local::StackSave>(WORDS.d(self.dst(*dst)));
                Ok(())
            }
            Ir::StackRestore { src } => {
                let src = self.r64(*src)?;
                self.emit::<local::StackRestore>(WORDS.a(src));
                Ok(())
            }
            _ => Err(Refusal::new("not a memory operation")),
        }
    }

    fn cvta(&mut self, space: Space, dst: Reg, a: Operand, to_generic: bool) -> Done {
        let window = match space {
            Space::Shared => SHARED_WINDOW,
            Space::Local => LOCAL_WINDOW,
            Space::Param => PARAM_WINDOW,
            Space::Global | Space::Const | Space::Generic => 0,
        };
        if !self.is_wide(dst) {
            if window != 0 {
                return Err(Refusal::new("32-bit generic addresses are not supported"));
            }
            let row = self.r32(a)?;
            self.copy_row(false, self.dst(dst), row);
            return Ok(());
        }
        let row = self.r64(a)?;
        let add = if to_generic { window } else { window.wrapping_neg() };
        if add == 0 {
            self.copy_row(true, self.dst(dst), row);
        } else {
            self.emit::<bits::AddImm64>(WORDS.d(self.dst(dst)).a(row).imm(add));
        }
        Ok(())
    }

    fn place(&mut self, space: Space, addr: Address) -> Result<(Place, Reach), Refusal> {
        let reach = match space {
            Space::Global | Space::Const => Reach::Generic { strict: true },
            Space::Generic | Space::Param => Reach::Generic { strict: false },
            Space::Shared => Reach::Shared,
            Space::Local => Reach::Local,
        };
        let window = if space == Space::Param { PARAM_WINDOW } else { 0 };
        let offset = (addr.offset as u64).wrapping_add(window);
        let place = match addr.base {
            Base::Reg(reg) => match self.known.get(&reg).copied() {
                Some(value)
                    if !self.is_wide(reg) && matches!(reach, Reach::Shared | Reach::Local) =>
                {
                    Place { row: self.const32(value), wide: false, offset }
                }
                Some(value) => Place { row: self.const64(value), wide: true, offset },
                None if self.is_wide(reg) => Place { row: self.dst(reg), wide: true, offset },
                None if reach == (Reach::Generic { strict: true })
                    || reach == (Reach::Generic { strict: false }) =>
                {
                    Place { row: self.r64(Operand::Reg(reg))?, wide: true, offset }
                }
                None => Place { row: self.dst(reg), wide: false, offset },
            },
            Base::Variable(_) | Base::Frame | Base::KernelParam | Base::Absolute => {
                let value = self
                    .address_value(addr)
                    .ok_or_else(|| Refusal::new("an address without a value"))?;
                Place { row: self.const64(value), wide: true, offset: window }
            }
        };
        Ok((place, reach))
    }

    /// An address as a 64-bit row and an offset.
    pub(super) fn wide_place(
        &mut self,
        space: Space,
        addr: Address,
    ) -> Result<(u32, u64), Refusal> {
        let (place, _) = self.place(space, addr)?;
        if place.wide {
            return Ok((place.row, place.offset));
        }
        let t = self.temp64();
        self.emit::<bits::Zext64>(WORDS.d(t).a(place.row));
        Ok((t, place.offset))
    }

    fn load(&mut self, space: Space, ty: ScalarType, dst: &[Option<Reg>], addr: Address) -> Done {
        if space == Space::Param && addr.base == Base::KernelParam {
            return self.load_params(ty, dst, addr.offset);
        }
        let (place, reach) = self.place(space, addr)?;
        let bytes = ty.bytes();
        // Where each element of at most 8 bytes goes first, and what makes it the register's value.
        let mut rows = Vec::new();
        let mut after = Vec::new();
        for reg in dst {
            let wide_reg = reg.is_some_and(|r| self.is_wide(r));
            let d = reg.map(|r| self.dst(r));
            match bytes {
                16 => {
                    let row = match d {
                        Some(d) => d,
                        None => {
                            let first = self.temp64();
                            self.temp64();
                            first
                        }
                    };
                    rows.extend([row, row + 1]);
                }
                8 => rows.push(d.unwrap_or_else(|| self.temp64())),
                _ => {
                    let reg_bits = reg.map_or(32, |r| self.function.width(r).bits());
                    let extend = ty.is_signed() && reg_bits > bytes * 8;
                    let row =
                        if wide_reg { self.temp32() } else { d.unwrap_or_else(|| self.temp32()) };
                    rows.push(row);
                    if let Some(d) = d
                        && (extend || wide_reg)
                    {
                        after.push((row, d, extend, reg_bits));
                    }
                }
            }
        }
        self.emit_loads(place, reach, bytes.min(8), &rows);
        for (row, d, extend, reg_bits) in after {
            self.extend(row, d, if extend { bytes } else { 0 }, reg_bits);
        }
        Ok(())
    }

    /// Extends a 32-bit row of `signed_bytes` signed bytes (0: unsigned) to a register.
    fn extend(&mut self, row: u32, d: u32, signed_bytes: u32, reg_bits: u32) {
        match signed_bytes {
            1 => self.emit::<bits::SextS8>(WORDS.d(row).a(row)),
            2 => self.emit::<bits::SextS16>(WORDS.d(row).a(row)),
            _ => {}
        }
        match (reg_bits, signed_bytes) {
            (64, 0) => self.emit::<bits::Zext64>(WORDS.d(d).a(row)),
            (64, _) => self.emit::<bits::Sext64>(WORDS.d(d).a(row)),
            (16, _) => self.emit::<bits::Low16>(WORDS.d(d).a(row)),
            _ => {}
        }
    }

    fn load_params(&mut self, ty: ScalarType, dst: &[Option<Reg>], offset: i64) -> Done {
        for (i, reg) in dst.iter().enumerate() {
            let Some(reg) = *reg else { continue };
            let at = offset + (i as i64) * i64::from(ty.bytes());
            let d = self.dst(reg);
            if ty.bytes() == 16 {
                for half in 0..2 {
                    let value = param_value(at + 8 * half, ScalarType::B64, Width::B64)
                        .ok_or_else(|| Refusal::new("a parameter at this offset"))?;
                    let row = self.const64(value);
                    self.copy_row(true, d + half as u32, row);
                }
                continue;
            }
            let width = self.function.width(reg);
            match param_value(at, ty, width) {
                Some(value) if width == Width::B64 => {
                    let row = self.const64(value);
                    self.copy_row(true, d, row);
                }
                Some(value) => {
                    let row = self.const32(value);
                    self.copy_row(false, d, row);
                }
                None => {
                    let offset = u32::try_from(at)
                        .map_err(|_| Refusal::new("a parameter at this offset"))?;
                    let bytes = ty.bytes();
                    let row = self.const32(RowValue::Param { offset, bytes, signed: true });
                    self.emit::<bits::Low16>(WORDS.d(d).a(row));
                }
            }
        }
        Ok(())
    }

    fn emit_loads(&mut self, place: Place, reach: Reach, bytes: u32, rows: &[u32]) {
        if reach == Reach::Local {
            return self.local_loads(place, bytes, rows);
        }
        if let [d] = *rows {
            let slot = self.tlb_slot();
            access!(self, Load, reach, place, bytes, (d, slot));
        } else {
            let (list, slot) = (self.vector_list(rows), self.tlb_slot());
            access!(self, LoadVector, reach, place, bytes, (list, slot));
        }
    }

    fn vector_list(&mut self, rows: &[u32]) -> u32 {
        let mut words = vec![rows.len() as u32];
        words.extend_from_slice(rows);
        words.resize(9, 0);
        self.list(&words)
    }

    /// Keeps an address row from being overwritten by the first of several loads.
    fn kept(&mut self, place: Place, bytes: u32, rows: &[u32]) -> Place {
        let same_file = place.wide == (bytes == 8);
        if rows.len() < 2 || !same_file || !rows.contains(&place.row) {
            return place;
        }
        let row = if place.wide { self.temp64() } else { self.temp32() };
        self.copy_row(place.wide, row, place.row);
        Place { row, ..place }
    }

    fn local_loads(&mut self, place: Place, bytes: u32, rows: &[u32]) {
        let Place { row, wide, offset } = self.kept(place, bytes, rows);
        for (i, d) in rows.iter().enumerate() {
            let at = offset.wrapping_add(i as u64 * u64::from(bytes));
            if wide {
                sized!(self, LoadLocal, bytes, (A64), (*d, row, 0, 0, at));
            } else {
                sized!(self, LoadLocal, bytes, (A32), (*d, row, 0, 0, at));
            }
        }
    }

    fn store(&mut self, space: Space, ty: ScalarType, addr: Address, src: &[Operand]) -> Done {
        let (place, reach) = self.place(space, addr)?;
        let bytes = ty.bytes();
        let mut rows = Vec::new();
        for value in src {
            match bytes {
                16 => {
                    let row = self.r64(*value)?;
                    rows.extend([row, row + 1]);
                }
                8 => rows.push(self.r64(*value)?),
                _ => rows.push(self.r32(*value)?),
            }
        }
        self.emit_stores(place, reach, bytes.min(8), &rows);
        Ok(())
    }

    fn emit_stores(&mut self, place: Place, reach: Reach, bytes: u32, rows: &[u32]) {
        if reach == Reach::Local {
            return self.local_stores(place, bytes, rows);
        }
        if let [d] = *rows {
            let slot = self.tlb_slot();
            access!(self, Store, reach, place, bytes, (d, slot));
        } else {
            let (list, slot) = (self.vector_list(rows), self.tlb_slot());
            access!(self, StoreVector, reach, place, bytes, (list, slot));
        }
    }

    fn local_stores(&mut self, place: Place, bytes: u32, rows: &[u32]) {
        let Place { row, wide, offset } = place;
        for (i, d) in rows.iter().enumerate() {
            let at = offset.wrapping_add(i as u64 * u64::from(bytes));
            if wide {
                sized!(self, StoreLocal, bytes, (A64), (*d, row, 0, 0, at));
            } else {
                sized!(self, StoreLocal, bytes, (A32), (*d, row, 0, 0, at));
            }
        }
    }

    fn atom(
        &mut self,
        (op, ty, ftz): (AtomOp, ScalarType, bool),
        space: Space,
        dst: Option<Reg>,
        addr: Address,
        (b, c): (Operand, Option<Operand>),
    ) -> Done {
        let (place, reach) = self.place(space, addr)?;
        let kind = Kind::of(op, ty, ftz).ok_or_else(|| Refusal::new("an atomic of this type"))?;
        let wide = ty.bytes() == 8;
        let c = c.unwrap_or(Operand::Imm(0));
        let (b, c, d) = if wide {
            (self.r64(b)?, self.r64(c)?, self.dst64_or_temp(dst))
        } else {
            (self.r32(b)?, self.r32(c)?, self.dst32_or_temp(dst))
        };
        let strict = reach.strictness();
        let list = self.list(&[kind as u32, b, c, ty.bytes(), u32::from(dst.is_some())]);
        let slot = self.tlb_slot();
        let (row, offset) = (place.row, place.offset);
        let meta = list | strict;
        match (reach, place.wide, wide) {
            (Reach::Shared, true, false) => {
                self.emit::<atom::Atom32<Shared, A64>>(
                    WORDS.d(d).a(row).b(meta).c(slot).imm(offset),
                );
            }
            (Reach::Shared, true, true) => {
                self.emit::<atom::Atom64<Shared, A64>>(
                    WORDS.d(d).a(row).b(meta).c(slot).imm(offset),
                );
            }
            (Reach::Shared, false, false) => {
                self.emit::<atom::Atom32<Shared, A32>>(
                    WORDS.d(d).a(row).b(meta).c(slot).imm(offset),
                );
            }
            (Reach::Shared, false, true) => {
                self.emit::<atom::Atom64<Shared, A32>>(
                    WORDS.d(d).a(row).b(meta).c(slot).imm(offset),
                );
            }
            (Reach::Local, ..) => return Err(Refusal::new("an atomic on local memory")),
            (_, _, false) => self
                .emit::<atom::Atom32<Generic, A64>>(WORDS.d(d).a(row).b(meta).c(slot).imm(offset)),
            (_, _, true) => self
                .emit::<atom::Atom64<Generic, A64>>(WORDS.d(d).a(row).b(meta).c(slot).imm(offset)),
        }
        Ok(())
    }

    /// `cp.async` copies at once: later reads of shared memory wait for it anyway.
    fn cp_async(
        &mut self,
        bytes: u32,
        (dst, src): (Address, Address),
        src_bytes: Option<Operand>,
        ignore: Option<Pred>,
    ) -> Done {
        let (to_row, to_offset) = self.wide_place(Space::Shared, dst)?;
        let (from, _) = self.place(Space::Global, src)?;
        let count = match src_bytes {
            Some(operand) => self.r32(operand)?,
            None => self.const32(RowValue::Bits(u64::from(bytes))),
        };
        let count = match ignore {
            Some(pred) => {
                let (p, inverted) = self.predicate(pred);
                let (zero, t) = (self.const32(RowValue::Bits(0)), self.temp32());
                self.emit::<super::super::compare::Select32>(
                    WORDS.d(t).a(zero).b(count).c(p).imm(u64::from(inverted)),
                );
                t
            }
            None => count,
        };
        let slot = self.tlb_slot();
        let offsets = self.list(&[bytes, to_offset as u32, (to_offset >> 32) as u32, from.row]);
        self.emit::<atom::CopyAsync>(WORDS.d(offsets).a(to_row).b(count).c(slot).imm(from.offset));
        Ok(())
    }
}
