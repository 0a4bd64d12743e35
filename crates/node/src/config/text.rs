//! Values that people write as text: permissions, groups, addresses.

use std::fmt;
use std::net::SocketAddr;

use serde::de::{self, Unexpected, Visitor};
use serde::{Deserializer, Serializer};

/// Permissions, as an octal string (`"0660"`).
pub(super) mod mode {
    use super::{Deserializer, Mode, Serializer};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    pub(crate) fn serialize<S: Serializer>(mode: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{mode:04o}"))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
        deserializer.deserialize_any(Mode)
    }
}

struct Mode;

impl Mode {
    fn checked<E: de::Error>(&self, mode: Option<u32>, seen: Unexpected<'_>) -> Result<u32, E> {
        mode.filter(|mode| *mode <= 0o777).ok_or_else(|| E::invalid_value(seen, self))
    }
}

impl Visitor<'_> for Mode {
    type Value = u32;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("permissions as an octal string such as \"0660\"")
    }

    /// TOML has octal numbers of its own (`0o660`).
    fn visit_i64<E: de::Error>(self, value: i64) -> Result<u32, E> {
        self.checked(u32::try_from(value).ok(), Unexpected::Signed(value))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<u32, E> {
        let digits = text.strip_prefix("0o").unwrap_or(text);
        self.checked(u32::from_str_radix(digits, 8).ok(), Unexpected::Str(text))
    }
}

/// A group by name, or by number.
pub(super) fn group<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    struct Group;
    impl Visitor<'_> for Group {
        type Value = Option<String>;
        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a group by name or number, such as \"gpu-admin\"")
        }
        fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
            Ok(Some(value.to_string()))
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
            Ok(Some(text.to_owned()).filter(|text| !text.is_empty()))
        }
    }
    deserializer.deserialize_any(Group)
}

/// An address to listen on.
pub(super) fn address<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SocketAddr>, D::Error> {
    struct Address;
    impl Visitor<'_> for Address {
        type Value = Option<SocketAddr>;
        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("ADDRESS:PORT, such as \"127.0.0.1:9464\"")
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
            let parsed = text.parse().map(Some);
            parsed.map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
        }
    }
    deserializer.deserialize_any(Address)
}

/// What is wrong with a number, from the parser's words for it: it names the key last, whose end is
/// the number's unit.
pub(super) fn number_in_words(message: &str) -> Option<String> {
    let (what, key) = message.strip_suffix('`')?.split_once("\nin `")?;
    let (seen, wanted) = what.rsplit_once(", expected ")?;
    if !["u16", "u32", "u64", "usize"].contains(&wanted) {
        return None;
    }
    let is_range = seen.starts_with("invalid value: integer");
    if !is_range && !seen.starts_with("invalid type: ") {
        return None;
    }
    let (first, last) = (seen.find(['"', '`'])?, seen.rfind(['"', '`'])?);
    let seen = seen.get(first + 1..last)?;
    if is_range {
        return Some(format!("{key}: `{seen}` is out of range"));
    }
    let units = [("_us", " of µs"), ("_ms", " of ms"), ("_s", " of seconds")];
    let unit = units.iter().find(|(end, _)| key.ends_with(end)).map_or("", |(_, unit)| unit);
    Some(format!("{key}: `{seen}` is not a whole number{unit}"))
}

#[cfg(test)]
mod tests {
    use super::number_in_words;

    #[test]
    fn a_number_is_asked_for_with_its_unit() {
        let of = |seen: &str, key: &str| {
            number_in_words(&format!("invalid {seen}, expected u64\nin `{key}`"))
        };
        let words = of("type: string \"6ms\"", "scheduling.quantum_us").unwrap();
        assert_eq!(words, "scheduling.quantum_us: `6ms` is not a whole number of µs");
        let words = of("type: floating point `1.5`", "limits.attaches_per_second").unwrap();
        assert_eq!(words, "limits.attaches_per_second: `1.5` is not a whole number");
        let words = of("value: integer `-5`", "device.idle_s").unwrap();
        assert_eq!(words, "device.idle_s: `-5` is out of range");
        assert_eq!(number_in_words("unknown field `quantum`\nin `scheduling`"), None);
    }
}
