"""Changes in place through chains of two views, beside eager PyTorch: the base, its views and all memory around them.

`--views all` runs every chain, each as a program of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from fuzz.views_in_place import Case, Together, as_eager, every_case, is_refused, memory, shares_elements, some_cases

import deplodock
from deplodock.errors import CompileError, UnsupportedError
from deplodock.frontend.api import CompiledFunction
from deplodock.frontend.capture.export import capture

Tensor = torch.Tensor

ON_REFERENCE = {"target": "sm_90a", "executor": "reference"}
AT_ONCE = 10
"""Cases of one program."""


def differences(cases: Sequence[Case], run: Callable[..., Any]) -> list[str]:
    """The cases after which `run`, called like all cases together, leaves something else than eager PyTorch."""
    arguments = [case.argument() for case in cases]
    wrong: list[str] = []
    for case, x, results in zip(cases, arguments, run(*arguments), strict=True):
        for ours, eager in zip([memory(x), *results], as_eager(case) or [], strict=True):
            same = ours.dtype == eager.dtype and ours.shape == eager.shape
            same = same and (ours.stride() == eager.stride() or not eager.numel())
            if not same or not torch.equal(ours.nan_to_num(), eager.nan_to_num()):
                wrong.append(f"{case}: {ours} instead of {eager}")
                break
    return wrong


def compiled(cases: Sequence[Case], **options: Any) -> Callable[..., Any]:
    return deplodock.compile(Together(cases), tuple(case.argument() for case in cases), **options)


def interpreted(cases: Sequence[Case]) -> Callable[..., Any]:
    """Returns all cases as a program at the tensor level, which has no kernels."""
    captured = capture(Together(cases), tuple(case.argument() for case in cases), in_memory=True)
    return CompiledFunction(captured, "sm_90a", "reference")


KINDS = (
    "complex64, transposed: permute of view_as_real, scatter_",  # scatter has a contiguous result
    "complex64, inside: mT of view_as_real, masked_fill_",
    "int64, transposed: mT of unflatten, scatter_",
    "float32, inside empty: permute of view of half the size, += itself",
    "complex64, inside: view_as_real of unfold with a remainder, fill_",  # equal results in two shapes
    "int64, inside empty: slice of nothing of index, scatter_",  # an empty index
)
"""Cases of the kinds of faults that runs of all chains revealed."""


def test_kinds_of_faults() -> None:
    for name in KINDS:
        case = next(c for c in every_case() if str(c) == name)
        assert differences([case], interpreted([case])) == []


@pytest.mark.parametrize("part", range(4))
def test_in_the_reference(part: int) -> None:
    cases = some_cases()[part::4]
    assert differences(cases, interpreted(cases)) == []


def test_on_the_cpu() -> None:
    cases = some_cases()[:AT_ONCE]
    assert differences(cases, compiled(cases, target="cpu")) == []


def test_under_torch_compile() -> None:
    cases = some_cases()[AT_ONCE : 2 * AT_ONCE]
    torch._dynamo.reset()
    assert (
        differences(cases, torch.compile(Together(cases), backend="deplodock", options=ON_REFERENCE, fullgraph=True))
        == []
    )


def test_gradients_under_torch_compile() -> None:
    cases = [c for c in every_case() if "inside" in c.base and _is_differentiable(c)]
    cases = cases[:: len(cases) // AT_ONCE]

    def gradients(run: Callable[..., Any]) -> list[Tensor]:
        arguments = [case.argument().clone().requires_grad_() for case in cases]
        results = [r for results in run(*arguments) for r in results if r.requires_grad]
        weights = [(torch.arange(r.numel()) % 7 - 3.0).reshape(r.shape) for r in results]
        total = sum((r * w).sum() for r, w in zip(results, weights, strict=True))
        return list(torch.autograd.grad(total, arguments))

    torch._dynamo.reset()
    ours = gradients(torch.compile(Together(cases), backend="deplodock", options=ON_REFERENCE, fullgraph=True))
    wrong = [str(c) for c, a, b in zip(cases, ours, gradients(Together(cases)), strict=True) if not torch.equal(a, b)]
    assert wrong == []


def _is_differentiable(case: Case) -> bool:
    """Whether eager PyTorch differentiates a case, which it does not for changes of one of several views."""
    if case.dtype != torch.float32 or any("size" in v or "complex" in v for v in case.views) or is_refused(case):
        return False
    x = case.argument().clone().requires_grad_()
    try:
        torch.autograd.grad(sum(r.sum() for r in case(x) if r.requires_grad), x)
    except (RuntimeError, AttributeError):
        return False
    return "detach" not in case.views


def test_shared_elements_are_refused_in_words() -> None:
    case = next(c for c in every_case() if shares_elements(c) and c.change == "add_")
    with pytest.raises(UnsupportedError, match="in an order that PyTorch does not define; change the tensor itself"):
        compiled([case], **ON_REFERENCE)
    uniform = [c for c in every_case() if shares_elements(c) and c.change in ("fill_", "zero_")][::9]
    assert differences(uniform, interpreted(uniform)) == []


@pytest.mark.parametrize("part", range(8))
def test_every_chain(request: pytest.FixtureRequest, part: int) -> None:
    if request.config.getoption("--views") != "all":
        pytest.skip("with --views all")
    wrong: list[str] = []
    for case in every_case()[part::8]:
        try:
            wrong += differences([case], compiled([case], **ON_REFERENCE))
        except CompileError as error:
            wrong += [] if is_refused(case) else [f"{case}: {error}"]
    assert not wrong, "\n".join(wrong)


def test_changes_of_other_data_types_by_strides_are_refused_in_words() -> None:
    case = Case("transposed", torch.float32, ("unfold with a remainder", "view of half the size"), "copy_")
    with pytest.raises(UnsupportedError, match="view of another data type, whose elements follow from strides"):
        compiled([case], **ON_REFERENCE)


def test_writes_between_the_elements_of_an_argument_are_refused_in_words() -> None:
    case = Case("gaps", torch.int64, ("mT", "as_strided of one row"), "copy_")
    with pytest.raises(UnsupportedError, match="in place through as_strided of a tensor with gaps is not supported"):
        compiled([case], **ON_REFERENCE)


def test_arguments_that_share_memory_are_refused_in_words() -> None:
    t = torch.arange(24.0).reshape(4, 6)
    with pytest.raises(
        CompileError, match="two arguments share memory, and one of them is changed in place; pass a copy"
    ):
        deplodock.compile(lambda t, a: (t.add_(100), a[0])[1], (t, t[1:]), **ON_REFERENCE)
