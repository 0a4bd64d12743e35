//! The byte codec of all messages: little-endian, fixed order, no padding.

use alloc::string::String;
use alloc::vec::Vec;

/// Bytes were not the message they claimed to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The message ends before its last field.
    #[error("message is truncated")]
    Truncated,
    /// Bytes follow the last field.
    #[error("{0} bytes follow the message")]
    Trailing(usize),
    /// No message has this kind.
    #[error("unknown message kind {0}")]
    UnknownKind(u16),
    /// A field holds a value that its type does not have.
    #[error("field has the invalid value {0}")]
    InvalidValue(u64),
    /// A string is not UTF-8.
    #[error("string is not UTF-8")]
    NotUtf8,
}

/// A message does not fit its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("message does not fit into {capacity} bytes")]
pub struct EncodeError {
    /// Size of the buffer.
    pub capacity: usize,
}

/// Writes fields into a fixed buffer.
#[derive(Debug)]
pub struct Writer<'a> {
    buffer: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    /// Starts at the front of `buffer`.
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, at: 0 }
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.at
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.at == 0
    }

    /// Appends raw bytes.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        let capacity = self.buffer.len();
        let end = self.at.checked_add(bytes.len()).ok_or(EncodeError { capacity })?;
        let target = self.buffer.get_mut(self.at..end).ok_or(EncodeError { capacity })?;
        target.copy_from_slice(bytes);
        self.at = end;
        Ok(())
    }
}

/// Reads fields from a byte slice.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the front of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Takes the next `count` bytes.
    #[inline]
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.rest.split_at_checked(count).ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    /// Takes everything that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.rest)
    }

    /// Ends reading; anything left is an error.
    pub fn finish(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::Trailing(self.rest.len())) }
    }
}

/// A value with a fixed place in a message.
pub trait Field<'a>: Sized {
    /// Appends the value.
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError>;
    /// Reads the value.
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError>;
}

macro_rules! integer_fields {
    ($($type:ty),*) => {$(
        impl<'a> Field<'a> for $type {
            #[inline]
            fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
                writer.bytes(&self.to_le_bytes())
            }
            #[inline]
            fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
                let bytes = reader.bytes(size_of::<$type>())?;
                // `bytes` has exactly the type's size, so the conversion cannot fail.
                bytes.try_into().map(<$type>::from_le_bytes).map_err(|_| DecodeError::Truncated)
            }
        }
    )*};
}
integer_fields!(u8, u16, u32, u64, i32, i64, f32);

impl<'a> Field<'a> for bool {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        u8::from(*self).encode(writer)
    }
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match u8::decode(reader)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(DecodeError::InvalidValue(other.into())),
        }
    }
}

impl<'a, T: Field<'a> + Copy + Default, const N: usize> Field<'a> for [T; N] {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        self.iter().try_for_each(|item| item.encode(writer))
    }
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let mut items = [T::default(); N];
        for item in &mut items {
            *item = T::decode(reader)?;
        }
        Ok(items)
    }
}

impl<'a, T: Field<'a>> Field<'a> for Option<T> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        self.is_some().encode(writer)?;
        self.iter().try_for_each(|value| value.encode(writer))
    }
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        if bool::decode(reader)? { T::decode(reader).map(Some) } else { Ok(None) }
    }
}

/// Bytes with a 32-bit length before them.
impl<'a> Field<'a> for &'a [u8] {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        encode_length(self.len(), writer)?;
        writer.bytes(self)
    }
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let length = decode_length(reader)?;
        reader.bytes(length)
    }
}

impl<'a> Field<'a> for String {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        self.as_bytes().encode(writer)
    }
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let bytes = <&[u8]>::decode(reader)?;
        core::str::from_utf8(bytes).map(Self::from).map_err(|_| DecodeError::NotUtf8)
    }
}

impl<'a, T: Field<'a>> Field<'a> for Vec<T> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        encode_length(self.len(), writer)?;
        self.iter().try_for_each(|item| item.encode(writer))
    }
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let length = decode_length(reader)?;
        // Each item takes at least a byte, so a longer length cannot be honest and must not
        // make us reserve memory.
        if length > reader.rest.len() {
            return Err(DecodeError::Truncated);
        }
        (0..length).map(|_| T::decode(reader)).collect()
    }
}

fn encode_length(length: usize, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
    let capacity = writer.buffer.len();
    u32::try_from(length).map_err(|_| EncodeError { capacity })?.encode(writer)
}

fn decode_length(reader: &mut Reader<'_>) -> Result<usize, DecodeError> {
    let length = u32::decode(reader)?;
    usize::try_from(length).map_err(|_| DecodeError::InvalidValue(length.into()))
}

/// Declares a struct whose fields are encoded in order.
macro_rules! message {
    ($(#[$meta:meta])* $vis:vis struct $name:ident $(<$life:lifetime>)? {
        $($(#[$field_meta:meta])* $field:ident: $type:ty,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        $vis struct $name $(<$life>)? { $($(#[$field_meta])* pub $field: $type,)* }

        impl<'a> $crate::codec::Field<'a> for $name $(<$life>)? where $($life: 'a, 'a: $life)? {
            #[inline]
            fn encode(
                &self, writer: &mut $crate::codec::Writer<'_>,
            ) -> Result<(), $crate::codec::EncodeError> {
                $(self.$field.encode(writer)?;)*
                Ok(())
            }
            #[inline]
            fn decode(
                reader: &mut $crate::codec::Reader<'a>,
            ) -> Result<Self, $crate::codec::DecodeError> {
                Ok(Self { $($field: $crate::codec::Field::decode(reader)?,)* })
            }
        }
    };
}
pub(crate) use message;

/// Encodes one value into a new vector of at most `capacity` bytes.
pub fn encode_to_vec<'a, T: Field<'a>>(value: &T, capacity: usize) -> Result<Vec<u8>, EncodeError> {
    let mut bytes = alloc::vec![0; capacity];
    let mut writer = Writer::new(&mut bytes);
    value.encode(&mut writer)?;
    let length = writer.len();
    bytes.truncate(length);
    Ok(bytes)
}

/// Decodes exactly one value.
pub fn decode_all<'a, T: Field<'a>>(bytes: &'a [u8]) -> Result<T, DecodeError> {
    let mut reader = Reader::new(bytes);
    let value = T::decode(&mut reader)?;
    reader.finish()?;
    Ok(value)
}
