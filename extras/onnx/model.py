"""The module of an ONNX model: its call evaluates the graph node by node.

A *rule* is a function of PyTorch tensors that computes one operator (`registry.py`). A *host value* is an array of
sizes or constants that is computed on the host while the model is traced (`values.py`).
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
import torch
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto, helper
from onnx.reference import ReferenceEvaluator
from torch import nn
from torch.export import Dim

from ...errors import CompileError
from ...frontend.capture.arrays import to_numpy
from .registry import HOST_RULES, RULES, STRUCTURES, ControlNode, Rule, load_rules
from .values import (
    LARGEST_KNOWN,
    NUMBERS,
    Env,
    HostArray,
    OnnxError,
    Stored,
    Value,
    array_of,
    dtype_of,
    reason_of,
    to_tensor,
)

OLDEST = 13
"""Oldest version of the operator set that rules handle; models of older versions are converted."""

DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True)
class Input:
    """An input of the model: its name, element type and sizes; a name is a size that may vary, None an unknown one."""

    name: str
    dtype: torch.dtype
    shape: tuple[int | str | None, ...]


def versions_of(imports: ModelProto | FunctionProto) -> dict[str, int]:
    """Returns the versions of the operator sets that a model or a function imports, by domain."""
    return {"" if o.domain in DOMAINS else o.domain: o.version for o in imports.opset_import}


class OnnxModule(nn.Module):
    """An ONNX model as a PyTorch module. Constants of the model are buffers.

    Attributes:
        inputs: inputs of the model, the arguments of a call in their order.
        outputs: names of the results. A model with one result returns a tensor, another one a tuple.
    """

    def __init__(self, model: ModelProto, file: str = "model.onnx") -> None:
        super().__init__()
        load_rules()
        self.file = file
        graph = model.graph
        self.opsets = versions_of(model)
        self.functions = {(f.domain, f.name): f for f in model.functions}
        self.constants: Env = {}
        for tensor in graph.initializer:
            self.constants[tensor.name] = self._store(array_of(tensor))
        for sparse in graph.sparse_initializer:
            raise OnnxError(f"the constant {sparse.values.name!r} is sparse, which is not supported", location=file)
        self.inputs = [_input(i) for i in graph.input if i.name not in self.constants]
        self.outputs = [o.name for o in graph.output]
        self.nodes = self._fold(graph)

    def forward(self, *args: torch.Tensor) -> Any:
        if len(args) != len(self.inputs):
            raise OnnxError(f"expected {len(self.inputs)} arguments, but got {len(args)}", location=self.file)
        env: Env = dict(self.constants)
        env.update(zip((i.name for i in self.inputs), args, strict=True))
        evaluator = Evaluator(self)
        evaluator.run(self.nodes, env)
        results = tuple(self.tensor(env[name]) for name in self.outputs)
        return results[0] if len(results) == 1 else results

    def example_inputs(self, size: int = 4) -> tuple[torch.Tensor, ...]:
        """Returns random inputs: normal floats, and integers 0 or 1.

        The sizes that vary are `size`, `size + 1` and so on, so that no two are equal.
        """
        names = [*dict.fromkeys(s for i in self.inputs for s in i.shape if isinstance(s, str))]
        sizes = {name: size + n for n, name in enumerate(names)}
        shapes = [tuple(s if isinstance(s, int) else sizes.get(str(s), size) for s in i.shape) for i in self.inputs]
        if too_large := [i.name for i, s in zip(self.inputs, shapes, strict=True) if prod(s) > LARGEST_INPUT]:
            raise OnnxError(
                f"expected inputs of at most {LARGEST_INPUT} elements, but {too_large[0]!r} has more",
                location=self.file,
            )
        return tuple(
            torch.randn(shape).to(i.dtype) if i.dtype.is_floating_point else torch.randint(0, 2, shape).to(i.dtype)
            for i, shape in zip(self.inputs, shapes, strict=True)
        )

    def dynamic_shapes(self) -> tuple[dict[int, Any] | None, ...] | None:
        """Returns the argument `dynamic_shapes` of `deplodock.compile`: sizes with a name vary, from 1 to 65535."""
        names = dict.fromkeys(s for i in self.inputs for s in i.shape if isinstance(s, str))
        dims = {name: Dim(_identifier(name, n), min=1, max=65535) for n, name in enumerate(names)}
        shapes = tuple({d: dims[s] for d, s in enumerate(i.shape) if isinstance(s, str)} or None for i in self.inputs)
        return (shapes,) if dims else None  # pyright: ignore[reportReturnType]

    def tensor(self, value: Value) -> torch.Tensor:
        """Returns a value of the graph as a tensor."""
        if isinstance(value, Stored):
            return getattr(self, value.buffer)
        return to_tensor(value) if isinstance(value, np.ndarray) else value  # pyright: ignore[reportReturnType]

    def _store(self, array: HostArray) -> Stored:
        buffer = f"constant_{len(self._buffers)}"
        self.register_buffer(buffer, to_tensor(array))
        return Stored(array, buffer)

    def _fold(self, graph: GraphProto) -> list[NodeProto]:
        """Computes the results of nodes without other inputs than constants. Returns the other nodes."""
        remaining: list[NodeProto] = []
        evaluator = Evaluator(self)
        for node in graph.node:
            names = {*node.input, *(n for a in node.attribute for g in _graphs(a) for n in _free_names(g))} - {""}
            if node.op_type in RANDOM or not all(name in self.constants for name in names):
                remaining.append(node)
                continue
            env = {name: self.constants[name] for name in names}
            with torch.no_grad():
                evaluator.run([node], env)
            for name in filter(None, node.output):
                value = env[name]
                array = to_numpy(value) if isinstance(value, torch.Tensor) else value
                self.constants[name] = self._store(array) if isinstance(array, np.ndarray) else array
        return remaining


LARGEST_INPUT = 1 << 30
"""Elements of an example input. A file may name sizes that no memory holds."""

RANDOM = frozenset("Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split())
"""Operators whose results differ from call to call."""


def _identifier(name: str, number: int) -> str:
    """Returns the name of a size as a Python identifier that PyTorch takes for a `Dim`."""
    plain = "".join(c if c.isalnum() else "_" for c in name)
    return plain if plain.isidentifier() else f"size_{number}"


def _input(value: onnx.ValueInfoProto) -> Input:
    if not value.type.HasField("tensor_type"):
        kind = value.type.WhichOneof("value") or "no type"
        raise OnnxError(f"expected a tensor for the input {value.name!r}, but got {kind.removesuffix('_type')}")
    kind = value.type.tensor_type
    sizes = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in kind.shape.dim)
    return Input(value.name, dtype_of(kind.elem_type), sizes)


def _graphs(attribute: AttributeProto) -> Iterable[GraphProto]:
    return [attribute.g] if attribute.HasField("g") else attribute.graphs


def _free_names(graph: GraphProto) -> set[str]:
    """Returns the names that a subgraph takes from the graphs around it."""
    defined = {*(i.name for i in graph.input), *(i.name for i in graph.initializer)}
    free = set[str]()
    for node in graph.node:
        free |= {*node.input} - defined
        free |= {n for a in node.attribute for g in _graphs(a) for n in _free_names(g)} - defined
        defined |= {*node.output}
    return (free | {o.name for o in graph.output} - defined) - {""}


class Evaluator:
    """Evaluates the nodes of a graph, of its subgraphs and of functions."""

    def __init__(self, module: OnnxModule) -> None:
        self.module, self.opsets = module, module.opsets

    def tensor(self, value: Value) -> torch.Tensor:
        """Returns a value of the graph as a tensor."""
        return self.module.tensor(value)

    def run(self, nodes: Iterable[NodeProto], env: Env, bound: Mapping[str, AttributeProto] | None = None) -> None:
        """Evaluates nodes in their order.

        Args:
            nodes: the nodes.
            env: values by name; results are entered.
            bound: inside of a function, the attributes of its call.
        """
        for node in nodes:
            try:
                results = self._evaluate(node, env, bound or {})
            except CompileError as error:
                error.location = error.location or _place(self.module.file, node)
                error.operator = error.operator or node.op_type
                raise
            for name, value in zip(node.output, results, strict=False):
                if name:
                    env[name] = value

    def _evaluate(self, node: NodeProto, env: Env, bound: Mapping[str, AttributeProto]) -> Sequence[Value]:
        domain = "" if node.domain in DOMAINS else node.domain
        missing = [name for name in node.input if name and name not in env]
        if missing:
            raise OnnxError(f"the value {missing[0]!r} has no definition before its use")
        inputs = [env[name] if name else None for name in node.input]
        attributes = [_bound(a, bound) for a in node.attribute]
        present = {a.name: a for a in attributes if a is not None}
        if (domain, node.op_type) in self.module.functions:
            return self._call(self.module.functions[domain, node.op_type], inputs, present)
        decoded = {k: _decoded(a) for k, a in present.items()}
        if not domain and (structure := STRUCTURES.get(node.op_type)) is not None:
            return structure(ControlNode(self, inputs, decoded, env, len(node.output)))
        if (rule := RULES.get((domain, node.op_type))) is None:
            return self._call(*self._body(node, domain, inputs, present))
        on_host = bool(inputs) and not any(isinstance(v, torch.Tensor) for v in inputs)
        if not domain and on_host and node.op_type in HOST_RULES:
            arrays = [v.array if isinstance(v, Stored) else v for v in inputs]
            results = HOST_RULES[node.op_type](*arrays, **decoded)
            if results is not NotImplemented:
                return results if isinstance(results, list) else [results]
        if not domain and (small := self._small(node, inputs)) is not None:
            return small
        return self._apply(rule, node, domain, inputs, decoded)

    def _small(self, node: NodeProto, inputs: Sequence[Value]) -> Sequence[Value] | None:
        """Computes a node on the host, if its inputs are small constants or sizes.

        The reference implementation of ONNX computes it.

        Returns:
            The results, or None if an input is a tensor, is large or has symbolic sizes, or if the reference
            implementation lacks the operator.
        """
        values = (v.array if isinstance(v, Stored) else v for v in inputs)
        arrays = [a for a in values if isinstance(a, np.ndarray) and a.dtype != object and a.size <= LARGEST_KNOWN]
        if not inputs or node.op_type in RANDOM or len(arrays) < len(inputs):
            return None
        kinds = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in zip(node.input, arrays, strict=True)
        ]
        results = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
        graph = helper.make_graph([node], "node", kinds, results)
        opset = helper.make_opsetid("", self.opsets.get("", OLDEST))
        try:
            values = ReferenceEvaluator(helper.make_model(graph, opset_imports=[opset])).run(
                None, dict(zip(node.input, arrays, strict=True))
            )
        except Exception:  # the reference lacks some operators and types
            return None
        return [np.asarray(v) for v in values]

    def _apply(
        self, rule: Rule, node: NodeProto, domain: str, inputs: Sequence[Value], attributes: dict[str, Any]
    ) -> Sequence[Value]:
        """Returns the results of a rule.

        The rule is called by code whose file name is the name of the node (`_at`), so that locations name the node.
        """
        if unknown := sorted(attributes.keys() - rule.attributes):
            raise OnnxError(f"the attribute {unknown[0]} is not supported")
        if rule.most is not None and len(inputs) > rule.most:
            raise OnnxError(f"expected at most {rule.most} inputs, but got {len(inputs)}")
        values = [self._argument(rule, n, v, node) for n, v in enumerate(inputs)]
        words = {"op": node.op_type, "outputs": len(node.output), "opset": self.opsets.get(domain, 1)}
        keywords = rule.keywords(attributes) | {word: words[word] for word in rule.words}
        try:
            results = _at(self.module.file, node, rule.function)(values, keywords)
        except CompileError:
            raise
        except (NotImplementedError, RuntimeError, TypeError, ValueError, IndexError, KeyError) as error:
            raise OnnxError(f"does not fit its inputs: {reason_of(error)}") from error
        return results if isinstance(results, list) else [results]

    def _argument(self, rule: Rule, position: int, value: Value, node: NodeProto) -> Any:
        if value is None:
            return None
        if not rule.is_host(position):
            return self.module.tensor(value)
        if isinstance(value, torch.Tensor):
            reason = f"expected a constant, or a value that follows from shapes, for the input {node.input[position]!r}"
            raise OnnxError(f"{reason}, but got a tensor that is computed")
        return value.array if isinstance(value, Stored) else value

    def _body(
        self, node: NodeProto, domain: str, inputs: Sequence[Value], attributes: Mapping[str, AttributeProto]
    ) -> tuple[FunctionProto, Sequence[Value], Mapping[str, AttributeProto]]:
        """Returns the function with which ONNX itself defines an operator, and its inputs and attributes.

        The attributes include the default values of the operator.

        Raises:
            OnnxError: if ONNX has no function for the operator.
        """
        version = self.opsets.get(domain, 1)
        try:
            schema: Any = onnx.defs.get_schema(node.op_type, version, domain)
        except onnx.defs.SchemaError:
            schema = None
        if schema is None or not (schema.has_function or schema.has_context_dependent_function):
            name = f"{domain}.{node.op_type}" if domain else node.op_type
            state = "no operator of ONNX" if schema is None else "not supported"
            raise OnnxError(f"the operator {name} is {state} (operator set {version})")
        body = schema.function_body
        if not schema.has_function:
            plain = helper.make_node(node.op_type, node.input, node.output, domain=node.domain)
            plain.attribute.extend(attributes.values())
            types = [self._type(v).SerializeToString() for v in inputs]
            body = FunctionProto()
            body.ParseFromString(schema.get_context_dependent_function(plain.SerializeToString(), types))
        values = {name: a.default_value for name, a in schema.attributes.items()}
        defaults = {name: value for name, value in values.items() if value.type != AttributeProto.UNDEFINED}
        return body, inputs, {**defaults, **attributes}

    def _type(self, value: Value) -> TypeProto:
        if value is None:
            return TypeProto()
        tensor = self.module.tensor(value)
        sizes = [s if isinstance(s, int) else None for s in tensor.shape]
        return helper.make_tensor_type_proto(NUMBERS[tensor.dtype], sizes)

    def _call(
        self, function: FunctionProto, inputs: Sequence[Value], attributes: Mapping[str, AttributeProto]
    ) -> Sequence[Value]:
        """Evaluates the body of a function.

        Args:
            function: the function.
            inputs: its inputs; inputs at the end may be missing.
            attributes: attributes of the call.
        """
        defaults = {a.name: a for a in function.attribute_proto}
        env: Env = dict(zip(function.input, (*inputs, *[None] * len(function.input)), strict=False))
        inside = Evaluator(self.module)
        inside.opsets = self.opsets | versions_of(function)
        inside.run(function.node, env, {**defaults, **attributes})
        return [env.get(name) for name in function.output]

    def subgraph(self, graph: GraphProto, inputs: Sequence[Value], env: Env) -> list[Value]:
        """Evaluates a subgraph, which may use the values of the graph that contains it.

        Args:
            graph: the subgraph.
            inputs: its inputs.
            env: values of the graph that contains it.

        Returns:
            The results of the subgraph.
        """
        inner = {**env, **dict(zip((i.name for i in graph.input), inputs, strict=True))}
        for tensor in graph.initializer:
            inner[tensor.name] = array_of(tensor)
        self.run(graph.node, inner)
        return [inner[o.name] for o in graph.output]


def _bound(attribute: AttributeProto, bound: Mapping[str, AttributeProto]) -> AttributeProto | None:
    """Returns an attribute of a node.

    In the body of a function an attribute may refer to an attribute of the function's call.

    Args:
        attribute: the attribute.
        bound: attributes of the call.

    Returns:
        The attribute with its value, or None if the call has no attribute of that name.
    """
    if not attribute.ref_attr_name:
        return attribute
    if attribute.ref_attr_name not in bound:
        return None
    copy = AttributeProto()
    copy.CopyFrom(bound[attribute.ref_attr_name])
    copy.name = attribute.name
    return copy


def _decoded(attribute: AttributeProto) -> Any:
    """Returns the value of an attribute, with text as `str` and tensors as arrays."""
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, onnx.TensorProto):
        return array_of(value)
    if isinstance(value, list | tuple) and value and isinstance(value[0], bytes):
        return [v.decode() for v in value]
    return [*value] if attribute.type in (AttributeProto.INTS, AttributeProto.FLOATS) else value


def _place(file: str, node: NodeProto) -> str:
    return f"{file}#{node.name or next(iter(node.output), '') or node.op_type}"


def _at(file: str, node: NodeProto, function: Callable[..., Any]) -> Callable[[Sequence[Any], Mapping[str, Any]], Any]:
    """Returns a function that calls `function` with inputs and attributes.

    The file of its code is named after the node, so that locations in the IR and in errors name the node.
    """
    place = _place(file, node)
    text = f"{', '.join(node.output)} = {node.op_type}({', '.join(node.input)})\n"
    linecache.cache[place] = len(text), None, [text], place
    code = compile("lambda inputs, attributes: function(*inputs, **attributes)", place, "eval")
    return eval(code, {"function": function})


def read_model(path: str | os.PathLike[str]) -> ModelProto:
    """Returns the model in a file, checked and converted to an operator set that rules handle.

    Raises:
        OnnxError: if the file is no valid model.
    """
    file = os.fspath(path)
    try:
        model = onnx.load(file)
        check(model)
    except FileNotFoundError as error:
        raise OnnxError("there is no such file", location=error.filename or file) from None
    except Exception as error:  # onnx and protobuf raise errors of many kinds for damaged files
        raise OnnxError(f"is no valid ONNX model: {reason_of(error)}", location=file) from None
    return prepared(model, file)


def check(model: ModelProto) -> None:
    """Raises an error of onnx if a model is not valid. Results of unknown shape are allowed."""
    copy = ModelProto()
    copy.CopyFrom(model)
    for output in copy.graph.output:
        if output.type.HasField("tensor_type") and not output.type.tensor_type.HasField("shape"):
            output.type.tensor_type.shape.SetInParent()
    onnx.checker.check_model(copy)


def prepared(model: ModelProto, file: str) -> ModelProto:
    """Returns a model of an operator set that rules handle."""
    (version,) = [o.version for o in model.opset_import if o.domain in DOMAINS] or [OLDEST]
    newest = onnx.defs.onnx_opset_version()
    if version > newest:
        raise OnnxError(f"expected an operator set up to {newest}, but got {version}; update onnx", location=file)
    if version >= OLDEST:
        return model
    if version < 9 and any(node.op_type == "Scan" for node in model.graph.node):
        raise OnnxError(f"expected operator set 9 or later for Scan, but got {version}", location=file)
    try:
        from onnx.version_converter import convert_version

        return convert_version(model, OLDEST)
    except Exception as error:  # the converter raises RuntimeError and its own errors
        reason = f"of operator set {version} cannot be converted to {OLDEST}: {reason_of(error)}"
        raise OnnxError(reason, location=file) from None
