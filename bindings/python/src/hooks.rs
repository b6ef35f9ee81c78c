//! Python functions as hooks.

use burn::tensor::Tensor;
use hooklens::hook::at;
use hooklens::{Activation, Catalog, Selection};
use hooklens_hooks::{At, Hook, Target};
use pyo3::exceptions::{PyNotImplementedError, PyTypeError};
use pyo3::prelude::*;

use crate::array::{Array, Memory};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A Python function at the hook points with the given full names. It is called with an [`Array`] and the name of the
/// point, and returns an array, or `None` if it changed the array in place or only read it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct PythonHook {
    names: Vec<String>,
    function: Py<PyAny>,
    /// Whether the function may change the array. If not, it gets a read-only array.
    edits: bool,
    /// Whether it is called with gradients, in the backward pass.
    backward: bool,
}

/// Hooks for a run. In a run with gradients (`tracked`), hooks of the forward pass may only read.
pub(crate) fn hooks_of(
    given: Vec<PythonHook>,
    catalog: &Catalog,
    tracked: bool,
) -> hooklens::Result<Vec<Hook<'static>>> {
    let mut hooks = Vec::new();
    for PythonHook { names, function, edits, backward } in given {
        if backward {
            hooks.extend(of_gradients(&names, &function, edits, catalog)?);
            continue;
        }
        let target = at(Selection::from(names));
        hooks.push(match (edits, tracked) {
            (false, _) => target.read_any(move |x, at| read(&function, &x, at)),
            (true, false) => target.edit_any(move |x, at| edit(&function, x, at).map(Some)),
            (true, true) => target.edit_any(move |x, at| unchanged(&function, &x, at).map(|()| None)),
        });
    }
    Ok(hooks)
}

/// Hooks on gradients, one for each rank of the points.
fn of_gradients(
    names: &[String],
    function: &Py<PyAny>,
    edits: bool,
    catalog: &Catalog,
) -> hooklens::Result<Vec<Hook<'static>>> {
    let points = Selection::from(names.to_vec()).resolve(catalog)?;
    let mut hooks = Vec::new();
    for rank in 1..=6 {
        let own = points.iter().map(|id| catalog.info(*id)).filter(|point| point.axes.len() == rank && !point.integer);
        let own: Vec<String> = own.map(|point| point.name.to_string()).collect();
        if !own.is_empty() {
            let function = Python::attach(|py| function.clone_ref(py));
            hooks.push(of_rank(at(Selection::from(own)), rank, function, edits));
        }
    }
    Ok(hooks)
}

fn of_rank(target: Target, rank: usize, function: Py<PyAny>, edits: bool) -> Hook<'static> {
    macro_rules! ranked {
        ($($rank:literal)*) => { match (rank, edits) {
            $(($rank, true) => target.edit_grad(move |x: Tensor<$rank>, at| {
                edit(&function, x.into(), at).and_then(|edited| Ok(edited.to_tensor::<$rank>()?))
            }),
            ($rank, false) => target.read_grad(move |x: Tensor<$rank>, at| read(&function, &x.into(), at)),)*
            _ => unreachable!("hook points have 1 to 6 axes"),
        } };
    }
    ranked!(1 2 3 4 5 6)
}

fn read(function: &Py<PyAny>, x: &Activation, at: &At<'_>) -> Result<(), BoxError> {
    let array = Array::shared(x)?;
    Python::attach(|py| function.call1(py, (array, at.name())).map(drop)).map_err(BoxError::from)
}

fn edit(function: &Py<PyAny>, x: Activation, at: &At<'_>) -> Result<Activation, BoxError> {
    let memory = Memory::writable(x)?;
    let returned = Python::attach(|py| {
        let returned = function.call1(py, (Array::new(memory.clone()), at.name()))?;
        array_of(returned.bind(py))
    })?;
    Ok(returned.unwrap_or_else(|| memory.activation()))
}

/// Calls a function that is not expected to change its array, and fails if it does.
fn unchanged(function: &Py<PyAny>, x: &Activation, at: &At<'_>) -> Result<(), BoxError> {
    let copy = Memory::writable(x.clone())?;
    Python::attach(|py| {
        let returned = function.call1(py, (Array::new(copy.clone()), at.name()))?;
        let changed = array_of(returned.bind(py))?.unwrap_or_else(|| copy.activation());
        if Memory::shared(&changed)?.same_values(&Memory::shared(x)?) {
            return Ok(());
        }
        let message = format!(
            "the hook at {} changed its activation in a run with gradients; hooks of the forward pass can only read \
             there, because their own derivative is unknown",
            at.name()
        );
        Err(PyNotImplementedError::new_err(message).into())
    })
}

/// The array that a function returned, or `None`.
fn array_of(returned: &Bound<'_, PyAny>) -> PyResult<Option<Activation>> {
    if returned.is_none() {
        return Ok(None);
    }
    match returned.cast::<Array>() {
        Ok(array) => Ok(Some(array.get().activation())),
        Err(_) => Err(PyTypeError::new_err(format!("a hook returned {}, not an array", returned.get_type()))),
    }
}
