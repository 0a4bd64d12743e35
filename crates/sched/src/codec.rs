//! Values as bytes: integers as varints (LEB128), nothing between the fields of a struct, a number
//! before an enum's fields. What is written is read back equal, or refused.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;

/// Bytes that are no value of the type that was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no {what} at byte {at}")]
pub struct Malformed {
    /// What was expected.
    pub what: &'static str,
    /// Where, from the beginning of what is read.
    pub at: usize,
}

/// A value that can be written and read.
pub trait Codec: Sized {
    /// Appends the value.
    fn put(&self, out: &mut Vec<u8>);

    /// Reads a value.
    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed>;
}

/// Bytes being read.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Reads from the beginning of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// How many bytes are left.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// How many bytes were read.
    pub fn at(&self) -> usize {
        self.at
    }

    /// The error that `what` was expected here.
    pub fn malformed(&self, what: &'static str) -> Malformed {
        Malformed { what, at: self.at }
    }

    /// The next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or_else(|| self.malformed("bytes"))?;
        let bytes = &self.bytes[self.at..end];
        self.at = end;
        Ok(bytes)
    }
}

macro_rules! varints {
    ($($type:ty),+) => {$(
        impl Codec for $type {
            fn put(&self, out: &mut Vec<u8>) {
                let mut rest = *self;
                loop {
                    let [low, ..] = rest.to_le_bytes();
                    rest >>= 7;
                    if rest == 0 {
                        return out.push(low & 0x7f);
                    }
                    out.push(low | 0x80);
                }
            }

            fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
                let mut value = 0;
                for shift in (0..Self::BITS).step_by(7) {
                    let [byte] = *input.bytes(1)? else { break };
                    let part = Self::from(byte & 0x7f);
                    if part << shift >> shift != part {
                        break;
                    }
                    value |= part << shift;
                    if byte & 0x80 == 0 {
                        return Ok(value);
                    }
                }
                Err(input.malformed("integer"))
            }
        }
    )+};
}

varints!(u64, u128);

impl Codec for u32 {
    fn put(&self, out: &mut Vec<u8>) {
        u64::from(*self).put(out);
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Self::try_from(u64::take(input)?).map_err(|_| input.malformed("u32"))
    }
}

impl Codec for usize {
    fn put(&self, out: &mut Vec<u8>) {
        (*self as u64).put(out);
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Self::try_from(u64::take(input)?).map_err(|_| input.malformed("length"))
    }
}

/// Zigzag: small magnitudes are short whatever their sign.
impl Codec for i64 {
    fn put(&self, out: &mut Vec<u8>) {
        ((self.cast_unsigned() << 1) ^ (self >> 63).cast_unsigned()).put(out);
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let value = u64::take(input)?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }
}

impl Codec for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        match input.bytes(1)? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(input.malformed("flag")),
        }
    }
}

impl<T: Codec> Codec for Box<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.as_ref().put(out);
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        T::take(input).map(Self::new)
    }
}

impl<T: Codec> Codec for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        if bool::take(input)? { T::take(input).map(Some) } else { Ok(None) }
    }
}

impl<T: Codec> Codec for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.len().put(out);
        self.iter().for_each(|value| value.put(out));
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let len = usize::take(input)?;
        // Each value takes a byte at least: a wrong length must not allocate.
        if len > input.left() {
            return Err(input.malformed("length"));
        }
        (0..len).map(|_| T::take(input)).collect()
    }
}

impl<T: Codec> Codec for VecDeque<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.len().put(out);
        self.iter().for_each(|item| item.put(out));
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Vec::take(input).map(Self::from)
    }
}

impl<A: Codec, B: Codec> Codec for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok((A::take(input)?, B::take(input)?))
    }
}

impl<T: Codec> Codec for [T; 2] {
    fn put(&self, out: &mut Vec<u8>) {
        self.iter().for_each(|item| item.put(out));
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok([T::take(input)?, T::take(input)?])
    }
}

impl Codec for String {
    fn put(&self, out: &mut Vec<u8>) {
        self.len().put(out);
        out.extend_from_slice(self.as_bytes());
    }

    fn take(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let len = usize::take(input)?;
        let bytes = input.bytes(len)?;
        core::str::from_utf8(bytes).map(Self::from).map_err(|_| input.malformed("text"))
    }
}

/// Implements [`Codec`] for a struct by its fields, or for an enum by numbered variants. A field
/// or variant that is left out does not compile.
macro_rules! codec {
    (struct $name:ident { $($field:ident),* $(,)? }) => {
        impl $crate::codec::Codec for $name {
            fn put(&self, out: &mut alloc::vec::Vec<u8>) {
                $($crate::codec::Codec::put(&self.$field, out);)*
            }

            fn take(
                input: &mut $crate::codec::Reader<'_>,
            ) -> Result<Self, $crate::codec::Malformed> {
                Ok(Self { $($field: $crate::codec::Codec::take(input)?),* })
            }
        }
    };
    (enum $name:ident { $($number:literal $variant:ident { $($field:ident),* }),+ $(,)? }) => {
        impl $crate::codec::Codec for $name {
            fn put(&self, out: &mut alloc::vec::Vec<u8>) {
                match self {
                    $(Self::$variant { $($field),* } => {
                        out.push($number);
                        $($crate::codec::Codec::put($field, out);)*
                    })+
                }
            }

            fn take(
                input: &mut $crate::codec::Reader<'_>,
            ) -> Result<Self, $crate::codec::Malformed> {
                match input.bytes(1)? {
                    $([$number] => Ok(Self::$variant {
                        $($field: $crate::codec::Codec::take(input)?),*
                    }),)+
                    _ => Err(input.malformed(stringify!($name))),
                }
            }
        }
    };
}
pub(crate) use codec;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn round<T: Codec>(value: &T) -> T {
        let mut bytes = Vec::new();
        value.put(&mut bytes);
        let mut input = Reader::new(&bytes);
        let back = T::take(&mut input).unwrap();
        assert_eq!(input.left(), 0);
        back
    }

    proptest! {
        #[test]
        fn integers_come_back(a: u128, b: u64, c: i64, d: u32, e in 0u64..300) {
            prop_assert_eq!((round(&a), round(&b), round(&c), round(&d), round(&e)), (a, b, c, d, e));
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
            let _ = Vec::<Option<(u64, bool)>>::take(&mut Reader::new(&bytes));
            let _ = String::take(&mut Reader::new(&bytes));
        }
    }

    #[test]
    fn known_bytes() {
        let mut bytes = Vec::new();
        (300u64, -2i64).put(&mut bytes);
        (Some(true), vec![1u32, 2]).put(&mut bytes);
        assert_eq!(bytes, [0xac, 0x02, 3, 1, 1, 2, 1, 2]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let too_large = [0xff, 0xff, 0xff, 0xff, 0x7f];
        assert_eq!(u32::take(&mut Reader::new(&too_large)).unwrap_err().what, "u32");
        assert_eq!(u128::take(&mut Reader::new(&[0xff; 19])).unwrap_err().what, "integer");
        assert_eq!(bool::take(&mut Reader::new(&[2])).unwrap_err().what, "flag");
        assert_eq!(Vec::<u32>::take(&mut Reader::new(&[9, 1])).unwrap_err().what, "length");
    }
}
