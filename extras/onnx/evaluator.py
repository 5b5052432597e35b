"""Evaluates the nodes of a graph by rules, functions and subgraphs."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import torch
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto, helper
from onnx.reference import ReferenceEvaluator

from ...errors import CompileError
from .files import OLDEST, domain_of
from .limits import DEEPEST_NESTING, Budget, check_memory, graphs_of
from .registry import CONTRACTIONS, HOST_RULES, POINTWISE, RULES, STRUCTURES, ControlNode, Rule
from .values import LARGEST_KNOWN, NUMBERS, Env, HostArray, OnnxError, Stored, Value, array_of, reason_of, shown

if TYPE_CHECKING:
    from .model import OnnxModule

RANDOM = frozenset("Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split())
"""Operators whose results differ from call to call."""

ON_HOST = frozenset(
    "ArgMax ArgMin BitShift Cast CastLike Clip Compress Concat CumSum Div Flatten Gather GatherElements GatherND IsInf"
    " Max Mean Min Mod NonZero Pow ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum"
    " ReduceSumSquare Reshape ScatterElements ScatterND Shape Size Slice Split Squeeze Sum TopK Transpose Trilu Unique"
    " Unsqueeze".split()
)
"""Operators that ONNX's reference implementation computes on the host where all inputs are small, in addition to
elementwise ones. Their results are bounded by the sizes of their inputs: no number in the file enlarges them."""


def versions_of(imports: ModelProto | FunctionProto) -> dict[str, int]:
    """Returns the versions of the operator sets that a model or a function imports, by domain."""
    return {domain_of(o): o.version for o in imports.opset_import}


def names_of(node: NodeProto) -> set[str]:
    """Returns the names of the values that a node and its subgraphs take."""
    return {*node.input, *(n for a in node.attribute for g in graphs_of(a) for n in free_names(g))} - {""}


def free_names(graph: GraphProto) -> set[str]:
    """Returns the names that a subgraph takes from the graphs around it."""
    defined = {*(i.name for i in graph.input), *(i.name for i in graph.initializer)}
    free = set[str]()
    for node in graph.node:
        free |= names_of(node) - defined
        defined |= {*node.output}
    return (free | {o.name for o in graph.output} - defined) - {""}


class Evaluator:
    """Evaluates the nodes of a graph, of its subgraphs and of functions."""

    def __init__(self, module: OnnxModule) -> None:
        self.module, self.opsets = module, module.opsets
        self.budget, self.depth = Budget(), 0

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
                self.budget.take()
                results = self._evaluate(node, env, bound or {})
                self._check(node, results)
            except CompileError as error:
                error.location = error.location or _place(self.module.file, node)
                error.operator = error.operator or shown(node.op_type)
                raise
            except (NotImplementedError, RuntimeError, TypeError, ValueError, ArithmeticError, LookupError) as error:
                reason = f"does not fit its inputs: {reason_of(error)}"
                raise OnnxError(
                    reason, location=_place(self.module.file, node), operator=shown(node.op_type)
                ) from error
            for name, value in zip(node.output, results, strict=False):
                if name:
                    env[name] = value

    def _check(self, node: NodeProto, results: Sequence[Value]) -> None:
        """Raises OnnxError if results of the node are missing, or if a result does not fit the memory.

        Results of contractions and elementwise operators may be larger than the memory. Fusion need not store them: the
        scores of attention, for example.
        """
        if missing := [name for name in node.output[len(results) :] if name]:
            raise OnnxError(f"expected {len(results)} results, but the node also names {missing[0]!r}")
        if lacking := [name for name, v in zip(node.output, results, strict=False) if name and v is None]:
            raise OnnxError(f"the result {lacking[0]!r} is not computed")
        if node.op_type in POINTWISE or node.op_type in CONTRACTIONS:
            return
        for name, value in zip(node.output, results, strict=False):
            if isinstance(value, torch.Tensor):
                check_memory(value.shape, value.element_size(), f"the result {name!r}")

    def _evaluate(self, node: NodeProto, env: Env, bound: Mapping[str, AttributeProto]) -> Sequence[Value]:
        domain = domain_of(node)
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
        bounded = node.op_type in POINTWISE or node.op_type in ON_HOST
        if not inputs or not bounded or len(arrays) < len(inputs) or _divides_by_zero(node, arrays):
            return None
        kinds = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in zip(node.input, arrays, strict=True)
        ]
        results = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
        graph = helper.make_graph([node], "node", kinds, results)
        opset = helper.make_opsetid("", self.opsets.get("", OLDEST))
        try:
            with np.errstate(all="ignore"):
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
            raise OnnxError(f"the attribute {shown(unknown[0])} is not supported")
        if rule.most is not None and len(inputs) > rule.most:
            raise OnnxError(f"expected at most {rule.most} inputs, but got {len(inputs)}")
        values = [self._argument(rule, n, v, node) for n, v in enumerate(inputs)]
        words = {"op": node.op_type, "outputs": len(node.output), "opset": self.opsets.get(domain, 1)}
        keywords = rule.keywords(attributes) | {word: words[word] for word in rule.words}
        results = _at(self.module.file, node, rule.function)(values, keywords)
        return results if isinstance(results, list) else [results]

    def _argument(self, rule: Rule, position: int, value: Value, node: NodeProto) -> Any:
        if value is None:
            return None
        if not rule.is_host(position):
            return self.module.tensor(value)
        if isinstance(value, torch.Tensor):
            reason = f"expected a constant, or a value that follows from shapes, for the input {node.input[position]!r}"
            raise OnnxError(f"{reason}, but got a tensor that is computed", remedy="make it a constant of the model")
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
            name = shown(f"{domain}.{node.op_type}" if domain else node.op_type)
            state = "no operator of ONNX" if schema is None else "not supported"
            remedy = "add a rule for it (extras/onnx/rules), or divide the model before and after the node"
            raise OnnxError(f"the operator {name} is {state} (operator set {version})", remedy=remedy)
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
        if len(inputs) > len(function.input):
            raise OnnxError(f"expected at most {len(function.input)} inputs, but got {len(inputs)}")
        defaults = {a.name: a for a in function.attribute_proto}
        env: Env = dict(zip(function.input, (*inputs, *[None] * len(function.input)), strict=False))
        inside = self._nested()
        inside.opsets = self.opsets | versions_of(function)
        inside.run(function.node, env, {**defaults, **attributes})
        return [env.get(name) for name in function.output]

    def _nested(self) -> Evaluator:
        """Returns an evaluator for a function or a subgraph. Raises OnnxError if it is nested too deeply."""
        if self.depth >= DEEPEST_NESTING:
            raise OnnxError(f"expected functions and subgraphs nested at most {DEEPEST_NESTING} deep")
        inside = Evaluator(self.module)
        inside.opsets, inside.budget, inside.depth = self.opsets, self.budget, self.depth + 1
        return inside

    def subgraph(self, graph: GraphProto, inputs: Sequence[Value], env: Env) -> list[Value]:
        """Evaluates a subgraph, which may use the values of the graph that contains it.

        Args:
            graph: the subgraph.
            inputs: its inputs.
            env: values of the graph that contains it.

        Returns:
            The results of the subgraph.
        """
        if len(graph.input) != len(inputs):
            raise OnnxError(f"expected a subgraph with {len(inputs)} inputs, but it has {len(graph.input)}")
        inner = {**env, **dict(zip((i.name for i in graph.input), inputs, strict=True))}
        for tensor in graph.initializer:
            inner[tensor.name] = array_of(tensor)
        self._nested().run(graph.node, inner)
        return [value_of(inner, o.name) for o in graph.output]


def _divides_by_zero(node: NodeProto, arrays: Sequence[HostArray]) -> bool:
    return node.op_type in ("Div", "Mod") and arrays[1].dtype.kind in "iu" and not arrays[1].all()


def value_of(env: Env, name: str) -> Value:
    """Returns a result of a graph or a function. Raises OnnxError if there is none of that name."""
    if name not in env:
        raise OnnxError(f"the result {name!r} is not computed")
    return env[name]


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
    return f"{file}#{shown(node.name or next(iter(node.output), '') or node.op_type)}"


def _at(file: str, node: NodeProto, function: Callable[..., Any]) -> Callable[[Sequence[Any], Mapping[str, Any]], Any]:
    """Returns a function that calls `function` with inputs and attributes.

    The file of its code is named after the node, so that locations in the IR and in errors name the node.
    """
    place = _place(file, node)
    text = f"{', '.join(node.output)} = {node.op_type}({', '.join(node.input)})\n"
    linecache.cache[place] = len(text), None, [text], place
    code = compile("lambda inputs, attributes: function(*inputs, **attributes)", place, "eval")
    return eval(code, {"function": function})
