//! Memory pools. The worker's allocator serves all of them; a pool is an account.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use weft_wire::Status;

use crate::client::{Client, lock};
use crate::handle::MemPool;

/// A pool's attributes by `CUmemPool_attribute`.
#[derive(Debug)]
pub(crate) struct PoolState {
    pub(crate) ordinal: u8,
    is_default: bool,
    reuse: [AtomicU64; 3],
    release_threshold: AtomicU64,
    used: AtomicU64,
    used_high: AtomicU64,
}

impl PoolState {
    pub(crate) fn account_alloc(&self, bytes: u64) {
        let used = self.used.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        self.used_high.fetch_max(used, Ordering::Relaxed);
    }

    pub(crate) fn account_free(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The default and the chosen pool of each device.
#[derive(Debug, Default)]
pub(crate) struct PoolChoice(Mutex<BTreeMap<u8, Chosen>>);

#[derive(Debug, Default)]
struct Chosen {
    default: Option<MemPool>,
    current: Option<MemPool>,
}

impl Client {
    /// Makes a pool.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `OUT_OF_MEMORY`.
    pub fn pool_create(&self, device: i32) -> Result<MemPool, Status> {
        let ordinal = self.device(device)?.ordinal;
        self.new_pool(ordinal, false)
    }

    fn new_pool(&self, ordinal: u8, is_default: bool) -> Result<MemPool, Status> {
        let one = || AtomicU64::new(1);
        let made = self.pools.insert(ordinal, |_, _: MemPool| PoolState {
            ordinal,
            is_default,
            reuse: [one(), one(), one()],
            release_threshold: AtomicU64::new(0),
            used: AtomicU64::new(0),
            used_high: AtomicU64::new(0),
        });
        made.map(|(pool, _)| pool).map_err(|_| Status::OUT_OF_MEMORY)
    }

    /// Destroys a pool; its allocations live on.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a stale or default pool.
    pub fn pool_destroy(&self, pool: MemPool) -> Result<(), Status> {
        let is_default = self.pools.with(pool, |state| state.is_default);
        if is_default.ok_or(Status::INVALID_VALUE)? {
            return Err(Status::INVALID_VALUE);
        }
        for chosen in lock(&self.pool_choice.0).values_mut() {
            chosen.current.take_if(|current| *current == pool);
        }
        self.pools.remove(pool).map(|_| ()).ok_or(Status::INVALID_VALUE)
    }

    /// The device's default pool.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `OUT_OF_MEMORY`.
    pub fn pool_default(&self, device: i32) -> Result<MemPool, Status> {
        let ordinal = self.device(device)?.ordinal;
        let mut choice = lock(&self.pool_choice.0);
        let chosen = choice.entry(ordinal).or_default();
        match chosen.default {
            Some(pool) => Ok(pool),
            None => {
                let pool = self.new_pool(ordinal, true)?;
                chosen.default = Some(pool);
                Ok(pool)
            }
        }
    }

    /// The pool that `cuMemAllocAsync` uses.
    ///
    /// # Errors
    /// As [`Client::pool_default`].
    pub fn pool_current(&self, device: i32) -> Result<MemPool, Status> {
        let ordinal = self.device(device)?.ordinal;
        let chosen = lock(&self.pool_choice.0).get(&ordinal).and_then(|chosen| chosen.current);
        chosen.map_or_else(|| self.pool_default(device), Ok)
    }

    /// Chooses the pool that `cuMemAllocAsync` uses.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `INVALID_VALUE` for a pool of another device.
    pub fn pool_set_current(&self, device: i32, pool: MemPool) -> Result<(), Status> {
        let ordinal = self.device(device)?.ordinal;
        let own = self.pools.with(pool, |state| state.ordinal == ordinal);
        if own != Some(true) {
            return Err(Status::INVALID_VALUE);
        }
        lock(&self.pool_choice.0).entry(ordinal).or_default().current = Some(pool);
        Ok(())
    }

    /// The device that a pool is of.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn pool_device(&self, pool: MemPool) -> Result<i32, Status> {
        self.pools.with(pool, |state| i32::from(state.ordinal)).ok_or(Status::INVALID_VALUE)
    }

    /// Gives unused memory back. The worker keeps none.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn pool_trim(&self, pool: MemPool) -> Result<(), Status> {
        self.pools.with(pool, |_| ()).ok_or(Status::INVALID_VALUE)
    }

    /// A `CUmemPool_attribute`: 1–3 are flags (0 or 1), 4–8 are bytes.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn pool_attribute(&self, pool: MemPool, attribute: u32) -> Result<u64, Status> {
        let state = self.pools.get(pool).ok_or(Status::INVALID_VALUE)?;
        let word = match attribute {
            1 => &state.reuse[0],
            2 => &state.reuse[1],
            3 => &state.reuse[2],
            4 => &state.release_threshold,
            5 | 7 => &state.used,
            6 | 8 => &state.used_high,
            _ => return Err(Status::INVALID_VALUE),
        };
        Ok(word.load(Ordering::Relaxed))
    }

    /// Sets a `CUmemPool_attribute`. The high-water marks can only be reset to 0.
    ///
    /// # Errors
    /// `INVALID_VALUE`.
    pub fn pool_set_attribute(
        &self,
        pool: MemPool,
        attribute: u32,
        value: u64,
    ) -> Result<(), Status> {
        let state = self.pools.get(pool).ok_or(Status::INVALID_VALUE)?;
        let (word, value) = match (attribute, value) {
            (1, _) => (&state.reuse[0], value.min(1)),
            (2, _) => (&state.reuse[1], value.min(1)),
            (3, _) => (&state.reuse[2], value.min(1)),
            (4, _) => (&state.release_threshold, value),
            (6 | 8, 0) => (&state.used_high, state.used.load(Ordering::Relaxed)),
            _ => return Err(Status::INVALID_VALUE),
        };
        word.store(value, Ordering::Relaxed);
        Ok(())
    }
}
