"""Support for programs that the user has exported already (`torch.export.ExportedProgram`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from ...errors import CaptureError
from .symbolic_shapes import extent_bounds


def opened(
    function: Any, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> tuple[Any, Any, Any, Any]:
    """Unpacks an exported program into a module, its arguments and its varying sizes; returns other inputs unchanged.

    Args:
        function: an `ExportedProgram`, a module or a function.
        args: example arguments; None selects the arguments that the program was exported with.
        kwargs: example arguments by name.
        dynamic_shapes: sizes that vary; None selects the sizes that vary in the exported program.

    Returns:
        Module or function, arguments by position, arguments by name, varying sizes.

    Raises:
        CaptureError: the function is a TorchScript module, `args` is not a tuple, or the arguments have another
            structure than those that the program was exported with.
    """
    if isinstance(function, torch.jit.ScriptModule):
        raise CaptureError(
            "a TorchScript module is not supported",
            remedy="compile the module that it was made from, or what torch.export makes of that",
        )
    program = function if isinstance(function, ExportedProgram) else None
    if program is not None and args is None and program.example_inputs is not None:
        args, kwargs = program.example_inputs[0], {**program.example_inputs[1], **(kwargs or {})}
    if not isinstance(args, tuple | list):
        raise CaptureError(
            f"expected a tuple of arguments, but got {type(args).__name__}",
            argument="example_args",
            kind="wrong-arguments",
            remedy="write (x,) for a single argument",
        )
    if program is None:
        return function, args, kwargs, dynamic_shapes
    structure = pytree.tree_structure((tuple(args), dict(kwargs or {})))
    if structure != program.call_spec.in_spec:
        raise CaptureError(
            "arguments of another structure than those with which the program was exported", argument="example_args"
        )
    return program.module(), args, kwargs, _sizes(program) if dynamic_shapes is None else dynamic_shapes


def _sizes(program: ExportedProgram) -> Any:
    """Returns the varying sizes of a program in the structure of its arguments, or None if all sizes are fixed."""
    values = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    inputs = [s.arg for s in program.graph_signature.input_specs if s.kind == InputKind.USER_INPUT]
    tensors = [v if isinstance(v := values.get(getattr(arg, "name", "")), torch.Tensor) else None for arg in inputs]
    roots: dict[Any, Any] = {}
    for symbol, bounds in program.range_constraints.items():
        least, most = extent_bounds(bounds.lower, bounds.upper)
        roots[symbol] = Dim(f"s{len(roots)}", min=least, max=most)
    shapes = [() if t is None else enumerate(t.shape) for t in tensors]
    leaves = [{d: _dim(n.node.expr, roots) for d, n in shape if isinstance(n, torch.SymInt)} for shape in shapes]
    args, kwargs = pytree.tree_unflatten([leaf or None for leaf in leaves], program.call_spec.in_spec)  # pyright: ignore
    return (*args, *kwargs.values()) if any(leaves) else None


def _dim(expr: Any, roots: Mapping[Any, Any]) -> Any:
    """Returns a symbolic size as a `Dim`: a root, or a multiple of it plus a constant (`2 * s0 + 1`); else
    `Dim.AUTO`."""
    symbol = min(expr.free_symbols, key=str)
    factor, offset = expr.coeff(symbol, 1), expr.coeff(symbol, 0)
    if symbol not in roots or not (factor.is_Integer and offset.is_Integer and factor * symbol + offset == expr):
        return Dim.AUTO
    dim = roots[symbol] if factor == 1 else int(factor) * roots[symbol]
    return dim + int(offset) if offset else dim
