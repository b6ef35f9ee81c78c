"""Products of two matrices that are not multiplied out."""

from __future__ import annotations

from typing import Any

from ._frameworks import framework_of


class FactoredMatrix:
    """The matrix `A @ B`, `[.., ldim, rdim]`, stored as its factors `A`, `[.., ldim, mdim]`, and `B`,
    `[.., mdim, rdim]`. `A` and `B` are arrays of NumPy, torch or JAX."""

    def __init__(self, A: Any, B: Any) -> None:
        if A.shape[-1] != B.shape[-2]:
            raise ValueError(f"A has {A.shape[-1]} columns, but B has {B.shape[-2]} rows; these numbers must be equal")
        self.A, self.B = A, B
        leading = tuple(A.shape[:-2]) if len(A.shape) >= len(B.shape) else tuple(B.shape[:-2])
        self.ldim, self.mdim, self.rdim = A.shape[-2], A.shape[-1], B.shape[-1]
        self.has_leading_dims = bool(leading)
        self.shape = (*leading, self.ldim, self.rdim)

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, FactoredMatrix):
            left = self @ other.A
            return left @ other.B
        if len(other.shape) < 2:
            product: Any = self.A @ (self.B @ other[..., None])
            return product[..., 0]
        if other.shape[-2] != self.rdim:
            raise ValueError(f"the matrix has {self.rdim} columns, but the right factor has {other.shape[-2]} rows")
        if self.rdim > self.mdim:
            return FactoredMatrix(self.A, self.B @ other)
        return FactoredMatrix(self.AB, other)

    def __rmatmul__(self, other: Any) -> Any:
        if len(other.shape) < 2:
            return (((other[None] @ self.A) @ self.B))[..., 0, :]
        if other.shape[-1] != self.ldim:
            raise ValueError(f"the matrix has {self.ldim} rows, but the left factor has {other.shape[-1]} columns")
        if self.ldim > self.mdim:
            return FactoredMatrix(other @ self.A, self.B)
        return FactoredMatrix(other, self.AB)

    # NumPy would multiply element by element if it did not defer to `__rmatmul__`.
    __array_ufunc__ = None

    def __mul__(self, scalar: Any) -> FactoredMatrix:
        return FactoredMatrix(self.A * scalar, self.B)

    def __rmul__(self, scalar: Any) -> FactoredMatrix:
        return self.__mul__(scalar)

    @property
    def AB(self) -> Any:
        """The product, `[.., ldim, rdim]`."""
        return self.A @ self.B

    @property
    def BA(self) -> Any:
        """The product in the other order, `[.., mdim, mdim]`, for a square matrix."""
        if self.ldim != self.rdim:
            raise ValueError(f"BA needs a square matrix, not one of shape {self.shape}")
        return self.B @ self.A

    @property
    def T(self) -> FactoredMatrix:
        """The transposed matrix."""
        return FactoredMatrix(_transposed(self.B), _transposed(self.A))

    def svd(self) -> tuple[Any, Any, Any]:
        """U, `[.., ldim, mdim]`, S, `[.., mdim]`, and V, `[.., rdim, mdim]`. As in TransformerLens, the third is not
        transposed: the matrix is `U @ diag(S) @ V.T`."""
        framework = framework_of(self.A)
        ua, sa, vah = framework.svd(self.A)
        ub, sb, vbh = framework.svd(self.B)
        middle = sa[..., :, None] * (vah @ ub) * sb[..., None, :]
        um, sm, vmh = framework.svd(middle)
        return ua @ um, sm, _transposed(vmh @ vbh)

    @property
    def U(self) -> Any:
        return self.svd()[0]

    @property
    def S(self) -> Any:
        return self.svd()[1]

    @property
    def Vh(self) -> Any:
        """The third result of `svd`: V, in spite of the name, as in TransformerLens."""
        return self.svd()[2]

    @property
    def eigenvalues(self) -> Any:
        """The nonzero eigenvalues, which are the eigenvalues of `BA`, `[.., mdim]`."""
        return framework_of(self.A).eigenvalues(self.BA)

    def __getitem__(self, index: Any) -> FactoredMatrix:
        """Indexes the leading axes; a slice or number for the last two axes selects rows and columns."""
        index = index if isinstance(index, tuple) else (index,)
        leading = len(self.shape) - 2
        if Ellipsis in index:
            at = index.index(Ellipsis)
            index = (*index[:at], *[slice(None)] * (len(self.shape) - len(index) + 1), *index[at + 1 :])
        if len(index) <= leading:
            return FactoredMatrix(self.A[index], self.B[index])
        if len(index) > len(self.shape):
            raise IndexError(f"{len(index)} indices are too many for a factored matrix of shape {self.shape}")
        before, rows = index[:leading], _as_slice(index[leading])
        columns = _as_slice(index[leading + 1]) if len(index) > leading + 1 else slice(None)
        return FactoredMatrix(self.A[(*before, rows)], self.B[(*before, slice(None), columns)])

    def norm(self) -> Any:
        """The Frobenius norm, `[..]`."""
        return (self.S**2).sum(-1) ** 0.5

    def make_even(self) -> FactoredMatrix:
        """The same matrix with factors of equal norm."""
        u, s, v = self.svd()
        root = s**0.5
        return FactoredMatrix(u * root[..., None, :], root[..., :, None] * _transposed(v))

    def collapse_l(self) -> Any:
        """`diag(S) @ V.T`, `[.., mdim, rdim]`."""
        _, s, v = self.svd()
        return s[..., :, None] * _transposed(v)

    def collapse_r(self) -> Any:
        """`U @ diag(S)`, `[.., ldim, mdim]`."""
        u, s, _ = self.svd()
        return u * s[..., None, :]

    def unsqueeze(self, k: int) -> FactoredMatrix:
        """Inserts a leading axis at `k`."""
        at = (*[slice(None)] * k, None)
        return FactoredMatrix(self.A[at], self.B[at])

    def get_corner(self, k: int = 3) -> Any:
        """The upper left corner of the product."""
        return self.A[..., :k, :] @ self.B[..., :, :k]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def pair(self) -> tuple[Any, Any]:
        """`A` and `B`."""
        return self.A, self.B

    def __repr__(self) -> str:
        return f"FactoredMatrix: Shape({self.shape}), Hidden Dim({self.mdim})"


def _transposed(matrix: Any) -> Any:
    return matrix.swapaxes(-2, -1)


def _as_slice(index: Any) -> Any:
    """Keeps the axis of a single row or column."""
    return slice(index, index + 1 or None) if isinstance(index, int) else index
