//! Caps that people write.

use std::fmt;
use std::str::FromStr;

use super::{PPM, decimal};

/// A cap in millionths of a device's time, written as a percentage: `25%`, `0.5%`, or `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CapSetting(pub u32);

impl FromStr for CapSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(PPM));
        }
        let wrong = || format!("`{text}` is not a cap; expected 0.0001% to 100%, or none");
        let percent = text.trim().strip_suffix('%').ok_or_else(wrong)?;
        let parsed = decimal::parse(percent, 4).and_then(|ppm| u32::try_from(ppm).ok());
        parsed.filter(|ppm| (1..=PPM).contains(ppm)).map(Self).ok_or_else(wrong)
    }
}

impl fmt::Display for CapSetting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            PPM => formatter.write_str("none"),
            ppm => write!(formatter, "{}%", decimal::shown(ppm.into(), 4)),
        }
    }
}

/// A cap that is not there or text, for configurations.
pub(super) mod text {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::CapSetting;

    #[expect(clippy::ref_option, reason = "serde's form")]
    pub(crate) fn serialize<S: Serializer>(
        cap: &Option<CapSetting>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        cap.map(|cap| cap.to_string()).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<CapSetting>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::CapSetting;

    #[test]
    fn caps_parse_and_print_alike() {
        for (text, ppm) in [
            ("25%", 250_000),
            ("0.5%", 5_000),
            ("0.0001%", 1),
            ("none", 1_000_000),
            ("99.99%", 999_900),
        ] {
            let cap: CapSetting = text.parse().unwrap();
            assert_eq!((cap.0, cap.to_string().as_str()), (ppm, text));
        }
        assert_eq!("100%".parse::<CapSetting>().unwrap().0, 1_000_000);
        for text in ["", "25", "%", "0%", "101%", "-1%", "1.23456%", "1.-5%", "+5%x"] {
            text.parse::<CapSetting>().unwrap_err();
        }
    }
}
