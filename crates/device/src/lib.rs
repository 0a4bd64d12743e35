//! weft-device
