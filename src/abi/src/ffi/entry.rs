//! The shape of an exported function: find the owner of the first argument, then run our body,
//! pass the call to the real library, or refuse a NULL.

/// Defines exported functions whose first argument is an object.
///
/// `fn name(object: Type, more: Args) -> Convention, Success { body }`: the body sees `object` as
/// a reference to our own object and gives an `Outcome<Success>`.
macro_rules! c_api {
    ($($(#[$meta:meta])* fn $name:ident($object:ident: $kind:ty $(, $arg:ident: $ty:ty)* $(,)?)
        -> $convention:ident, $success:ty $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[allow(
            clippy::undocumented_unsafe_blocks,
            reason = "the comment stands in the macro, where the lint does not look"
        )]
        extern "C" fn $name(
            $object: $crate::ffi::handle::Handle<$kind>, $($arg: $ty),*
        ) -> <$crate::ffi::boundary::$convention
                as $crate::ffi::boundary::Convention<$success>>::Ret {
            use $crate::ffi::boundary::{Convention, Outcome, $convention, enter};
            use $crate::ffi::handle::Owner;
            type Ret = <$convention as Convention<$success>>::Ret;
            const NAME: &core::ffi::CStr =
                $crate::ffi::entry::c_name(concat!(stringify!($name), "\0"));

            let library = match $object.owner() {
                Ok(Owner::Us($object)) => {
                    return enter::<$convention, $success>(|| -> Outcome<$success> { $body });
                }
                Ok(Owner::Them(library)) => library,
                Err(e) => return <$convention as Convention<$success>>::answer(Err(e)),
            };
            match library.need(NAME) {
                Ok(f) => {
                    // SAFETY: the real library's function of this name has this type.
                    let f: extern "C" fn($crate::ffi::handle::Handle<$kind>, $($ty),*) -> Ret =
                        unsafe { core::mem::transmute(f) };
                    f($object, $($arg),*)
                }
                Err(e) => <$convention as Convention<$success>>::answer(Err(e)),
            }
        }
    )*};
}

/// As `c_api`, for calls that wait for events and answer −1 with errno: the body comes to a
/// [`Turn`](super::sleep::Turn), and gets the outcome of the read that it asked for.
macro_rules! waiting_c_api {
    ($($(#[$meta:meta])* fn $name:ident($object:ident: $kind:ty, $read:ident $(, $arg:ident: $ty:ty)* $(,)?)
        -> $success:ty $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[allow(
            clippy::undocumented_unsafe_blocks,
            reason = "the comment stands in the macro, where the lint does not look"
        )]
        extern "C-unwind" fn $name(
            $object: $crate::ffi::handle::Handle<$kind>, $($arg: $ty),*
        ) -> $success {
            use $crate::ffi::boundary::{Convention, MinusOne, Outcome};
            use $crate::ffi::handle::Owner;
            use $crate::ffi::sleep::{Read, Turn, enter_waiting};
            const NAME: &core::ffi::CStr =
                $crate::ffi::entry::c_name(concat!(stringify!($name), "\0"));

            let library = match $object.owner() {
                Ok(Owner::Us($object)) => {
                    return enter_waiting::<MinusOne, $success>(
                        |$read: Option<Read>| -> Outcome<Turn<$success>> { $body },
                    );
                }
                Ok(Owner::Them(library)) => library,
                Err(e) => return <MinusOne as Convention<$success>>::answer(Err(e)),
            };
            match library.need(NAME) {
                Ok(f) => {
                    // SAFETY: the real library's function of this name has this type.
                    let f: extern "C-unwind" fn(
                        $crate::ffi::handle::Handle<$kind>, $($ty),*
                    ) -> $success = unsafe { core::mem::transmute(f) };
                    f($object, $($arg),*)
                }
                Err(e) => <MinusOne as Convention<$success>>::answer(Err(e)),
            }
        }
    )*};
}

/// Defines functions that C reaches only through our own context: the object must be ours.
macro_rules! own_entry {
    ($($(#[$meta:meta])* fn $name:ident($object:ident: $kind:ty $(, $arg:ident: $ty:ty)* $(,)?)
        -> $convention:ident, $success:ty $body:block)*) => {$(
        $(#[$meta])*
        pub(crate) extern "C" fn $name(
            $object: $crate::ffi::handle::Handle<$kind>, $($arg: $ty),*
        ) -> <$crate::ffi::boundary::$convention
                as $crate::ffi::boundary::Convention<$success>>::Ret {
            use $crate::ffi::boundary::{Outcome, $convention, enter};
            enter::<$convention, $success>(|| -> Outcome<$success> {
                let $object = $object.mine()?;
                $body
            })
        }
    )*};
}

/// A symbol's name as C has it.
pub(crate) const fn c_name(name: &'static str) -> &'static core::ffi::CStr {
    match core::ffi::CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a symbol ends with NUL and holds no other"),
    }
}

/// A function of any type as a slot of an operations table.
macro_rules! slot {
    ($f:expr, fn($($ty:ty),*) -> $ret:ty) => {{
        let f: extern "C" fn($($ty),*) -> $ret = $f;
        // SAFETY: callers cast the slot back to the type that verbs.h gives it, which is f's.
        Some(unsafe { core::mem::transmute::<extern "C" fn($($ty),*) -> $ret,
            unsafe extern "C" fn()>(f) })
    }};
}
