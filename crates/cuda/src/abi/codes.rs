//! Enumerations. C passes them as `unsigned int`; the bodies compare with named constants.

macro_rules! codes {
    ($($name:ident),* $(,)?) => {
        $(
            #[doc = concat!("`", stringify!($name), "`.")]
            pub(crate) type $name = u32;
        )*
    };
}

codes! {
    CUdevice_P2PAttribute,
    CUdevice_attribute,
    CUdriverProcAddressQueryResult,
    CUexecAffinityType,
    CUfunc_cache,
    CUfunctionLoadingState,
    CUfunction_attribute,
    CUgraphExecUpdateResult,
    CUgraphNodeType,
    CUjitInputType,
    CUjit_option,
    CUkernelNodeAttrID,
    CUlibraryOption,
    CUlimit,
    CUmemAccess_flags,
    CUmemAllocationGranularity_flags,
    CUmemAllocationType,
    CUmemPool_attribute,
    CUmem_advise,
    CUmem_range_attribute,
    CUmemorytype,
    CUmoduleLoadingMode,
    CUpointer_attribute,
    CUsharedconfig,
    CUstreamAttrID,
    CUstreamCaptureMode,
    CUstreamCaptureStatus,
}

/// Streams and kernel nodes have launch attributes.
pub(crate) type CUstreamAttrValue = super::CUlaunchAttributeValue;
/// Streams and kernel nodes have launch attributes.
pub(crate) type CUkernelNodeAttrValue = super::CUlaunchAttributeValue;
/// A green context. Weft has none, so only null occurs.
pub(crate) type CUgreenCtx = u64;
