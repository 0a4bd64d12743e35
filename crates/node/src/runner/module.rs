//! Modules: what is in an image, and how its kernels run in pieces.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use weft_client::{Client, Function, LoadFailure, Module as ModuleHandle};
use weft_ptx::image;
use weft_ptx::slice::{PieceKernel, rewrite};
use weft_tasks::protocol::KernelInfo;

/// `CUfunction_attribute`: most threads of a block, static shared memory in bytes.
const MAX_THREADS: i32 = 0;
const SHARED_BYTES: i32 = 1;

/// Where a kernel's parameter lies, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parameter {
    pub(super) offset: usize,
    pub(super) bytes: usize,
}

/// A kernel.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) name: String,
    pub(super) parameters: Vec<Parameter>,
    pub(super) param_bytes: usize,
    pub(super) threads_max: u32,
    pub(super) shared_bytes: u32,
    /// The block that it must be launched with.
    pub(super) required_block: Option<[u32; 3]>,
    /// Its copy that runs pieces, or why there is none.
    pub(super) piece: Result<PieceKernel, String>,
    /// What a thread block took lately, in ns; 0 before the first.
    block_ns: AtomicU64,
}

impl Kernel {
    /// What so many blocks should take, in ns; 0 if nothing is known.
    pub(super) fn estimate_ns(&self, blocks: u64) -> u64 {
        let thousandths = self.block_ns.load(Ordering::Relaxed);
        let ns = u128::from(thousandths) * u128::from(blocks) / 1000;
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// So many blocks took so long.
    pub(super) fn note(&self, blocks: u64, took_ns: u64) {
        let now = u128::from(took_ns) * 1000 / u128::from(blocks.max(1));
        let now = u64::try_from(now).unwrap_or(u64::MAX).max(1);
        let before = self.block_ns.load(Ordering::Relaxed);
        // A quarter of the way to the new value: one late piece says little.
        let next = if before == 0 { now } else { before - before / 4 + now / 4 };
        self.block_ns.store(next, Ordering::Relaxed);
    }

    pub(super) fn info(&self) -> KernelInfo {
        KernelInfo {
            name: self.name.clone(),
            parameters: self
                .parameters
                .iter()
                .map(|parameter| u32::try_from(parameter.bytes).unwrap_or(u32::MAX))
                .collect(),
            threads_max: self.threads_max,
            shared_bytes: self.shared_bytes,
            whole: self.piece.as_ref().err().cloned(),
        }
    }
}

/// An image with its symbols, independent of devices.
#[derive(Debug)]
pub(super) struct Module {
    /// No other module of the runner has it.
    pub(super) number: u64,
    /// What devices load: with piece kernels where there are any.
    pub(super) image: Vec<u8>,
    pub(super) kernels: BTreeMap<String, Kernel>,
}

/// What the text of an image tells before a device has seen it.
#[derive(Debug, Default)]
pub(super) struct Text {
    pieces: BTreeMap<String, Result<PieceKernel, String>>,
    blocks: BTreeMap<String, [u32; 3]>,
    why: String,
}

/// Reads an image, and adds piece kernels to it if it is a single text. What is wrong with an image
/// the device's own loader says, in its own words.
pub(super) fn prepare(bytes: Vec<u8>) -> (Vec<u8>, Text) {
    let why = |why: &str| Text { why: why.to_owned(), ..Text::default() };
    let texts = match image::read(&bytes) {
        Ok(image) => image.texts,
        Err(error) => return (bytes, why(&error.to_string())),
    };
    let [text] = texts.as_slice() else {
        return (bytes, why("its module has several texts"));
    };
    let (Ok(sliced), Ok(parsed)) = (rewrite(text), weft_ptx::parse(text)) else {
        return (bytes, why("its text is not understood"));
    };
    let blocks = parsed.kernels().filter_map(|(_, kernel)| {
        let required = kernel.bounds.required_threads?;
        Some((kernel.name.clone(), required))
    });
    let blocks = blocks.collect();
    let any = sliced.kernels.values().any(Result::is_ok);
    let pieces = sliced.kernels.into_iter();
    let pieces = pieces.map(|(name, piece)| (name, piece.map_err(|why| why.to_string())));
    let text = Text { pieces: pieces.collect(), blocks, why: String::new() };
    // Without piece kernels the device chooses among the image's parts itself.
    if any { (sliced.text, text) } else { (bytes, text) }
}

impl Module {
    /// The module that a device has loaded.
    pub(super) fn of(
        number: u64,
        image: Vec<u8>,
        text: &Text,
        client: &Client,
        loaded: ModuleHandle,
    ) -> Result<Self, LoadFailure> {
        let copies: Vec<&String> =
            text.pieces.values().flatten().map(|piece| &piece.name).collect();
        let mut kernels = BTreeMap::new();
        for function in client.module_functions(loaded, u32::MAX)? {
            let kernel = kernel(client, function, text)?;
            if !copies.contains(&&kernel.name) {
                kernels.insert(kernel.name.clone(), kernel);
            }
        }
        Ok(Self { number, image, kernels })
    }
}

fn kernel(client: &Client, function: Function, text: &Text) -> Result<Kernel, LoadFailure> {
    let state = client.function(function)?;
    let attribute = |number| {
        let value = client.function_attribute(function, number)?;
        Ok::<u32, LoadFailure>(u32::try_from(value).unwrap_or(0))
    };
    let parameters = state.params().iter().map(|parameter| Parameter {
        offset: parameter.offset as usize,
        bytes: parameter.size as usize,
    });
    let unknown = || Err(text.why.clone());
    Ok(Kernel {
        name: state.name().to_owned(),
        parameters: parameters.collect(),
        param_bytes: state.param_bytes() as usize,
        threads_max: attribute(MAX_THREADS)?,
        shared_bytes: attribute(SHARED_BYTES)?,
        required_block: text.blocks.get(state.name()).copied(),
        piece: text.pieces.get(state.name()).cloned().unwrap_or_else(unknown),
        block_ns: AtomicU64::new(0),
    })
}

/// The modules of one session, by their numbers.
#[derive(Debug, Default)]
pub(super) struct LoadedModules(Mutex<BTreeMap<u64, ModuleHandle>>);

impl LoadedModules {
    /// The module in this session.
    pub(super) fn find(
        &self,
        client: &Client,
        module: &Module,
    ) -> Result<ModuleHandle, LoadFailure> {
        if let Some(known) = super::lock(&self.0).get(&module.number) {
            return Ok(*known);
        }
        let loaded = client.module_load(&module.image)?;
        self.keep(module.number, loaded);
        Ok(loaded)
    }

    /// A module was loaded.
    pub(super) fn keep(&self, number: u64, loaded: ModuleHandle) {
        super::lock(&self.0).insert(number, loaded);
    }

    /// Unloads modules that nobody has any more.
    pub(super) fn sweep(&self, client: &Client, living: impl Fn(u64) -> bool) {
        super::lock(&self.0).retain(|number, handle| {
            // A session that is over has unloaded all of them.
            let lives = living(*number);
            if !lives {
                let _ = client.module_unload(*handle);
            }
            lives
        });
    }
}
