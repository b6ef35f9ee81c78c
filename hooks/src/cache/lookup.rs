//! Arguments that name a recorded point.

use crate::ordinal::Ordinal;
use crate::point::Point;
use crate::selection::Selection;

/// An argument that names one point, for looking up a tensor of rank `D`.
///
/// ```
/// # use burn::tensor::{Device, Tensor};
/// # use hooklens_hooks::*;
/// # let (catalog, ids) = example::points();
/// # let rows = Rows::new(1, 3);
/// # let mut run = Run::new(&catalog, &mut [], Record::all(), rows, &|_| None)?;
/// # for id in ids {
/// #     run.fire(Some(id), Tensor::<3>::ones([1, 3, 4], &Device::flex())).ok();
/// # }
/// # let cache = run.finish()?;
/// // A typed point knows its rank; for a name, the type annotation specifies it.
/// let typed = cache.get(Point::<3>::in_layer(1, "hook_resid_post"))?;
/// let by_name: Tensor<3> = cache.get("resid_post1")?;
/// assert_eq!(typed.dims(), by_name.dims());
/// assert!(cache.get::<2>("resid_post1").is_err());
/// # Ok::<(), hooklens_hooks::HookError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be used to look up a recorded point",
    label = "expected a typed point or a name",
    note = "write `cache.get(hook::pattern(1))?`, or give the name and the rank: `cache.get::<4>(\"pattern1\")?` or \
        `cache.get::<4>((\"pattern\", 1))?`"
)]
pub trait Lookup<const D: usize> {
    /// The selection, not yet resolved against a catalog.
    fn selection(self) -> Selection;
}

impl<const D: usize> Lookup<D> for Point<D> {
    fn selection(self) -> Selection {
        self.into()
    }
}

impl<const D: usize> Lookup<D> for &Point<D> {
    fn selection(self) -> Selection {
        self.into()
    }
}

macro_rules! lookup_by_text {
    ($($text:ty),*) => { $(
        impl<const D: usize> Lookup<D> for $text {
            fn selection(self) -> Selection {
                self.into()
            }
        }
    )* };
}
lookup_by_text!(&str, String, &String);

impl<const D: usize, L: Ordinal> Lookup<D> for (&str, L) {
    fn selection(self) -> Selection {
        self.into()
    }
}

impl<const D: usize, L: Ordinal> Lookup<D> for (&str, L, &str) {
    fn selection(self) -> Selection {
        self.into()
    }
}
