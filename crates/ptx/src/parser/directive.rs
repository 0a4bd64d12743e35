//! Directives of module scope, and what variables and parameters share.

use std::borrow::Cow;

use super::{
    MAX_ALIASED, MAX_RANGED_BYTES, MAX_VARIABLE_BYTES, Parsed, Parser, operand_error, shorten,
    undefined,
};
use crate::error::ParseErrorKind;
use crate::ir::{Function, Initializer, Linkage, ScalarType, Space, Symbol, VarId, Variable};
use crate::lexer::Token;
use crate::linker::{Merge, merge};

use super::modifiers::scalar_type;

/// Oldest and newest version of PTX.
const VERSIONS: std::ops::RangeInclusive<(u32, u32)> = (1, 0)..=(9, 9);
/// The newest target.
const NEWEST_TARGET: u32 = 121;

/// What comes before the name of a variable: `.align 8 .v2 .f32`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) align: Option<u32>,
    pub(super) vector: u32,
    pub(super) ty: ScalarType,
    pub(super) managed: bool,
}

impl Shape {
    pub(super) fn element_bytes(self) -> u32 {
        self.vector * self.ty.bytes()
    }

    pub(super) fn align(self) -> u32 {
        self.align.unwrap_or_else(|| self.element_bytes())
    }
}

impl<'a> Parser<'a> {
    /// The whole text.
    pub(super) fn module(&mut self) -> Parsed<()> {
        self.begin_statement();
        self.advance()?;
        self.header()?;
        loop {
            self.begin_statement();
            match self.token {
                Token::End => return Ok(()),
                // Assemblers accept stray semicolons, and compilers emit them.
                Token::Punct(b';') => self.advance().map(|_| ())?,
                Token::Dotted(_) => self.item()?,
                _ => return self.error("a directive"),
            }
        }
    }

    fn header(&mut self) -> Parsed<()> {
        if !self.accept_dotted("version")? {
            return self.error("`.version`");
        }
        let found = self.advance()?;
        let version = match found {
            Token::F64(bits) => {
                // The literal has one decimal: 7.5 is version 7.5.
                let tenths = (f64::from_bits(bits) * 10.0).round();
                (0..100u32).find(|&n| f64::from(n).to_bits() == tenths.to_bits())
            }
            _ => None,
        };
        let Some(version) = version.map(|n| (n / 10, n % 10)).filter(|v| VERSIONS.contains(v))
        else {
            let what = format!("PTX version {}", super::describe(found));
            return Err(ParseErrorKind::Unsupported(what));
        };
        self.shared.module.version = version;
        Ok(())
    }

    fn item(&mut self) -> Parsed<()> {
        let mut linkage = Linkage::Static;
        loop {
            let name = self.dotted()?;
            match name {
                "visible" => linkage = Linkage::Visible,
                "extern" => linkage = Linkage::Extern,
                "weak" => linkage = Linkage::Weak,
                "common" => linkage = Linkage::Common,
                "target" => return self.target(),
                "address_size" => return self.address_size(),
                "entry" | "func" => return self.function(name == "entry", linkage),
                "global" | "const" | "shared" | "local" => {
                    let space = super::modifiers::space(name).unwrap_or(Space::Global);
                    return self.variables(space, linkage);
                }
                "alias" => return self.alias(),
                "file" | "loc" | "section" | "pragma" => return self.debug(name),
                "maxnreg" | "maxntid" | "minnctapersm" => {
                    self.int()?;
                    return Ok(());
                }
                _ => {
                    return Err(ParseErrorKind::UnknownDirective(format!(".{}", shorten(name))));
                }
            }
        }
    }

    fn target(&mut self) -> Parsed<()> {
        let name = self.word()?;
        let number = name.strip_prefix("sm_").or_else(|| name.strip_prefix("compute_"));
        let number = number.map(|n| n.trim_end_matches(['a', 'f'])).and_then(|n| n.parse().ok());
        if number.is_none_or(|n: u32| n > NEWEST_TARGET) {
            return Err(ParseErrorKind::Unsupported(format!("target {}", shorten(name))));
        }
        name.clone_into(&mut self.shared.module.target);
        while self.accept(b',')? {
            match self.word()? {
                "texmode_unified" | "texmode_independent" | "debug" | "map_f64_to_f32" => {}
                other if other.starts_with("sm_") => {}
                other => {
                    return Err(ParseErrorKind::Unsupported(format!("target {}", shorten(other))));
                }
            }
        }
        Ok(())
    }

    fn address_size(&mut self) -> Parsed<()> {
        match self.int()? {
            64 => Ok(()),
            other => Err(ParseErrorKind::Unsupported(format!("address size {other}"))),
        }
    }

    /// `.alias name, function;`: the name becomes another name of the function.
    fn alias(&mut self) -> Parsed<()> {
        let alias = self.word()?;
        self.comma()?;
        let target = self.word()?;
        self.expect(b';')?;
        let Some(&Symbol::Function(id)) = self.names.get(target) else { return undefined(target) };
        let index = usize::try_from(id.0).unwrap_or(usize::MAX);
        let Some(body) = self.shared.module.functions.get(index) else {
            return undefined(target);
        };
        let size = body.body.as_ref().map_or(0, Vec::len) + body.registers.len();
        let Some(left) = self.aliased_left.checked_sub(size as u64) else {
            return Err(ParseErrorKind::Limit { what: "size of aliases", limit: MAX_ALIASED });
        };
        self.aliased_left = left;
        let body = body.clone();
        match self.names.get(alias) {
            // Calls that refer to the declaration must reach the code: the alias gets a copy of it.
            Some(&Symbol::Function(declared)) => {
                let place = usize::try_from(declared.0).unwrap_or(usize::MAX);
                if let Some(function) = self.shared.module.functions.get_mut(place) {
                    let linkage = function.linkage;
                    *function = Function { name: alias.to_owned(), linkage, ..body };
                }
                Ok(())
            }
            Some(Symbol::Variable(_)) => operand_error("an alias of a variable"),
            None => undefined(alias),
        }
    }

    /// Directives for debuggers and tools.
    pub(super) fn debug(&mut self, name: &str) -> Parsed<()> {
        match name {
            "file" => {
                self.int()?;
                self.string()?;
                while self.accept(b',')? {
                    self.int()?;
                }
                Ok(())
            }
            "loc" => self.location(),
            "pragma" => loop {
                self.string()?;
                if !self.accept(b',')? {
                    return self.expect(b';');
                }
            },
            _ => self.section(),
        }
    }

    fn string(&mut self) -> Parsed<()> {
        if self.token != Token::Str {
            return self.error("a string");
        }
        self.advance().map(|_| ())
    }

    /// `1 2 3[, function_name L [+ n], inlined_at 1 2 3]`
    fn location(&mut self) -> Parsed<()> {
        for _ in 0..3 {
            self.int()?;
        }
        while self.accept(b',')? {
            match self.word()? {
                "function_name" => {
                    self.word()?;
                    if self.accept(b'+')? {
                        self.int()?;
                    }
                }
                "inlined_at" => {
                    for _ in 0..3 {
                        self.int()?;
                    }
                }
                _ => return self.error("`function_name` or `inlined_at`"),
            }
        }
        Ok(())
    }

    fn section(&mut self) -> Parsed<()> {
        while !self.at(b'{') {
            if matches!(self.token, Token::End | Token::Punct(_)) {
                return self.error("`{`");
            }
            self.advance()?;
        }
        let mut depth = 0u32;
        loop {
            match self.advance()? {
                Token::Punct(b'{') => depth += 1,
                Token::Punct(b'}') => depth -= 1,
                Token::End => return self.error("`}`"),
                _ => {}
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// `.align 8 .v2 .f32` and attributes, in any order up to the type.
    pub(super) fn shape(&mut self) -> Parsed<Shape> {
        let mut shape = Shape { align: None, vector: 1, ty: ScalarType::B8, managed: false };
        loop {
            let name = self.dotted()?;
            match name {
                "align" => shape.align = Some(self.alignment()?),
                "v2" => shape.vector = 2,
                "v4" => shape.vector = 4,
                "v8" => shape.vector = 8,
                "attribute" => shape.managed |= self.attributes()?,
                "texref" | "samplerref" | "surfref" => {
                    return Err(ParseErrorKind::Unsupported(format!("type .{name}")));
                }
                _ => {
                    let Some(ty) = scalar_type(name) else {
                        let name = format!(".{}", shorten(name));
                        return Err(ParseErrorKind::UnknownDirective(name));
                    };
                    return Ok(Shape { ty, ..shape });
                }
            }
        }
    }

    pub(super) fn alignment(&mut self) -> Parsed<u32> {
        let align = self.int_u32()?;
        if align.is_power_of_two() && align <= 4096 {
            Ok(align)
        } else {
            operand_error(format!("alignment {align} is not a power of two up to 4096"))
        }
    }

    /// `(.managed, .unified(1, 2))`; whether `.managed` is among them.
    pub(super) fn attributes(&mut self) -> Parsed<bool> {
        let mut managed = false;
        self.expect(b'(')?;
        loop {
            managed |= self.dotted()? == "managed";
            if self.accept(b'(')? {
                while !self.accept(b')')? {
                    if self.token == Token::End {
                        return self.error("`)`");
                    }
                    self.advance()?;
                }
            }
            if !self.accept(b',')? {
                self.expect(b')')?;
                return Ok(managed);
            }
        }
    }

    /// `[2][3]` after a name; 0 stands for an unknown first bound.
    pub(super) fn dimensions(&mut self) -> Parsed<Vec<u64>> {
        let mut all = Vec::new();
        while self.accept(b'[')? {
            if self.accept(b']')? {
                if !all.is_empty() {
                    return operand_error("only the first bound of an array may be missing");
                }
                all.push(0);
                continue;
            }
            let bound = self.small(0, MAX_VARIABLE_BYTES)?;
            self.expect(b']')?;
            all.push(bound);
            if all.len() > 16 {
                return Err(ParseErrorKind::Limit { what: "number of dimensions", limit: 16 });
            }
        }
        Ok(all)
    }

    /// Size in bytes of an array of elements.
    pub(super) fn array_bytes(element: u32, dimensions: &[u64]) -> Parsed<u64> {
        dimensions
            .iter()
            .try_fold(u64::from(element), |size, &n| size.checked_mul(n))
            .filter(|&size| size <= MAX_VARIABLE_BYTES)
            .ok_or(ParseErrorKind::Limit { what: "size of a variable", limit: MAX_VARIABLE_BYTES })
    }

    /// The rest of `.global .u32 a[2] = {1, 2}, b;`
    fn variables(&mut self, space: Space, linkage: Linkage) -> Parsed<()> {
        if space == Space::Local {
            let what = "a .local variable of module scope".to_owned();
            return Err(ParseErrorKind::Unsupported(what));
        }
        if space == Space::Const && self.accept(b'[')? {
            self.int()?;
            self.expect(b']')?;
        }
        let shape = self.shape()?;
        loop {
            let name = self.word()?;
            if self.accept(b'<')? {
                for member in 0..self.range(name)? {
                    let name = format!("{name}{member}");
                    let variable = self.single(name.clone(), space, linkage, shape)?;
                    self.add_global_variable(name.into(), variable)?;
                }
            } else {
                let variable = self.variable(name.to_owned(), space, linkage, shape)?;
                self.add_global_variable(name.into(), variable)?;
            }
            if !self.accept(b',')? {
                return self.expect(b';');
            }
        }
    }

    /// The rest of `s<4>`: how many variables there are, from `s0` on.
    pub(super) fn range(&mut self, name: &str) -> Parsed<u32> {
        let count = self.int_u32()?;
        self.expect(b'>')?;
        // The number in a name has at most 10 digits.
        let bytes = (name.len() as u64).saturating_add(10).saturating_mul(u64::from(count));
        let Some(left) = self.ranged_left.checked_sub(bytes) else {
            let (what, limit) = ("size of ranges of variables", MAX_RANGED_BYTES);
            return Err(ParseErrorKind::Limit { what, limit });
        };
        self.ranged_left = left;
        Ok(count)
    }

    fn add_global_variable(&mut self, name: Cow<'a, str>, variable: Variable) -> Parsed<()> {
        let linkage = variable.linkage;
        let id = match self.known(&name, linkage) {
            Some(Symbol::Variable(id)) => id,
            Some(Symbol::Function(_)) => {
                return Err(ParseErrorKind::DuplicateName(shorten(&name).to_owned()));
            }
            None => {
                let id = self.add_variable(variable)?;
                self.export(&name, linkage, Symbol::Variable(id));
                return self.declare(name, Symbol::Variable(id));
            }
        };
        self.export(&name, linkage, Symbol::Variable(id));
        let index = usize::try_from(id.0).unwrap_or(usize::MAX);
        match self.shared.module.variables.get_mut(index) {
            Some(old) => merge_variable(old, variable),
            None => Ok(()),
        }
    }

    pub(super) fn add_variable(&mut self, variable: Variable) -> Parsed<VarId> {
        let id = u32::try_from(self.shared.module.variables.len()).map_err(|_| {
            ParseErrorKind::Limit { what: "number of variables", limit: u64::from(u32::MAX) }
        })?;
        self.shared.module.variables.push(variable);
        Ok(VarId(id))
    }

    /// What follows the name of a variable.
    pub(super) fn variable(
        &mut self,
        name: String,
        space: Space,
        linkage: Linkage,
        shape: Shape,
    ) -> Parsed<Variable> {
        let single = self.single(name, space, linkage, shape)?;
        let mut dimensions = self.dimensions()?;
        let open = dimensions.first() == Some(&0);
        let mut init = Initializer::default();
        if self.accept(b'=')? {
            if !matches!(space, Space::Global | Space::Const) {
                return operand_error("an initialiser outside of .global and .const");
            }
            init = self.initializer(shape, &mut dimensions)?;
        }
        let size_bytes = Self::array_bytes(shape.element_bytes(), &dimensions)?;
        let dynamic_shared = open && space == Space::Shared && linkage == Linkage::Extern;
        if open && size_bytes == 0 && linkage != Linkage::Extern && !dynamic_shared {
            return operand_error(format!("array {} has no bound", shorten(&single.name)));
        }
        Ok(Variable { size_bytes, dynamic_shared, init, ..single })
    }

    /// A variable of one element, which is not initialised.
    pub(super) fn single(
        &self,
        name: String,
        space: Space,
        linkage: Linkage,
        shape: Shape,
    ) -> Parsed<Variable> {
        if shape.ty == ScalarType::Pred {
            return operand_error("a predicate is not a variable");
        }
        Ok(Variable {
            name,
            space,
            linkage,
            align: shape.align(),
            size_bytes: u64::from(shape.element_bytes()),
            element_bytes: shape.element_bytes(),
            dynamic_shared: false,
            managed: shape.managed,
            init: Initializer::default(),
            line: self.line,
        })
    }
}

/// Joins a second declaration of a variable to the first.
fn merge_variable(old: &mut Variable, new: Variable) -> Parsed<()> {
    let error = || Err(ParseErrorKind::DuplicateName(shorten(&new.name).to_owned()));
    if old.space != new.space {
        return error();
    }
    let align = old.align.max(new.align);
    let size_bytes = old.size_bytes.max(new.size_bytes);
    let grows = old.linkage == Linkage::Common || new.linkage == Linkage::Common;
    match merge(old.linkage, new.linkage) {
        Merge::KeepOld => {}
        Merge::TakeNew => *old = new,
        Merge::Conflict => return error(),
    }
    old.align = align;
    if grows {
        old.size_bytes = size_bytes;
    }
    Ok(())
}
