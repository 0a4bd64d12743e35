//! Names of vGPUs.

/// What a vGPU's name may be, in words.
pub const NAME_RULE: &str =
    "1 to 64 letters, digits, `-`, `_` and `.`, the first no `.` or `-`, such as team-a";

/// Longest name of a vGPU.
const NAME_BYTES_MAX: usize = 64;

/// Whether a vGPU can have that name: see [`NAME_RULE`].
#[must_use]
pub fn is_vgpu_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && !name.starts_with(['.', '-'])
        && name.chars().all(allowed)
}
