"""Decompositions of views, joins, reductions and contractions against eager PyTorch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.aten import check, evaluate

import deplodock
from deplodock.dialects.shapes.binding import Algebra
from deplodock.dialects.tensor.views import regroup
from deplodock.errors import CompileError

Call = tuple[str, tuple[Any, ...], dict[str, Any]]

torch.manual_seed(5)
A = torch.randn(2, 3, 4)
M, N = torch.randn(5, 7), torch.randn(7, 3)
E = torch.randn(2, 0, 3)
S = torch.tensor(1.5)


def call(name: str, *args: Any, **kwargs: Any) -> Call:
    return name, args, kwargs


VIEWS = [
    *(call("view", A, shape) for shape in ([24], [6, 4], [2, 12], [4, 6], [3, 2, 4], [2, 1, 3, 1, 4], [8, 3], [-1, 2])),
    call("reshape", A.transpose(0, 2), [6, 4]),
    call("reshape", torch.randn(6, 10), [4, 15]),
    call("reshape", E, [0, 5]),
    call("reshape", S, [1, 1]),
    call("view", torch.randn(1, 1), []),
    call("_unsafe_view", A, [12, 2]),
    call("reshape_as", A, torch.randn(4, 6)),
    *(call("permute", A, order) for order in ([2, 0, 1], [0, 2, 1], [-1, 1, 0], [0, 1, 2])),
    call("permute", S, []),
    call("transpose.int", A, 0, -1),
    call("transpose.int", S, 0, -1),
    call("swapaxes", A, 1, 2),
    call("t", M),
    call("t", torch.randn(3)),
    call("numpy_T", A),
    call("movedim.int", A, 0, 2),
    call("movedim.intlist", A, [0, 1], [-1, 0]),
    call("expand", torch.randn(3, 1), [2, -1, 4]),
    call("expand", S, [2, 2]),
    call("expand_as", torch.randn(4), A),
    *(
        call("slice.Tensor", A, d, s, e, t)
        for d, s, e, t in ((2, 1, 3, 1), (-1, 0, 9, 3), (1, -2, None, 2), (0, 5, 9, 1))
    ),
    call("slice.Tensor", torch.randn(11), 0, 1, 2**63 - 1, 4),
    call("slice.Tensor", A, 2, 3, 1, 1),
    call("select.int", A, 1, -1),
    call("select.int", torch.randn(3), 0, 2),
    call("narrow", A, 2, 1, 2),
    call("split.Tensor", torch.randn(7, 2), 3),
    call("split.Tensor", A, 2, -1),
    call("split_with_sizes", torch.randn(2, 7), [1, 0, 4, 2], 1),
    call("split.sizes", torch.randn(2, 7), [3, 4], 1),
    call("chunk", torch.randn(2, 7), 3, 1),
    call("chunk", torch.randn(5), 4),
    call("unbind.int", A, 1),
    call("flip", A, [0, -1]),
    call("flip", S, []),
    call("repeat", torch.randn(2, 3), [2, 1, 3]),
    call("repeat", torch.randn(1), [0]),
    call("repeat_interleave.self_int", M, 3, 1),
    call("repeat_interleave.self_int", M, 2),
    *(call("roll", M, shifts, dims) for shifts, dims in (([2], [0]), ([-3, 1], [1, 0]), ([9], [1]), ([0], [0]))),
    call("roll", M, [3]),
    *(call("diagonal", A, o, i, j) for o, i, j in ((0, 0, 1), (1, 1, 2), (-1, -2, -1), (2, 2, 0), (9, 0, 1))),
    call("unfold", torch.randn(3, 9), 1, 4, 2),
    *(call("flatten.using_ints", A, i, j) for i, j in ((0, -1), (1, 2), (0, 0))),
    call("flatten.using_ints", S),
    call("unflatten.int", torch.randn(3, 12), 1, [2, -1, 3]),
    call("ravel", A.transpose(0, 1)),
    call("unsqueeze", A, -1),
    call("squeeze", torch.randn(1, 3, 1)),
    call("squeeze.dim", torch.randn(1, 3, 1), -1),
    call("squeeze.dim", torch.randn(1, 3, 1), 1),
    call("squeeze.dims", torch.randn(1, 3, 1, 1), [0, 1, 3]),
    call("alias", A),
    call("contiguous", A.transpose(0, 1)),
]

JOINS = [
    call("cat", [A, torch.randn(2, 1, 4), A], 1),
    call("cat", [A, A], -1),
    call("cat", [torch.randn(0), A], 0),
    call("cat", [torch.randn(2, 0, 4), A], 1),
    call("cat", [torch.randn(3).half(), torch.arange(2)], 0),
    call("cat", [torch.tensor([math.nan, -0.0]), torch.tensor([math.inf])], 0),
    call("cat", [M], 0),
    call("stack", [M, M * 2, -M], 1),
    call("stack", [S, S], -1),
    call("constant_pad_nd", M, [1, 2], 7.5),
    call("constant_pad_nd", M, [-1, 2, 3, -2], -math.inf),
    call("constant_pad_nd", torch.arange(3), [1, 1]),
    call("constant_pad_nd", M, [-1, -2]),
    call("pad", M, [1, 1, 0, 2], "constant", 2.0),
    call("pad", A, [3, 2], "reflect"),
    call("pad", torch.randn(1, 2, 5, 6), [3, 2, 0, 4], "reflect"),
    call("pad", A, [5, 6], "replicate"),
    call("pad", torch.randn(1, 2, 5, 6), [1, 2, 3, 4], "replicate"),
    call("pad", torch.randn(1, 2, 5, 6), [1, 6, 3, 4], "circular"),
    *(call(f, torch.randn(4, 6), d) for f in ("tril", "triu") for d in (-2, 0, 1, 9)),
    call("tril", torch.full((3, 3), math.nan)),
    call("triu", torch.ones(2, 3, 3, dtype=torch.bool)),
    call("diag_embed", torch.randn(2, 3)),
    call("diag_embed", torch.randn(2, 3), 1, 0, 2),
    call("diag_embed", torch.randn(2, 3), -2),
    call("select_scatter", A, torch.randn(2, 4), 1, -1),
    call("slice_scatter", torch.randn(9, 2), torch.randn(3, 2), 0, 1, 8, 3),
    call("slice_scatter", A, torch.randn(2, 3, 2), -1, 2),
]

DIMS: list[Any] = [[], [0], [-1], [0, 2], [1, 2], [0, 1, 2]]
REDUCTIONS = [
    *(
        call(f, A, d, k)
        for f in ("sum.dim_IntList", "mean.dim", "amax", "amin", "logsumexp")
        for d in DIMS[1:]
        for k in (True, False)
    ),
    *(
        call(f, A)
        for f in ("sum", "mean", "prod", "amax", "max", "min", "any", "all", "argmax", "argmin", "count_nonzero")
    ),
    *(call(f, S) for f in ("sum", "mean", "prod", "amax", "max", "any", "argmax", "nansum")),
    *(
        call(f, A, 1, k)
        for f in ("prod.dim_int", "max.dim", "min.dim", "argmax", "argmin", "any.dim", "all.dim")
        for k in (True, False)
    ),
    *(call(f, S, 0) for f in ("max.dim", "argmin", "softmax.int", "amax", "logsumexp")),
    *(call(f, E, [1]) for f in ("sum.dim_IntList", "mean.dim", "logsumexp")),
    call("prod.dim_int", E, 1),
    call("all.dim", E > 0, 1),
    call("any.dim", E > 0, 1),
    call("sum", E),
    call("amax", E, [2]),
    call("any.dims", A > 1, [0, 2]),
    call("all.dims", A > -2, [0, 2], True),
    call("sum", torch.arange(12, dtype=torch.int32).reshape(3, 4)),
    call("sum", torch.tensor([True, True, False])),
    call("sum.dim_IntList", torch.full((3, 5), 200, dtype=torch.uint8), [1]),
    call("sum.dim_IntList", A, [1], dtype=torch.float64),
    call("sum", torch.randn(1000).half()),
    call("mean.dim", torch.randn(4, 300).bfloat16(), [1]),
    call("mean", torch.arange(5), dtype=torch.float32),
    call("prod", torch.tensor([2, 3, 4], dtype=torch.int32)),
    call("amax", torch.tensor([[-5, -3], [7, 9]], dtype=torch.int8), [1]),
    call("amin", torch.tensor([[200, 3], [7, 9]], dtype=torch.uint8), [1]),
    call("amax", torch.tensor([1.0, math.nan, 3.0]), [0]),
    call("amax", torch.tensor([True, False]), [0]),
    call("max.dim", torch.tensor([[1.0, math.nan, math.nan], [2.0, 2.0, -1.0], [-math.inf] * 3]), 1),
    call("argmin", torch.tensor([[1.0, math.nan, 0.0], [2.0, -1.0, -1.0], [math.inf] * 3]), 1),
    call("argmax", torch.tensor([[3, 1], [9, 9]]), 1),
    call("argmax", A, None, True),
    call("aminmax", A, dim=1),
    call("aminmax", A),
    call("nansum", torch.tensor([1.0, math.nan, 2.0]), [0]),
    call("count_nonzero.dim_IntList", torch.tensor([[0.0, math.nan], [2.0, -0.0]]), [1]),
    *(
        call(f, A, [0, 2], correction=c, keepdim=k)
        for f in ("var.correction", "std.correction", "var_mean.correction", "std_mean.correction")
        for c, k in ((1, False), (0, True), (2.5, False))
    ),
    call("var", A),
    call("std", A, False),
    call("var.dim", A, [1], False),
    call("std.dim", A, [1, 2], True, True),
    call("var.correction", torch.randn(3, 1), [1]),
    call("var.correction", A + 1000, [1]),
    *(call("linalg_vector_norm", A, p, [1]) for p in (0, 0.5, 1, 2, 3, math.inf, -math.inf, -1)),
    call("linalg_vector_norm", A),
    call("linalg_vector_norm", A.half(), 2, [0], True, dtype=torch.float32),
    call("norm.Scalar", A, 3),
    call("norm.ScalarOpt_dim", A, 2, [1], True),
    call("softmax.int", A, 1),
    call("softmax.int", A.half(), -1, torch.float32),
    call("_softmax", A * 100, -1, False),
    call("softmax.int", torch.tensor([[-math.inf] * 3, [-math.inf, 0.0, math.nan], [math.inf, 1.0, 2.0]]), 1),
    call("softmax.int", torch.randn(3, 200).bfloat16() * 5, -1),
    call("softmax.int", E, 1),
    call("log_softmax.int", A * 50, 2),
    call("_log_softmax", A.half(), 0, False),
    call("logsumexp", torch.tensor([[-math.inf] * 2, [math.inf, 1.0], [1e4, 1e4], [math.nan, 0.0]]), [1]),
    call("logsumexp", torch.arange(6).reshape(2, 3), [0, 1]),
]

FACTORS = [([4], [4]), ([4], [4, 3]), ([2, 4], [4]), ([2, 3, 4], [4]), ([4], [2, 4, 3]), ([2, 3, 4], [4, 5])]
FACTORS += [([2, 1, 3, 4], [5, 4, 2]), ([3, 4], [2, 1, 4, 2]), ([1, 1], [1, 1])]
CONTRACTIONS = [
    call("mm", M, N),
    call("mm", M.t(), M),
    call("mm", torch.randn(3, 0), torch.randn(0, 2)),
    call("mm", torch.arange(6).reshape(2, 3), torch.arange(6).reshape(3, 2)),
    call("mm", torch.randn(33, 65).bfloat16(), torch.randn(65, 17).bfloat16()),
    call("mm", torch.randn(9, 31).half(), torch.randn(31, 5).half()),
    call("bmm", torch.randn(3, 4, 5), torch.randn(3, 5, 2)),
    *(call("matmul", torch.randn(x), torch.randn(y)) for x, y in FACTORS),
    call("mv", M, torch.randn(7)),
    call("dot", torch.randn(9), torch.randn(9)),
    call("outer", torch.randn(3), torch.randn(4)),
    call("linear", A, torch.randn(5, 4), torch.randn(5)),
    call("linear", torch.randn(4), torch.randn(5, 4)),
    call("linear", torch.randn(3, 4).bfloat16(), torch.randn(5, 4).bfloat16(), torch.randn(5).bfloat16()),
    call("addmm", torch.randn(3), M, N),
    call("addmm", torch.randn(5, 1), M, N, beta=0.5, alpha=-2),
    call("addmm", torch.full((3,), math.nan), M, N, beta=0),
    *(call("addmm", torch.randn(3), M * math.nan, N, beta=beta, alpha=0) for beta in (0, 1, 2)),
    call("addmv", torch.randn(5), M, N[:, 0] * math.inf, alpha=0),
    call("addbmm", torch.randn(5, 3), M[None] * math.nan, N[None], alpha=0),
    *(call("baddbmm", torch.randn(1, 5, 3), M[None] * math.nan, N[None], beta=beta, alpha=0) for beta in (0, 1)),
    *(call("addr", torch.full((5, 7), math.nan), M[:, 0], M[0] * math.nan, beta=0, alpha=alpha) for alpha in (0, 1)),
    call("addmm", torch.arange(2), torch.arange(6).reshape(2, 3), torch.arange(6).reshape(3, 2), beta=2, alpha=3),
    call("addmv", torch.randn(5), M, torch.randn(7), beta=2, alpha=0.5),
    call("baddbmm", torch.randn(3, 1, 2), torch.randn(3, 4, 5), torch.randn(3, 5, 2), beta=0.1, alpha=2),
    call("addbmm", torch.randn(4, 2), torch.randn(3, 4, 5), torch.randn(3, 5, 2), beta=0.5, alpha=3),
    *(
        call("einsum", equation, [torch.randn(s) for s in shapes])
        for equation, *shapes in (
            ("ij,jk->ik", [2, 3], [3, 4]),
            ("ij,jk", [2, 3], [3, 4]),
            ("bhqd,bhkd->bhqk", [2, 3, 4, 5], [2, 3, 6, 5]),
            ("ii->i", [3, 3]),
            ("ii", [3, 3]),
            ("ij->ji", [2, 3]),
            ("ij->", [2, 3]),
            ("i,j,k->kij", [2], [3], [4]),
            ("...ij,...jk->...ik", [2, 1, 3, 4], [5, 4, 2]),
            ("b...,b...->...", [3, 2, 2], [3, 2, 2]),
            ("ij,ij->ij", [2, 3], [2, 1]),
            ("iij,j->i", [3, 3, 2], [2]),
            ("ab,bc,cd->ad", [2, 3], [3, 4], [4, 2]),
            ("ba, ca -> bc", [2, 3], [4, 3]),
        )
    ),
]  # fmt: skip

CREATIONS = [
    call("arange", 5),
    call("arange", 0),
    call("arange.start", 2, 7, dtype=torch.float32),
    call("arange.start_step", 7, -3, -2),
    call("arange.start_step", 0.5, 2.0, 0.25),
    call("arange.start_step", 0, 1, 0.1, dtype=torch.float64),
    call("arange", 6, dtype=torch.bfloat16),
    call("linspace", -1, 2.5, 7),
    call("linspace", 3, 4, 1),
    call("full", [2, 3], -math.inf),
    call("full", [2], 3),
    call("full", [], True),
    call("full_like", A, 2, dtype=torch.int32),
    call("zeros", [2, 0]),
    call("zeros_like", A),
    call("ones", [3], dtype=torch.bool),
    call("ones_like", A.half()),
    call("new_zeros", A, [2]),
    call("new_ones", A, [2], dtype=torch.int64),
    call("new_full", A, [2], 7),
    call("scalar_tensor", 2.5),
    call("eye", 3),
    call("eye.m", 2, 4, dtype=torch.int64),
]

I5 = torch.tensor([[0, 4, -1], [2, -5, 3]])
INDEXING = [
    call("embedding", torch.randn(10, 3), torch.tensor([[1, 9], [0, 3]])),
    call("embedding", torch.randn(10, 3), torch.tensor(4, dtype=torch.int32)),
    call("embedding", torch.randn(10, 3).bfloat16(), torch.tensor([2, 2]), 2),
    call("index_select", A, 1, torch.tensor([2, 0, 0])),
    call("index_select", A, -1, torch.tensor(1)),
    call("gather", torch.randn(2, 3), 1, torch.tensor([[2, 2], [0, 1]])),
    call("gather", torch.randn(3, 3), 0, torch.tensor([[2, 2, 1], [0, 1, 0], [1, 0, 2]])),
    call("gather", A, 2, torch.zeros(1, 2, 3, dtype=torch.int64)),
    call("gather", torch.randn(4), 0, torch.tensor(3)),
    call("take", A, torch.tensor([[0, -1], [23, 5]])),
    call("take_along_dim", A, torch.tensor([[[0]], [[2]]]), 1),
    call("index.Tensor", torch.randn(5), [I5]),
    call("index.Tensor", torch.randn(5, 4), [I5]),
    call("index.Tensor", torch.randn(2, 5, 3), [None, I5]),
    call("index.Tensor", torch.randn(5, 4, 3), [torch.tensor([1, -2]), torch.tensor([[0], [3]])]),
    call("index.Tensor", torch.randn(5, 4, 3), [torch.tensor([1, -2]), None, torch.tensor([0, 2])]),
    call("index.Tensor", torch.randn(2, 5, 4, 3), [None, torch.tensor(1), torch.tensor([0, 2])]),
    call("index.Tensor", torch.randn(5, 4), [torch.zeros(0, dtype=torch.int64)]),
]

Q, K, V = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 6)
BOOL = torch.rand(5, 7) > 0.4
BOOL[2] = False
FLOAT = torch.randn(2, 1, 5, 7)
FLOAT[0, 0, 1] = -math.inf
sdpa = "scaled_dot_product_attention"
ATTENTION = [
    call(sdpa, Q, K, V),
    call(sdpa, Q, K, V, is_causal=True),
    call(sdpa, K, Q, torch.randn(2, 4, 5, 3), is_causal=True),
    call(sdpa, Q, K, V, scale=0.7),
    call(sdpa, Q, K, V, BOOL),
    call(sdpa, Q, K, V, FLOAT),
    call(sdpa, Q, K[:, :2], V[:, :2], enable_gqa=True),
    call(sdpa, Q, K[:, :1], V[:, :1], BOOL, enable_gqa=True, scale=2.0),
    call(sdpa, Q[0, 0], K[0, 0], V[0, 0]),
    call(sdpa, Q[:, :1], K, V),
    call(sdpa, Q.bfloat16(), K.bfloat16(), V.bfloat16()),
    call(sdpa, Q.half(), K.half(), V.half(), is_causal=True),
]

C = torch.randn(2, 6, 3, 3)
W, BIAS = torch.randn(6), torch.randn(6)
NORMS = [
    call("rms_norm", A, [4], torch.randn(4), 1e-5),
    call("rms_norm", A, [3, 4]),
    call("rms_norm", A.bfloat16(), [4], torch.randn(4).bfloat16()),
    call("rms_norm", A.double(), [4]),
    call("layer_norm", A, [4], torch.randn(4), torch.randn(4)),
    call("layer_norm", A, [3, 4], torch.randn(3, 4), torch.randn(3, 4), 0.1),
    call("layer_norm", A + 3, [2, 3, 4]),
    call("layer_norm", A.half(), [4], torch.randn(4).half()),
    call("native_layer_norm", A, [4], torch.randn(4), None, 1e-5),
    call("group_norm", C, 3, W, BIAS),
    call("group_norm", C, 1),
    call("group_norm", torch.randn(2, 6), 3, W, None, 0.1),
    call("native_group_norm", C, W, BIAS, 2, 6, 9, 2, 1e-5),
    call("batch_norm", C, W, BIAS, BIAS, W.abs(), False, 0.1, 1e-5, False),
    call("batch_norm", torch.randn(3, 6), None, None, BIAS, W.abs(), False, 0.1, 1e-3, False),
    call("_native_batch_norm_legit_no_training", C, W, BIAS, BIAS, W.abs(), 0.1, 1e-5),
]

ALL = [*VIEWS, *JOINS, *REDUCTIONS, *CONTRACTIONS, *CREATIONS, *INDEXING, *ATTENTION, *NORMS]


@pytest.mark.parametrize(("name", "args", "kwargs"), ALL, ids=[f"{i}-{c[0]}" for i, c in enumerate(ALL)])
def test_calls(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    check(name, *args, **kwargs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool, torch.float64])
def test_views_and_joins_of_every_type(dtype: torch.dtype) -> None:
    x = torch.randint(0, 2, (3, 4), generator=torch.Generator().manual_seed(1)).to(dtype)
    check("cat", [x, x], 1)
    check("stack", [x, x])
    check("tril", x)
    check("constant_pad_nd", x, [1, 1], 1)
    check("roll", x, [1], [1])
    check("index.Tensor", x, [torch.tensor([2, 0])])


REFUSED = [
    (*call(sdpa, Q, K, V, dropout_p=0.5), r"aten\.scaled_dot_product_attention: generator: expected a generator"),
    (
        *call("index.Tensor", torch.randn(3), [torch.tensor([True, False, True])]),
        r"aten\.index\.Tensor: indices: a boolean",
    ),
]


@pytest.mark.parametrize(("name", "args", "kwargs", "message"), REFUSED)
def test_refused(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        evaluate(name, *args, **kwargs)


@pytest.mark.parametrize(("name", "factors"), [("addmm", (M, N)), ("addmv", (M, N[:, 0]))])
def test_what_is_not_added_has_to_fit(name: str, factors: tuple[torch.Tensor, ...]) -> None:
    def program(bias: torch.Tensor) -> torch.Tensor:
        return getattr(torch, name)(bias, *factors, beta=0)

    with pytest.raises(CompileError, match=r"cannot broadcast \[4\] to \[5"):
        deplodock.compile(program, (torch.randn(4),))


def test_unrelated_dimensions_stay_apart_in_a_reshape() -> None:
    assert [str(e) for e in regroup([6, 4, 5], [2, 3, 20], Algebra())] == [
        "((d0 * 3) + d1)",
        "(d2 floordiv 5)",
        "(d2 mod 5)",
    ]
    assert [str(e) for e in regroup([2, 3, 4], [2, 12], Algebra())] == ["d0", "(d1 floordiv 4)", "(d1 mod 4)"]
