"""Programs that differentiate or map functions while they are traced (`torch.func`, `torch.autograd.grad`).

PyTorch's exporter traces above autograd, where a transform leaves its steps in the graph, which cannot be executed
apart from it. Such a program is traced again below autograd and the transforms: there it is the operators that they end
in, whatever the transform was.
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
    """Raises Retrace for a step of a transform, and where autograd runs."""
    raise Retrace(retraced)


def retraced(request: Request) -> ExportedProgram:
    """Returns the program, traced below transforms, with gradients enabled as they are in the caller."""
    with above_autograd(), AddressedViews():
        within = replace(request, module=_Within(request.module, request.differentiating))
        return within.export(("transforms", "gradients"), above=False)


class _Within(torch.nn.Module):
    """A module, sharing its state, that computes gradients if they are enabled: the exporter disables them."""

    def __init__(self, module: torch.nn.Module, differentiating: bool) -> None:
        super().__init__()
        self.__dict__.update(module.__dict__)

        @functools.wraps(module.forward)
        def forward(*args: Any, **kwargs: Any) -> Any:
            with torch.set_grad_enabled(differentiating):
                results = module.forward(*args, **kwargs)
            return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, results)

        self.forward = forward
