"""Rules: for each operator of ONNX a function of PyTorch tensors.

The parameters of a rule before `*` are the inputs of the operator, in their order. A parameter with the annotation
`Host` gets a host value (`values.py`), the others get tensors. Parameters after `*` are attributes, and these words:

| parameter | value |
|---|---|
| `op` | name of the operator, for a rule of several operators |
| `outputs` | number of results that the node has |
| `opset` | version of the operator set of the model |

The parameter of an attribute that has the name of an input ends with an underscore, `axes_`. A parameter whose type is
a data class holds attributes that several operators share: its fields.

An attribute that a rule does not name is refused, so a rule never ignores one. A rule with several results returns a
list.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol, TypeAlias, get_args, get_type_hints

from onnx import GraphProto
from torch import Tensor

from .limits import Budget
from .values import Env, HostArray, OnnxError, Value

Host: TypeAlias = HostArray
"""Annotation of an input that a rule takes as a host value."""

WORDS = frozenset({"op", "outputs", "opset"})
"""Parameters of a rule that are no attributes."""


@dataclass(frozen=True)
class Rule:
    """A rule for one operator.

    Attributes:
        function: the function of tensors.
        host: for each input whether it is a host value. A variadic rule has one entry, for all inputs.
        most: largest number of inputs, or None.
        attributes: name of an attribute -> parameter of the function.
        groups: parameter -> data class, whose fields are attributes of the operator.
        words: the `WORDS` that the function takes.
    """

    function: Callable[..., Any]
    host: tuple[bool, ...]
    most: int | None
    attributes: Mapping[str, str]
    groups: Mapping[str, type]
    words: frozenset[str]

    def is_host(self, position: int) -> bool:
        """Returns true if the input at a position is a host value."""
        return self.host[min(position, len(self.host) - 1)] if self.host else False

    def keywords(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the keyword arguments of the function for attributes of a node."""
        shared = {parameter: dict[str, Any]() for parameter in self.groups}
        plain = dict[str, Any]()
        for name, value in attributes.items():
            parameter = self.attributes[name]
            if parameter in shared:
                shared[parameter][name] = value
            else:
                plain[parameter] = value
        return plain | {parameter: self.groups[parameter](**values) for parameter, values in shared.items()}


RULES: dict[tuple[str, str], Rule] = {}
"""Domain and name of an operator -> its rule. The domain of ONNX itself is empty."""


def rule(*operators: str, domain: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function as the rule of operators."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        described = _described(function)
        for operator in operators:
            RULES[domain, operator] = described
        return function

    return register


def _described(function: Callable[..., Any]) -> Rule:
    hints = get_type_hints(function)
    parameters = inspect.signature(function).parameters.values()
    inputs = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    names = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in inputs)
    host = tuple(hints[p.name] == Host or Host in get_args(hints[p.name]) for p in inputs)
    groups = {name: hints[name] for name in names if is_dataclass(hints[name])}
    attributes = {name.rstrip("_"): name for name in names if name not in WORDS and name not in groups}
    attributes |= {field.name: name for name, group in groups.items() for field in fields(group)}
    return Rule(function, host, None if variadic else len(inputs), attributes, groups, WORDS.intersection(names))


POINTWISE = set[str]()
"""Names of elementwise operators without attributes."""

CONTRACTIONS = frozenset(("MatMul", "Gemm", "Einsum"))


def pointwise(functions: Mapping[str, Callable[..., Any]]) -> None:
    """Registers functions of one or two tensors as rules of operators without attributes."""
    POINTWISE.update(functions)
    for operator, function in functions.items():
        RULES["", operator] = Rule(function, (False,), None, {}, {}, frozenset())


class Subgraphs(Protocol):
    """Evaluator of subgraphs (`evaluator.Evaluator`)."""

    budget: Budget

    def subgraph(self, graph: GraphProto, inputs: Sequence[Value], env: Env) -> list[Value]:
        """Returns the results of a subgraph.

        Args:
            graph: the subgraph.
            inputs: its inputs.
            env: values of the graph that contains it.
        """
        ...

    def tensor(self, value: Value) -> Tensor:
        """Returns a value of the graph as a tensor."""
        ...


@dataclass(frozen=True)
class ControlNode:
    """A node with subgraphs, during a call.

    Attributes:
        evaluator: evaluates the subgraphs.
        inputs: inputs of the node.
        attributes: its attributes by name; a subgraph is a `GraphProto`.
        env: values of the graph that contains the node.
        outputs: number of its results.
    """

    evaluator: Subgraphs
    inputs: Sequence[Value]
    attributes: Mapping[str, Any]
    env: Env
    outputs: int

    def subgraph(self, name: str, inputs: Sequence[Value]) -> list[Value]:
        """Returns the results of the subgraph in an attribute."""
        return self.evaluator.subgraph(self.attributes[name], inputs, self.env)


STRUCTURES: dict[str, Callable[[ControlNode], Sequence[Value]]] = {}
"""Name of an operator with subgraphs -> its rule."""

HOST_RULES: dict[str, Callable[..., Any]] = {}
"""Name of an operator -> a function that computes it on host values, with attributes as keywords."""


def host_rule(*operators: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function of host values for operators. It returns NotImplemented where the rule of tensors is to
    compute."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        HOST_RULES.update(dict.fromkeys(operators, function))
        return function

    return register


def load_rules() -> None:
    """Imports the modules of `rules/`, which register their rules."""
    package = import_module(f"{__package__}.rules")
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")


def refuse(reason: str) -> Any:
    """Raises OnnxError with a reason; the evaluator adds the node."""
    raise OnnxError(reason)
