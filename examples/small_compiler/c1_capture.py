"""Chapter 1: capture. PyTorch traces the program, and each operator becomes one operation of the `torch` dialect.

The program of this chapter runs: its operations are ATen operators, so PyTorch executes them one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import isbuiltin

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import ModuleOp, TensorType, f32
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Region, SSAValue

from deplodock.dialects.shapes.binding import Sizes
from deplodock.dialects.support.calls import main_function
from deplodock.dialects.torch import OPS
from deplodock.errors import UnsupportedError
from deplodock.frontend.bisection.operators import compute
from deplodock.frontend.capture.arrays import named_arguments
from deplodock.frontend.capture.tracing import quiet

OPERATORS = set(
    "add.Tensor add.Scalar sub.Tensor sub.Scalar mul.Tensor mul.Scalar div.Tensor div.Scalar maximum"  # two operands
    " neg exp log sqrt rsqrt reciprocal tanh erf relu sigmoid abs pow.Tensor_Scalar"  # one operand
    " sum sum.dim_IntList mean mean.dim amax mm bmm addmm"  # reductions and matmuls
    " permute view expand unsqueeze squeeze.dims clone full full_like".split()  # views, and constants
)
"""Operators of the compiler. PyTorch writes many others in terms of these, for example softmax and linear."""

WRITTEN_BY_OTHERS = [torch.ops.aten._softmax, torch.ops.aten._log_softmax, torch.ops.aten.gelu]
"""Operators that PyTorch decomposes only on demand. `default_decompositions` has those that it always decomposes."""

Run = Callable[[ModuleOp, Sequence[torch.Tensor]], list[torch.Tensor]]
"""Function that executes `@main` of a module."""


@dataclass(frozen=True)
class Program:
    """A compiled program, called with the inputs of the PyTorch program.

    Attributes:
        module: the program. The chapters lower it in place.
        weights: parameters of the PyTorch program, the first arguments of `@main`.
        structure: nesting of the results in tuples, lists and dictionaries.
        run: executes the module.
    """

    module: ModuleOp
    weights: Sequence[torch.Tensor]
    structure: pytree.TreeSpec
    run: Run

    def __call__(self, *inputs: object) -> object:
        """Runs the program."""
        results = self.run(self.module, [*self.weights, *pytree.tree_leaves(inputs)])
        return pytree.tree_unflatten(results, self.structure)


def compile(function: Callable[..., object], inputs: tuple[torch.Tensor, ...]) -> Program:
    """Captures a PyTorch program.

    Args:
        function: a module, or a function of tensors.
        inputs: example inputs, whose shapes the program has.

    Returns:
        the program at the torch level, executed by PyTorch.

    Raises:
        UnsupportedError: for an operator that the compiler does not have, or a tensor that is not f32.
    """
    module = function if isinstance(function, torch.nn.Module) else _FunctionModule(function)
    decompositions = torch.export.default_decompositions()
    decompositions.update(torch._decomp.get_decompositions(WRITTEN_BY_OTHERS))
    with quiet():
        exported = torch.export.export(module, inputs).run_decompositions(decompositions)
    if exported.graph_signature.buffers_to_mutate:
        raise UnsupportedError("the program changes a buffer in place")
    parameters = exported.state_dict | exported.constants
    weights = [parameters[spec.target] for spec in exported.graph_signature.input_specs if spec.target is not None]
    return Program(import_graph(exported.graph.nodes), weights, exported.call_spec.out_spec, run)


class _FunctionModule(torch.nn.Module):
    """Module of a function, because PyTorch exports modules."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        # A builtin function such as torch.relu has no signature, which PyTorch reads for the names of inputs.
        self.forward = (lambda *inputs: function(*inputs)) if isbuiltin(function) else function


def import_graph(nodes: Sequence[Node]) -> ModuleOp:
    """Returns a module whose function `@main` has one operation of the torch dialect for each operator."""
    block, values = Block(), dict[Node, SSAValue]()
    for node in nodes:
        if node.op == "placeholder":
            values[node] = block.insert_arg(type_of(node), len(block.args))
            values[node].name_hint = node.name
        elif node.op == "output":
            if others := [result for result in node.args[0] if not isinstance(result, Node)]:
                raise UnsupportedError(f"expected tensors as results, but got {others[0]}")
            block.add_op(ReturnOp(*(values[result] for result in node.args[0])))
        else:
            values[node] = import_operator(block, node, values)
    main = FuncOp("main", ([], []), Region(block))
    main.update_function_type()
    return ModuleOp([main])


def import_operator(block: Block, node: Node, values: dict[Node, SSAValue]) -> SSAValue:
    """Adds the operation of one operator to a block and returns its result.

    Args:
        block: the block.
        node: the call of the operator.
        values: the values of earlier nodes.

    Raises:
        UnsupportedError: the operator is not one of `OPERATORS`.
    """
    name = str(node.target).removeprefix("aten.").removesuffix(".default")
    if name not in OPERATORS:
        raise UnsupportedError("the small compiler does not have this operator", operator=str(node.target))
    kinds = {argument.name: argument.type for argument in OPS[name].SCHEMA.arguments}
    arguments = dict[str, object]()
    for key, value in named_arguments(node).items():
        if isinstance(value, Node):
            value = values[value]
        elif kinds[key] == "Tensor":
            block.add_op(number := OPS["full"]({"size": [], "fill_value": float(value)}, [TensorType(f32, [])]))
            value = number.results[0]
        # Types, devices and memory formats carry no information: all tensors are f32 and contiguous.
        if isinstance(value, SSAValue | int | float | list):
            arguments[key] = value
    block.add_op(op := OPS[name](arguments, [type_of(node)]))
    return op.results[0]


def type_of(node: Node) -> TensorType:
    """Returns the type of the tensor that a node computes. Raises UnsupportedError."""
    tensor = node.meta["val"]
    if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.float32 or tensor.numel() == 0:
        text = f"{tensor.dtype}{list(tensor.shape)}" if isinstance(tensor, torch.Tensor) else f"{tensor}"
        raise UnsupportedError(f"expected a tensor of float32 that is not empty, but got {text}", argument=node.name)
    return TensorType(f32, tensor.shape)


def run(module: ModuleOp, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Executes `@main` of a module at the torch level: PyTorch computes each operation."""
    block = main_function(module).body.block
    values = dict(zip(block.args, arguments, strict=True))
    *operators, end = block.ops
    for op in operators:
        values[op.results[0]] = compute(op, [values[operand] for operand in op.operands], Sizes())[0].contiguous()
    return [values[operand] for operand in end.operands]
