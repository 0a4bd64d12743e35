//! Figures of the control plane alone.
