"""Graph nodes that do not become an operation of the torch dialect one to one.

These are selections of one of several results (`getitem`), assertions, numbers computed from sizes, and refused nodes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg
from xdsl.dialects.builtin import TensorType, f64, i64
from xdsl.ir import SSAValue

from ...dialects.payload import element_type
from ...dialects.shapes.extents import extents_of
from ...dialects.torch import OPS, SCHEMAS
from ...errors import CaptureError, UnsupportedError
from ...passes.convert.torch_to_tensor.registry import why_refused
from .arrays import named_arguments
from .source_locations import place_text
from .symbolic_shapes import depends_on_data

if TYPE_CHECKING:
    from .importer import GraphImporter

aten: Any = torch.ops.aten


def _take_part(importer: GraphImporter, node: Node) -> None:
    """Imports `getitem`, which selects one of an operator's results."""
    source, index = node.args
    assert isinstance(source, Node)
    assert isinstance(index, int)
    values = importer.values[source.name]
    importer.values[node.name] = values[index] if isinstance(values, tuple) else values


def _check_scalar(importer: GraphImporter, node: Node) -> None:
    """Adds a check of an assertion on sizes that depends on data. Other assertions were checked during capture."""
    condition = node.args[0]
    value = condition.meta.get("val") if isinstance(condition, Node) else condition
    if node not in importer.checked and isinstance(value, torch.SymBool) and depends_on_data(value):
        importer.sizes.require(value)


def _read_number(importer: GraphImporter, node: Node) -> None:
    """Imports `Tensor.item`: an integer becomes a size that the host reads, a float stays a tensor.

    A truth value that is only asserted becomes a check. Raises UnsupportedError for any other truth value.
    """
    (source,), value = node.args, node.meta["val"]
    tensor = importer.operand(source)
    number = i64 if isinstance(value, torch.SymInt) else f64
    if not isinstance(value, torch.SymInt | torch.SymFloat):
        _check_truth(importer, node, tensor)
        return
    if extents_of(tensor.type):
        tensor = importer.add_computed("view", {"self": tensor, "size": []}, TensorType(element_type(tensor.type), []))
    if element_type(tensor.type) != number:
        tensor = importer.add_computed("_to_copy", {"self": tensor, "dtype": number}, TensorType(number, []))
    if isinstance(value, torch.SymFloat):
        importer.values[node.name] = tensor
    else:
        importer.bind_size(tensor, value, node)


def _check_truth(importer: GraphImporter, node: Node, tensor: SSAValue) -> None:
    """Adds a check for the assertions on a truth value, as `torch._check(x.item())` and `torch._check_tensor_all` make
    them.

    PyTorch computes the asserted conditions from the value by Python functions, such as `sym_ite(value, 1, 0) >= 1`.
    They are computed here for both values. An assertion that holds for one of them is a check of the tensor.

    Args:
        importer: the importer.
        node: the read of the value.
        tensor: the tensor that is read.

    Raises:
        UnsupportedError: the value is used for something else.
    """
    outcomes, required = {node: (True, False)}, set[bool]()
    for user in _nodes_after(node):
        if not any(n in outcomes for n in user.all_input_nodes):
            continue
        condition = user.args[0]
        if user.target is aten._assert_scalar.default and isinstance(condition, Node):
            holds = outcomes[condition]
            importer.checked.add(user)
            if not all(holds):
                required |= {value for value, met in zip((True, False), holds, strict=True) if met}
        elif (
            not callable(user.target)
            or isinstance(user.target, torch._ops.OpOverload)
            or any(n not in outcomes for n in user.all_input_nodes)
        ):
            raise unknown_operator("_local_scalar_dense", aten._local_scalar_dense.default)
        else:
            outcomes[user] = tuple(_called(user, {n: v[i] for n, v in outcomes.items()}) for i in (0, 1))
    for value in sorted(required):
        name = f"{node.name}_is_{str(value).lower()}"
        importer.values[name] = tensor if value else importer.add_computed("logical_not", {"self": tensor}, tensor.type)
        place = place_text(importer.place_of(node))
        where = f" at {place}" if place else ""
        importer.checks.append((name, f"expected the condition{where} to be {value}, but got {not value}"))


def _nodes_after(node: Node) -> Iterator[Node]:
    while (node := node.next).op != "root":
        yield node


def _called(node: Node, values: dict[Node, Any]) -> Any:
    """Returns the result of the Python function that a node calls, for given values of other nodes."""
    args, kwargs = map_arg((node.args, node.kwargs), lambda n: values[n])
    return node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]


def _ignore(importer: GraphImporter, node: Node) -> None:
    """Imports nothing: the ranges of PyTorch's symbols contain these constraints."""


def _check_metadata(importer: GraphImporter, node: Node) -> None:
    """Checks an assertion about a tensor's data type. It may have become false after rewrites of the graph."""
    named = named_arguments(node)
    dtype, asserted = named["a"].meta["val"].dtype, named.get("dtype")
    if asserted not in (None, dtype):
        raise CaptureError(f"asserts {asserted} of a tensor of {dtype}")


def _add_check(importer: GraphImporter, node: Node) -> None:
    """Adds the asserted value to the results of the program, to be checked after each call."""
    named = named_arguments(node)
    importer.operand(named["self"])
    importer.checks.append((named["self"].name, named.get("assert_msg", "an assertion of the program failed")))


def _refuse_effects(importer: GraphImporter, node: Node) -> None:
    """Raises UnsupportedError: PyTorch runs operators with side effects in order, which this library does not
    support."""
    raise UnsupportedError("an operator with effects is not supported", operator=str(node.args[1]))


SPECIAL: dict[Any, Callable[[GraphImporter, Node], None]] = {
    operator.getitem: _take_part,
    aten._assert_scalar.default: _check_scalar,
    aten._local_scalar_dense.default: _read_number,
    aten.sym_constrain_range.default: _ignore,
    aten.sym_constrain_range_for_size.default: _ignore,
    aten._assert_tensor_metadata.default: _check_metadata,
    aten._assert_async.default: _add_check,
    aten._assert_async.msg: _add_check,
    torch.ops.higher_order.with_effects: _refuse_effects,
}
"""Import function by target, for targets that become no operation."""

_NUMBER_OPERATORS: dict[Any, str] = {
    operator.add: "add.Tensor",
    operator.sub: "sub.Tensor",
    operator.mul: "mul.Tensor",
    operator.truediv: "div.Tensor",
    operator.neg: "neg",
    operator.pow: "pow.Tensor_Tensor",
    torch._sym_sqrt: "sqrt",  # pyright: ignore[reportAttributeAccessIssue]
}
"""ATen operator for each Python operator on floating-point numbers that are computed from sizes."""


def compute_number(importer: GraphImporter, node: Node) -> SSAValue:
    """Imports a floating-point number that Python computes from sizes, such as the scale of an interpolation.

    Returns an f64 tensor without dimensions.
    """
    if node.target is not torch.sym_float and node.target not in _NUMBER_OPERATORS:
        raise UnsupportedError("this function of a size is not supported", operator=_target_name(node.target))
    number, values = TensorType(f64, []), map(importer.operand, node.args)
    operands = [v if isinstance(v, SSAValue) else importer.add_number(v, number) for v in values]
    if node.target is torch.sym_float:
        return operands[0]
    name = _NUMBER_OPERATORS[node.target]
    return importer.add_computed(name, dict(zip(SCHEMAS[name].names, operands, strict=False)), number)


def not_an_operator(node: Node) -> UnsupportedError:
    """Returns the error for a node that calls no operator of PyTorch."""
    if node.op == "call_function" and node.args and isinstance(node.args[0], torch._ops.OpOverload):
        reason = "an operator of a library that changes a tensor in place is not supported"
        return UnsupportedError(reason, operator=_target_name(node.args[0]), kind="unsupported-operator")
    if node.op == "call_function":
        return UnsupportedError("operators of this library are not supported", operator=_target_name(node.target))
    reason = "control flow, or another operator that takes a graph, is not supported"
    return UnsupportedError(reason, operator=next((_target_name(n.target) for n in node.users), node.op))


def unknown_operator(name: str, target: torch._ops.OpOverload) -> UnsupportedError:
    """Returns the error for an operator that is not supported; `name` is its name in the torch dialect."""
    if target.namespace != "aten" and name not in OPS:
        return UnsupportedError("operators of this library are not supported", operator=_target_name(target))
    mutable = target._schema.is_mutable
    reason = "this operator changes a tensor in place" if mutable else why_refused(name)
    return UnsupportedError(reason, operator=f"aten.{name}")


def _target_name(target: Any) -> str:
    return str(target) if isinstance(target, torch._ops.OpOverload) else getattr(target, "__name__", str(target))
