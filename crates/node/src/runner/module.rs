//! Modules: what is in an image, and how its kernels run in pieces.

use std::collections::BTreeMap;
use std::sync::Mutex;

use weft_client::{Client, Function, LoadFailure, Module as ModuleHandle};
use weft_ptx::image;
use weft_ptx::slice::{PieceKernel, rewrite};
use weft_ptx::state::written_variables;
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
    /// A variable of its module that it writes: then it is no task.
    pub(super) writes: Option<String>,
    /// What its thread blocks took lately.
    pub(super) times: BlockTimes,
}

/// What a thread block of a kernel took lately on each device that ran it, by the device's key, in
/// thousandths of a ns: devices of one pool need not be equally fast.
#[derive(Debug, Default)]
pub(super) struct BlockTimes(Mutex<BTreeMap<u32, u64>>);

impl BlockTimes {
    /// What so many blocks should take on a device, in ns; 0 if nothing is known of it there.
    pub(super) fn estimate_ns(&self, device: u32, blocks: u64) -> u64 {
        super::lock(&self.0).get(&device).map_or(0, |block| scaled_ns(*block, blocks))
    }

    /// What so many blocks should take on a device of which nobody knows yet which it will be, in
    /// ns: the mean of those that ran the kernel; 0 if none did.
    pub(super) fn anywhere_ns(&self, blocks: u64) -> u64 {
        let times = super::lock(&self.0);
        let sum = times.values().fold(0u64, |sum, block| sum.saturating_add(*block));
        sum.checked_div(times.len() as u64).map_or(0, |block| scaled_ns(block, blocks))
    }

    /// So many blocks took so long on a device, in ns.
    pub(super) fn note(&self, device: u32, blocks: u64, took_ns: u64) {
        let now = u128::from(took_ns) * 1000 / u128::from(blocks.max(1));
        let now = u64::try_from(now).unwrap_or(u64::MAX).max(1);
        let mut times = super::lock(&self.0);
        let block = times.entry(device).or_insert(now);
        // A quarter of the way to the new value: one late piece says little.
        *block = *block - *block / 4 + now / 4;
    }
}

fn scaled_ns(thousandths: u64, blocks: u64) -> u64 {
    let ns = u128::from(thousandths) * u128::from(blocks) / 1000;
    u64::try_from(ns).unwrap_or(u64::MAX)
}

impl Kernel {
    /// Why it is no task, if it writes a variable of its module.
    pub(super) fn stateful(&self) -> Option<String> {
        let (kernel, variable) = (&self.name, self.writes.as_ref()?);
        Some(format!(
            "kernel `{kernel}` writes `{variable}`, a variable of its module, which is not kept \
             between tasks nor between devices; pass a buffer instead"
        ))
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
    /// For kernels that write a variable of their module, its name.
    writes: BTreeMap<String, String>,
    why: String,
}

/// Reads an image, and adds piece kernels to it if it is a single text. What is wrong with an image
/// the device's own loader says, in its own words.
pub(super) fn prepare(bytes: Vec<u8>) -> (Vec<u8>, Text) {
    let texts = match image::read(&bytes) {
        Ok(image) => image.texts,
        Err(error) => {
            let why = error.to_string();
            return (bytes, Text { why, ..Text::default() });
        }
    };
    let modules: Vec<_> = texts.iter().filter_map(|text| weft_ptx::parse(text).ok()).collect();
    let writes: BTreeMap<_, _> = modules.iter().flat_map(written_variables).collect();
    let why = |why: &str| {
        let (why, writes) = (why.to_owned(), writes.clone());
        Text { writes, why, ..Text::default() }
    };
    let [text] = texts.as_slice() else {
        return (bytes, why("its module has several texts"));
    };
    let (Ok(sliced), [parsed]) = (rewrite(text), modules.as_slice()) else {
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
    let text = Text { pieces: pieces.collect(), blocks, writes, why: String::new() };
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

    /// Why none of its kernels is a task, if none is: in the words about the first one.
    pub(super) fn without_task(&self) -> Option<String> {
        let mut all = self.kernels.values().map(Kernel::stateful);
        let first = all.next()?;
        first.filter(|_| all.all(|why| why.is_some()))
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
        writes: text.writes.get(state.name()).cloned(),
        times: BlockTimes::default(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_fast_device_takes_says_nothing_of_a_slow_one() {
        let times = BlockTimes::default();
        assert_eq!((times.estimate_ns(0, 10), times.anywhere_ns(10)), (0, 0));
        times.note(0, 100, 1_000_000);
        assert_eq!(times.estimate_ns(0, 10), 100_000);
        // Nothing ran there: it begins with few blocks.
        assert_eq!(times.estimate_ns(1, 10), 0);
        times.note(1, 100, 9_000_000);
        assert_eq!([0, 1].map(|device| times.estimate_ns(device, 10)), [100_000, 900_000]);
        assert_eq!(times.anywhere_ns(10), 500_000);
        // One that is late is a quarter of the next estimate, of its device.
        times.note(0, 100, 5_000_000);
        assert_eq!([0, 1].map(|device| times.estimate_ns(device, 10)), [200_000, 900_000]);
    }

    #[test]
    fn kernels_that_write_variables_of_their_module_are_found_in_every_text() {
        let text = |name: &str| {
            let head = ".version 7.5\n.target sm_75\n.address_size 64\n.global .u32 calls;";
            format!("{head}\n.visible .entry {name}() {{ st.global.u32 [calls], 1; ret; }}")
        };
        let (_, found) = prepare(text("k").into_bytes());
        assert_eq!(found.writes, BTreeMap::from([("k".to_owned(), "calls".to_owned())]));
        let bundle = image::bundle(&[text("k"), text("l")]);
        let (_, found) = prepare(bundle);
        assert_eq!(found.writes.keys().collect::<Vec<_>>(), ["k", "l"]);
    }
}
