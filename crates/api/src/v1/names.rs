//! Names of projects, nodes, instances and tokens.

/// Longest name.
const BYTES_MAX: usize = 48;

/// A name that cannot be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no name: a name has 1 to {BYTES_MAX} lower-case letters, digits, `-`, `_` or `.`, and begins with a letter or digit"
)]
pub struct BadName(pub String);

/// Whether a text may be a name.
///
/// # Errors
/// What a name looks like.
pub fn check_name(text: &str) -> Result<(), BadName> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let fits = text.len() <= BYTES_MAX
        && text.starts_with(is_plain)
        && text.chars().all(|c| is_plain(c) || "-_.".contains(c));
    if fits { Ok(()) } else { Err(BadName(text.chars().take(BYTES_MAX).collect())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for name in ["a", "team-a", "0", "gpu1.rack_2"] {
            check_name(name).unwrap();
        }
        let long = "a".repeat(BYTES_MAX + 1);
        for name in ["", "A", "-a", ".", "a b", "a/b", "ä", "a\n", &long] {
            let error = check_name(name).unwrap_err().to_string();
            assert!(error.contains("1 to 48"), "{error}");
        }
    }
}
