//! No attribute of a device claims what the device does not do, and none denies what it does.

use core::ptr;

use super::api::{Driver, Handle, LaunchConfig};
use super::{INVALID_VALUE, SUCCESS, alloc, load};

/// Attributes that state a size, a number or a clock, or a fact about hardware that no call shows.
const FACTS: [std::ops::RangeInclusive<u32>; 12] = [
    1..=18,
    20..=40,
    42..=74,
    77..=77,
    79..=82,
    84..=88,
    90..=90,
    97..=98,
    100..=101,
    106..=111,
    126..=126,
    130..=131,
];

/// Claims that stand for others: without virtual memory management (102) there are no handles of
/// allocations, compression or multicast objects.
const OF_VIRTUAL_MEMORY: [u32; 9] = [103, 104, 105, 107, 110, 112, 119, 128, 132];

/// Claims about things that no call of this version does: textures, D3D12, tensor maps, fabric.
const NEVER: [u32; 14] = [96, 114, 116, 117, 118, 121, 124, 127, 129, 133, 135, 136, 137, 138];

struct Claims<'a> {
    driver: &'a Driver,
    tried: Vec<u32>,
}

impl Claims<'_> {
    fn value(&self, attribute: u32) -> i32 {
        let mut value = 0;
        assert_eq!(self.driver.device_attribute(&mut value, attribute, 0), SUCCESS, "{attribute}");
        value
    }

    /// The attribute says what was found to be so.
    fn check(&mut self, attribute: u32, found: bool) {
        let value = self.value(attribute);
        assert_eq!(value != 0, found, "attribute {attribute} is {value}");
        self.tried.push(attribute);
    }
}

pub(super) fn body(driver: &Driver) {
    let mut claims = Claims { driver, tried: Vec::new() };
    sizes(&claims);
    host_memory(&mut claims);
    managed_memory(&mut claims);
    streams(&mut claims);
    launches(&mut claims);
    allocations(&mut claims);
    for attribute in (1..150).filter(|number| claims.value(*number) != 0) {
        let fact = FACTS.iter().any(|numbers| numbers.contains(&attribute));
        // COMPUTE_CAPABILITY_MAJOR and _MINOR are compared with the call in `sizes`.
        let known = fact || matches!(attribute, 75 | 76) || claims.tried.contains(&attribute);
        assert!(known, "attribute {attribute} claims what this test does not try");
    }
    if claims.value(102) == 0 {
        assert!(OF_VIRTUAL_MEMORY.iter().all(|attribute| claims.value(*attribute) == 0));
    }
}

/// Numbers that several calls tell are the same everywhere, and fit each other.
fn sizes(claims: &Claims<'_>) {
    let driver = claims.driver;
    let (mut major, mut minor, mut total) = (0, 0, 0);
    assert_eq!(driver.capability(&mut major, &mut minor, 0), SUCCESS);
    assert_eq!((claims.value(75), claims.value(76)), (major, minor));
    let mut properties = [0; 16];
    assert_eq!(driver.properties(&mut properties, 0), SUCCESS);
    let told: Vec<i32> = (1..=14).map(|attribute| claims.value(attribute)).collect();
    assert_eq!(properties[..14], told);
    assert_eq!(driver.total_memory(&mut total, 0), SUCCESS);
    assert!(total > 0);
    let most = |attribute| claims.value(attribute);
    assert!(most(8) <= most(81) && most(97) <= most(81) && most(8) <= most(97), "shared memory");
    assert!(most(12) <= most(82), "registers");
    assert!(most(1) <= most(39) && (2..=4).all(|axis| most(axis) <= most(1)), "threads");
    assert!((most(15) > 0) == (most(40) > 0), "copies that overlap need an engine");
    assert!(most(19) == 1 || most(18) == 0, "an integrated device maps host memory");
}

fn host_memory(claims: &mut Claims<'_>) {
    let driver = claims.driver;
    let (mut memory, mut address, mut seen) = (ptr::null_mut(), 0, 0);
    assert_eq!(driver.host_alloc(&mut memory, 4096, 2), SUCCESS);
    let mapped = driver.host_device_pointer(&mut address, memory, 0) == SUCCESS;
    claims.check(19, mapped);
    let told = driver.pointer_attribute(&raw mut seen, 3, memory.addr() as u64) == SUCCESS;
    claims.check(41, told && seen == address);
    assert!(claims.value(41) == 0 || address == memory.addr() as u64, "one address for both");
    assert_eq!(driver.host_free(memory), SUCCESS);
    let mut own = vec![0_u8; 10_000];
    let own = own.as_mut_ptr();
    for (flags, attribute) in [(0, 99), (8, 113)] {
        let registered = driver.host_register(own, 10_000, flags) == SUCCESS;
        claims.check(attribute, registered);
        if registered {
            assert_eq!(driver.host_device_pointer(&mut address, own, 0), SUCCESS);
            claims.check(91, address == own.addr() as u64);
            assert_eq!(driver.host_unregister(own), SUCCESS);
        }
    }
    assert!(claims.value(91) == 0 || claims.value(99) == 1);
}

fn managed_memory(claims: &mut Claims<'_>) {
    let (driver, mut address) = (claims.driver, 0);
    let managed = driver.managed_alloc(&mut address, 4096, 1) == SUCCESS;
    claims.check(83, managed);
    if managed {
        let prefetched = driver.prefetch(address, 4096, 0, 0) == SUCCESS;
        claims.check(89, prefetched);
        assert_eq!(driver.free(address), SUCCESS);
    }
}

fn streams(claims: &mut Claims<'_>) {
    let (driver, mut least, mut greatest) = (claims.driver, 9, 9);
    assert_eq!(driver.priorities(&mut least, &mut greatest), SUCCESS);
    claims.check(78, greatest < least);
    let word = alloc(driver, 8);
    assert_eq!(driver.fill_bytes(word, 0, 8), SUCCESS);
    // Equal (1) to what is there, and a bit (3: NOR) that is not.
    let waits = [
        (92, driver.wait_value_1(0, word, 0, 1)),
        (93, driver.wait_wide_1(0, word, 0, 1)),
        (94, driver.wait_value_1(0, word, 1, 3)),
        (122, driver.wait_wide(0, word, 0, 1)),
        (123, driver.wait_value(0, word, 1, 3)),
    ];
    waits.into_iter().for_each(|(attribute, code)| claims.check(attribute, code == SUCCESS));
    assert_eq!(driver.synchronize(), SUCCESS);
    assert_eq!(driver.free(word), SUCCESS);
}

fn launches(claims: &mut Claims<'_>) {
    let (driver, none) = (claims.driver, ptr::null());
    let module = load(driver);
    let function = driver.function_named(module, c"nothing");
    let code = driver.launch_cooperative(function, 1, 1, 1, 32, 1, 1, 0, 0, none);
    claims.check(95, code == SUCCESS);
    let mut most = 0;
    assert_eq!(driver.function_attribute(&mut most, 0, function), SUCCESS);
    assert!(most <= claims.value(1));
    let config = LaunchConfig {
        grid: [1, 1, 1],
        block: [32, 1, 1],
        shared_bytes: 0,
        stream: 0,
        attributes: ptr::null(),
        attribute_count: 0,
    };
    let mut count = 0;
    claims.check(120, driver.clusters(&mut count, function, &config) == SUCCESS);
    claims.check(96, driver.launch_on_many(ptr::null(), 0, 0) == SUCCESS);
    assert_eq!(driver.synchronize(), SUCCESS);
    assert_eq!(driver.unload(module), SUCCESS);
}

fn allocations(claims: &mut Claims<'_>) {
    let (driver, mut address, mut pool): (_, Handle, Handle) = (claims.driver, 0, 0);
    let pools = driver.default_pool(&mut pool, 0) == SUCCESS;
    let allocated = pools && driver.alloc_async(&mut address, 4096, 0) == SUCCESS;
    claims.check(115, allocated);
    if allocated {
        assert_eq!(driver.free_async(address, 0), SUCCESS);
    }
    let reserved = driver.address_reserve(&mut address, 2 << 20, 0, 0, 0) == SUCCESS;
    claims.check(102, reserved);
    let mut bytes = 0;
    claims.check(132, driver.multicast(&mut bytes, ptr::null(), 0) == SUCCESS);
    let mut handle = 0_i64;
    let own = alloc(driver, 4096);
    let exported = driver.range_handle((&raw mut handle).cast(), own, 4096, 1, 0) == SUCCESS;
    claims.check(124, exported);
    // CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING, and without the latter.
    let mut event = 0;
    let shared = driver.event_create(&mut event, 6) == SUCCESS;
    claims.check(125, shared);
    if shared {
        assert_eq!(driver.event_destroy(event), SUCCESS);
    }
    assert_eq!(driver.event_create(&mut event, 4), INVALID_VALUE);
    assert_eq!(driver.free(own), SUCCESS);
    assert!(
        NEVER
            .iter()
            .all(|attribute| claims.value(*attribute) == 0 || claims.tried.contains(attribute))
    );
}
