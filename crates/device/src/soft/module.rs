//! Loading a module: link, place its variables, lower its code.

use std::collections::HashMap;
use std::sync::Arc;

use weft_ptx::ir::{Function, Module, ParamPlace, Space, Symbol, VarId, Variable};

use super::engine::address::{LOCAL_WINDOW, SHARED_WINDOW};
use super::engine::handler::Level;
use super::engine::lower::{Layout, lower};
use super::engine::program::{Kernel, Program};
use super::engine::uses;
use super::info::THREADS_MAX;
use super::memory::Memory;
use crate::{FunctionInfo, GlobalInfo, LoadError, ParamInfo};

/// A module on the device.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) program: Arc<Program>,
    pub(crate) functions: Vec<FunctionInfo>,
    pub(crate) globals: Vec<GlobalInfo>,
    /// Allocations of its variables.
    allocations: Vec<u64>,
}

impl Loaded {
    /// Frees the memory of its variables.
    pub(crate) fn unload(self, memory: &mut Memory) {
        for address in self.allocations {
            let freed = memory.free(address);
            debug_assert!(freed.is_ok(), "a module's variables are allocations");
        }
    }
}

/// Links and loads images.
pub(crate) fn load(
    images: &[&[u8]],
    memory: &mut Memory,
    level: Level,
) -> Result<Loaded, LoadError> {
    let mut texts = Vec::new();
    for image in images {
        texts.extend(read_image(image)?);
    }
    let module = weft_ptx::link(&texts).map_err(|e| link_error(&e))?;
    let mut allocations = Vec::new();
    let loaded = place_and_lower(&module, &texts, memory, level, &mut allocations);
    if loaded.is_err() {
        for address in allocations {
            let freed = memory.free(address);
            debug_assert!(freed.is_ok(), "a module's variables are allocations");
        }
    }
    loaded
}

fn read_image(image: &[u8]) -> Result<Vec<Vec<u8>>, LoadError> {
    use weft_ptx::image::ImageError;
    weft_ptx::image::read(image).map(|i| i.texts).map_err(|error| match error {
        ImageError::NoPtx => LoadError::NoBinary(error.to_string()),
        ImageError::Unknown | ImageError::Damaged(_) | ImageError::TooLarge => {
            LoadError::InvalidImage(error.to_string())
        }
    })
}

fn link_error(error: &weft_ptx::LinkError) -> LoadError {
    match error {
        weft_ptx::LinkError::Unresolved(_) => LoadError::Symbol(error.to_string()),
        weft_ptx::LinkError::Parse { .. } | weft_ptx::LinkError::TooManyTexts => {
            LoadError::InvalidPtx(error.to_string())
        }
    }
}

fn place_and_lower(
    module: &Module,
    texts: &[Vec<u8>],
    memory: &mut Memory,
    level: Level,
    allocations: &mut Vec<u64>,
) -> Result<Loaded, LoadError> {
    let mut layout = Layout::default();
    for space in [Space::Global, Space::Const] {
        place_space(module, space, memory, &mut layout, allocations)?;
    }
    let shared = SharedLayout::of(module);
    layout.addresses.extend(shared.offsets.iter().map(|(var, offset)| (*var, u64::from(*offset))));
    initialize(module, &layout, memory)?;
    let texts = texts.iter().map(|t| String::from_utf8_lossy(t).into_owned()).collect();
    let mut program =
        lower(module, &layout, texts, level).map_err(|e| LoadError::InvalidPtx(e.to_string()))?;
    let mut functions = Vec::new();
    for (id, function) in module.kernels() {
        let shared_bytes = shared.bytes.get(&id.0).copied().unwrap_or(0);
        let registers = program.functions.get(id.0 as usize).map_or(0, |f| f.rows32 + 2 * f.rows64);
        let info = function_info(module, function, shared_bytes, registers);
        program.kernels.push(Kernel { function: id.0, info: info.clone() });
        functions.push(info);
    }
    let globals = module_globals(module, &layout);
    let allocations = std::mem::take(allocations);
    Ok(Loaded { program: Arc::new(program), functions, globals, allocations })
}

/// Places all variables of a space in one allocation.
fn place_space(
    module: &Module,
    space: Space,
    memory: &mut Memory,
    layout: &mut Layout,
    allocations: &mut Vec<u64>,
) -> Result<(), LoadError> {
    let mut end = 0u64;
    let mut offsets = Vec::new();
    for (id, var) in variables(module, space) {
        end = end.next_multiple_of(u64::from(var.align.max(1)));
        offsets.push((id, end));
        end = end.saturating_add(var.size_bytes);
    }
    if offsets.is_empty() {
        return Ok(());
    }
    let base = memory.alloc(end.max(1))?;
    allocations.push(base);
    layout.addresses.extend(offsets.into_iter().map(|(id, offset)| (id, base + offset)));
    Ok(())
}

fn variables(module: &Module, space: Space) -> impl Iterator<Item = (VarId, &Variable)> {
    (0u32..).map(VarId).zip(&module.variables).filter(move |(_, v)| v.space == space)
}

fn initialize(module: &Module, layout: &Layout, memory: &Memory) -> Result<(), LoadError> {
    for (id, var) in (0u32..).map(VarId).zip(&module.variables) {
        if var.space == Space::Shared {
            continue;
        }
        let base = layout.address(id);
        memory.write(base, &var.init.bytes)?;
        for relocation in &var.init.relocations {
            let window = match relocation.symbol {
                Symbol::Variable(to) if relocation.generic => {
                    module.variable(to).map_or(0, |v| window_of(v.space))
                }
                Symbol::Variable(_) | Symbol::Function(_) => 0,
            };
            let target = layout
                .symbol(relocation.symbol)
                .wrapping_add(relocation.addend.cast_unsigned())
                .wrapping_add(window);
            let bytes = (target >> (8 * u32::from(relocation.first_byte % 8))).to_le_bytes();
            let count = usize::from(relocation.bytes.min(8));
            memory.write(base.wrapping_add(relocation.offset), &bytes[..count])?;
        }
    }
    Ok(())
}

fn window_of(space: Space) -> u64 {
    match space {
        Space::Shared => SHARED_WINDOW,
        Space::Local => LOCAL_WINDOW,
        Space::Generic | Space::Global | Space::Const | Space::Param => 0,
    }
}

fn module_globals(module: &Module, layout: &Layout) -> Vec<GlobalInfo> {
    (0u32..)
        .map(VarId)
        .zip(&module.variables)
        .filter(|(_, v)| matches!(v.space, Space::Global | Space::Const))
        .map(|(id, v)| GlobalInfo {
            name: v.name.clone(),
            address: layout.address(id),
            bytes: v.size_bytes,
        })
        .collect()
}

fn function_info(
    module: &Module,
    function: &Function,
    shared_bytes: u32,
    registers: u32,
) -> FunctionInfo {
    let params = function
        .params
        .iter()
        .map(|p| ParamInfo {
            offset: match p.place {
                ParamPlace::Offset(offset) => offset,
                ParamPlace::Register(_) => 0,
            },
            size: p.size_bytes,
        })
        .collect();
    let bounds = &function.bounds;
    let limit = bounds.max_threads.or(bounds.required_threads);
    let const_bytes: u64 = variables(module, Space::Const).map(|(_, v)| v.size_bytes).sum();
    FunctionInfo {
        name: function.name.clone(),
        params,
        param_bytes: function.param_bytes,
        shared_bytes,
        local_bytes: function.frame_bytes,
        const_bytes: u32::try_from(const_bytes).unwrap_or(u32::MAX),
        registers: registers.clamp(16, 64),
        max_threads: limit
            .map(|[x, y, z]| x.saturating_mul(y).saturating_mul(z))
            .map_or(THREADS_MAX, |n| n.clamp(1, THREADS_MAX)),
        required_block: bounds.required_threads,
        ptx_version: module.version.0 * 10 + module.version.1,
    }
}

/// Shared variables of a size known now.
fn statics(module: &Module) -> impl Iterator<Item = (VarId, &Variable)> {
    variables(module, Space::Shared).filter(|(_, var)| !var.dynamic_shared)
}

/// Offsets of shared variables. Variables that no kernel uses together may overlap.
#[derive(Debug, Default)]
struct SharedLayout {
    offsets: HashMap<VarId, u32>,
    /// Static shared memory of each kernel, by function.
    bytes: HashMap<u32, u32>,
}

/// Most comparisons of variables for a tight layout.
const COMPARISONS_MAX: usize = 1 << 24;

impl SharedLayout {
    fn of(module: &Module) -> Self {
        let mut layout = Self::default();
        let Some(reach) = uses::shared_of_kernels(module) else {
            // Every kernel may use every variable.
            let end = layout.place_apart(module);
            layout.bytes.extend(module.kernels().map(|(id, _)| (id.0, end)));
            return layout;
        };
        let squares = reach.iter().map(|(_, used)| used.len().saturating_mul(used.len()));
        if squares.fold(0usize, usize::saturating_add) > COMPARISONS_MAX {
            layout.place_apart(module);
        } else {
            for (id, var) in statics(module) {
                let offset = layout.free_offset(module, &reach, id, var);
                layout.offsets.insert(id, offset);
            }
        }
        for (kernel, used) in &reach {
            let end = used.iter().filter_map(|id| layout.end_of(module, *id)).max().unwrap_or(0);
            layout.bytes.insert(*kernel, end);
        }
        layout
    }

    /// Places all variables one behind the other; where the last ends.
    fn place_apart(&mut self, module: &Module) -> u32 {
        let mut end = 0u32;
        for (id, var) in statics(module) {
            let at = end.checked_next_multiple_of(var.align.max(1)).unwrap_or(u32::MAX);
            self.offsets.insert(id, at);
            end = at.saturating_add(u32::try_from(var.size_bytes).unwrap_or(u32::MAX));
        }
        end
    }

    fn end_of(&self, module: &Module, id: VarId) -> Option<u32> {
        let size = u32::try_from(module.variable(id)?.size_bytes).unwrap_or(u32::MAX);
        Some(self.offsets.get(&id)?.saturating_add(size))
    }

    /// The lowest place that overlaps no variable used by a common kernel.
    fn free_offset(
        &self,
        module: &Module,
        reach: &[(u32, std::collections::BTreeSet<VarId>)],
        id: VarId,
        var: &Variable,
    ) -> u32 {
        let mut taken: Vec<(u32, u32)> = reach
            .iter()
            .filter(|(_, used)| used.contains(&id))
            .flat_map(|(_, used)| used)
            .filter_map(|other| Some((*self.offsets.get(other)?, self.end_of(module, *other)?)))
            .collect();
        taken.sort_unstable();
        let size = u32::try_from(var.size_bytes).unwrap_or(u32::MAX);
        let align = var.align.max(1);
        let mut at = 0u32;
        for (start, end) in taken {
            if at.saturating_add(size) <= start {
                break;
            }
            at = at.max(end).checked_next_multiple_of(align).unwrap_or(u32::MAX);
        }
        at
    }
}
