//! The software GPU.
