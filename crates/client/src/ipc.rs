//! Device memory that several processes of one vGPU use.

use std::collections::BTreeMap;

use weft_wire::reply::{Imported, MemoryKey};
use weft_wire::{Command, Status};

use crate::client::{Client, lock};
use crate::handle::Context;
use crate::pointer::{Range, RangeKind};

/// What is open of other processes' memory, by its key.
#[derive(Debug, Default)]
pub(crate) struct Imports(BTreeMap<[u8; 16], Import>);

#[derive(Debug, Clone, Copy)]
struct Import {
    address: u64,
    context: Context,
    /// How often it was opened.
    opened: usize,
}

impl Client {
    /// A key under which other processes of the vGPU can open the allocation that holds `address`.
    ///
    /// # Errors
    /// `INVALID_VALUE` for anything but memory of `cuMemAlloc`, `NOT_SUPPORTED` by the device,
    /// `OUT_OF_MEMORY` beyond the node's bound on such memory.
    pub fn mem_export(&self, address: u64) -> Result<[u8; 16], Status> {
        self.current()?;
        let range = self.pointer_range(address)?;
        if range.kind != RangeKind::Device {
            return Err(Status::INVALID_VALUE);
        }
        let session = self.home(range.context)?;
        let MemoryKey { key } = session.call_for(&Command::MemExport { address: range.start })?;
        Ok(key)
    }

    /// Opens another process's allocation; its address in this process.
    ///
    /// # Errors
    /// `INVALID_HANDLE` when no other living session of the vGPU exports it, `OUT_OF_MEMORY`.
    pub fn mem_import(&self, key: [u8; 16]) -> Result<u64, Status> {
        let context = self.current()?;
        let session = &context.session;
        let mut imports = lock(&session.imports);
        imports.0.retain(|_, import| self.contexts.get(import.context).is_some());
        if let Some(import) = imports.0.get_mut(&key) {
            if import.context != context.handle {
                return Err(Status::ALREADY_MAPPED);
            }
            import.opened += 1;
            return Ok(import.address);
        }
        let Imported { address, bytes, number: _ } =
            session.call_for(&Command::MemImport { context: context.id, key })?;
        let (kind, number) = (RangeKind::Imported, self.number());
        self.ranges.insert(Range { start: address, bytes, kind, context: context.handle, number });
        imports.0.insert(key, Import { address, context: context.handle, opened: 1 });
        Ok(address)
    }

    /// Closes what [`Self::mem_import`] opened, as often as it was opened.
    ///
    /// # Errors
    /// `INVALID_VALUE` when nothing is open at `address`.
    pub fn mem_close(&self, address: u64) -> Result<(), Status> {
        let session = self.home(self.pointer_range(address)?.context)?;
        session.healthy()?;
        let mut imports = lock(&session.imports);
        let found = imports.0.iter_mut().find(|(_, import)| import.address == address);
        let (key, import) = found.ok_or(Status::INVALID_VALUE)?;
        import.opened -= 1;
        if import.opened > 0 {
            return Ok(());
        }
        let key = *key;
        imports.0.remove(&key);
        let imported = |range: &Range| range.kind == RangeKind::Imported;
        self.ranges.remove(address, imported).ok_or(Status::INVALID_VALUE)?;
        session.call(&Command::MemFree { address })
    }
}
