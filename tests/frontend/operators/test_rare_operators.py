"""Operators on memory, segments and bags, assertions, and special functions, against eager PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import pytest
import torch
import torch.nn.functional as F
from support.aten import evaluate
from support.tensor_level import check, evaluate as at_tensor_level
from torch import nn

import deplodock
from deplodock.errors import ExecutionError, ShapeError, UnsupportedError
from deplodock.frontend.capture.export import capture

NAN, INF = float("nan"), float("inf")
x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


MEMORY: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: torch.as_strided(x, (2, 3), (4, 1)),
    lambda x: torch.as_strided(x, (3, 3), (1, 2), 2) * 2,  # overlapping
    lambda x: torch.as_strided(x.relu(), (5,), (0,), 7),
    lambda x: torch.as_strided(x, (0, 3), (1, 1)),
    lambda x: torch.as_strided_scatter(x, torch.ones(2, 2), (2, 2), (5, 1), 1),
]


@pytest.mark.parametrize("function", MEMORY)
def test_places_in_memory(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    check(function, x)


def test_as_strided_of_tensors_in_every_layout() -> None:
    """`as_strided` addresses the memory of the argument, in whatever layout that is."""
    whole = torch.randn(6, 8)
    image = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    cases = [
        (lambda x: x.as_strided((3, 2), (1, 4), 1) * 2, torch.randn(4, 3).mT),
        (lambda x: x.as_strided((3, 2), (1, 4)) * 2, torch.randn(5, 4)[1:]),
        (lambda x: x.as_strided((2, 5, 3), (60, 12, 1), 2) + 1, image),
        (lambda x: (x * 2).as_strided((2, 5, 3), (60, 12, 1), 2) + 1, image),
        (lambda x: x[1:].as_strided((2, 2), (3, 2), 0) + 1, whole),
        (lambda x: x[:, ::2].mT.as_strided((2, 2), (8, 3), 1) + 1, whole),
        (lambda x: x.as_strided((2, 2), (16, 4), 2) + 1, whole[::2, ::2]),
        (lambda x: torch.as_strided_scatter(x.mT, x[:2, :2] * 3, (2, 2), (5, 1), 0) + 1, whole),
    ]
    for function, x in cases:
        compiled = deplodock.compile(function, (x,), target="sm_90a", executor="reference")
        torch.testing.assert_close(compiled(x), function(x), rtol=0, atol=0)


def test_as_strided_holds_for_the_layout_that_was_compiled() -> None:
    function = MEMORY[1]  # what it computes from; a result that is nothing but such a view is PyTorch's own
    compiled = deplodock.compile(lambda x, y: function(x) + y.sum(), (x, torch.ones(2, 3)))
    transposed = torch.randn(4, 3).mT
    with pytest.raises(ShapeError, match=r"x: expected strides \(4, 1\) .* but got \(1, 3\).* compile again"):
        compiled(transposed, torch.ones(2, 3))
    with pytest.raises(ShapeError, match="storage offset 0, but got .* and 4"):
        compiled(torch.randn(4, 4)[1:], torch.ones(2, 3))
    assert torch.equal(compiled(x, torch.ones(3, 2).mT), function(x) + 6)  # whose strides do not matter


@pytest.mark.parametrize(
    "function", [lambda x: x.as_strided((2, 2), (8, 1)) + 1, lambda x: x.as_strided((9,), (8,)) + 1]
)
def test_addresses_outside_of_the_elements_are_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedError, match=r"as_strided.*: addresses memory outside of the elements of its tensor"):
        deplodock.compile(function, (torch.randn(6, 8)[::2, ::2],))


def test_assertions_hold_or_raise(tmp_path: Path) -> None:
    compiled = deplodock.compile(lambda i: F.one_hot(i, 4), (torch.tensor([0, 3]),))
    assert compiled(torch.tensor([2, 1])).tolist() == [[0, 0, 1, 0], [0, 1, 0, 0]]
    compiled.save(tmp_path / "saved")
    for program in (compiled, deplodock.load(tmp_path / "saved")):
        with pytest.raises(ExecutionError, match="assertion: one_hot: Class values must be smaller than num_classes"):
            program(torch.tensor([4, 1]))
        with pytest.raises(ExecutionError, match="non-negative"):
            program(torch.tensor([0, -1]))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("last", [False, True])
def test_bags_of_embeddings(mode: str, last: bool) -> None:
    torch.manual_seed(0)
    module = nn.EmbeddingBag(7, 3, mode=mode, include_last_offset=last, padding_idx=2)
    offsets = torch.tensor([0, 2, 2, 5, 6] if last else [0, 2, 2, 5])  # an empty bag, and one of padding only
    check(module, torch.tensor([1, 4, 2, 6, 1, 2]), offsets)


def test_more_about_embeddings() -> None:
    torch.manual_seed(0)
    weight, index, factors = torch.randn(6, 3) * 2, torch.tensor([[1, 5, 0], [5, 5, 2]]), torch.randn(2, 3)
    check(lambda w, i, f: F.embedding_bag(i, w, per_sample_weights=f, mode="sum"), weight, index, factors)
    for norm_type in (2.0, 1.0, 3.0, INF):
        check(lambda w, i, n=norm_type: F.embedding(i, w, max_norm=1.5, norm_type=n), weight, index)
    for bag in (torch.ops.aten._embedding_bag, torch.embedding_bag):
        with pytest.raises(UnsupportedError, match=r"bag\(w, i, i\).*embedding_bag\): this operator is not supported"):
            deplodock.compile(lambda w, i, bag=bag: bag(w, i, i)[1], (weight, index[0]))


def test_triangles_and_places_of_nonzeros() -> None:
    for rows, columns, offset in ((3, 4, 0), (4, 3, -2), (3, 5, 2), (2, 2, -5), (0, 3, 0)):
        check(lambda r=rows, c=columns, o=offset: torch.tril_indices(r, c, o))
        check(lambda r=rows, c=columns, o=offset: torch.triu_indices(r, c, o))
    for size in (0, 2, 9):
        check(lambda x, n=size: torch.nonzero_static(x > 0, size=n, fill_value=-7), x)


def test_a_mask_takes_one_value_or_one_for_each() -> None:
    mask = torch.tensor([True, False, True])
    for values in (torch.ones(2, 4), torch.tensor([5.0]), torch.randn(1, 4), torch.randn(4)):
        check(lambda x, m, v: x.index_put((m,), v), x, mask, values)
    check(lambda x, m, v: x.index_put((m,), v, accumulate=True), x, x > 0, torch.arange(int((x > 0).sum())) * 1.0)


@pytest.mark.parametrize("mode", ["circular", "replicate", "reflect"])
@pytest.mark.parametrize("pads", [(-1, 2), (2, -1), (-2, -1), (-1, 3)])
def test_negative_edges(mode: str, pads: tuple[int, int]) -> None:
    check(lambda x: F.pad(x, pads, mode=mode), x)


def test_bilinear_and_the_gradient_of_pooling() -> None:
    torch.manual_seed(0)
    check(nn.Bilinear(3, 4, 5), torch.randn(2, 3), torch.randn(2, 4), rtol=1e-4, atol=1e-5)
    image = torch.randn(2, 3, 5, 6)
    pooled, index = F.max_pool2d(image, 3, 2, return_indices=True)
    ours, theirs = evaluate(
        "max_pool2d_with_indices_backward", pooled, image, [3, 3], [2, 2], [0, 0], [1, 1], False, index
    )
    torch.testing.assert_close(ours, theirs)


def test_batch_norm_in_training_updates_its_statistics() -> None:
    torch.manual_seed(0)
    module, same = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    image = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(deplodock.compile(module, (image,))(image), same(image), rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(module.buffers(), same.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("training", [False, True])
def test_results_of_native_batch_norm_have_the_type_of_its_input(training: bool) -> None:
    image = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)).half()
    one = torch.ones(3, dtype=torch.float16)
    how = {"rtol": 2e-3, "atol": 5e-4}
    check(lambda t, s: torch.native_batch_norm(t, s, s, s.clone(), s.clone(), training, 0.1, 1e-5), image, one, **how)


POINTS = [1e-30, 1e-4, 0.2, 0.99, 1.0, 1.01, 1.9, 2.0, 2.1, 3.3, 5.9, 6.1, 8.7, 14.0, 24.9, 25.1, 61.0]
BOTH_SIDES = POINTS + [-p for p in POINTS[:-1]]
TAILS = [1e-38, 1e-9, 0.02, 0.4, 0.7, 0.999, 1 - 1e-12]

TRUTH: dict[str, tuple[list[float], Callable[[Any], Any]]] = {
    "modified_bessel_i0": (BOTH_SIDES, lambda x: mpmath.besseli(0, x)),
    "modified_bessel_i1": (BOTH_SIDES, lambda x: mpmath.besseli(1, x)),
    "spherical_bessel_j0": (BOTH_SIDES, lambda x: mpmath.sin(x) / x),
    "erfcx": (BOTH_SIDES, lambda x: mpmath.exp(x * x) * mpmath.erfc(x)),
    "ndtri": (TAILS, lambda x: -mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * x)),
}


@pytest.mark.parametrize("name", TRUTH)
def test_special_functions(name: str) -> None:
    """Results are right to nearly all digits of f64, unlike PyTorch's, on both sides of each change of formula."""
    points, function = TRUTH[name]
    (ours,), _ = evaluate(f"special_{name}", torch.tensor(points, dtype=torch.float64))
    with mpmath.workdps(60):
        truth = torch.tensor([float(function(mpmath.mpf(p))) for p in points], dtype=torch.float64)
    torch.testing.assert_close(ours, truth, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("name", TRUTH)
def test_edges_of_special_functions(name: str) -> None:
    """Infinities and NaN are where PyTorch has them."""
    (ours,), (theirs,) = evaluate(f"special_{name}", torch.tensor([0.0, INF, -INF, NAN, -1.0, 1.0, 2.5]))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_neighbours_of_numbers(dtype: torch.dtype) -> None:
    """From one number to the next, through zero, out of and into infinity."""
    least, most = torch.finfo(dtype).smallest_normal, torch.finfo(dtype).max
    points = torch.tensor([0.0, -0.0, least, -least, 1.0, -1.0, 2.5, most, -most, INF, -INF, NAN], dtype=dtype)
    (ours,), (theirs,) = evaluate("nextafter", points[:, None], points)
    torch.testing.assert_close(ours, theirs, rtol=0.0, atol=0.0, equal_nan=True)
    assert torch.equal(ours.signbit(), theirs.signbit())


def test_erfc_in_double_precision() -> None:
    points = torch.tensor([-30.0, -2.0, -1.0, -0.3, 0.0, 0.9, 1.0, 3.0, 6.2, 6.3, 20.0, INF, -INF, NAN]).double()
    (ours,), (theirs,) = evaluate("erfc", points)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0.0, equal_nan=True)


SIGNALS: dict[str, Callable[[], torch.Tensor]] = {
    "hamming": lambda: torch.hamming_window(16),
    "hamming, symmetric": lambda: torch.hamming_window(16, False, 0.5, 0.4),
    "hamming, alpha": lambda: torch.hamming_window(7, True, 0.6),
    "blackman": lambda: torch.blackman_window(16),
    "blackman, symmetric": lambda: torch.blackman_window(9, False, dtype=torch.float64),
    "bartlett": lambda: torch.bartlett_window(16),
    "bartlett, odd": lambda: torch.bartlett_window(15, periodic=False),
    "kaiser": lambda: torch.kaiser_window(16),
    "kaiser, symmetric": lambda: torch.kaiser_window(9, False, 5.0),
    "of one": lambda: torch.hamming_window(1),
}


@pytest.mark.parametrize("name", SIGNALS)
def test_windows_of_signals(name: str) -> None:
    check(lambda x: x * SIGNALS[name](), torch.ones_like(SIGNALS[name]()), rtol=1e-5, atol=1e-6)


WIDE = torch.cat([10 * torch.randn(4, 8, generator=torch.Generator().manual_seed(1)), torch.full((1, 8), NAN)])
SCALES = torch.rand(8, generator=torch.Generator().manual_seed(2)) + 0.1
OFFSETS = torch.arange(8, dtype=torch.int32)
QUANTIZED: list[tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = [
    (lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -20, 55), (WIDE,)),
    (
        lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s, z, 0, 255),
        (WIDE, torch.tensor(0.1), OFFSETS[3]),
    ),
    (lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 1, -128, 127), (WIDE, SCALES, OFFSETS)),
    (lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 1, 0, 255), (WIDE, SCALES, OFFSETS + 0.3)),
    (lambda x: torch._int_mm(x, x.mT), (torch.arange(-128, 128, dtype=torch.int8).reshape(32, 8),)),
]


@pytest.mark.parametrize("which", range(len(QUANTIZED)))
def test_quantization(which: int) -> None:
    function, args = QUANTIZED[which]
    check(function, *args)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("out", [{"size": (5, 20)}, {"size": (1, 7)}, {"scale_factor": (0.37, 1.9)}])
def test_images_resized_through_a_filter(mode: str, aligned: bool, out: dict[str, Any]) -> None:
    image = torch.randn(1, 2, 12, 15, generator=torch.Generator().manual_seed(0))
    resize = dict(out, mode=mode, antialias=True, align_corners=aligned)
    check(lambda x: F.interpolate(x, **resize), image, rtol=1e-4, atol=1e-5)
    check(lambda x: F.interpolate(x, **resize), image.double(), rtol=1e-12, atol=1e-12)


def test_images_of_integers_are_not_resized_through_a_filter() -> None:
    image = torch.zeros(1, 2, 12, 15, dtype=torch.uint8)
    with pytest.raises(deplodock.CompileError, match="rounds in its own way"):
        capture(lambda x: F.interpolate(x, size=(5, 7), mode="bilinear", antialias=True), (image,))


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize(
    ("shape", "resize", "looked_up"),
    [
        ((2, 3, 8, 8), {"scale_factor": 2}, False),
        ((2, 3, 7, 5), {"scale_factor": 3}, False),
        ((1, 2, 300, 2), {"scale_factor": (3, 5)}, False),
        ((2, 3, 9, 9), {"size": (3, 18)}, False),
        ((2, 3, 8), {"size": 16}, False),
        ((2, 3, 4, 4, 4), {"scale_factor": 2}, False),
        ((2, 3, 8, 8), {"size": (8, 8)}, False),
        ((2, 3, 8, 8), {"scale_factor": 1.5}, True),
        ((2, 3, 8, 8), {"size": (5, 9)}, True),
    ],
)
def test_nearest_elements(mode: str, shape: tuple[int, ...], resize: dict[str, Any], looked_up: bool) -> None:
    """If each element is used equally often, nearest interpolation needs no table of indices."""
    x = torch.randn(shape)
    compiled = deplodock.compile(lambda x: F.interpolate(x, mode=mode, **resize), (x,), target="cpu")
    assert torch.equal(compiled(x), F.interpolate(x, mode=mode, **resize))
    assert ("tensor.gather" in compiled.ir("tensor")) == looked_up


FACTORS: dict[int, list[Any]] = {1: [1.2], 2: [(1.3, 2.0), (2.4, 1.1)], 3: [(2.4, 1.1, 1.3)]}
MODES = {1: ("nearest", "linear"), 2: ("nearest", "nearest-exact", "bilinear"), 3: ("nearest", "trilinear")}


@pytest.mark.parametrize("shape", [(1, 2, 3), (1, 1, 3, 4), (1, 1, 2, 2, 3)])
def test_sizes_that_a_factor_does_not_change(shape: tuple[int, ...]) -> None:
    """Along a dimension whose size stays, elements stay as well, although the scale factor is not 1."""
    rank = len(shape) - 2
    calls = [{"scale_factor": f, "mode": mode} for f in FACTORS[rank] for mode in MODES[rank]]
    calls += [dict(c, antialias=True) for c in calls if c["mode"] == "bilinear"]

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [F.interpolate(x, **call) for call in calls]

    x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    for call, a, b in zip(calls, at_tensor_level(program, x), program(x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, msg=str(call))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_exponentials_of_matrices(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    matrices = (
        torch.randn(4, 3, 3, generator=draw, dtype=torch.float64) * torch.tensor([0.01, 1, 8, 100])[:, None, None]
    )
    turning = (matrices - matrices.mT).to(dtype)
    tolerance = {torch.float32: 2e-5, torch.float64: 1e-12, torch.bfloat16: 1e-2}[dtype]
    result = at_tensor_level(torch.linalg.matrix_exp, turning)
    torch.testing.assert_close(result.double(), torch.linalg.matrix_exp(turning.double()), atol=tolerance, rtol=0)
    check(torch.linalg.matrix_exp, matrices[:3].to(dtype).float(), rtol=2e-5, atol=1e-4)


def test_the_exponential_of_a_huge_matrix_is_nan() -> None:
    huge = torch.full((2, 2), 1e6)
    assert deplodock.compile(torch.linalg.matrix_exp, (huge,), executor="reference")(huge).isnan().all()


@pytest.mark.parametrize("parametrize", ["weight_norm", "spectral_norm", "orthogonal"])
def test_parametrized_layers_are_trained(parametrize: str) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    first = getattr(nn.utils.parametrizations, parametrize)(nn.Linear(4, 4))
    second = copy.deepcopy(first)
    batch = torch.randn(3, 4)
    first(batch).square().sum().backward()
    compiled = torch.compile(second, backend="deplodock", options={"executor": "reference"})
    compiled(batch).square().sum().backward()
    gradients = [[p.grad for p in module.parameters()] for module in (second, first)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dim", [0, -1])
def test_weights_of_a_norm_along_either_dimension(dim: int) -> None:
    v, g = torch.randn(4, 3, requires_grad=True), torch.rand((4, 1) if dim == 0 else (1, 3), requires_grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda v, g: torch._weight_norm(v, g, dim), backend="deplodock", options={"executor": "reference"}
    )
    eager = torch._weight_norm(v, g, dim)
    found, want = (torch.autograd.grad(w.pow(2).sum(), (v, g)) for w in (compiled(v, g), eager))
    torch.testing.assert_close(found, want)


def test_assertions_on_all_values() -> None:
    def function(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        torch._assert_async(torch._is_all_true(mask > 0), "a place is missing")
        torch._assert_async(torch._is_any_true(mask > 1), "no place counts twice")
        return x * mask

    mask = torch.tensor([1.0, 2.0, 1.0])
    compiled = deplodock.compile(function, (mask, mask), executor="reference")
    torch.testing.assert_close(compiled(mask, mask), mask * mask)
    for wrong, message in ((torch.tensor([1.0, 0.0, 2.0]), "missing"), (torch.ones(3), "twice")):
        with pytest.raises(ExecutionError, match=message):
            compiled(mask, wrong)


def test_checks_of_truth_values() -> None:
    """`torch._check` of a value that is read from a tensor is a check of each call, and nothing else may read it."""

    def function(x: torch.Tensor) -> torch.Tensor:
        torch._check_tensor_all(x > 0)
        torch._check(not (x > 9).any().item())
        return x * 2

    x = torch.tensor([1.0, 2.0])
    compiled = deplodock.compile(function, (x,), executor="reference")
    torch.testing.assert_close(compiled(x), x * 2)
    for wrong in (x - 1, x + 8):
        with pytest.raises(ExecutionError, match="[Ee]xpected"):
            compiled(wrong)
    with pytest.raises(UnsupportedError, match="item"):
        deplodock.compile(lambda x: x * (x > 0).all().item(), (x,))
