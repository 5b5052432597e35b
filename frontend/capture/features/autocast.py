"""Autocast: the state in which a program was traced, compared with the state of each call.

A compiled program has the data types of its trace, but eager PyTorch applies autocast anew in every call. So the state
is stored for the devices on which autocast would cast an operand of some operator of the program, and each call checks
it.
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
    """Returns the state of autocast for the devices on which the program may depend on it.

    These include devices on which autocast casts inside a composite operator. A program that was traced below autograd
    has no composite operators left, so all devices are included.
    """
    state: State = features.facts["autocast"]
    modules = [m for m in exported.graph_module.modules() if isinstance(m, GraphModule)]
    calls = [n for m in modules for n in m.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
    composites = [n for n in calls if "composite" in words_of_operator(n.target) and not _is_view(n.target)]
    others = [device for device in AUTOCAST if device not in state]
    decomposed = exported.dialect != "TRAINING"
    casting = [d for d in others if decomposed or any(_may_cast_inside(node, d) for node in composites)]
    return {**state, **autocast_state(casting)}


def _is_view(target: Any) -> bool:
    return any(r.alias_info for r in target._schema.returns)


def _may_cast_inside(node: Node, device: str) -> bool:
    """Returns true if a composite operator casts on `device` only under autocast, or if that cannot be determined.

    The operator is called with and without autocast, on fake tensors of the traced sizes, and its casts are counted.
    """

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
    # Operators raise many kinds of errors if they have no kernel for these types on this device.
    except Exception:
        return True
    finally:
        torch.set_autocast_enabled(device, before[0])
        torch.set_autocast_dtype(device, before[1])
    return len(counts) > 1


def _hint(value: Any) -> Any:
    """Returns the traced value of a symbolic number, and any other value unchanged. Raises ValueError without a traced
    value."""
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value
    if not value.node.has_hint():
        raise ValueError("known from data only")
    return value.node.hint


class _Casts(TorchDispatchMode):
    """Dispatch mode that counts casts (`aten._to_copy`)."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Counts and calls `func`."""
        self.count += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


def check_autocast(compiled: State, arguments: Any, constants: Iterable[torch.Tensor | None]) -> None:
    """Checks that autocast is in the state in which the program was compiled, on the devices of its tensors.

    Args:
        compiled: state at compile time, by device type.
        arguments: arguments of the call, in any structure.
        constants: parameters, buffers and constants of the program.

    Raises:
        ExecutionError: the state is another one.
    """
    if compiled == autocast_state(compiled):
        return
    used = {t.device.type for t in (*pytree.tree_leaves(arguments), *constants) if isinstance(t, torch.Tensor)}
    before = {d: dtype for d, dtype in compiled.items() if d in used}
    if (now := autocast_state(before)) != before:
        raise ExecutionError(
            f"called {_in_words(now)} and compiled {_in_words(before)}, with operators that autocast casts; "
            "compile it as it is called, or put autocast into what is compiled",
            operator="autocast",
        )


def _in_words(state: State) -> str:
    enabled = " and ".join(f"torch.autocast({d!r}, {dtype})" for d, dtype in state.items() if dtype)
    return f"under {enabled}" if enabled else "without autocast"
