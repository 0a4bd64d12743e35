//! Devices: everything is known from the welcome, so nothing here crosses to the worker.

use weft_wire::Status;

use crate::client::Client;

/// Attributes that follow from others of the welcome.
mod attribute {
    pub(super) const CAPABILITY_MAJOR: u32 = 75;
    pub(super) const CAPABILITY_MINOR: u32 = 76;
}

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
        i32::from(self.devices)
    }

    /// The `CUdevice` of an ordinal: the ordinal itself.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_get(&self, ordinal: i32) -> Result<i32, Status> {
        self.ordinal(ordinal).map(i32::from)
    }

    /// Checks a `CUdevice`.
    pub(crate) fn ordinal(&self, device: i32) -> Result<u8, Status> {
        u8::try_from(device).ok().filter(|d| *d < self.devices).ok_or(Status::INVALID_DEVICE)
    }

    /// A `CUdevice_attribute`; one that the device does not have reads as 0.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, or `INVALID_VALUE` for a number that no header knows.
    pub fn device_attribute(&self, number: u32, device: i32) -> Result<i32, Status> {
        /// Numbers from here on are not in any header.
        const ATTRIBUTE_END: u32 = 160;

        self.ordinal(device)?;
        if number == 0 || number >= ATTRIBUTE_END {
            return Err(Status::INVALID_VALUE);
        }
        Ok(self.attribute(number))
    }

    /// An attribute of the vGPU, 0 if it has none of that number.
    pub(crate) fn attribute(&self, number: u32) -> i32 {
        let capability = |value: u32| i32::try_from(value).unwrap_or(0);
        match number {
            attribute::CAPABILITY_MAJOR => capability(self.welcome.capability_major),
            attribute::CAPABILITY_MINOR => capability(self.welcome.capability_minor),
            other => self.attributes.get(&other).copied().unwrap_or(0),
        }
    }

    /// An attribute as a limit: `otherwise` where the vGPU does not state it.
    pub(crate) fn limit(&self, number: u32, otherwise: u32) -> u32 {
        let stated = self.attributes.get(&number).and_then(|value| u32::try_from(*value).ok());
        stated.filter(|limit| *limit > 0).unwrap_or(otherwise)
    }

    /// The device's name.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_name(&self, device: i32) -> Result<&str, Status> {
        self.ordinal(device)?;
        Ok(&self.welcome.device_name)
    }

    /// The vGPU's identity.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_uuid(&self, device: i32) -> Result<[u8; 16], Status> {
        self.ordinal(device)?;
        Ok(self.welcome.uuid)
    }

    /// The vGPU's memory quota, in bytes.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_total_mem(&self, device: i32) -> Result<u64, Status> {
        self.ordinal(device)?;
        Ok(self.welcome.memory_bytes)
    }

    /// Compute capability, major and minor.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_compute_capability(&self, device: i32) -> Result<(i32, i32), Status> {
        self.ordinal(device)?;
        Ok((
            self.attribute(attribute::CAPABILITY_MAJOR),
            self.attribute(attribute::CAPABILITY_MINOR),
        ))
    }

    /// A PCI address as text. It is made up from the vGPU's identity: a vGPU sits on no bus.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_pci_bus_id(&self, device: i32) -> Result<String, Status> {
        self.ordinal(device)?;
        let (domain, bus, slot) = self.pci_address();
        Ok(format!("{domain:04x}:{bus:02x}:{slot:02x}.0"))
    }

    /// The device with that PCI address.
    ///
    /// # Errors
    /// `INVALID_DEVICE` when no visible device has it.
    pub fn device_by_pci_bus_id(&self, text: &str) -> Result<i32, Status> {
        let wanted = text.trim().to_ascii_lowercase();
        let wanted = wanted.strip_suffix(".0").unwrap_or(&wanted);
        let (domain, bus, slot) = self.pci_address();
        let own = [format!("{domain:04x}:{bus:02x}:{slot:02x}"), format!("{bus:02x}:{slot:02x}")];
        if self.devices > 0 && own.iter().any(|own| own == wanted) {
            return Ok(0);
        }
        Err(Status::INVALID_DEVICE)
    }

    fn pci_address(&self) -> (i32, i32, i32) {
        const PCI_BUS: u32 = 33;
        const PCI_DEVICE: u32 = 34;
        const PCI_DOMAIN: u32 = 50;
        (self.attribute(PCI_DOMAIN), self.attribute(PCI_BUS), self.attribute(PCI_DEVICE))
    }

    /// The properties of the old `cuDeviceGetProperties`.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_properties(&self, device: i32) -> Result<DeviceProperties, Status> {
        self.ordinal(device)?;
        let of = |number| self.attribute(number);
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

    /// Whether one device could access the other's memory: there is only one.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device_can_access_peer(&self, device: i32, peer: i32) -> Result<bool, Status> {
        self.ordinal(device)?;
        self.ordinal(peer)?;
        Ok(false)
    }
}
