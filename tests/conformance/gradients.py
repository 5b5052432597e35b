"""Gradients through `torch.compile(..., backend="deplodock")` against eager PyTorch's, on PyTorch's operator database.

A sample is right if the operator is one graph of Dynamo's whose forward and backward graphs are both compiled, if its
results require gradients where eager PyTorch's do, and if they and the gradients of its arguments are the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import torch
import torch.testing._internal.common_methods_invocations as entries
from torch._dynamo.exc import TorchDynamoException
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree

from deplodock.errors import CaptureError, CompileError

from .comparing import TOLERANCE, compare
from .opdb import UNDEFINED, Trial, Verdict

OPTIONS = {
    "tensor": {"executor": "reference"},
    "kernel": {"executor": "simulator"},
    "cuda": {"executor": "emulator"},
    "cpu": {"target": "cpu"},
}
"""Level -> options of torch.compile with which programs are executed at this level."""


def is_differentiable(op: OpInfo, dtype: torch.dtype) -> bool:
    """Returns true if PyTorch differentiates an operator in this data type."""
    return op.supports_autograd and op.supports_dtype(dtype, "cpu") and dtype in op.supported_backward_dtypes("cpu")


def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Replaces PyTorch's `wrapper_set_seed` in entries with random numbers, because Dynamo cannot capture it."""
    return function(*args, **kwargs)


@patch.object(entries, "wrapper_set_seed", _call)
def judge_gradients(op: OpInfo, number: int, sample: SampleInput, level: str = "tensor") -> Verdict:
    """Returns the verdict on one sample. Its tensors with `requires_grad` are differentiated."""
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))

    def function(value: Any, args: Any, kwargs: Any) -> Any:
        return op.op(value, *args, **kwargs)

    def differentiated(call: Callable[..., Any], leaves: Sequence[Any]) -> list[Any]:
        return _differentiated(call, sample.output_process_fn_grad, leaves, spec)

    trial = Trial(lambda *_: [], ())
    try:
        expected, other = (differentiated(_seeded(function, seed), leaves) for seed in (0, 1))
    except Exception as error:  # not a program, as PyTorch sees it
        trial.outcome = "skipped", f"eager: {type(error).__name__}"
        return Verdict(op.formatted_name, number, *trial.verdict)
    random = bool(compare(other, expected, lambda: None))

    def compiled() -> list[Any]:
        torch._dynamo.reset()
        program = torch.compile(function, backend="deplodock", fullgraph=True, dynamic=False, options=OPTIONS[level])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return differentiated(_seeded(program, 0), leaves)
        except TorchDynamoException as error:
            raise _ours(error) from error

    def truth() -> list[Any] | None:
        try:
            return differentiated(_seeded(function, 0), [_wide(leaf) for leaf in leaves])
        except Exception:  # an operator need not support float64
            return None

    found = trial.attempt(compiled)
    if trial.open:
        problem = compare(found, expected, truth, undefined=random or op.name in UNDEFINED)
        trial.outcome = ("wrong", problem) if problem else ("right", "")
    return Verdict(op.formatted_name, number, *trial.verdict, round(trial.seconds, 2))


def _seeded(call: Callable[..., Any], seed: int) -> Callable[..., Any]:
    def seeded(*args: Any) -> Any:
        torch.manual_seed(seed)
        return call(*args)

    return seeded


def _differentiated(
    call: Callable[..., Any], process: Callable[[Any], Any], leaves: Sequence[Any], spec: pytree.TreeSpec
) -> list[Any]:
    """Calls and differentiates a function.

    Returns which results require gradients, the float results, and the gradients of the arguments (zeros for arguments
    without influence). `process` reduces the result to a part with a unique derivative.
    """
    given = [_copy(leaf) for leaf in leaves]
    results = [r for r in pytree.tree_leaves(process(call(*pytree.tree_unflatten(given, spec))))]
    tensors = [r for r in results if isinstance(r, torch.Tensor)]
    wanted = [t for t in given if isinstance(t, torch.Tensor) and t.requires_grad]
    ends = [t for t in tensors if t.requires_grad]
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(t.shape, generator=generator, dtype=_drawn(t)).to(t.dtype) for t in ends]
    gradients = torch.autograd.grad(ends, wanted, weights, allow_unused=True) if ends and wanted else ()
    found = [torch.zeros_like(t) if g is None else g for g, t in zip(gradients, wanted, strict=bool(gradients))]
    values = [t.detach() for t in tensors if t.is_floating_point() or t.is_complex()]
    return [*(t.requires_grad for t in tensors), *(t.to_dense() for t in (*values, *found))]


def _drawn(tensor: torch.Tensor) -> torch.dtype:
    """Returns the type in which the weights of a result are drawn, so that all float types get the same numbers."""
    return torch.complex128 if tensor.is_complex() else torch.float64


def _copy(leaf: Any) -> Any:
    return leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf


def _wide(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
        wide = leaf.detach().to(torch.complex128 if leaf.is_complex() else torch.float64)
        return wide.requires_grad_(leaf.requires_grad)
    return torch.float64 if isinstance(leaf, torch.dtype) and leaf in TOLERANCE else leaf


def _ours(error: TorchDynamoException) -> Exception:
    """Returns the cause of a Dynamo error: a refusal of deplodock, or a program that Dynamo cannot capture."""
    cause = getattr(error, "inner_exception", error)
    if isinstance(cause, CompileError) or not isinstance(cause, TorchDynamoException):
        return cause
    return CaptureError(f"PyTorch could not export this: {str(cause).strip().splitlines()[0]}")
