//! Sizes that people write, alike wherever they may be written.

/// Reads `512MiB`, `512MB`, `2g`, `1048576`: binary units however they are spelt.
#[must_use]
pub fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text.get(..digits)?.parse().ok()?;
    let unit = text.get(digits..)?.trim();
    let is = |names: [&str; 3]| names.iter().any(|name| unit.eq_ignore_ascii_case(name));
    let shift = [["", "b", ""], ["k", "kb", "kib"], ["m", "mb", "mib"], ["g", "gb", "gib"]]
        .into_iter()
        .chain([["t", "tb", "tib"]])
        .position(is)?;
    number.checked_mul(1_u64 << (10 * shift))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn units_are_binary_however_they_are_spelt() {
        for text in ["512MiB", "512MB", "512m", " 512 mib ", "524288K", "536870912", "536870912B"] {
            assert_eq!(parse(text), Some(512 << 20), "{text}");
        }
        assert_eq!(parse("3TiB"), Some(3 << 40));
        for text in ["", "GiB", "-1", "1.5GiB", "1XB", "99999999999TiB", "12 apples"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
