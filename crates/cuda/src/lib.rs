//! weft-cuda
