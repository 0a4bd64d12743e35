//! Profiler control. No profiler is attached, so there is nothing to start or stop, as with the
//! native driver outside a profiler.

use weft_client::Client;
use weft_wire::Status;

/// `cuProfilerStart` and `cuProfilerStop`.
pub(crate) fn switch(client: &Client) -> Result<(), Status> {
    client.context_flags().map(drop)
}
