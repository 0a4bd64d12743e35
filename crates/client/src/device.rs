//! Devices: everything is known from the welcome, so nothing here crosses to the worker.

use std::sync::Arc;

use weft_wire::Status;

use crate::client::Client;
use crate::session::Session;

/// The properties of `cuDeviceGetProperties`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceProperties {
    /// Threads per block.
    pub max_threads_per_block: i32,
    /// Threads per block in x, y, z.
    pub max_threads_dim: [i32; 3],
    /// Blocks per grid in x, y, z.
    pub max_grid_size: [i32; 3],
    /// Shared memory per block, in bytes.
    pub shared_mem_per_block: i32,
    /// Constant memory, in bytes.
    pub total_constant_memory: i32,
    /// Threads of a warp.
    pub simd_width: i32,
    /// Largest pitch of a copy, in bytes.
    pub mem_pitch: i32,
    /// Registers per block.
    pub regs_per_block: i32,
    /// Clock in kHz.
    pub clock_rate: i32,
    /// Alignment of textures, in bytes.
    pub texture_align: i32,
}

impl Client {
    /// Devices that the program sees.
    #[must_use]
    pub fn device_count(&self) -> i32 {
        i32::try_from(self.sessions.len()).unwrap_or(i32::MAX)
    }

    /// The `CUdevice` of an ordinal: the ordinal itself.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_get(&self, ordinal: i32) -> Result<i32, Status> {
        self.device(ordinal).map(|session| i32::from(session.ordinal))
    }

    /// What a `CUdevice` is.
    pub(crate) fn device(&self, device: i32) -> Result<&Arc<Session>, Status> {
        self.session(u8::try_from(device).map_err(|_| Status::INVALID_DEVICE)?)
    }

    /// A `CUdevice_attribute`; one that the device does not have reads as 0.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, or `INVALID_VALUE` for a number that no header knows.
    pub fn device_attribute(&self, number: u32, device: i32) -> Result<i32, Status> {
        /// Numbers from here on are not in any header.
        const ATTRIBUTE_END: u32 = 160;

        let session = self.device(device)?;
        if number == 0 || number >= ATTRIBUTE_END {
            return Err(Status::INVALID_VALUE);
        }
        Ok(session.attribute(number))
    }

    /// The device's name.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_name(&self, device: i32) -> Result<&str, Status> {
        Ok(&self.device(device)?.welcome.device_name)
    }

    /// The vGPU's identity.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_uuid(&self, device: i32) -> Result<[u8; 16], Status> {
        Ok(self.device(device)?.welcome.uuid)
    }

    /// The vGPU's memory quota, in bytes.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_total_mem(&self, device: i32) -> Result<u64, Status> {
        Ok(self.device(device)?.welcome.memory_bytes)
    }

    /// Compute capability, major and minor.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_compute_capability(&self, device: i32) -> Result<(i32, i32), Status> {
        let welcome = &self.device(device)?.welcome;
        let number = |value: u32| i32::try_from(value).unwrap_or(0);
        Ok((number(welcome.capability_major), number(welcome.capability_minor)))
    }

    /// A PCI address as text. It is made up from the vGPU's identity: a vGPU sits on no bus.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_pci_bus_id(&self, device: i32) -> Result<String, Status> {
        let (domain, bus, slot) = self.device(device)?.pci_address();
        Ok(format!("{domain:04x}:{bus:02x}:{slot:02x}.0"))
    }

    /// The device with that PCI address.
    ///
    /// # Errors
    /// `INVALID_DEVICE` when no visible device has it.
    pub fn device_by_pci_bus_id(&self, text: &str) -> Result<i32, Status> {
        let wanted = text.trim().to_ascii_lowercase();
        let wanted = wanted.strip_suffix(".0").unwrap_or(&wanted);
        let is_meant = |session: &&Arc<Session>| {
            let (domain, bus, slot) = session.pci_address();
            let short = format!("{bus:02x}:{slot:02x}");
            wanted == short || wanted == format!("{domain:04x}:{short}")
        };
        let found = self.sessions.iter().find(is_meant).ok_or(Status::INVALID_DEVICE)?;
        Ok(i32::from(found.ordinal))
    }

    /// The properties of the old `cuDeviceGetProperties`.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_properties(&self, device: i32) -> Result<DeviceProperties, Status> {
        let session = self.device(device)?;
        let of = |number| session.attribute(number);
        Ok(DeviceProperties {
            max_threads_per_block: of(1),
            max_threads_dim: [of(2), of(3), of(4)],
            max_grid_size: [of(5), of(6), of(7)],
            shared_mem_per_block: of(8),
            total_constant_memory: of(9),
            simd_width: of(10),
            mem_pitch: of(11),
            regs_per_block: of(12),
            clock_rate: of(13),
            texture_align: of(14),
        })
    }

    /// Whether kernels of one device could access the other's memory: vGPUs are kept apart. Copies
    /// between them work.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_can_access_peer(&self, device: i32, peer: i32) -> Result<bool, Status> {
        self.device(device)?;
        self.device(peer)?;
        Ok(false)
    }
}
