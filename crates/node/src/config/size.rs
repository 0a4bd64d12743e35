//! Sizes that people write.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of bytes, written as a number or with a unit: `4096`, `"512MiB"`, `"4GB"`. Units are
/// binary however they are spelt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

const ALLOWED: &str = "bytes, or a size such as \"512MiB\" or \"4GB\" (both binary)";

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = weft_wire::size::parse(text);
        bytes.map(Self).ok_or_else(|| format!("`{text}` is not a size; expected {ALLOWED}"))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0;
        for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if bytes != 0 && bytes.trailing_zeros() >= shift {
                return write!(formatter, "{}{unit}", bytes >> shift);
            }
        }
        write!(formatter, "{bytes}")
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Size;
        impl Visitor<'_> for Size {
            type Value = ByteSize;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(ALLOWED)
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<ByteSize, E> {
                u64::try_from(value)
                    .map(ByteSize)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(value), &self))
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(value))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Size)
    }
}

#[cfg(test)]
mod tests {
    use super::ByteSize;

    #[test]
    fn sizes_parse_and_print_alike() {
        for text in ["0", "4095", "4KiB", "512MiB", "3GiB", "1TiB"] {
            assert_eq!(text.parse::<ByteSize>().unwrap().to_string(), text);
        }
        assert_eq!("512MB".parse::<ByteSize>().unwrap(), ByteSize(512 << 20));
        for text in ["", "GiB", "-1", "1.5GiB", "1XB", "99999999999TiB"] {
            text.parse::<ByteSize>().unwrap_err();
        }
    }
}
