//! Decimal numbers that people write: digits, and so many behind a point at most.

/// The number in units of its last digit allowed; nothing for what is none.
pub(super) fn parse(text: &str, digits: usize) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if (whole.is_empty() && part.is_empty())
        || part.len() > digits
        || !is_digits(whole)
        || !is_digits(part)
    {
        return None;
    }
    format!("{whole}{part:0<digits$}").parse().ok()
}

/// The same as text, without zeros at its end.
pub(super) fn shown(number: u64, digits: usize) -> String {
    let text = format!("{number:0width$}", width = digits + 1);
    let (whole, part) = text.split_at(text.len() - digits);
    match part.trim_end_matches('0') {
        "" => whole.to_owned(),
        part => format!("{whole}.{part}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{parse, shown};

    #[test]
    fn numbers_parse_and_print_alike() {
        for (text, number) in [("0", 0), ("1", 1_000), ("0.05", 50), ("12.345", 12_345)] {
            assert_eq!(parse(text, 3), Some(number));
            assert_eq!(shown(number, 3), text);
        }
        assert_eq!(parse(".5", 3), Some(500));
        for text in ["", ".", "1.2345", "-1", "+1", "1e3", "1.-5", "99999999999999999999"] {
            assert_eq!(parse(text, 3), None, "{text}");
        }
    }
}
