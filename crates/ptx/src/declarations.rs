//! What a text declares, whatever its functions do.

use crate::error::ParseError;
use crate::ir::Module;
use crate::parser::parse;
use crate::scan::scan;

/// Kernels, functions and variables of a text whose instructions somebody else understands: the
/// bodies of its functions are empty.
///
/// # Errors
/// [`ParseError`] for a text that is wrong outside of functions, too.
pub fn declarations(text: &[u8]) -> Result<Module, ParseError> {
    let mut blank = text.to_vec();
    // A text that cannot even be scanned does not parse either, which says why.
    for unit in scan(text).map(|scan| scan.units).unwrap_or_default() {
        let body = blank.get_mut(unit.body).unwrap_or_default();
        body.iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
    }
    parse(&blank)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ParseErrorKind;

    const TEXT: &[u8] = b".version 9.0\n.target sm_90a\n.address_size 64\n\
        .global .align 4 .b8 table[64];\n\
        .visible .entry first(.param .u64 first_param_0, .param .u32 first_param_1)\n\
        .maxntid 128, 1, 1\n{\n  wgmma.fence.sync.aligned;\n  { .reg .b32 r; }\n  ret;\n}\n\
        .entry second() { ret; }\n";

    #[test]
    fn functions_need_not_be_understood() {
        let error = parse(TEXT).unwrap_err();
        assert!(matches!(error.kind, ParseErrorKind::UnknownInstruction(_)), "{error}");
        let module = declarations(TEXT).unwrap();
        let kernels: Vec<_> = module.kernels().map(|(_, kernel)| kernel).collect();
        assert_eq!(
            kernels.iter().map(|kernel| &kernel.name).collect::<Vec<_>>(),
            ["first", "second"]
        );
        assert_eq!((kernels[0].param_bytes, kernels[0].params.len()), (12, 2));
        assert_eq!(module.variables[0].size_bytes, 64);
    }

    #[test]
    fn what_stands_outside_is_still_checked() {
        let error = declarations(b".version 9.0\n.target sm_90\n.global .nonsense x;").unwrap_err();
        assert_eq!(error.line, 3);
    }
}
