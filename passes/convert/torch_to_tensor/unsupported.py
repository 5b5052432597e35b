"""Why operators without a decomposition have none: a named reason for each, for the error message."""

from __future__ import annotations

from fnmatch import fnmatchcase

RANDOM = "random numbers of this distribution are not supported"
FACTORIZATION = "matrix factorizations and solvers are not supported"
FOURIER = "Fourier transforms are not supported"
COMPLEX = "complex numbers are not supported"
DATA_DEPENDENT = "a result whose shape or value as a Python number depends on data is not supported"
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
"""Reason -> operators that are refused for it."""


def why_refused(name: str) -> str:
    """The reason for refusing the operator `name` (`"nonzero"`, `"rand_like"`), which has no decomposition."""
    for reason, patterns in _PATTERNS.items():
        if any(fnmatchcase(name, pattern) for pattern in patterns.split()):
            return reason
    return UNKNOWN
