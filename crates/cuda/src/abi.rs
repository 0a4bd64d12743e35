//! The C types of `cuda.h` that answered calls use: handles, structs and codes.
//!
//! Names are the header's, so that a reader of CUDA code finds them; layouts are checked against
//! the header by a compiled C program (see the tests).

#![expect(non_camel_case_types, reason = "the header's names")]
#![expect(non_snake_case, reason = "the header's names")]

mod codes;
mod copy;
mod graph;
mod handles;
mod launch;
mod memory;
#[cfg(test)]
mod tests;

pub(crate) use codes::*;
pub(crate) use copy::*;
pub(crate) use graph::*;
pub(crate) use handles::*;
pub(crate) use launch::*;
pub(crate) use memory::*;

/// Declares structs with the header's layout; `= "path"` gives a field's C name where it differs.
/// Fields whose name begins with an underscore are padding and reserved space.
macro_rules! c_structs {
    ($layouts:ident: $(
        $(#[$meta:meta])*
        $name:ident [$size:literal] { $($field:ident: $ty:ty $(= $c_name:literal)?,)* }
    )*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug)]
            pub(crate) struct $name { $(pub(crate) $field: $ty,)* }
            const _: () = assert!(size_of::<$name>() == $size);
        )*
        #[cfg(test)]
        pub(crate) const $layouts: &[super::Layout] = &[$(super::Layout {
            name: stringify!($name),
            size: size_of::<$name>(),
            fields: &[$((
                super::c_structs!(@name $field $($c_name)?),
                core::mem::offset_of!($name, $field),
            )),*],
        }),*];
    };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $c_name:literal) => { $c_name };
}
use c_structs;

/// What the layout test compares with the C compiler's.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct Layout {
    name: &'static str,
    size: usize,
    fields: &'static [(&'static str, usize)],
}
