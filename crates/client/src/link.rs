//! The linker: collects inputs, and hands them out as one image.

use std::sync::{Arc, Mutex};

use weft_wire::{Status, container};

use crate::client::{Client, lock};
use crate::handle::Link;
use crate::module::{LoadFailure, unpack};

/// Most bytes of all inputs of one link.
const INPUT_BYTES_MAX: usize = 256 << 20;

/// First bytes of an archive of objects.
const ARCHIVE_MAGIC: &[u8] = b"!<arch>\n";

/// `CUjitInputType`: what an input is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkInput {
    /// PTX text.
    Ptx,
    /// A fatbin.
    Fatbin,
    /// Machine code of a device, or an object with it.
    MachineCode,
    /// An archive of such objects.
    Library,
}

impl LinkInput {
    /// The input type of a number of the header.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an unknown number, `NOT_SUPPORTED` for NVVM intermediate code.
    pub fn from_code(code: i32) -> Result<Self, Status> {
        match code {
            // CU_JIT_INPUT_CUBIN, _OBJECT
            0 | 3 => Ok(Self::MachineCode),
            // CU_JIT_INPUT_LIBRARY
            4 => Ok(Self::Library),
            // CU_JIT_INPUT_PTX
            1 => Ok(Self::Ptx),
            // CU_JIT_INPUT_FATBINARY
            2 => Ok(Self::Fatbin),
            // CU_JIT_INPUT_NVVM
            5 => Err(Status::NOT_SUPPORTED),
            _ => Err(Status::INVALID_VALUE),
        }
    }
}

/// A link in progress.
#[derive(Debug, Default)]
pub(crate) struct LinkState {
    inputs: Mutex<Inputs>,
    /// Most registers of a thread; 0 if any.
    registers: u32,
}

#[derive(Debug, Default)]
struct Inputs {
    images: Vec<Vec<u8>>,
    bytes: usize,
    complete: Option<Arc<[u8]>>,
}

impl Client {
    /// Begins a link in the current context.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`, `OUT_OF_MEMORY`.
    pub fn link_create(&self) -> Result<Link, Status> {
        self.link_create_limited(None)
    }

    /// The same; the linked kernels' threads have at most so many registers.
    ///
    /// # Errors
    /// As [`Self::link_create`].
    pub fn link_create_limited(&self, registers: Option<u32>) -> Result<Link, Status> {
        self.current()?;
        let registers = registers.unwrap_or(0);
        let state = || LinkState { inputs: Mutex::default(), registers };
        let made = self.links.insert(0, |_, _: Link| state());
        made.map(|(link, _)| link).map_err(|_| Status::OUT_OF_MEMORY)
    }

    /// Adds an input.
    ///
    /// # Errors
    /// `INVALID_HANDLE`, `INVALID_IMAGE` for nothing, `NO_BINARY_FOR_GPU` for machine code, which
    /// the device cannot run, `OUT_OF_MEMORY`.
    pub fn link_add(&self, link: Link, input: LinkInput, bytes: &[u8]) -> Result<(), Status> {
        let state = self.links.get(link).ok_or(Status::INVALID_HANDLE)?;
        let bytes = match input {
            // PTX comes with its final zeros.
            LinkInput::Ptx => {
                let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                bytes.get(..end).unwrap_or_default()
            }
            LinkInput::Fatbin => bytes,
            LinkInput::MachineCode | LinkInput::Library
                if container::container_bytes(bytes).is_some() =>
            {
                bytes
            }
            // A library gives what is used and defined nowhere else. Its machine code cannot run
            // here, so a link that needs none of it is good (the device has what programs want of
            // libcudadevrt), and any other fails with the symbol that is missing.
            LinkInput::Library if bytes.starts_with(ARCHIVE_MAGIC) => return Ok(()),
            LinkInput::MachineCode | LinkInput::Library => return Err(Status::NO_BINARY_FOR_GPU),
        };
        if bytes.is_empty() {
            return Err(Status::INVALID_IMAGE);
        }
        let mut inputs = lock(&state.inputs);
        let all = inputs.bytes.saturating_add(bytes.len());
        if all > INPUT_BYTES_MAX {
            return Err(Status::OUT_OF_MEMORY);
        }
        inputs.bytes = all;
        inputs.images.extend(unpack(bytes)?.into_iter().map(<[u8]>::to_vec));
        Ok(())
    }

    /// Links: loads the inputs on the worker to find their errors, and unloads them again. The
    /// image lives as long as the link.
    ///
    /// # Errors
    /// [`LoadFailure`] with the linker's log.
    pub fn link_complete(&self, link: Link) -> Result<Arc<[u8]>, LoadFailure> {
        let context = self.current()?;
        let state = self.links.get(link).ok_or(Status::INVALID_HANDLE)?;
        let mut inputs = lock(&state.inputs);
        if let Some(done) = &inputs.complete {
            return Ok(Arc::clone(done));
        }
        let images: Vec<&[u8]> = inputs.images.iter().map(Vec::as_slice).collect();
        if images.is_empty() {
            return Err(Status::INVALID_VALUE.into());
        }
        let trial = self.load_images(&context, &images, None)?;
        self.module_unload(trial.handle)?;
        let linked: Arc<[u8]> = container::pack_limited(images.into_iter(), state.registers).into();
        inputs.complete = Some(Arc::clone(&linked));
        Ok(linked)
    }

    /// Ends a link; its image goes with it.
    ///
    /// # Errors
    /// `INVALID_HANDLE`.
    pub fn link_destroy(&self, link: Link) -> Result<(), Status> {
        self.links.remove(link).map(|_| ()).ok_or(Status::INVALID_HANDLE)
    }
}
