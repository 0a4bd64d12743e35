//! weft-node
