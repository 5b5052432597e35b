"""Autocast around a call: a program has the types that it was traced with, while eager PyTorch looks at every call.

The devices on which autocast could cast what a program reads are noted, for the check of each call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ....errors import ExecutionError
from ..captured_program import State
from . import AUTOCAST, Features, autocast_state, words_of_operator

_TYPES = (torch.bfloat16, torch.float16)


def traced(exported: ExportedProgram, features: Features) -> State:
    """Returns what autocast does now, also on devices where it casts no operator of the exported program but some of
    those that the operators consist of.

    A program that was traced below autograd is decomposed already, so that nothing is known of it.
    """
    known: State = features.facts["autocast"]
    modules = [m for m in exported.graph_module.modules() if isinstance(m, GraphModule)]
    calls = [n for m in modules for n in m.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
    consist = [n for n in calls if "composite" in words_of_operator(n.target) and not _is_view(n.target)]
    others = [device for device in AUTOCAST if device not in known]
    unknown = exported.dialect != "TRAINING"
    casting = [d for d in others if unknown or any(_casts_inside(node, d) for node in consist)]
    return {**known, **autocast_state(casting)}


def _is_view(target: Any) -> bool:
    return any(r.alias_info for r in target._schema.returns)


def _casts_inside(node: Node, device: str) -> bool:
    """Whether an operator that is made of others casts more under autocast than without it; also if that cannot be
    found out. It is called on tensors without contents, of the sizes that it was traced with."""

    def example(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.empty([_hint(n) for n in value.shape], dtype=value.dtype, device=device)
        return _hint(value)

    before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    counts = set[int]()
    try:
        with unset_fake_temporarily(), FakeTensorMode():
            traced = pytree.tree_map_only(Node, lambda n: n.meta["val"], (tuple(node.args), dict(node.kwargs)))
            args, kwargs = pytree.tree_map(example, traced)
            for enabled, dtype in ((False, before[1]), *((True, t) for t in _TYPES)):
                torch.set_autocast_enabled(device, enabled)
                torch.set_autocast_dtype(device, dtype)
                with _Casts() as casts:
                    node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]
                counts.add(casts.count)
    except Exception:  # whatever an operator raises that has no kernel for these types on this device
        return True
    finally:
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])
    return len(counts) > 1


def _hint(value: Any) -> Any:
    """A number that varies as it was when it was traced; anything else as it is."""
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value
    if not value.node.has_hint():
        raise ValueError("known from data only")
    return value.node.hint


class _Casts(TorchDispatchMode):
    """Counts the operators below that cast."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`."""
        self.count += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


def check_autocast(compiled: State, arguments: Any, constants: Iterable[torch.Tensor | None]) -> None:
    """Raises ExecutionError where autocast does something else now than when a program was compiled, on the device of
    one of its tensors."""
    if compiled == autocast_state(compiled):
        return
    used = {t.device.type for t in (*pytree.tree_leaves(arguments), *constants) if isinstance(t, torch.Tensor)}
    before = {d: dtype for d, dtype in compiled.items() if d in used}
    if (now := autocast_state(before)) != before:
        raise ExecutionError(
            f"called {_said(now)} and compiled {_said(before)}, with operators that autocast casts; "
            "compile it as it is called, or put autocast into what is compiled",
            operator="autocast",
        )


def _said(state: State) -> str:
    enabled = " and ".join(f"torch.autocast({d!r}, {dtype})" for d, dtype in state.items() if dtype)
    return f"under {enabled}" if enabled else "without autocast"
