//! The exported functions, made from the one table of driver calls.
//!
//! An answered call goes to the function that its row names; a refused one returns
//! `CUDA_ERROR_NOT_SUPPORTED`. A refused export declares no parameters: a C caller removes its own
//! arguments, so none need to be named to be ignored.

use core::ffi::{c_char, c_void};

use crate::abi::*;
use crate::args::{Arg, DefaultStream};
use crate::border;

macro_rules! exports {
    ($noun:ident; $($symbol:ident: $base:ident $version:literal $stream:ident $class:ident
        ($($direction:ident $name:ident: $ty:ty $([$length:ident])?),*) {$($target:tt)*})*) => {
        $(export! { $noun $stream $symbol ($($name: $ty),*) {$($target)*} })*
    };
}

macro_rules! export {
    ($noun:ident $stream:ident $symbol:ident $params:tt {}) => {
        #[unsafe(no_mangle)]
        extern "C" fn $symbol() -> CUresult {
            border::refused(stringify!($symbol))
        }
    };
    (driver $stream:ident $symbol:ident $params:tt {$file:ident::$function:ident $(<$of:ident>)?}) => {
        export! { @body (border::anytime) () $symbol $params ($file $function $($of)?) () }
    };
    ($noun:ident plain $symbol:ident $params:tt {$file:ident::$function:ident $(<$of:ident>)?}) => {
        export! { @body (border::ready) (client) $symbol $params ($file $function $($of)?) () }
    };
    ($noun:ident legacy $symbol:ident $params:tt {$file:ident::$function:ident $(<$of:ident>)?}) => {
        export! {
            @body (border::ready) (client) $symbol $params ($file $function $($of)?)
            (DefaultStream::Legacy,)
        }
    };
    ($noun:ident per_thread $symbol:ident $params:tt {$file:ident::$function:ident $(<$of:ident>)?}) => {
        export! {
            @body (border::ready) (client) $symbol $params ($file $function $($of)?)
            (DefaultStream::PerThread,)
        }
    };
    (@body ($gate:path) ($($client:ident)?) $symbol:ident ($($name:ident: $ty:ty),*)
        ($file:ident $function:ident $($of:ident)?) ($($default:tt)*)) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $symbol($($name: $ty),*) -> CUresult {
            $gate(|$($client)?| crate::$file::$function$(::<$of>)?($($client,)? $($default)* $({
                // SAFETY: the C caller promises what `Arg::from_c` asks for.
                unsafe { Arg::from_c($name) }
            }),*))
        }
    };
}

weft_wire::driver_calls! { exports }

/// A function of this library.
struct Address(*const ());

// SAFETY: the address of a function is a plain number and valid in every thread.
unsafe impl Sync for Address {}

macro_rules! addresses {
    ($noun:ident; $($symbol:ident: $base:ident $version:literal $stream:ident $class:ident
        ($($direction:ident $name:ident: $ty:ty $([$length:ident])?),*) {$($target:tt)*})*) => {
        &[$((stringify!($symbol), Address($symbol as *const ()))),*]
    };
}

static ADDRESSES: &[&[(&str, Address)]] = weft_wire::driver_call_lists! { addresses };

/// The address of an exported symbol.
pub(crate) fn address(symbol: &str) -> Option<*mut c_void> {
    let found = ADDRESSES.iter().copied().flatten().find(|(name, _)| *name == symbol)?;
    Some(found.1.0.cast_mut().cast())
}
