"""Table of the decompositions of ATen operators into the tensor level. Each file of the folder has one family.

A decomposition is a function that takes a `Builder` and the arguments of the operator, by their ATen names, and returns
the result, or a list of results. Results that an overload does not have are dropped. A decorator registers it:

```
@decomposes("relu")
def relu(b: Builder, self: SSAValue) -> SSAValue:
    x = b.working(self)
    return b.maximum(x, b.like(x, 0))
```
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias, TypeVar

from xdsl.ir import SSAValue

Results: TypeAlias = SSAValue | Sequence[SSAValue]
Decomposition: TypeAlias = Callable[..., Results]

Function = TypeVar("Function", bound=Decomposition)

DECOMPOSITIONS: dict[str, Decomposition] = {}
"""Overload, such as "add.Tensor" -> decomposition."""


def decomposes(*overloads: str) -> Callable[[Function], Function]:
    """Registers the decorated function as the decomposition of `overloads`. Raises ValueError if one has a
    decomposition."""

    def enter(function: Function) -> Function:
        for overload in overloads:
            if overload in DECOMPOSITIONS:
                raise ValueError(f"expected one decomposition of {overload}, but got two")
            DECOMPOSITIONS[overload] = function
        return function

    return enter


RANDOM = "random numbers of this distribution are not supported"
FACTORIZATION = "matrix factorizations and solvers are not supported"
FOURIER = "Fourier transforms are not supported"
COMPLEX = "complex numbers are not supported"
DATA_DEPENDENT = "a result whose shape, or whose value as a Python number, depends on data is not supported"
SPECIAL = "this special function is not supported"
STRIDES = "the strides of a tensor in memory are not part of a program, so this operator is not supported"
SPARSE = "sparse, nested and quantized tensors are not supported"
BACKWARD = "a backward operator is not supported"
UNKNOWN = "this operator is not supported"

_PATTERNS = {
    RANDOM: """
        rand* bernoulli* normal* multinomial* exponential* geometric* cauchy* log_normal* uniform* poisson*
        binomial* native_dropout* _standard_gamma* _sample_dirichlet* rrelu_with_noise*
    """,
    FOURIER: "_fft_* fft_* stft* istft*",
    FACTORIZATION: "linalg_* _linalg_* cholesky* _cholesky* geqrf* ormqr* orgqr* lu_* triangular_solve* qr* svd* _lu_*",
    COMPLEX: "complex* polar* view_as_complex* view_as_real* _conj* imag* real*",
    DATA_DEPENDENT: """
        masked_select* nonzero* _unique* unique* _local_scalar_dense* item* equal* allclose* bincount*
        repeat_interleave.Tensor segment_reduce* _ctc_loss*
    """,
    SPECIAL: "special_* igamma* nextafter* frexp*",
    STRIDES: "as_strided* resize* set_* empty_strided* empty_permuted* new_empty_strided*",
    SPARSE: "*sparse* *quantize* *nested* to_dense* *mkldnn*",
    BACKWARD: "*_backward*",
}
"""Reason of a refusal -> patterns of operator names."""


def why_refused(name: str) -> str:
    """Returns the reason why an operator without decomposition, such as "nonzero", is refused."""
    for reason, patterns in _PATTERNS.items():
        if any(fnmatchcase(name, pattern) for pattern in patterns.split()):
            return reason
    return UNKNOWN
