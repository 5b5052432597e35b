"""Programs that use transforms while they run (`torch.func`, `torch.autograd.grad`).

PyTorch's exporter traces above autograd. There, a transform adds steps to the graph that cannot be executed without the
transform. So this feature exports the program again, below autograd: the graph then has the operators that the
transform calls in the end.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ..addressed_views import AddressedViews
from ..decompositions.backward import above_autograd
from ..tracing import Request, Retrace


def called(function: Any, args: Any, kwargs: Any) -> NoReturn:
    """Raises Retrace when a transform records a step, or when autograd runs.

    Args:
        function: the function that the program calls.
        args, kwargs: its arguments.
    """
    raise Retrace(retraced)


def retraced(request: Request) -> ExportedProgram:
    """Exports the program below autograd, with gradients enabled as they are in the caller."""
    with above_autograd(), AddressedViews():
        within = replace(request, module=_WithGradMode(request.module, request.differentiating))
        return within.export(("transforms", "gradients"), above=False)


class _WithGradMode(torch.nn.Module):
    """Module that runs another module, and shares its state, with gradients enabled or disabled.

    The exporter itself disables gradients.
    """

    def __init__(self, module: torch.nn.Module, differentiating: bool) -> None:
        super().__init__()
        self.__dict__.update(module.__dict__)

        @functools.wraps(module.forward)
        def forward(*args: Any, **kwargs: Any) -> Any:
            with torch.set_grad_enabled(differentiating):
                results = module.forward(*args, **kwargs)
            return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, results)

        self.forward = forward
