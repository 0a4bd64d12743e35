//! Functions: headers, declarations inside of bodies, statements.

use super::directive::Shape;
use super::modifiers::Modifiers;
use super::scope::{Body, Name, Ranged};
use super::{MAX_FRAME_BYTES, MAX_KERNEL_PARAM_BYTES, Parsed, Parser, operand_error, shorten};
use crate::error::ParseErrorKind;
use crate::ir::{
    FuncId, Function, FunctionKind, Instr, LaunchBounds, Linkage, Local, Param, ParamPlace,
    Prototype, Reg, Slot, Space, Symbol, VarId, Width,
};
use crate::layout;
use crate::lexer::Token;
use crate::linker::{Merge, merge};

/// Whose parameters a list declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParamList {
    /// Of a kernel: in the parameter buffer.
    Kernel,
    /// Of a device function: in its frame.
    Device,
    /// Of a prototype: nowhere.
    Prototype,
}

impl<'a> Parser<'a> {
    /// The rest of `.entry …` or `.func …`.
    pub(super) fn function(&mut self, kernel: bool, linkage: Linkage) -> Parsed<()> {
        let kind = if kernel { FunctionKind::Kernel } else { FunctionKind::Device };
        let line = self.line;
        self.body = Body::new("", kind);
        let mut noreturn = false;
        if self.accept_dotted("attribute")? {
            self.attributes()?;
        }
        noreturn |= self.accept_dotted("noreturn")?;
        let list = if kernel { ParamList::Kernel } else { ParamList::Device };
        let returns = if !kernel && self.at(b'(') { self.params(list)? } else { Vec::new() };
        let name = self.word()?;
        self.body.name = name;
        let params = if self.at(b'(') { self.params(list)? } else { Vec::new() };
        let mut function = Function {
            name: name.to_owned(),
            kind,
            linkage,
            param_bytes: if kernel { param_bytes(&params)? } else { 0 },
            params,
            returns,
            registers: Vec::new(),
            locals: Vec::new(),
            frame_bytes: 0,
            frame_align: 8,
            body: None,
            prototypes: Vec::new(),
            bounds: LaunchBounds::default(),
            noreturn,
            line,
            text: self.shared.text,
        };
        self.performance(&mut function)?;
        let id = self.declare_function(name, &function)?;
        if self.accept(b';')? {
            return Ok(());
        }
        self.define(id, function)
    }

    /// `.maxntid 256 .noreturn …` between the header and the body.
    fn performance(&mut self, function: &mut Function) -> Parsed<()> {
        while let Token::Dotted(name) = self.token {
            self.advance()?;
            let bounds = &mut function.bounds;
            match name {
                "maxntid" => bounds.max_threads = Some(self.triple()?),
                "reqntid" => bounds.required_threads = Some(self.triple()?),
                "minnctapersm" | "maxnctapersm" => {
                    bounds.min_blocks_per_sm = Some(self.int_u32()?);
                }
                "maxnreg" => bounds.max_registers = Some(self.int_u32()?),
                "noreturn" => function.noreturn = true,
                "reqnctapercluster" => {
                    if self.triple()? != [1; 3] {
                        let what = "thread block clusters".to_owned();
                        return Err(ParseErrorKind::Unsupported(what));
                    }
                }
                "maxclusterrank" | "abi_preserve" | "abi_preserve_control" => {
                    self.int()?;
                }
                "explicitcluster" | "blocksareclusters" => {
                    let what = "thread block clusters".to_owned();
                    return Err(ParseErrorKind::Unsupported(what));
                }
                "pragma" | "loc" => self.debug(name)?,
                _ => {
                    return Err(ParseErrorKind::UnknownDirective(format!(".{}", shorten(name))));
                }
            }
        }
        Ok(())
    }

    fn triple(&mut self) -> Parsed<[u32; 3]> {
        let mut all = [self.int_u32()?, 1, 1];
        for place in all.iter_mut().skip(1) {
            if !self.accept(b',')? {
                break;
            }
            *place = self.int_u32()?;
        }
        Ok(all)
    }

    /// Registers the name; a definition after a declaration keeps the id.
    fn declare_function(&mut self, name: &'a str, function: &Function) -> Parsed<FuncId> {
        let linkage = function.linkage;
        match self.known(name, linkage) {
            Some(Symbol::Function(id)) => {
                let Some(old) = self.function_mut(id) else { return Ok(id) };
                if !layout::same_signature(old, function) {
                    return operand_error(format!("{} has another signature", shorten(name)));
                }
                if !old.is_defined() && matches!(old.linkage, Linkage::Extern | Linkage::Static) {
                    old.linkage = linkage;
                }
                self.export(name, linkage, Symbol::Function(id));
                Ok(id)
            }
            Some(Symbol::Variable(_)) => {
                Err(ParseErrorKind::DuplicateName(shorten(name).to_owned()))
            }
            None => {
                let count = self.shared.module.functions.len();
                let id = u32::try_from(count).map_err(|_| ParseErrorKind::Limit {
                    what: "number of functions",
                    limit: u64::from(u32::MAX),
                })?;
                let symbol = Symbol::Function(FuncId(id));
                self.shared.module.functions.push(function.clone());
                self.declare(name.into(), symbol)?;
                self.export(name, linkage, symbol);
                Ok(FuncId(id))
            }
        }
    }

    fn function_mut(&mut self, id: FuncId) -> Option<&mut Function> {
        self.shared.module.functions.get_mut(usize::try_from(id.0).ok()?)
    }

    fn define(&mut self, id: FuncId, mut function: Function) -> Parsed<()> {
        let text = self.shared.text;
        let old = self.function_mut(id).filter(|old| old.is_defined());
        let merge = old.map_or(Merge::TakeNew, |old| {
            if old.text == text { Merge::Conflict } else { merge(old.linkage, function.linkage) }
        });
        if merge == Merge::Conflict {
            return Err(ParseErrorKind::DuplicateName(shorten(&function.name).to_owned()));
        }
        self.expect(b'{')?;
        self.body.param_bytes = function.param_bytes;
        self.block()?;
        self.close_scope()?;
        let body = std::mem::replace(&mut self.body, Body::new("", FunctionKind::Device));
        function.registers = body.registers;
        function.locals = body.locals;
        function.prototypes = body.prototypes;
        function.frame_align = body.frame_align;
        function.frame_bytes = body.frame_bytes.next_multiple_of(body.frame_align);
        function.body = Some(body.instructions);
        function.text = text;
        if merge == Merge::TakeNew
            && let Some(place) = self.function_mut(id)
        {
            *place = function;
        }
        Ok(())
    }

    /// Statements up to the closing brace, nested blocks included.
    fn block(&mut self) -> Parsed<()> {
        let mut depth = 0u32;
        loop {
            self.begin_statement();
            match self.token {
                Token::Punct(b'}') => {
                    self.advance()?;
                    if depth == 0 {
                        return Ok(());
                    }
                    self.close_scope()?;
                    depth -= 1;
                }
                Token::Punct(b'{') => {
                    self.advance()?;
                    self.body.open()?;
                    depth += 1;
                }
                Token::Punct(b';') => {
                    self.advance()?;
                }
                Token::Dotted(name) => {
                    self.advance()?;
                    self.declaration(name)?;
                }
                Token::Punct(b'@') | Token::Word(_) => self.statement()?,
                _ => return self.error("a statement"),
            }
        }
    }

    /// A label or an instruction.
    fn statement(&mut self) -> Parsed<()> {
        let guard = if self.accept(b'@')? { Some(self.guard()?) } else { None };
        self.body.guard = guard;
        let word = self.word()?;
        if guard.is_none() && self.accept(b':')? {
            return match self.token {
                Token::Dotted("callprototype") => self.prototype(word),
                Token::Dotted("branchtargets" | "calltargets") => self.targets(word),
                _ => self.body.label(word),
            };
        }
        let line = self.line;
        let mut modifiers = Modifiers::new(word);
        while let Token::Dotted(item) = self.token {
            self.advance()?;
            modifiers.push(item)?;
        }
        let op = self.instruction(&mut modifiers)?;
        if !self.at(b';') {
            return self.error("`;`");
        }
        self.advance()?;
        self.body.instructions.push(Instr { guard, op, line });
        Ok(())
    }

    fn declaration(&mut self, name: &'a str) -> Parsed<()> {
        match name {
            "reg" => self.registers(),
            "local" | "param" => self.frame_variables(name == "param"),
            "shared" => self.hoist(Space::Shared, Linkage::Static),
            "global" => self.hoist(Space::Global, Linkage::Static),
            "const" => self.hoist(Space::Const, Linkage::Static),
            "extern" => {
                if !self.accept_dotted("shared")? {
                    return self.error("`.shared`");
                }
                self.hoist(Space::Shared, Linkage::Extern)
            }
            "loc" | "file" | "pragma" | "section" => self.debug(name),
            "callprototype" | "branchtargets" | "calltargets" => self.error("a label before it"),
            _ => Err(ParseErrorKind::UnknownDirective(format!(".{}", shorten(name)))),
        }
    }

    /// `.reg .b32 %r<100>, %a;`
    fn registers(&mut self) -> Parsed<()> {
        let shape = self.shape()?;
        let width = shape.ty.width();
        let lanes = u8::try_from(shape.vector).unwrap_or(1);
        loop {
            let name = self.word()?;
            if self.accept(b'<')? {
                let count = self.int_u32()?;
                self.expect(b'>')?;
                self.body.declare_range(name, count, Ranged::Registers { width, lanes })?;
            } else if lanes > 1 {
                let first = self.body.new_vector(width, lanes)?;
                self.body.declare(name, Name::Vector(first, lanes))?;
            } else {
                let reg = self.body.new_register(width)?;
                self.body.declare(name, Name::Reg(reg))?;
            }
            if !self.accept(b',')? {
                return self.expect(b';');
            }
        }
    }

    /// `.local` variables, and `.param` ones at call sites.
    fn frame_variables(&mut self, param: bool) -> Parsed<()> {
        let shape = self.shape()?;
        loop {
            let name = self.word()?;
            let slot = if self.accept(b'<')? {
                self.frame_range(name, shape, param)?
            } else {
                let dimensions = self.dimensions()?;
                let bytes = Self::array_bytes(shape.element_bytes(), &dimensions)?;
                let slot = self.body.reserve(frame_bytes(bytes)?, shape.align())?;
                let element_bytes = shape.element_bytes();
                self.body.declare(name, Name::Frame { slot, param, element_bytes })?;
                slot
            };
            if !param {
                let (offset, size_bytes) = (slot.offset, slot.bytes);
                self.body.locals.push(Local { name: name.to_owned(), offset, size_bytes });
            }
            if !self.accept(b',')? {
                return self.expect(b';');
            }
        }
    }

    /// The rest of `.param .u64 %P<2>`.
    fn frame_range(&mut self, name: &'a str, shape: Shape, param: bool) -> Parsed<Slot> {
        let count = self.int_u32()?;
        self.expect(b'>')?;
        let bytes = shape.element_bytes().next_multiple_of(shape.align());
        let all = frame_bytes(u64::from(bytes).saturating_mul(u64::from(count)))?;
        let slot = self.body.reserve(all, shape.align())?;
        let of = Ranged::Frame { first_offset: slot.offset, bytes, param };
        self.body.declare_range(name, count, of)?;
        Ok(slot)
    }

    /// A variable of function scope that all threads or blocks share.
    fn hoist(&mut self, space: Space, linkage: Linkage) -> Parsed<()> {
        let shape = self.shape()?;
        loop {
            let name = self.word()?;
            self.hoisted += 1;
            // Names have no bound, and that of the function stands in those of all its variables.
            let (function, short) = (shorten(self.body.name), shorten(name));
            let full = format!("{function}${}${short}", self.hoisted);
            if self.accept(b'<')? {
                let count = self.range(&full)?;
                let mut first = None;
                for member in 0..count {
                    let variable = self.single(format!("{full}{member}"), space, linkage, shape)?;
                    let id = self.add_variable(variable)?;
                    first.get_or_insert(id);
                }
                let of = Ranged::Variables { first: first.unwrap_or(VarId(0)) };
                self.body.declare_range(name, count, of)?;
            } else {
                let variable = self.variable(full, space, linkage, shape)?;
                let id = self.add_variable(variable)?;
                self.body.declare(name, Name::Variable(id))?;
            }
            if !self.accept(b',')? {
                return self.expect(b';');
            }
        }
    }

    /// `(.param .u64 a, .param .align 8 .b8 b[16])`
    fn params(&mut self, list: ParamList) -> Parsed<Vec<Param>> {
        self.expect(b'(')?;
        let mut all = Vec::new();
        if self.accept(b')')? {
            return Ok(all);
        }
        let mut end = 0;
        loop {
            self.param(list, &mut end, &mut all)?;
            if !self.accept(b',')? {
                self.expect(b')')?;
                return Ok(all);
            }
        }
    }

    /// One parameter; a vector of registers is as many as it has elements.
    fn param(&mut self, list: ParamList, end: &mut u32, all: &mut Vec<Param>) -> Parsed<()> {
        self.accept_dotted("const")?;
        let register = self.accept_dotted("reg")?;
        if !register && !self.accept_dotted("param")? {
            return self.error("`.param` or `.reg`");
        }
        let shape = self.shape()?;
        let pointer = if self.accept_dotted("ptr")? { Some(self.pointer()?) } else { None };
        let name = self.word()?;
        let dimensions = self.dimensions()?;
        let size_bytes = frame_bytes(Self::array_bytes(shape.element_bytes(), &dimensions)?)?;
        let align = shape.align();
        if register && shape.ty.width() == Width::B128 {
            return Err(ParseErrorKind::Unsupported("parameter register of 128 bits".to_owned()));
        }
        if register && shape.vector > 1 {
            return self.param_vector(list, name, shape, all);
        }
        let place = if register {
            let reg = self.body.new_register(shape.ty.width())?;
            self.declare_param(list, name, Name::Reg(reg))?;
            ParamPlace::Register(reg)
        } else {
            let slot = match list {
                ParamList::Kernel => layout::append(end, size_bytes, align).ok_or_else(too_long)?,
                ParamList::Device => self.body.reserve(size_bytes, align)?,
                ParamList::Prototype => Slot { offset: 0, bytes: size_bytes },
            };
            let element_bytes = shape.element_bytes();
            let value = match list {
                ParamList::Kernel => Name::KernelParam { slot, element_bytes },
                ParamList::Device | ParamList::Prototype => {
                    Name::Frame { slot, param: true, element_bytes }
                }
            };
            self.declare_param(list, name, value)?;
            ParamPlace::Offset(slot.offset)
        };
        let name = name.to_owned();
        all.push(Param { name, ty: shape.ty, size_bytes, align, place, pointer });
        Ok(())
    }

    /// `.reg .v2 .u32 pair`
    fn param_vector(
        &mut self,
        list: ParamList,
        name: &'a str,
        shape: Shape,
        all: &mut Vec<Param>,
    ) -> Parsed<()> {
        let lanes = u8::try_from(shape.vector).unwrap_or(1);
        let first = self.body.new_vector(shape.ty.width(), lanes)?;
        self.declare_param(list, name, Name::Vector(first, lanes))?;
        let bytes = shape.ty.bytes();
        all.extend((0..u32::from(lanes)).map(|lane| Param {
            name: name.to_owned(),
            ty: shape.ty,
            size_bytes: bytes,
            align: bytes,
            place: ParamPlace::Register(Reg(first.0 + lane)),
            pointer: None,
        }));
        Ok(())
    }

    fn declare_param(&mut self, list: ParamList, name: &'a str, value: Name<'a>) -> Parsed<()> {
        if list == ParamList::Prototype || name == "_" {
            return Ok(());
        }
        self.body.declare(name, value)
    }

    /// `.ptr .global .align 4`: the rest after `.ptr`.
    fn pointer(&mut self) -> Parsed<(Space, u32)> {
        let mut pointer = (Space::Generic, 4);
        while let Token::Dotted(name) = self.token {
            self.advance()?;
            match super::modifiers::space(name) {
                Some(space) => pointer.0 = space,
                None if name == "align" => pointer.1 = self.alignment()?,
                None => {
                    return Err(ParseErrorKind::UnknownDirective(format!(".{}", shorten(name))));
                }
            }
        }
        Ok(pointer)
    }

    /// `label: .callprototype (.param .b32 _) _ (.param .b64 _);`
    fn prototype(&mut self, label: &'a str) -> Parsed<()> {
        self.advance()?;
        // Registers of the list belong to no one; they must not widen the function.
        let registers = self.body.registers.len();
        let returns = if self.at(b'(') { self.params(ParamList::Prototype)? } else { Vec::new() };
        self.word()?;
        let params = if self.at(b'(') { self.params(ParamList::Prototype)? } else { Vec::new() };
        self.body.registers.truncate(registers);
        while let Token::Dotted(name) = self.token {
            self.advance()?;
            match name {
                "noreturn" => {}
                "abi_preserve" | "abi_preserve_control" => {
                    self.int()?;
                }
                _ => {
                    return Err(ParseErrorKind::UnknownDirective(format!(".{}", shorten(name))));
                }
            }
        }
        self.expect(b';')?;
        let sizes = |all: &[Param]| all.iter().map(|p| (p.size_bytes, p.align)).collect();
        let index = u32::try_from(self.body.prototypes.len()).unwrap_or(u32::MAX);
        let prototype = Prototype { returns: sizes(&returns), params: sizes(&params) };
        self.body.prototypes.push(prototype);
        self.body.declare(label, Name::Prototype(index))
    }

    /// `label: .branchtargets a, b;` and `.calltargets`.
    fn targets(&mut self, label: &'a str) -> Parsed<()> {
        let calls = self.dotted()? == "calltargets";
        let mut all = Vec::new();
        loop {
            all.push(self.word()?);
            if !self.accept(b',')? {
                break;
            }
        }
        self.expect(b';')?;
        let value = if calls { Name::Calls(all.into()) } else { Name::Branches(all.into()) };
        self.body.declare(label, value)
    }
}

fn frame_bytes(bytes: u64) -> Parsed<u32> {
    u32::try_from(bytes).ok().filter(|&b| b <= MAX_FRAME_BYTES).ok_or_else(|| {
        ParseErrorKind::Limit {
            what: "size of a local variable or parameter",
            limit: u64::from(MAX_FRAME_BYTES),
        }
    })
}

fn too_long() -> ParseErrorKind {
    let limit = u64::from(MAX_KERNEL_PARAM_BYTES);
    ParseErrorKind::Limit { what: "size of the parameters", limit }
}

fn param_bytes(params: &[Param]) -> Parsed<u32> {
    let end = layout::end(params).ok_or_else(too_long)?;
    if end > MAX_KERNEL_PARAM_BYTES { Err(too_long()) } else { Ok(end) }
}
