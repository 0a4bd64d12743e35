//! The linker.

use core::ffi::c_void;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use weft_client::{Client, LinkInput};
use weft_wire::Status;

use crate::abi::CUlinkState;
use crate::args::{HostSource, In, Out, Text};
use crate::function::number;
use crate::jit::Options;
use crate::module::read_file;

/// Options of the links in progress: their logs are written when a link completes.
static OPTIONS: Mutex<BTreeMap<u64, Options>> = Mutex::new(BTreeMap::new());

fn options_of_links() -> MutexGuard<'static, BTreeMap<u64, Options>> {
    OPTIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `cuLinkCreate`.
pub(crate) fn create(
    client: &Client,
    count: u32,
    options: In<u32>,
    values: In<*mut c_void>,
    link: Out<CUlinkState>,
) -> Result<(), Status> {
    let place = link.required()?;
    let options = Options::read(count, &options, &values)?;
    let link = client.link_create_limited(options.registers)?;
    options_of_links().insert(link.raw(), options);
    place.set(link);
    Ok(())
}

/// `cuLinkAddData`.
#[expect(clippy::too_many_arguments, reason = "the C function's")]
pub(crate) fn add_data(
    client: &Client,
    link: CUlinkState,
    kind: u32,
    data: HostSource,
    size: usize,
    _name: *const core::ffi::c_char,
    _count: u32,
    _options: *mut u32,
    _values: *mut *mut c_void,
) -> Result<(), Status> {
    let input = LinkInput::from_code(number(kind)?)?;
    client.link_add(link, input, data.bytes(size)?)
}

/// `cuLinkAddFile`.
pub(crate) fn add_file(
    client: &Client,
    link: CUlinkState,
    kind: u32,
    path: Text,
    _count: u32,
    _options: *mut u32,
    _values: *mut *mut c_void,
) -> Result<(), Status> {
    let input = LinkInput::from_code(number(kind)?)?;
    client.link_add(link, input, &read_file(&path)?)
}

/// `cuLinkComplete`: the image lives as long as the link.
pub(crate) fn complete(
    client: &Client,
    link: CUlinkState,
    image: Out<*mut c_void>,
    size: Out<usize>,
) -> Result<(), Status> {
    let image = image.required()?;
    let linked = client.link_complete(link);
    let log = linked.as_ref().err().map(|failure| failure.log.as_str());
    if let Some(options) = options_of_links().get_mut(&link.raw()) {
        options.finish(log);
    }
    let linked = linked.map_err(|failure| failure.status)?;
    image.set(linked.as_ptr().cast_mut().cast());
    size.set_if_wanted(linked.len());
    Ok(())
}

/// `cuLinkDestroy`.
pub(crate) fn destroy(client: &Client, link: CUlinkState) -> Result<(), Status> {
    options_of_links().remove(&link.raw());
    client.link_destroy(link)
}
