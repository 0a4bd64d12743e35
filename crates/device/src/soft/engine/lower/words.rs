//! The words of an operation that is emitted, by the names that its handler reads them under.

/// No words yet: all are 0.
pub(super) const WORDS: Words = Words { d: 0, a: 0, b: 0, c: 0, imm: 0 };

/// What an [`Op`](super::super::handler::Op) holds beside its handler.
#[derive(Clone, Copy)]
pub(super) struct Words {
    pub(super) d: u32,
    pub(super) a: u32,
    pub(super) b: u32,
    pub(super) c: u32,
    pub(super) imm: u64,
}

impl Words {
    /// The same with this row, or word, as `d`: the target of most.
    pub(super) const fn d(self, d: u32) -> Self {
        Self { d, ..self }
    }

    /// The same with the first source.
    pub(super) const fn a(self, a: u32) -> Self {
        Self { a, ..self }
    }

    /// The same with the second source.
    pub(super) const fn b(self, b: u32) -> Self {
        Self { b, ..self }
    }

    /// The same with the third source.
    pub(super) const fn c(self, c: u32) -> Self {
        Self { c, ..self }
    }

    /// The same with whatever else the handler needs.
    pub(super) const fn imm(self, imm: u64) -> Self {
        Self { imm, ..self }
    }
}
