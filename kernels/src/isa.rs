//! Run-time choice of instruction set.

use std::cell::Cell;
use std::sync::OnceLock;

/// Instruction sets with a dedicated code path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// No assumption beyond the compilation target.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, VL, DQ and BW (with AVX2, FMA and F16C).
    Avx512,
}

/// An instruction set that this machine was found to support.
///
/// The field is private so that holding an `Isa` proves that the matching
/// `#[target_feature]` functions may be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Level);

thread_local! {
    static FORCED: Cell<Option<Isa>> = const { Cell::new(None) };
}

impl Isa {
    /// The code path without any run-time detected instructions.
    pub const PORTABLE: Isa = Isa(Level::Portable);

    /// Every instruction set usable on this machine, slowest first.
    pub fn available() -> &'static [Isa] {
        static FOUND: OnceLock<Vec<Isa>> = OnceLock::new();
        FOUND.get_or_init(|| {
            #[allow(unused_mut)]
            let mut found = vec![Isa::PORTABLE];
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
                found.push(Isa(Level::Avx2));
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512bw")
                {
                    found.push(Isa(Level::Avx512));
                }
            }
            found
        })
    }

    /// The instruction set used by kernels that are called from this thread:
    /// the one forced by [`with_isa`], otherwise the best available.
    pub fn current() -> Isa {
        FORCED.get().unwrap_or_else(|| Isa::available().last().copied().unwrap_or(Isa::PORTABLE))
    }

    /// Human-readable name, such as `AVX-512 with bf16`.
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Portable => "portable",
            Level::Avx2 => "AVX2",
            Level::Avx512 if self.has_bf16() => "AVX-512 with bf16",
            Level::Avx512 => "AVX-512",
        }
    }

    /// Whether the CPU has `bf16` dot-product instructions and this token allows AVX-512.
    pub(crate) fn has_bf16(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.0 == Level::Avx512 && is_x86_feature_detected!("avx512bf16");
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// The level that this token stands for.
    pub(crate) fn level(self) -> Level {
        self.0
    }
}

/// Runs `f`, during which every kernel called from this thread uses `isa` (for tests and comparisons).
pub fn with_isa<R>(isa: Isa, f: impl FnOnce() -> R) -> R {
    struct Restore(Option<Isa>);
    impl Drop for Restore {
        fn drop(&mut self) {
            FORCED.set(self.0);
        }
    }
    let _restore = Restore(FORCED.replace(Some(isa)));
    f()
}

/// Defines `fn $name(isa, args…)`, which runs the `#[inline(always)]` generic `$body::<FMA>(args…)`. The body is
/// compiled once per instruction set, so that the compiler vectorizes it with that set's registers. `FMA` says
/// whether `f32::mul_add` is a single instruction.
macro_rules! multiversion {
    ($(#[$meta:meta])* fn $name:ident $(<$element:ident: $bound:ident>)? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        pub(crate) fn $name $(<$element: $bound>)? (isa: $crate::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            match isa.level() {
                $crate::isa::Level::Portable => $body::<false $(, $element)?>($($arg),*),
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Level::Avx2 => {
                    #[target_feature(enable = "avx2,fma")]
                    fn compiled $(<$element: $bound>)? ($($arg: $ty),*) $(-> $ret)? { $body::<true $(, $element)?>($($arg),*) }
                    // SAFETY: an `Isa` of level Avx2 exists only where AVX2 and
                    // FMA were detected.
                    unsafe { compiled $(::<$element>)? ($($arg),*) }
                }
                #[cfg(target_arch = "x86_64")]
                $crate::isa::Level::Avx512 => {
                    #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
                    fn compiled $(<$element: $bound>)? ($($arg: $ty),*) $(-> $ret)? { $body::<true $(, $element)?>($($arg),*) }
                    // SAFETY: an `Isa` of level Avx512 exists only where all of
                    // these features were detected.
                    unsafe { compiled $(::<$element>)? ($($arg),*) }
                }
                #[cfg(not(target_arch = "x86_64"))]
                _ => $body::<false $(, $element)?>($($arg),*),
            }
        }
    };
}
pub(crate) use multiversion;
