//! weft-ring
