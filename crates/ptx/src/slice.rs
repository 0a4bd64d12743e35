//! Running a kernel in pieces: ranges of its thread blocks, one launch each.
//!
//! A device that cannot stop a kernel between thread blocks can still run it in pieces if the
//! kernel is told which blocks it stands for. [`rewrite`] appends to a text, for every kernel where
//! that cannot change the result, a *piece kernel*: a copy that takes one more parameter, the
//! [`Piece`], and computes `%ctaid` and `%nctaid` from it. Nothing of the original text changes, so
//! unsliced launches run the very code that the program brought, and both share its variables.
//!
//! ```
//! use weft_ptx::slice::{Piece, rewrite};
//!
//! let text = b".version 7.5\n.target sm_75\n.address_size 64\n.visible .entry k(.param .u64 out)
//!     { .reg .b32 %r<2>; mov.u32 %r1, %ctaid.x; ret; }";
//! let sliced = rewrite(text)?;
//! let kernel = sliced.kernels["k"].as_ref().expect("it waits for nobody");
//! // Blocks 1000 to 1499 of a launch with the grid 50 x 40: load `sliced.text`, look up
//! // `kernel.name`, and launch it with the grid `piece.launch_grid()`.
//! let piece = Piece { grid: [50, 40, 1], first: 1000, blocks: 500 };
//! let parameters = kernel.parameters(&[0; 8], &piece);
//! assert_eq!(parameters.len(), kernel.param_bytes as usize);
//! assert_eq!(piece.launch_grid(), [500, 1, 1]);
//! # Ok::<(), weft_ptx::ParseError>(())
//! ```
//!
//! # What a piece kernel does
//! A piece is launched as a one-dimensional grid. The block finds its place by adding its number to
//! the place of the piece's first block, with carry into the second and third dimension; a piece
//! that stays within one row needs no division. Device functions that read the block's place are
//! copied too and find it in shared memory, where every thread of the block has put it on entry.
//!
//! # When a kernel is refused
//! [`Refusal`] lists the reasons. A kernel's blocks may run in any order and at any time (the CUDA
//! programming model says so), so pieces change nothing unless a block *waits* for another one,
//! which the model forbids but cooperative launches and hand-written locks do; reads what belongs
//! to the launch as such (`%gridid`, clusters); or cannot be copied. The decision errs on the side
//! of refusing. A *cooperative launch* must not be sliced either, whatever its kernel does.

pub(crate) mod decide;
pub(crate) mod registers;
mod text;
mod waits;

use std::collections::BTreeMap;

use thiserror::Error;

use crate::error::{ParseError, ParseErrorKind};
use crate::ir::Module;
use crate::scan::{Scan, scan};
use decide::Approved;

/// Bytes of the parameter that piece kernels have behind those of the kernel: the place of the
/// first block (x, y, z) and the whole grid (x, y, z), 32 bits each.
pub const RANGE_BYTES: u32 = 24;

/// Why a kernel is not run in pieces.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// A loop may wait for what another block writes.
    #[error("`{function}` may wait for another thread block (line {line})")]
    Waits {
        /// The function with the loop.
        function: String,
        /// Line of the loop's exit, counted from 1.
        line: u32,
    },
    /// `%envreg` is where a cooperative launch keeps the barrier of its grid.
    #[error("it may synchronise its grid")]
    GridSync,
    /// `%gridid` is another number in each launch.
    #[error("it reads %gridid")]
    GridId,
    /// Something with thread block clusters.
    #[error("it uses thread block clusters")]
    Cluster,
    /// `%ctaid` or `%nctaid` as a vector.
    #[error("it reads all of %ctaid or %nctaid at once")]
    Vector,
    /// A function that another text defines.
    #[error("it calls `{0}`, which is defined elsewhere")]
    Elsewhere(String),
    /// A function that may be called through a pointer reads the block's place.
    #[error("`{0}` may be called through a pointer and reads %ctaid or %nctaid")]
    Pointer(String),
    /// A `.global` variable inside a function.
    #[error("`{0}` has a global variable of its own")]
    OwnState(String),
    /// Full debugging information names labels inside of functions.
    #[error("it was compiled with full debugging information")]
    DebugInfo,
    /// No room for one more parameter.
    #[error("its parameters leave no room")]
    Parameters,
    /// The result did not pass its checks.
    #[error("the transform failed: {0}")]
    Failed(String),
}

/// A kernel's name and whether it may run in pieces.
pub type Decisions = BTreeMap<String, Result<(), Refusal>>;

/// Decides over every kernel of a text, without rewriting it.
///
/// # Errors
/// The text does not parse.
pub fn plan(text: &[u8]) -> Result<Decisions, ParseError> {
    let module = crate::parse(text)?;
    let (_, decisions) = decisions(text, &module)?;
    Ok(decisions.into_iter().map(|(name, made)| (name, made.map(|_| ()))).collect())
}

/// A text with piece kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sliced {
    /// The original text, then the copies. Equal to the original if there are none.
    pub text: Vec<u8>,
    /// What became of each kernel, by its name.
    pub kernels: BTreeMap<String, Result<PieceKernel, Refusal>>,
}

/// The copy of a kernel that runs pieces of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PieceKernel {
    /// Its name in the text.
    pub name: String,
    /// Where its last parameter, the range, lies in its parameter buffer, in bytes.
    pub range_offset: u32,
    /// Size of its parameter buffer in bytes.
    pub param_bytes: u32,
    /// Static shared memory that it needs beyond the kernel's own, in bytes, alignment included.
    pub shared_bytes: u32,
}

impl PieceKernel {
    /// The parameter buffer for a piece of a launch with these parameters. Only the first
    /// [`Self::range_offset`] bytes of them are used.
    #[must_use]
    pub fn parameters(&self, of_launch: &[u8], piece: &Piece) -> Vec<u8> {
        let range_offset = self.range_offset as usize;
        let mut bytes = of_launch.get(..range_offset).unwrap_or(of_launch).to_vec();
        bytes.resize(range_offset, 0);
        let words = piece.place().into_iter().chain(piece.grid);
        bytes.extend(words.flat_map(u32::to_le_bytes));
        bytes
    }
}

/// A range of the blocks of a launch, in linear order (x fastest).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The launch's grid.
    pub grid: [u32; 3],
    /// The first block; `first + blocks` is at most the number of blocks of the grid.
    pub first: u64,
    /// How many; 1 to 2³¹ − 1.
    pub blocks: u32,
}

impl Piece {
    /// The most blocks of a piece: what the first dimension of a grid can hold.
    pub const BLOCKS_MAX: u32 = 0x7fff_ffff;

    /// The grid that launches it.
    #[must_use]
    pub const fn launch_grid(&self) -> [u32; 3] {
        [self.blocks, 1, 1]
    }

    /// The pieces of at most `blocks` (at least 1) blocks of a whole launch.
    pub fn all(grid: [u32; 3], blocks: u32) -> impl Iterator<Item = Self> {
        let total: u64 = grid.iter().map(|n| u64::from(*n)).product();
        let step = blocks.clamp(1, Self::BLOCKS_MAX);
        let pieces = total.div_ceil(u64::from(step));
        (0..pieces).map(move |index| {
            let first = index * u64::from(step);
            let left = u32::try_from(total - first).unwrap_or(u32::MAX);
            Self { grid, first, blocks: step.min(left) }
        })
    }

    /// `%ctaid` of the first block.
    fn place(&self) -> [u32; 3] {
        let [x, y, _] = self.grid.map(|n| u64::from(n.max(1)));
        [self.first % x, self.first / x % y, self.first / x / y]
            .map(|n| u32::try_from(n).unwrap_or(u32::MAX))
    }
}

/// Appends piece kernels to a text. The result is parsed and compared with the original before it
/// is handed out; whatever does not pass is a [`Refusal::Failed`].
///
/// # Errors
/// The text does not parse.
pub fn rewrite(text: &[u8]) -> Result<Sliced, ParseError> {
    let text = text.strip_suffix(b"\0").unwrap_or(text);
    let module = crate::parse(text)?;
    let (scan, decisions) = decisions(text, &module)?;
    let approved: Vec<&Approved> =
        decisions.values().filter_map(|made| made.as_ref().ok()).collect();
    let written = text::append(text, &scan, &approved).map_err(|kind| error_at_start(&kind))?;
    let copy = match crate::parse(&written) {
        Ok(copy) => copy,
        Err(error) => return Ok(failed(text, decisions, &error.to_string())),
    };
    let kernels = decisions.into_iter().map(|(name, made)| {
        let piece = made.and_then(|approved| text::check(&module, &copy, &approved));
        (name, piece)
    });
    Ok(Sliced { kernels: kernels.collect(), text: written })
}

type Made<'a> = (Scan<'a>, BTreeMap<String, Result<Approved, Refusal>>);

fn decisions<'a>(text: &'a [u8], module: &Module) -> Result<Made<'a>, ParseError> {
    let made = scan(text).and_then(|scan| {
        let decisions = decide::decide(text, module, &scan)?;
        Ok((scan, decisions))
    });
    made.map_err(|kind| error_at_start(&kind))
}

/// The text has been parsed, so its tokens are good: this does not happen.
fn error_at_start(kind: &ParseErrorKind) -> ParseError {
    ParseError { line: 1, text: String::new(), kind: kind.clone() }
}

fn failed(
    text: &[u8],
    decisions: BTreeMap<String, Result<Approved, Refusal>>,
    why: &str,
) -> Sliced {
    let all = decisions.into_iter().map(|(name, made)| {
        let refusal = made.err().unwrap_or_else(|| Refusal::Failed(why.to_owned()));
        (name, Err(refusal))
    });
    Sliced { text: text.to_vec(), kernels: all.collect() }
}

#[cfg(test)]
mod tests;
