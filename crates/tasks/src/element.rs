//! Numbers that buffers and scalars consist of.

mod sealed {
    pub trait Sealed {}
}

/// A number with a fixed layout: little-endian, as devices have it.
pub trait Element: Copy + sealed::Sealed {
    /// Its size in bytes.
    const BYTES: usize;

    /// Appends its bytes.
    fn put(self, out: &mut Vec<u8>);

    /// The number whose bytes these are; they are [`Self::BYTES`].
    fn take(bytes: &[u8]) -> Self;
}

macro_rules! elements {
    ($($number:ty),+) => {$(
        impl sealed::Sealed for $number {}

        impl Element for $number {
            const BYTES: usize = size_of::<$number>();

            fn put(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn take(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<$number>()];
                own.copy_from_slice(bytes);
                Self::from_le_bytes(own)
            }
        }
    )+};
}

elements!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

/// The bytes of numbers.
pub(crate) fn bytes_of<T: Element>(numbers: &[T]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(numbers.len() * T::BYTES);
    numbers.iter().for_each(|number| number.put(&mut bytes));
    bytes
}

/// The whole numbers in bytes.
pub(crate) fn numbers_of<T: Element>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(T::BYTES).map(T::take).collect()
}
