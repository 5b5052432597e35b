"""Loops of PyTorch: `scan`, `map` and `while_loop` become `tensor.scan`, whose step is a function of the program.

| loop | carries | slices | results |
|---|---|---|---|
| `scan` | its carries, and a carry for each output of a step | the tensors that it scans | last carries, histories |
| `map` | a carry for each output of a step | the tensors that it maps | histories |
| `while_loop` with a counter | its carries | | last carries |

A step does not read the carry of an output, and its initial value is zero. An output that is also a carry needs no
carry of its own.

A `while_loop` has a counter if its condition compares one carry, which starts at a constant and grows by a constant,
with a constant. Other conditions depend on the values of tensors, and such a loop is refused.

`associative_scan` becomes a prefix scan, or operators on pairs of elements in log2(n) steps.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch._higher_order_ops.associative_scan import generic_associative_scan
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes  # pyright: ignore[reportPrivateUsage]
from xdsl.dialects.builtin import StringAttr, TensorType, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from ....dialects import tensor
from ....dialects.host import BindSizeOp
from ....dialects.payload import element_type
from ....dialects.shapes.extents import extents_of, static, tensor_of
from ....dialects.support.equivalence import structure
from ....errors import UnsupportedError
from ..importer import name_hint

if TYPE_CHECKING:
    from ..importer import GraphImporter
    from . import Features

aten: Any = torch.ops.aten

MAX_STEPS = 1 << 20
"""Largest number of steps of a `while_loop` that is counted at compile time."""

_KIND = "higher-order-operators"


def _import_scan(importer: GraphImporter, node: Node) -> None:
    """Imports `scan(step, carries, slices, shared)`, which returns the last carries and the outputs of all steps."""
    graph, carries, slices, shared = node.args
    assert isinstance(carries, Sequence)
    _loop(importer, node, _graph(node, graph), carries, slices, shared)


def _import_map(importer: GraphImporter, node: Node) -> None:
    """Imports `map(step, slices, shared)`, which returns the outputs of all steps."""
    graph, slices, shared = node.args
    _loop(importer, node, _graph(node, graph), (), slices, shared)


def _graph(node: Node, attribute: Any) -> GraphModule:
    owner = node.graph.owning_module
    assert owner is not None
    graph = getattr(owner, attribute.target)
    assert isinstance(graph, GraphModule)
    return graph


def _loop(importer: GraphImporter, node: Node, body: GraphModule, carries: Any, slices: Any, shared: Any) -> None:
    """Imports a loop over the first dimension of tensors.

    Args:
        importer: importer of the graph.
        node: node of the loop.
        body: graph of a step: (carries, slices, shared) -> carries and outputs.
        carries, slices, shared: arguments of the node.
    """
    initial, sliced, common = (_tensors(importer, node, values) for values in (carries, slices, shared))
    sizes = {extents_of(v.type)[0] for v in sliced}
    if len(sizes) != 1 or not all(isinstance(n, int) and n > 0 for n in sizes):
        shown = ", ".join(map(str, sizes))
        raise _refused(node, f"expected one constant number of steps, at least 1, but got {shown}")
    (steps,) = static(sizes)
    inputs = [v.type for v in initial]
    inputs += [tensor_of(element_type(v.type), extents_of(v.type)[1:]) for v in sliced] + [v.type for v in common]
    block, results = _step(importer, body.graph, inputs)
    after, outputs = results[: len(initial)], results[len(initial) :]
    # An output that is a carry shares its history. Each other output becomes a carry that the step does not read.
    sources = [_copied(y) for y in outputs]
    numbers = [after.index(y) if y in after else None for y in sources]
    separate = [y for y, number in zip(outputs, numbers, strict=True) if number is None]
    for i, y in enumerate(separate):
        block.insert_arg(y.type, len(initial) + i)
    count = iter(range(len(initial), len(initial) + len(separate)))
    numbers = [next(count) if number is None else number for number in numbers]
    zeros = [importer.add_filled(0, y.type) for y in separate]
    step = _function(importer, block, [*after, *separate])
    op = tensor.ScanOp(step, steps, [*initial, *zeros], sliced, common, sorted(set(numbers)))
    importer.add_located(op, node)
    last = [_last(importer, op, i) for i in range(len(initial))]
    importer.values[node.name] = (*last, *(op.res[number] for number in numbers))


def _copied(value: SSAValue) -> SSAValue:
    """Returns the value that a copy is a copy of. PyTorch demands a copy where an output is a carry."""
    owner = value.owner
    return owner.operands[0] if isinstance(owner, Operation) and owner.name == "torch.clone" else value


def _last(importer: GraphImporter, op: tensor.ScanOp, number: int) -> SSAValue:
    result = op.res[number]
    if number not in op.stacked:
        return result
    arguments = {"self": result, "dim": 0, "index": op.steps - 1}
    return importer.add_computed("select.int", arguments, op.carries[number].type)


def _step(importer: GraphImporter, graph: Graph, types: Sequence[Attribute]) -> tuple[Block, list[SSAValue]]:
    """Imports the graph of a step, as the body of a function without a terminator.

    Args:
        importer: importer of the graph of the loop.
        graph: graph of the step.
        types: types of its arguments.

    Returns:
        the block, and the results of the graph.

    Raises:
        UnsupportedError: the graph has an operator that is not supported, or that has effects.
    """
    inner = type(importer)(replace(importer.traced, graph=graph))
    inner.functions, inner.sizes = importer.functions, importer.sizes
    for node, t in zip(graph.find_nodes(op="placeholder"), types, strict=True):
        inner.values[node.name] = value = inner.block.insert_arg(t, len(inner.block.args))
        value.name_hint = name_hint(node.name)
    inner.run()
    if inner.eager:
        reason = f"{next(iter(inner.eager.values())).operator} in the step of a loop cannot be left to PyTorch"
        raise UnsupportedError(reason)
    if inner.generators or inner.checks:
        raise UnsupportedError("random numbers and assertions in the step of a loop are not supported")
    if any(isinstance(op, BindSizeOp) for op in inner.block.ops):
        raise UnsupportedError("a size that depends on data in the step of a loop is not supported")
    results = [inner.operand(r) for r in pytree.tree_leaves(graph.output_node().args[0])]
    if not all(isinstance(r, SSAValue) for r in results):
        raise UnsupportedError("a step of a loop that returns a number is not supported")
    return inner.block, results


def _function(importer: GraphImporter, block: Block, results: Sequence[SSAValue]) -> str:
    """Adds the function of a step to the module, unless there is an equal one. Returns the name of the function."""
    block.add_op(ReturnOp(*results))
    types = [a.type for a in block.args], [r.type for r in results]
    step, functions = FuncOp("step", types, Region(block), "private"), importer.functions
    key = structure(step, {}, ("sym_name",))
    if key not in functions:
        step.sym_name = StringAttr(f"step_{len(functions)}" if functions else "step")
        functions[key] = step
    return functions[key].sym_name.data


def _tensors(importer: GraphImporter, node: Node, values: Any) -> list[SSAValue]:
    """Returns arguments of a loop that are tensors. Raises UnsupportedError for others."""
    operands = [importer.operand(v) for v in values]
    if not all(isinstance(v, SSAValue) for v in operands):
        raise _refused(node, "an argument that is a number is not supported", "pass it as a tensor")
    return operands


def _refused(node: Node, reason: str, remedy: str | None = None) -> UnsupportedError:
    name = str(node.target).removesuffix("_impl")
    return UnsupportedError(reason, operator=f"torch.{name}", kind=_KIND, remedy=remedy)


def _import_while(importer: GraphImporter, node: Node) -> None:
    """Imports `while_loop(condition, step, carries, shared)` with a counter, which returns the last carries."""
    condition, body = (_graph(node, graph) for graph in node.args[:2])
    carries: Any
    shared: Any
    carries, shared = node.args[2:4]
    steps = _count(condition, body, [_literal(importer, v) for v in carries])
    if steps is None:
        reason = "a loop whose number of steps depends on the values of tensors is not supported"
        remedy = "use a fixed number of steps, and torch.where to keep finished values; or loop outside of the program"
        raise _refused(node, reason, remedy)
    initial = [_carry(importer, v) for v in carries]
    if not steps:
        importer.values[node.name] = tuple(initial)
        return
    common = _tensors(importer, node, shared)
    _counters_as_tensors(body, len(initial))
    block, results = _step(importer, body.graph, [v.type for v in (*initial, *common)])
    op = tensor.ScanOp(_function(importer, block, results), steps, initial, [], common)
    importer.add_located(op, node)
    importer.values[node.name] = tuple(op.res)


def _literal(importer: GraphImporter, value: Any) -> Any:
    """Returns the value of a carry that is a tensor literal of one integer (`torch.tensor(0)`), else the carry."""
    source = value
    while isinstance(source, Node) and source.target in _COPIES:
        source = source.args[0]
    literals: frozenset[str] | None = importer.traced.features.facts.get("loops")
    for binding, node in importer.traced.arguments:
        # All constants of a graph of AOTAutograd are literals.
        if node is source and binding.kind == "constant" and (literals is None or node.name in literals):
            assert binding.tensor is not None
            return int(binding.tensor) if binding.tensor.numel() == 1 and _is_integer(binding.tensor) else value
    return value


_COPIES = (aten.clone.default, aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default)


def traced(program: ExportedProgram, features: Features) -> frozenset[str]:
    """Returns the names of the arguments that hold tensor literals. A copy of the literal is all that a program
    reads."""
    copies = program.graph.find_nodes(op="call_function", target=aten.lift_fresh_copy.default)
    return frozenset(n.args[0].name for n in copies if all(u in copies for u in n.args[0].users))


_COMPARISONS: dict[Any, Callable[[int, int], bool]] = {
    **{getattr(operator, name): getattr(operator, name) for name in ("lt", "le", "gt", "ge", "ne")},
    **{
        getattr(getattr(aten, name), form): getattr(operator, name)
        for name in ("lt", "le", "gt", "ge", "ne")
        for form in ("Scalar", "Tensor")
    },
}
_ADDITIONS: dict[Any, int] = {operator.add: 1, operator.sub: -1, aten.add.Tensor: 1, aten.sub.Tensor: -1}
"""Operator of a counter -> sign of its second argument."""


def _count(condition: GraphModule, body: GraphModule, carries: Sequence[Any]) -> int | None:
    """Returns the number of steps of a `while_loop` with a counter, or None if there is no counter.

    Args:
        condition, body: graphs of the loop.
        carries: its initial carries, those that are known as integers.
    """
    compared = pytree.tree_leaves(condition.graph.output_node().args[0])[0]
    arguments = condition.graph.find_nodes(op="placeholder")
    if not isinstance(compared, Node) or compared.target not in _COMPARISONS:
        return None
    counter, bound = compared.args[:2]
    if counter not in arguments[: len(carries)] or (limit := _constant(bound)) is None:
        return None
    number = arguments.index(counter)
    value = _constant(carries[number])
    step = body.graph.find_nodes(op="placeholder")[number]
    following = pytree.tree_leaves(body.graph.output_node().args[0])[number]
    if value is None or not isinstance(following, Node) or following.target not in _ADDITIONS or following.kwargs:
        return None
    first, second = following.args[:2]
    if following.target in (operator.add, aten.add.Tensor) and second is step:
        first, second = second, first
    if first is not step or (difference := _constant(second)) is None:
        return None
    counted = step.meta.get("val")
    if isinstance(counted, torch.Tensor) and not _is_integer(counted):
        return None
    limits = torch.iinfo(counted.dtype if isinstance(counted, torch.Tensor) else torch.int64)
    holds, difference = _COMPARISONS[compared.target], difference * _ADDITIONS[following.target]
    for steps in range(MAX_STEPS):
        if not holds(value, limit):
            return steps
        value += difference
        if not limits.min <= value <= limits.max:  # The counter would wrap.
            return None
    return None


def _constant(value: Any) -> int | None:
    """Returns the value of an integer, or of a node that creates a tensor with this value; None if it is not known."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, Node):
        return None
    if value.target in (aten.full.default, aten.full_like.default, aten.new_full.default, aten.fill.Scalar):
        return _constant(value.args[2 if value.target is aten.new_full.default else 1])
    if value.target in (aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default):
        return 0 if _is_integer(value.meta["val"]) else None
    if value.target in (aten.ones.default, aten.ones_like.default, aten.new_ones.default):
        return 1 if _is_integer(value.meta["val"]) else None
    return None


def _is_integer(tensor: torch.Tensor) -> bool:
    return not tensor.dtype.is_floating_point and not tensor.dtype.is_complex and tensor.dtype != torch.bool


def _carry(importer: GraphImporter, value: Any) -> SSAValue:
    """Returns an initial carry. An integer becomes a tensor without dimensions."""
    operand = importer.operand(value)
    return operand if isinstance(operand, SSAValue) else importer.add_number(operand, TensorType(i64, []))


def _counters_as_tensors(body: GraphModule, carries: int) -> None:
    """Rewrites a step such that its integer carries are tensors without dimensions."""
    numbers = set[Node]()
    for i, node in enumerate(body.graph.nodes):
        is_number = isinstance(node.meta.get("val"), torch.SymInt)
        if is_number and (
            node.op == "placeholder" and i < carries or node.target in _ARITHMETIC and not numbers.isdisjoint(node.args)
        ):
            node.target = _ARITHMETIC.get(node.target, node.target)
            node.meta["val"] = torch.zeros((), dtype=torch.int64)
            numbers.add(node)


_ARITHMETIC: dict[Any, Any] = {
    operator.add: aten.add.Tensor,
    operator.sub: aten.sub.Tensor,
    operator.mul: aten.mul.Tensor,
}
"""Operator on integers -> operator on tensors."""


def _refuse_gradient(importer: GraphImporter, node: Node) -> None:
    """Raises UnsupportedError: the backward pass of PyTorch takes any number of steps."""
    name = "torch.while_loop"
    raise UnsupportedError("it is not differentiated", operator=name, kind=_KIND, remedy="use torch's scan")


NODES = {
    torch.ops.higher_order.while_loop_stack_output: _refuse_gradient,
    torch.ops.higher_order.scan: _import_scan,
    torch.ops.higher_order.map_impl: _import_map,
    torch.ops.higher_order.while_loop: _import_while,
}
"""Import function by operator."""

_PREFIX_SCANS: dict[Any, Callable[[torch.Tensor, int], torch.Tensor]] = {
    aten.add.Tensor: lambda x, dim: x.cumsum(dim, dtype=x.dtype),
    aten.mul.Tensor: lambda x, dim: x.cumprod(dim, dtype=x.dtype),
    aten.maximum.default: lambda x, dim: x.cummax(dim).values,
    aten.minimum.default: lambda x, dim: x.cummin(dim).values,
    aten.logaddexp.default: lambda x, dim: x.logcumsumexp(dim),
}
"""Operator that combines two elements -> prefix scan with this operator."""


def called(function: Any, args: Any, kwargs: Any) -> Any:
    """Computes an associative scan by a prefix scan, if one operator combines two elements.

    Other combinations are left to PyTorch, which combines pairs of elements in log2(n) steps.

    Args:
        function: the operator `associative_scan`, or the function of PyTorch that expands it.
        args, kwargs: its arguments.
    """
    if function is torch.ops.higher_order.associative_scan:
        combine, leaves, shared = args
        return generic_associative_scan(combine, leaves, additional_inputs=shared)
    return _prefix_scan(*args, **kwargs)


def _prefix_scan(combine: Callable[..., Any], leaves: Sequence[Any], dim: int = 0, additional_inputs: Any = ()) -> Any:
    if len(leaves) != 1 or additional_inputs or leaves[0].dtype == torch.bool:
        return NotImplemented
    shape, dtype = list(leaves[0].shape), leaves[0].dtype
    shape[dim] = 1
    try:
        with _disable_current_modes():
            element = torch.ones(shape, dtype=dtype)
            graph = make_fx(combine)(element, element.clone()).graph
    # A function that reads tensors of the program cannot be traced on its own.
    except Exception:
        return NotImplemented
    calls = [n for n in graph.nodes if n.op not in ("placeholder", "output")]
    is_plain = len(calls) == 1 and list(calls[0].args) == graph.find_nodes(op="placeholder") and not calls[0].kwargs
    scan = _PREFIX_SCANS.get(calls[0].target) if is_plain else None
    return NotImplemented if scan is None else [scan(leaves[0], dim)]
