//! Writing piece kernels.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::discriminant;
use std::ops::Range;

use super::decide::Approved;
use super::{PieceKernel, RANGE_BYTES, Refusal};
use crate::error::ParseErrorKind;
use crate::ir::{Function, FunctionKind, Module, Op, Operand, ParamPlace, SpecialReg};
use crate::scan::{Mark, Scan, Unit, marks};

/// What the names of copies end with.
const SUFFIX: &str = "$weft_piece";
/// The shared variable through which a kernel tells its functions the block's place and the grid.
const SHARED: &str = "weft_piece_ids";
/// Words of it and of the range parameter.
const WORDS: [&str; 6] = ["x", "y", "z", "nx", "ny", "nz"];

/// The range parameter's code: the block's place and the grid in registers. With
/// `x = first.x + %ctaid.x`, below 2³², at most one row is left: no carry. Otherwise the rows go to
/// `y`, and those beyond the grid's height to `z`.
const KERNEL_PROLOGUE: &str = "
.reg .pred %weft_p;
.reg .b32 %weft_q, %weft_x, %weft_y, %weft_z, %weft_nx, %weft_ny, %weft_nz;
ld.param.u32 %weft_x, [weft_range];
ld.param.u32 %weft_y, [weft_range+4];
ld.param.u32 %weft_z, [weft_range+8];
ld.param.u32 %weft_nx, [weft_range+12];
ld.param.u32 %weft_ny, [weft_range+16];
ld.param.u32 %weft_nz, [weft_range+20];
mov.u32 %weft_q, %ctaid.x;
add.u32 %weft_x, %weft_x, %weft_q;
setp.lt.u32 %weft_p, %weft_x, %weft_nx;
@%weft_p bra.uni $weft_placed;
div.u32 %weft_q, %weft_x, %weft_nx;
add.u32 %weft_y, %weft_y, %weft_q;
mul.lo.u32 %weft_q, %weft_q, %weft_nx;
sub.u32 %weft_x, %weft_x, %weft_q;
setp.lt.u32 %weft_p, %weft_y, %weft_ny;
@%weft_p bra.uni $weft_placed;
div.u32 %weft_q, %weft_y, %weft_ny;
add.u32 %weft_z, %weft_z, %weft_q;
mul.lo.u32 %weft_q, %weft_q, %weft_ny;
sub.u32 %weft_y, %weft_y, %weft_q;
$weft_placed:
";
/// Its instructions.
const KERNEL_PROLOGUE_OPS: usize = 20;

/// The original text with copies of what the approved kernels consist of.
pub(super) fn append(
    text: &[u8],
    scan: &Scan<'_>,
    approved: &[&Approved],
) -> Result<Vec<u8>, ParseErrorKind> {
    let mut out = text.to_vec();
    if approved.is_empty() {
        return Ok(out);
    }
    let functions: BTreeSet<&str> =
        approved.iter().flat_map(|kernel| &kernel.functions).map(String::as_str).collect();
    let mut add = |part: &str| out.extend_from_slice(part.as_bytes());
    add("\n");
    if !functions.is_empty() {
        add(&format!(".shared .align 4 .b8 {SHARED}[{RANGE_BYTES}];\n"));
    }
    let copied = |unit: &&Unit<'_>| functions.contains(unit.name);
    for unit in scan.units.iter().filter(copied) {
        add(&format!("{};\n", header(text, unit, "")));
    }
    for unit in scan.units.iter().filter(copied) {
        let body = body(text, unit, &functions)?;
        add(&format!("{}\n{{{}{body}}}\n", header(text, unit, ""), function_prologue()));
    }
    let kernels: BTreeMap<&str, &Approved> =
        approved.iter().map(|kernel| (kernel.name.as_str(), *kernel)).collect();
    for unit in &scan.units {
        let Some(kernel) = kernels.get(unit.name) else { continue };
        let body = body(text, unit, &functions)?;
        let tell = if kernel.functions.is_empty() { String::new() } else { shared_stores() };
        let head = header(text, unit, &format!(".param .align 4 .b8 weft_range[{RANGE_BYTES}]"));
        add(&format!("{head}\n{{{KERNEL_PROLOGUE}{tell}{body}}}\n"));
    }
    Ok(out)
}

/// The header of a unit's copy, with one more parameter for a kernel.
fn header(text: &[u8], unit: &Unit<'_>, more: &str) -> String {
    let params = part(text, &unit.params);
    let directives = part(text, &unit.directives);
    let (directive, before_name) = match unit.kind {
        FunctionKind::Kernel => (".visible .entry", String::new()),
        FunctionKind::Device => (".func", part(text, &unit.before_name)),
    };
    let comma = if more.is_empty() || !has_tokens(&params) { "" } else { "," };
    // A comment may end the parameters, so what follows begins a line.
    let name = unit.name;
    format!("{directive}{before_name} {name}{SUFFIX}({params}\n{comma}{more})\n{directives}")
}

/// Whether there is anything but blanks and comments.
fn has_tokens(params: &str) -> bool {
    let next = crate::lexer::Lexer::new(params.as_bytes()).next();
    !matches!(next, Ok((crate::lexer::Token::End, _)))
}

fn part(text: &[u8], range: &Range<usize>) -> String {
    String::from_utf8_lossy(text.get(range.clone()).unwrap_or_default()).into_owned()
}

/// The body with registers for the block's place and the grid, and calls of copies.
fn body(
    text: &[u8],
    unit: &Unit<'_>,
    functions: &BTreeSet<&str>,
) -> Result<String, ParseErrorKind> {
    let mut out = String::new();
    let mut done = unit.body.start;
    for (range, mark) in marks(text, unit.body.clone())? {
        let new = match mark {
            Mark::BlockId(dim) => format!("%weft_{}", WORDS[dim]),
            Mark::GridSize(dim) => format!("%weft_{}", WORDS[3 + dim]),
            Mark::Word(word) if functions.contains(word) => format!("{word}{SUFFIX}"),
            Mark::Vector | Mark::Word(_) | Mark::Dotted(_) => continue,
        };
        out.push_str(&part(text, &(done..range.start)));
        out.push_str(&new);
        done = range.end;
    }
    out.push_str(&part(text, &(done..unit.body.end)));
    // The body may end in a comment without a line's end.
    out.push('\n');
    Ok(out)
}

fn shared_stores() -> String {
    let store =
        |(at, word): (usize, &str)| format!("st.shared.u32 [{SHARED}+{}], %weft_{word};\n", 4 * at);
    WORDS.into_iter().enumerate().map(store).collect()
}

/// Every thread has stored the same values itself, so none has to wait for another.
fn function_prologue() -> String {
    let load =
        |(at, word): (usize, &str)| format!("ld.shared.u32 %weft_{word}, [{SHARED}+{}];\n", 4 * at);
    let loads: String = WORDS.into_iter().enumerate().map(load).collect();
    format!("\n.reg .b32 %weft_x, %weft_y, %weft_z, %weft_nx, %weft_ny, %weft_nz;\n{loads}")
}

/// Compares what was written with the original.
pub(super) fn check(
    original: &Module,
    copy: &Module,
    approved: &Approved,
) -> Result<PieceKernel, Refusal> {
    let fails = |what: &str| Refusal::Failed(format!("{what} of `{}`", approved.name));
    let name = format!("{}{SUFFIX}", approved.name);
    let (_, kernel) = original.kernel(&approved.name).ok_or_else(|| fails("no original"))?;
    let (_, piece) = copy.kernel(&name).ok_or_else(|| fails("no copy"))?;
    let told = if approved.functions.is_empty() { 0 } else { WORDS.len() };
    if !same_code(kernel, piece, KERNEL_PROLOGUE_OPS + told) {
        return Err(fails("other code in the copy"));
    }
    for function in &approved.functions {
        let copied = format!("{function}{SUFFIX}");
        let find = |module: &'_ Module, name: &str| {
            module.functions.iter().find(|f| f.name == name && f.is_defined()).cloned()
        };
        let both = find(original, function).zip(find(copy, &copied));
        if !both.is_some_and(|(one, other)| same_code(&one, &other, WORDS.len())) {
            return Err(fails("other code in a function"));
        }
    }
    let range = piece.params.last().map(|range| (range.place, range.size_bytes));
    let Some((ParamPlace::Offset(range_offset), RANGE_BYTES)) = range else {
        return Err(fails("no range"));
    };
    let same_places = kernel.params.iter().zip(&piece.params).all(|(a, b)| a.place == b.place);
    if !same_places || piece.params.len() != kernel.params.len() + 1 {
        return Err(fails("other parameters"));
    }
    // The variable may have to be aligned behind others.
    let shared_bytes = if approved.functions.is_empty() { 0 } else { RANGE_BYTES + 16 };
    Ok(PieceKernel { name, range_offset, param_bytes: piece.param_bytes, shared_bytes })
}

/// Whether the copy is the original behind a prologue, and reads no block ids itself.
fn same_code(original: &Function, copy: &Function, prologue: usize) -> bool {
    let code = |function: &Function| function.body.clone().unwrap_or_default();
    let (one, other) = (code(original), code(copy));
    let Some(rest) = other.get(prologue..) else { return false };
    one.len() == rest.len()
        && one.iter().zip(rest).all(|(a, b)| {
            discriminant(&a.op) == discriminant(&b.op) && a.guard.is_some() == b.guard.is_some()
        })
        && !rest.iter().any(|instr| moves_ids(&instr.op))
}

const fn moves_ids(op: &Op) -> bool {
    let Op::Mov { src: Operand::Special(special), .. } = op else { return false };
    matches!(special, SpecialReg::Ctaid(_) | SpecialReg::Nctaid(_))
}
