//! Service level agreements that people write.

use std::fmt;
use std::str::FromStr;

use weft_api::node::SLA_NS;

use super::decimal;

const UNITS: [(&str, u64); 4] =
    [("us", 1_000), ("ms", 1_000_000), ("min", 60_000_000_000), ("s", 1_000_000_000)];

/// Within which time a vGPU's work should be done, in ns, written `200ms`, `1.5s`; or `none`, which
/// is 0: the vGPU is batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlaSetting(pub u64);

impl SlaSetting {
    /// Whether it can be one.
    #[must_use]
    pub fn is_valid(self) -> bool {
        self.0 == 0 || SLA_NS.contains(&self.0)
    }
}

impl FromStr for SlaSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(0));
        }
        let wrong = || {
            format!("`{text}` is not an SLA; expected a time of 100us to 60min, as 200ms, or none")
        };
        let unit = UNITS.iter().find(|(unit, _)| text.ends_with(unit)).ok_or_else(wrong)?;
        let number = text.strip_suffix(unit.0).ok_or_else(wrong)?.trim_end();
        let thousandths = decimal::parse(number, 3).ok_or_else(wrong)?;
        let ns = thousandths.checked_mul(unit.1 / 1_000).ok_or_else(wrong)?;
        Some(ns).filter(|ns| SLA_NS.contains(ns)).map(Self).ok_or_else(wrong)
    }
}

impl fmt::Display for SlaSetting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, size) = match self.0 {
            0 => return formatter.write_str("none"),
            ns if ns >= 1_000_000_000 => ("s", 1_000_000_000),
            ns if ns >= 1_000_000 => ("ms", 1_000_000),
            _ => ("us", 1_000),
        };
        write!(formatter, "{}{unit}", decimal::shown(self.0 / (size / 1_000), 3))
    }
}

#[cfg(test)]
mod tests {
    use super::SlaSetting;

    #[test]
    fn times_parse_and_print_alike() {
        for (text, ns) in [
            ("200ms", 200_000_000),
            ("1s", 1_000_000_000),
            ("1.5s", 1_500_000_000),
            ("100us", 100_000),
            ("2.25ms", 2_250_000),
            ("none", 0),
        ] {
            let sla: SlaSetting = text.parse().unwrap();
            assert_eq!((sla.0, sla.to_string().as_str()), (ns, text));
            assert!(sla.is_valid());
        }
        assert_eq!("60min".parse::<SlaSetting>().unwrap().to_string(), "3600s");
        for text in ["", "200", "ms", "-1ms", "+1ms", "1.2345s", "0ms", "61min", "99us", "1e3ms"] {
            text.parse::<SlaSetting>().unwrap_err();
        }
        assert!(!SlaSetting(1).is_valid());
    }
}
