//! Words that people read.

use std::fmt::Display;

/// So many of something: "1 cGPU", "2 cGPUs".
pub(crate) fn counted<T: Display + PartialEq + From<u8> + Copy>(count: T, noun: &str) -> String {
    let ending = if count == T::from(1) { "" } else { "s" };
    format!("{count} {noun}{ending}")
}
