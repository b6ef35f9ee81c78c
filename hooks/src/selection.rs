//! Selections of hook points: names, globs, shorthands, typed points, predicates.

use std::fmt;
use std::sync::Arc;

use globset::{GlobBuilder, GlobMatcher};

use crate::catalog::{Catalog, PointId};
use crate::error::HookError;
use crate::ordinal::Ordinal;
use crate::point::{Point, PointInfo};
use crate::shorthand::expand_shorthand;
use crate::suggest::nearest;

type Predicate = Arc<dyn Fn(&PointInfo) -> bool + Send + Sync>;

/// A selection of hook points. Anything that names points converts into a selection; the default one is empty.
///
/// - `"blocks.0.attn.hook_q"`: a full name; layers may be negative.
/// - `"blocks.*.hook_resid_post"`, `"blocks.[0-3].attn.hook_{q,k}"`: a glob.
/// - `"k6"`, `("q", 3)`, `("scale", -1, "ln1")`: TransformerLens shorthands.
/// - `hook::pattern(5)`: a typed [`Point`].
/// - arrays, slices, and vectors of these.
///
/// `"*"` and every glob that ends in `*` select only points that cost nothing extra to compute. A point that is costly
/// to compute (`hook_result`, `hook_q_input`, ...) is selected by a pattern that spells out its ending, such as
/// `"*hook_result"`.
///
/// ```
/// # use burn::tensor::{Device, Tensor};
/// # use hooklens_hooks::*;
/// # let (catalog, ids) = example::points();
/// let names = |asked: Selection| -> Result<Vec<String>, HookError> {
///     Ok(asked.resolve(&catalog)?.into_iter().map(|id| catalog.info(id).name.to_string()).collect())
/// };
/// assert_eq!(names("blocks.*.hook_resid_post".into())?.len(), 2);
/// assert_eq!(names(("resid_post", -1).into())?, ["blocks.1.hook_resid_post"]);
/// assert_eq!(names(["resid_post1", "hook_embed"].into())?[0], "hook_embed"); // in firing order
/// # Ok::<(), hooklens_hooks::HookError>(())
/// ```
#[derive(Clone, Default)]
pub struct Selection {
    asked: Vec<Asked>,
}

#[derive(Clone)]
enum Asked {
    All,
    Text(String),
    Matching(Predicate),
}

impl Asked {
    fn word(&self) -> &str {
        match self {
            Asked::All => "*",
            Asked::Text(text) => text,
            Asked::Matching(_) => "<predicate>",
        }
    }
}

impl Selection {
    /// Selects every point that costs nothing extra to compute.
    pub fn all() -> Self {
        Self { asked: vec![Asked::All] }
    }

    /// Selects the points that satisfy `predicate`. Points that are costly to compute are selected only if no other
    /// point satisfies it. As with a pattern, resolving the selection fails if it selects nothing.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// let late = Selection::matching(|point| point.layer.is_some_and(|layer| layer >= 1));
    /// assert_eq!(late.resolve(&catalog)?, [ids[2]]);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    pub fn matching(predicate: impl Fn(&PointInfo) -> bool + Send + Sync + 'static) -> Self {
        Self { asked: vec![Asked::Matching(Arc::new(predicate))] }
    }

    /// The selection as the user wrote it.
    pub(crate) fn words(&self) -> String {
        self.asked.iter().map(Asked::word).collect::<Vec<_>>().join(", ")
    }

    /// The selection without the suffix `_grad`, if it is a single name with that suffix, such as
    /// `blocks.0.attn.hook_z_grad`.
    pub(crate) fn of_gradient(&self) -> Option<Selection> {
        match &self.asked[..] {
            [Asked::Text(text)] => text.strip_suffix("_grad").map(Selection::from),
            _ => None,
        }
    }

    /// Union of two selections.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// let both = Selection::from("hook_embed").and("resid_post0");
    /// assert_eq!(both.resolve(&catalog)?, [ids[0], ids[1]]);
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    #[must_use]
    pub fn and(mut self, other: impl Into<Selection>) -> Self {
        self.asked.extend(other.into().asked);
        self
    }

    /// Whether the selection is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// The selected points of `catalog`, in firing order, without duplicates.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// let ids = Selection::from("*hook_resid_post").resolve(&catalog)?;
    /// assert_eq!(ids.iter().map(|id| id.index()).collect::<Vec<_>>(), [1, 2]);
    /// assert!(Selection::from("blocks.7.hook_resid_post").resolve(&catalog).is_err());
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::UnknownPoint`] for an unknown name, [`HookError::Layer`] for a layer that the model does not have,
    /// [`HookError::NoMatch`] if a pattern or predicate selects nothing, [`HookError::BadPattern`] for an invalid
    /// pattern, or [`HookError::CannotFire`] for a point that this model does not fire.
    pub fn resolve(&self, catalog: &Catalog) -> Result<Vec<PointId>, HookError> {
        self.resolve_in(catalog, &|_| None)
    }

    /// Like [`Selection::resolve`], for a run in which some points don't fire; `silent` returns the reason why a point
    /// doesn't. Patterns skip these points; naming one explicitly is an error.
    pub(crate) fn resolve_in(&self, catalog: &Catalog, silent: Silent<'_>) -> Result<Vec<PointId>, HookError> {
        let mut found = Vec::new();
        for asked in &self.asked {
            let some = match asked {
                Asked::All => Ok(pick(catalog, silent, |p| !p.on_request)),
                Asked::Text(text) => resolve_text(text, catalog, silent),
                Asked::Matching(predicate) => {
                    let free = catalog.points().iter().any(|p| !p.on_request && predicate(p));
                    some_of("<predicate>", catalog, silent, |p| predicate(p) && !(free && p.on_request))
                }
            };
            found.extend(some?);
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }
}

/// Resolves a selection that must name a single point.
pub trait ResolveOne {
    /// The single selected point of `catalog`.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// assert_eq!(Selection::from(("resid_post", -1)).resolve_one(&catalog)?, ids[2]);
    /// let message = Selection::from("*hook_resid_post").resolve_one(&catalog).unwrap_err().to_string();
    /// assert!(message.ends_with("names 2 points; expected exactly one"), "{message}");
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Selection::resolve`], and [`HookError::NotOne`] if the selection names several points or none.
    fn resolve_one(&self, catalog: &Catalog) -> Result<PointId, HookError>;
}

impl ResolveOne for Selection {
    fn resolve_one(&self, catalog: &Catalog) -> Result<PointId, HookError> {
        let ids = self.resolve(catalog)?;
        match ids[..] {
            [id] => Ok(id),
            _ => Err(HookError::NotOne { asked: self.words(), count: ids.len() }),
        }
    }
}

/// A selection as text, to store it in files and compare it with stored selections.
pub trait SelectionText {
    /// Replaces predicates with the names of the points they select, so that the selection can be serialized and
    /// compared.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// # use hooklens_hooks::*;
    /// # let (catalog, ids) = example::points();
    /// let late = Selection::from("hook_embed").and(Selection::matching(|point| point.layer == Some(1)));
    /// let spelled_out = late.spelled_out(&catalog)?;
    /// assert_eq!(format!("{spelled_out:?}"), "[\"hook_embed\", \"blocks.1.hook_resid_post\"]");
    /// # Ok::<(), hooklens_hooks::HookError>(())
    /// ```
    ///
    /// # Errors
    /// [`HookError::NoMatch`] if no point satisfies a predicate.
    fn spelled_out(&self, catalog: &Catalog) -> Result<Selection, HookError>;

    /// The names, patterns and shorthands of the selection, as the user wrote them.
    fn texts(&self) -> Vec<&str>;

    /// The full name of the selected point, with shorthands spelled out, for code that has no catalog. A layer counted
    /// from the end stays negative, because its number depends on the model. For several names, a pattern or a
    /// predicate, this is a description, which is not the name of any point.
    ///
    /// ```
    /// use hooklens_hooks::{Point, Selection, SelectionText};
    /// let name = |point: Selection| point.full_name();
    /// assert_eq!(name("resid_post1".into()), "blocks.1.hook_resid_post");
    /// assert_eq!(name(("q", -1).into()), "blocks.-1.attn.hook_q");
    /// assert_eq!(name(Point::<3>::in_layer(1, "hook_mlp_out").into()), "blocks.1.hook_mlp_out");
    /// assert_eq!(name("resid_pre7.hook_sae_acts_post".into()), "blocks.7.hook_resid_pre.hook_sae_acts_post");
    /// assert_eq!(name("layers.0.hook_pre".into()), "layers.0.hook_pre");
    /// ```
    fn full_name(&self) -> String;
}

impl SelectionText for Selection {
    fn spelled_out(&self, catalog: &Catalog) -> Result<Selection, HookError> {
        let mut asked = Vec::new();
        for one in &self.asked {
            match one {
                Asked::Matching(_) => {
                    let ids = Selection { asked: vec![one.clone()] }.resolve(catalog)?;
                    asked.extend(ids.into_iter().map(|id| Asked::Text(catalog.info(id).name.to_string())));
                }
                Asked::All | Asked::Text(_) => asked.push(one.clone()),
            }
        }
        Ok(Selection { asked })
    }

    fn texts(&self) -> Vec<&str> {
        self.asked.iter().map(Asked::word).collect()
    }

    fn full_name(&self) -> String {
        match &self.asked[..] {
            // A full name has no layer before its first dot: `blocks.0.hook_resid_pre`, `embed.ln.hook_scale`.
            [Asked::Text(text)] if is_pattern(text) || is_full(text) => text.clone(),
            [Asked::Text(text)] => expanded(text),
            _ => self.words(),
        }
    }
}

/// Returns the reason why a point does not fire in a run, or `None` if it does.
pub type Silent<'a> = &'a dyn Fn(&PointInfo) -> Option<&'static str>;

fn pick(catalog: &Catalog, silent: Silent<'_>, keep: impl Fn(&PointInfo) -> bool) -> Vec<PointId> {
    let numbered = catalog.points().iter().enumerate();
    numbered.filter(|(_, p)| keep(p) && silent(p).is_none()).map(|(i, _)| PointId(i as u32)).collect()
}

/// Like [`pick`], but an empty result is an error.
fn some_of(
    pattern: &str,
    catalog: &Catalog,
    silent: Silent<'_>,
    keep: impl Fn(&PointInfo) -> bool,
) -> Result<Vec<PointId>, HookError> {
    let found = pick(catalog, silent, &keep);
    if !found.is_empty() {
        return Ok(found);
    }
    let silenced = catalog.points().iter().filter(|p| keep(p)).find_map(|p| silent(p).map(|why| (p, why)));
    if let Some((point, reason)) = silenced {
        return Err(HookError::CannotFire { point: point.name.to_string(), reason });
    }
    if let Some(other_layer) = catalog.other_layer(pattern) {
        return Err(other_layer);
    }
    let nearest = nearest(pattern, catalog.points().iter().map(|p| &*p.name));
    Err(HookError::NoMatch { pattern: pattern.to_string(), nearest })
}

fn resolve_text(text: &str, catalog: &Catalog, silent: Silent<'_>) -> Result<Vec<PointId>, HookError> {
    if text == "*" {
        return Ok(pick(catalog, silent, |p| !p.on_request));
    }
    if !is_pattern(text) {
        let id = find_named(text, catalog)?;
        let point = catalog.info(id);
        return match silent(point) {
            Some(reason) => Err(HookError::CannotFire { point: point.name.to_string(), reason }),
            None => Ok(vec![id]),
        };
    }
    let pattern = catalog.with_positive_layer(text);
    if let Some(other_layer) = catalog.other_layer(&pattern) {
        return Err(other_layer);
    }
    if negative_within(&pattern) {
        let reason = "a layer counted from the end must be given as a plain number: blocks.-1.*".to_string();
        return Err(HookError::BadPattern { pattern: text.to_string(), reason });
    }
    let glob = compile(&pattern)?;
    let matching = |p: &PointInfo| glob.is_match(&*p.name);
    let free = |p: &PointInfo| !p.on_request && matching(p);
    if text.ends_with('*') && catalog.points().iter().any(free) {
        return some_of(text, catalog, silent, free);
    }
    if let Some((point, reason)) = catalog.absent().find(|(name, _)| glob.is_match(name))
        && !catalog.points().iter().any(matching)
    {
        return Err(HookError::CannotFire { point: point.to_string(), reason });
    }
    some_of(text, catalog, silent, matching)
}

/// Whether a text is a glob instead of a name.
fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '[', '{'])
}

/// Whether a name contains a dot, and the part before the first dot is not a shorthand with a layer (`resid_pre7`).
fn is_full(name: &str) -> bool {
    name.split_once('.').is_some_and(|(first, _)| !first.contains(|c: char| c.is_ascii_digit()))
}

/// Looks up a name, first as written, so that errors quote what the user wrote.
fn find_named(text: &str, catalog: &Catalog) -> Result<PointId, HookError> {
    let as_written = catalog.find(text);
    if as_written.is_ok() {
        return as_written;
    }
    match catalog.find(&expanded(text)) {
        found @ (Ok(_) | Err(HookError::CannotFire { .. } | HookError::Layer { .. })) => found,
        Err(_) => as_written,
    }
}

/// Spells out a shorthand, including one at the start of the name of a part's point: `resid_pre7.hook_sae_acts_post`.
fn expanded(text: &str) -> String {
    match text.split_once('.') {
        Some((point, inner)) => format!("{}.{inner}", expand_shorthand(point, None, None)),
        None => expand_shorthand(text, None, None),
    }
}

/// Whether a pattern still contains a negative number outside brackets. No point name contains one, so that part of the
/// pattern would silently match nothing.
fn negative_within(pattern: &str) -> bool {
    let mut in_brackets = false;
    let mut before = ' ';
    pattern.chars().any(|c| {
        in_brackets = (in_brackets || c == '[') && c != ']';
        let negative = before == '-' && c.is_ascii_digit() && !in_brackets;
        before = c;
        negative
    })
}

/// Limits on pattern length and brace depth. The compiled regex grows with both, and globset panics if it gets too
/// large.
const LONGEST: usize = 8192;
const DEEPEST: usize = 8;

fn compile(pattern: &str) -> Result<GlobMatcher, HookError> {
    let depths = pattern.chars().scan(0usize, |depth, letter| {
        match letter {
            '{' => *depth += 1,
            '}' => *depth = depth.saturating_sub(1),
            _ => {}
        }
        Some(*depth)
    });
    if pattern.len() > LONGEST || depths.max().unwrap_or(0) > DEEPEST {
        let shown: String = pattern.chars().take(40).collect();
        let reason = format!("it may have at most {LONGEST} bytes and {DEEPEST} nested braces");
        return Err(HookError::BadPattern { pattern: format!("{shown}..."), reason });
    }
    let built = GlobBuilder::new(pattern).literal_separator(false).build();
    let bad = |e: globset::Error| HookError::BadPattern { pattern: pattern.to_string(), reason: e.kind().to_string() };
    Ok(built.map_err(bad)?.compile_matcher())
}

impl fmt::Debug for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.asked.iter().map(Asked::word)).finish()
    }
}

impl From<&str> for Selection {
    fn from(text: &str) -> Self {
        Self { asked: vec![Asked::Text(text.to_string())] }
    }
}

impl From<String> for Selection {
    fn from(text: String) -> Self {
        Self { asked: vec![Asked::Text(text)] }
    }
}

impl From<&String> for Selection {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

impl<const D: usize> From<Point<D>> for Selection {
    fn from(point: Point<D>) -> Self {
        point.name().into()
    }
}

impl<const D: usize> From<&Point<D>> for Selection {
    fn from(point: &Point<D>) -> Self {
        point.name().into()
    }
}

impl<L: Ordinal> From<(&str, L)> for Selection {
    fn from((name, layer): (&str, L)) -> Self {
        expand_shorthand(name, Some(layer.number()), None).into()
    }
}

impl<L: Ordinal> From<(&str, L, &str)> for Selection {
    fn from((name, layer, part): (&str, L, &str)) -> Self {
        expand_shorthand(name, Some(layer.number()), Some(part)).into()
    }
}

impl<T: Into<Selection>, const N: usize> From<[T; N]> for Selection {
    fn from(many: [T; N]) -> Self {
        Self { asked: many.into_iter().flat_map(|one| one.into().asked).collect() }
    }
}

impl<T: Into<Selection>> From<Vec<T>> for Selection {
    fn from(many: Vec<T>) -> Self {
        Self { asked: many.into_iter().flat_map(|one| one.into().asked).collect() }
    }
}

impl<T: Into<Selection> + Clone> From<&[T]> for Selection {
    fn from(many: &[T]) -> Self {
        many.to_vec().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::Axis;

    fn catalog() -> Catalog {
        let mut builder = Catalog::builder(2);
        for layer in 0..2 {
            for (suffix, on_request) in [("attn.hook_q", false), ("attn.hook_result", true), ("hook_resid_post", false)]
            {
                let axes = &[Axis::Batch, Axis::Pos, Axis::DModel];
                let point = PointInfo::new(format!("blocks.{layer}.{suffix}"), Some(layer), axes);
                builder.add(if on_request { point.on_request() } else { point });
            }
            builder.absent(format!("blocks.{layer}.hook_resid_mid"), "it has no MLP");
        }
        builder.build()
    }

    fn names(selection: impl Into<Selection>) -> Result<Vec<String>, HookError> {
        let catalog = catalog();
        let ids = selection.into().resolve(&catalog)?;
        Ok(ids.into_iter().map(|id| catalog.info(id).name.to_string()).collect())
    }

    #[test]
    fn every_spelling_finds_its_point() {
        for text in ["blocks.1.attn.hook_q", "blocks.-1.attn.hook_q", "q1"] {
            assert_eq!(names(text).unwrap(), ["blocks.1.attn.hook_q"], "{text}");
        }
        assert_eq!(names(("q", -1)).unwrap(), ["blocks.1.attn.hook_q"]);
        assert_eq!(names(Point::<4>::in_layer(-2, "attn.hook_q")).unwrap(), ["blocks.0.attn.hook_q"]);
        assert_eq!(names(["q1", "q0", "q1"]).unwrap(), ["blocks.0.attn.hook_q", "blocks.1.attn.hook_q"]);
    }

    #[test]
    fn costly_points_want_their_ending_spelled() {
        assert_eq!(names("*").unwrap().len(), 4);
        assert_eq!(names("blocks.0.*").unwrap(), ["blocks.0.attn.hook_q", "blocks.0.hook_resid_post"]);
        assert_eq!(names("*hook_result").unwrap(), ["blocks.0.attn.hook_result", "blocks.1.attn.hook_result"]);
        assert_eq!(names("blocks.0.attn.hook_{q,result}").unwrap().len(), 2);
        assert_eq!(names("blocks.0.attn.hook_res*").unwrap(), ["blocks.0.attn.hook_result"]);
        assert_eq!(names(Selection::matching(|p| p.layer == Some(1))).unwrap().len(), 2);
        assert_eq!(names("blocks.[0-1].attn.hook_q").unwrap().len(), 2);
    }

    #[test]
    fn nothing_is_silent() {
        let unknown = names("blocks.0.attn.hook_w").unwrap_err();
        assert!(
            matches!(&unknown, HookError::UnknownPoint { nearest, .. } if nearest.contains(&"blocks.0.attn.hook_q".to_string()))
        );
        assert!(matches!(names("blocks.*.hook_resid_pots").unwrap_err(), HookError::NoMatch { .. }));
        for text in [
            "blocks.9.hook_resid_post",
            "resid_post9",
            "blocks.-3.attn.hook_q",
            "blocks.2.*",
            "blocks.9.hook_resid_mid",
        ] {
            assert!(matches!(names(text).unwrap_err(), HookError::Layer { n_layers: 2, .. }), "{text}");
        }
        assert!(matches!(names(("q", 9)).unwrap_err(), HookError::Layer { layer: 9, .. }));
        assert!(matches!(names("blocks.1.hook_resid_pots").unwrap_err(), HookError::UnknownPoint { .. }));
        assert!(matches!(names("resid_mid1").unwrap_err(), HookError::CannotFire { .. }));
        assert!(matches!(names("*.hook_resid_mid").unwrap_err(), HookError::CannotFire { .. }));
        assert!(matches!(names("blocks.[").unwrap_err(), HookError::BadPattern { .. }));
        assert!(matches!(names("blocks.{0,-1}.hook_resid_post").unwrap_err(), HookError::BadPattern { .. }));
        assert!(matches!(names("").unwrap_err(), HookError::UnknownPoint { .. }));
        assert!(matches!(names(Selection::matching(|_| false)).unwrap_err(), HookError::NoMatch { .. }));
    }
}
