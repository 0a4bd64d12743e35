//! Linking: several texts become one module.
//!
//! Texts are parsed into the same [`Module`] one after the other. Names with linkage (`.visible`,
//! `.weak`, `.common`, `.extern`) denote the same symbol in all of them and so share an id; a
//! definition fills the place that declarations reserved. Names without linkage stay apart.

use std::collections::{HashMap, HashSet};

use thiserror::Error;

use crate::error::ParseError;
use crate::ir::{BUILTIN_FUNCTIONS, FuncId, Linkage, Module, Space, Symbol};
use crate::parser::parse_into;

/// Why texts cannot be linked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LinkError {
    /// A text does not parse, or defines a symbol that another one defines too.
    #[error("text {text}: {error}")]
    Parse {
        /// Which of the texts, counted from 0.
        text: usize,
        /// What is wrong with it.
        #[source]
        error: ParseError,
    },
    /// A symbol that is used is defined nowhere.
    #[error("undefined symbol {0}")]
    Unresolved(String),
    /// More texts than a link may have.
    #[error("more than {MAX_TEXTS} texts")]
    TooManyTexts,
}

/// What programs would take from `libcudadevrt`.
const DEVICE_RUNTIME: &str = include_str!("device_runtime.ptx");

/// The most texts of one link.
pub const MAX_TEXTS: usize = 4096;

/// What the texts parsed so far have in common.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// The module that they become.
    pub(crate) module: Module,
    /// Symbols with linkage.
    pub(crate) exports: HashMap<String, Symbol>,
    /// Symbols that code or initialisers refer to.
    pub(crate) referenced: HashSet<Symbol>,
    /// Which text is being parsed.
    pub(crate) text: u32,
}

/// Parses and links texts. In the result every function that is used has a body, except
/// [`BUILTIN_FUNCTIONS`], and every variable that is used is defined or dynamic shared memory.
///
/// # Errors
/// The first error of a text, or a symbol that is defined twice or not at all.
pub fn link<T: AsRef<[u8]>>(texts: &[T]) -> Result<Module, LinkError> {
    if texts.len() > MAX_TEXTS {
        return Err(LinkError::TooManyTexts);
    }
    let mut shared = Shared::default();
    for (text, bytes) in texts.iter().enumerate() {
        shared.text = u32::try_from(text).unwrap_or(u32::MAX);
        parse_into(bytes.as_ref(), &mut shared)
            .map_err(|error| LinkError::Parse { text, error })?;
    }
    add_device_runtime(&mut shared)
        .map_err(|error| LinkError::Parse { text: texts.len(), error })?;
    define_shared(&mut shared.module);
    check_resolved(&shared)?;
    Ok(shared.module)
}

/// Links the device runtime if a function that it may have is used and not defined. Its functions
/// are weak, so those that a text defines win.
fn add_device_runtime(shared: &mut Shared) -> Result<(), ParseError> {
    let functions = (0u32..).map(FuncId).zip(&shared.module.functions);
    let mut missing = functions.filter(|(id, function)| {
        let used = shared.referenced.contains(&Symbol::Function(*id));
        used && !function.is_defined() && function.name.starts_with("cuda")
    });
    if missing.next().is_none() {
        return Ok(());
    }
    let version = shared.module.version;
    let target = shared.module.target.clone();
    shared.text = shared.text.saturating_add(1);
    parse_into(DEVICE_RUNTIME.as_bytes(), shared)?;
    (shared.module.version, shared.module.target) = (version, target);
    Ok(())
}

/// Shared memory of a known size that is declared and nowhere defined is what its declaration says:
/// there is no other memory that it could denote, and drivers ignore the `.extern`.
fn define_shared(module: &mut Module) {
    for variable in &mut module.variables {
        let declared = variable.linkage == Linkage::Extern && variable.space == Space::Shared;
        if declared && !variable.dynamic_shared {
            variable.linkage = Linkage::Weak;
        }
    }
}

fn check_resolved(shared: &Shared) -> Result<(), LinkError> {
    // In the order of ids, so that the same texts always give the same message.
    for (id, function) in (0u32..).map(FuncId).zip(&shared.module.functions) {
        let builtin = BUILTIN_FUNCTIONS.contains(&function.name.as_str());
        let used = shared.referenced.contains(&Symbol::Function(id));
        if used && !builtin && !function.is_defined() {
            return Err(LinkError::Unresolved(function.name.clone()));
        }
    }
    for (id, variable) in (0u32..).map(crate::ir::VarId).zip(&shared.module.variables) {
        let used = shared.referenced.contains(&Symbol::Variable(id));
        if used && variable.linkage == Linkage::Extern && !variable.dynamic_shared {
            return Err(LinkError::Unresolved(variable.name.clone()));
        }
    }
    Ok(())
}

/// What becomes of a second definition of a symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Merge {
    /// The first stays.
    KeepOld,
    /// The second replaces it.
    TakeNew,
    /// Both claim to be the only one.
    Conflict,
}

/// Which of two definitions wins. A declaration has [`Linkage::Extern`].
pub(crate) const fn merge(old: Linkage, new: Linkage) -> Merge {
    match (old, new) {
        (_, Linkage::Extern) => Merge::KeepOld,
        (Linkage::Extern, _) => Merge::TakeNew,
        (Linkage::Visible | Linkage::Static, Linkage::Visible | Linkage::Static)
        | (Linkage::Static, _)
        | (_, Linkage::Static) => Merge::Conflict,
        (Linkage::Visible, Linkage::Weak | Linkage::Common)
        | (Linkage::Weak | Linkage::Common, Linkage::Weak | Linkage::Common) => Merge::KeepOld,
        (Linkage::Weak | Linkage::Common, Linkage::Visible) => Merge::TakeNew,
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::wildcard_enum_match_arm, reason = "a test looks for one instruction")]
    use super::*;
    use crate::ir::{CallTarget, Op, Operand};

    const HEAD: &str = ".version 7.5\n.target sm_75\n.address_size 64\n";

    fn link_texts(texts: &[&str]) -> Result<Module, LinkError> {
        let texts: Vec<String> = texts.iter().map(|text| format!("{HEAD}{text}")).collect();
        link(&texts)
    }

    const CALLER: &str = ".extern .func (.param .b32 r) twice (.param .b32 a);
        .visible .entry k () { .reg .b32 %r<3>; { .param .b32 p; .param .b32 q; mov.b32 %r1, 4;
        st.param.b32 [p], %r1; call.uni (q), twice, (p); ld.param.b32 %r2, [q]; } ret; }";
    const CALLEE: &str = ".visible .func (.param .b32 r) twice (.param .b32 a) { .reg .b32 %r<3>;
        ld.param.b32 %r1, [a]; shl.b32 %r1, %r1, 1; st.param.b32 [r], %r1; ret; }";

    #[test]
    fn declarations_meet_their_definition_in_either_order() {
        for texts in [[CALLER, CALLEE], [CALLEE, CALLER]] {
            let module = link_texts(&texts).unwrap();
            let (_, kernel) = module.kernel("k").unwrap();
            let call = kernel.body.iter().flatten().find_map(|instr| match &instr.op {
                Op::Call(call) => Some(call),
                _ => None,
            });
            let CallTarget::Direct(id) = call.unwrap().target else { panic!("not direct") };
            let callee = module.function(id).unwrap();
            assert!(callee.is_defined());
            assert_eq!(callee.text, u32::from(texts[0] == CALLER));
        }
    }

    #[test]
    fn an_unresolved_symbol_is_named_only_if_it_is_used() {
        assert_eq!(link_texts(&[CALLER]), Err(LinkError::Unresolved("twice".to_owned())));
        link_texts(&[".extern .func nobody; .visible .entry k () { ret; }"]).unwrap();
        link_texts(&[".extern .func free (.param .b64 a); .visible .entry k () { ret; }"]).unwrap();
        let text = ".extern .global .u32 g; .entry k () { .reg .b64 %r; mov.u64 %r, g; ret; }";
        assert_eq!(link_texts(&[text]), Err(LinkError::Unresolved("g".to_owned())));
    }

    #[test]
    fn two_visible_definitions_conflict_and_a_visible_one_beats_weak_ones() {
        assert!(matches!(link_texts(&[CALLEE, CALLEE]), Err(LinkError::Parse { text: 1, .. })));
        let weak = ".weak .func f () { ret; }";
        let strong = ".visible .func f () { trap; ret; }";
        for texts in [[weak, strong, weak], [strong, weak, weak], [weak, weak, strong]] {
            let module = link_texts(&texts).unwrap();
            assert_eq!(module.functions.len(), 1);
            assert_eq!(module.functions[0].body.as_ref().unwrap()[0].op, Op::Trap);
        }
    }

    #[test]
    fn names_without_linkage_stay_apart() {
        let one = ".global .u32 g = 1; .visible .entry a () { .reg .b64 %r; mov.u64 %r, g; }";
        let two = ".global .u32 g = 2; .visible .entry b () { .reg .b64 %r; mov.u64 %r, g; }";
        let module = link_texts(&[one, two]).unwrap();
        assert_eq!(module.variables.len(), 2);
        let address = |name| match &module.kernel(name).unwrap().1.body.as_ref().unwrap()[0].op {
            Op::Mov { src: Operand::Address(address), .. } => *address,
            other => panic!("{other:?}"),
        };
        assert_ne!(address("a"), address("b"));
    }

    #[test]
    fn variables_of_a_range_have_linkage_one_by_one() {
        let user = ".extern .global .u32 g<3>; .visible .entry k () { .reg .b64 %r<2>;
            mov.u64 %r1, g2; ret; }";
        let owner = ".visible .global .u32 g<2>, g2; .global .u32 own<2>;";
        assert_eq!(link_texts(&[user]), Err(LinkError::Unresolved("g2".to_owned())));
        for texts in [[user, owner], [owner, user]] {
            let module = link_texts(&texts).unwrap();
            let names: Vec<&str> = module.variables.iter().map(|v| v.name.as_str()).collect();
            assert_eq!(names.len(), 5);
            for name in ["g0", "g1", "g2", "own0", "own1"] {
                assert!(names.contains(&name), "{name}");
            }
            assert_eq!(module.host_variable("g1").unwrap().1.linkage, Linkage::Visible);
        }
    }

    #[test]
    fn commons_grow_and_dynamic_shared_memory_merges() {
        let small = ".common .global .align 4 .b8 c[4]; .extern .shared .align 4 .b8 s[];";
        let large = ".common .global .align 8 .b8 c[16]; .extern .shared .align 16 .b8 s[];";
        let module = link_texts(&[small, large, small]).unwrap();
        assert_eq!(module.variables.len(), 2);
        assert_eq!((module.variables[0].size_bytes, module.variables[0].align), (16, 8));
        assert!(module.variables[1].dynamic_shared);
        assert_eq!(module.variables[1].align, 16);
    }

    #[test]
    fn a_declaration_of_another_shape_is_refused() {
        let other = ".extern .func (.param .b64 r) twice (.param .b32 a);";
        assert!(matches!(link_texts(&[CALLEE, other]), Err(LinkError::Parse { text: 1, .. })));
    }
}
