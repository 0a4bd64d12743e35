//! Times as people write them.

use std::time::Duration;

/// A number and what it counts: 90s, 15m, 2h, 7d.
///
/// # Errors
/// In words, with examples.
///
/// ```
/// # use std::time::Duration;
/// # use weft_api::times::duration;
/// assert_eq!(duration("15m"), Ok(Duration::from_secs(900)));
/// assert!(duration("15").unwrap_err().contains("`15` is no time"));
/// ```
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no time: write 90s, 15m, 2h or 7d");
    let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 24 * 3_600,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        for wrong in ["", "5", "h", "-1s", "1w", "99999999999999999999d"] {
            assert!(duration(wrong).unwrap_err().contains("15m"), "{wrong}");
        }
    }
}
