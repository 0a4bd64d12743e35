use std::collections::BTreeSet;

use super::*;

fn symbol(base: &str, version: u32, per_thread: bool) -> Result<&'static str, LookupError> {
    lookup(base, version, per_thread).map(|call| call.symbol)
}

#[test]
fn every_spelling_of_the_headers_stands_here_once() {
    let symbols: BTreeSet<_> = calls().map(|call| call.symbol).collect();
    assert_eq!(calls().count(), symbols.len(), "a symbol stands twice");
    assert_eq!(symbols.len(), 723);
    let bases: BTreeSet<_> = calls().map(|call| call.base).collect();
    assert_eq!(bases.len(), 516);
    let per_thread = calls().filter(|call| call.stream == StreamMode::PerThread).count();
    assert_eq!(per_thread, 107);
}

#[test]
fn a_base_has_one_abi_per_version_and_mode() {
    let mut seen = BTreeSet::new();
    for call in calls() {
        let key = (call.base, call.stream == StreamMode::PerThread, call.version);
        assert!(seen.insert(key), "{key:?} stands twice");
    }
}

#[test]
fn a_per_thread_spelling_has_the_parameters_of_its_plain_one() {
    for call in calls().filter(|call| call.stream == StreamMode::PerThread) {
        let plain = call.symbol.trim_end_matches("_ptsz").trim_end_matches("_ptds");
        let plain = by_symbol(plain).unwrap_or_else(|| panic!("{} has no plain form", call.symbol));
        assert_eq!(plain.stream, StreamMode::Legacy);
        assert_eq!(plain.class, call.class, "{}", call.symbol);
        let types = |call: &Call| call.params.iter().map(|param| param.ty).collect::<Vec<_>>();
        assert_eq!(types(plain), types(call), "{}", call.symbol);
    }
}

#[test]
fn a_length_rule_names_a_parameter() {
    for call in calls() {
        for length in call.params.iter().filter_map(|param| param.length) {
            let known = length == "nul" || call.params.iter().any(|param| param.name == length);
            assert!(known, "{}: {length}", call.symbol);
        }
    }
}

#[test]
fn the_newest_abi_that_the_version_knew_is_found() {
    for (base, version, expected) in [
        ("cuCtxGetDevice", 2000, "cuCtxGetDevice"),
        ("cuCtxGetDevice", 12090, "cuCtxGetDevice"),
        ("cuCtxGetDevice", 13000, "cuCtxGetDevice_v2"),
        ("cuMemPrefetchAsync", 8000, "cuMemPrefetchAsync"),
        ("cuMemPrefetchAsync", 12010, "cuMemPrefetchAsync"),
        ("cuMemPrefetchAsync", 12020, "cuMemPrefetchAsync_v2"),
        ("cuCtxSynchronize", 12080, "cuCtxSynchronize"),
        ("cuCtxSynchronize", 13000, "cuCtxSynchronize_v2"),
        ("cuLaunchHostFunc", 10000, "cuLaunchHostFunc"),
        ("cuLaunchHostFunc", 13010, "cuLaunchHostFunc_v2"),
        ("cuMemAlloc", 2000, "cuMemAlloc"),
        ("cuMemAlloc", 3020, "cuMemAlloc_v2"),
        ("cuCtxCreate", 11030, "cuCtxCreate_v2"),
        ("cuCtxCreate", 11040, "cuCtxCreate_v3"),
        ("cuCtxCreate", 12050, "cuCtxCreate_v4"),
        ("cuGetProcAddress", 11030, "cuGetProcAddress"),
        ("cuGetProcAddress", 12000, "cuGetProcAddress_v2"),
        ("cuGraphInstantiate", 11000, "cuGraphInstantiate_v2"),
        ("cuGraphInstantiateWithFlags", 11040, "cuGraphInstantiateWithFlags"),
    ] {
        assert_eq!(symbol(base, version, false), Ok(expected), "{base} {version}");
    }
}

#[test]
fn the_per_thread_spelling_is_preferred_when_asked() {
    assert_eq!(symbol("cuLaunchKernel", 12000, true), Ok("cuLaunchKernel_ptsz"));
    assert_eq!(symbol("cuLaunchKernel", 12000, false), Ok("cuLaunchKernel"));
    assert_eq!(symbol("cuMemcpyHtoD", 12000, true), Ok("cuMemcpyHtoD_v2_ptds"));
    assert_eq!(symbol("cuMemAlloc", 12000, true), Ok("cuMemAlloc_v2"));
    assert_eq!(symbol("cuMemcpyHtoD", 3020, true), Ok("cuMemcpyHtoD_v2"));
}

#[test]
fn what_is_unknown_or_newer_is_told_apart() {
    assert_eq!(symbol("cuNothing", 13050, false), Err(LookupError::UnknownName));
    assert_eq!(symbol("cuMemAlloc_v2", 13050, false), Err(LookupError::UnknownName));
    assert_eq!(symbol("cuLaunchKernelEx", 11050, false), Err(LookupError::VersionTooOld));
    assert_eq!(symbol("cuLaunchKernelEx", 11060, false), Ok("cuLaunchKernelEx"));
}

#[test]
fn no_row_is_newer_than_the_reported_driver() {
    assert!(calls().all(|call| call.version <= DRIVER_VERSION));
}
