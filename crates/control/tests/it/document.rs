//! The OpenAPI document.

use std::path::Path;

/// Whoever changes the interface sees the change in the review.
#[test]
fn the_document_in_the_repository_is_the_types() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    let renew = "write it anew: cargo run -p weft-control -- openapi > docs/openapi.json";
    assert!(there == weft_api::v1::document(), "docs/openapi.json is old; {renew}");
}
