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
from ..captured_program import CapturedProgram, State
from . import Features

_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}


_TYPES = (torch.bfloat16, torch.float16)


def traced(exported: ExportedProgram, features: Features) -> State:
    """Returns what autocast does now in the program that was exported, as it was traced: decomposed, operators are
    others.

    One that was traced below autograd is decomposed already, so that nothing is known of it.
    """
    modules = [m for m in exported.graph_module.modules() if isinstance(m, GraphModule)]
    calls = [n for m in modules for n in m.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
    unknown = exported.dialect != "TRAINING"
    return _state(d for d in _KEYS if unknown or _casts(calls, d))


def _casts(calls: Iterable[Node], device: str) -> bool:
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    ops: list[tuple[Node, str]] = [(n, n.target.name()) for n in calls]  # pyright: ignore
    if any(has_kernel(name, _KEYS[device]) for _, name in ops):
        return True
    composite: list[Any] = [n for n, name in ops if has_kernel(name, "CompositeImplicitAutograd")]
    views = [n for n in composite if any(r.alias_info for r in n.target._schema.returns)]
    return any(_casts_inside(node, device) for node in composite if node not in views)


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


def captured(program: CapturedProgram, features: Features) -> None:
    """Enters what autocast did where the program was traced."""
    program.autocast = features.facts.get("autocast", program.autocast)


def check_autocast(compiled: State, arguments: Any, constants: Iterable[torch.Tensor | None]) -> None:
    """Raises ExecutionError where autocast does something else now than when a program was compiled, on the device of
    one of its tensors."""
    if compiled == _state(compiled):
        return
    used = {t.device.type for t in (*pytree.tree_leaves(arguments), *constants) if isinstance(t, torch.Tensor)}
    before = {d: dtype for d, dtype in compiled.items() if d in used}
    if (now := _state(before)) != before:
        raise ExecutionError(
            f"called {_said(now)} and compiled {_said(before)}, with operators that autocast casts; "
            "compile it as it is called, or put autocast into what is compiled",
            operator="autocast",
        )


def _said(state: State) -> str:
    enabled = " and ".join(f"torch.autocast({d!r}, {dtype})" for d, dtype in state.items() if dtype)
    return f"under {enabled}" if enabled else "without autocast"


def _state(devices: Iterable[str]) -> State:
    return {d: torch.get_autocast_dtype(d) if torch.is_autocast_enabled(d) else None for d in devices}
