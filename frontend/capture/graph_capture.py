"""From a graph of ATen operators to a captured program: a graph that something else has traced, or an exported one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from ...errors import CompileError, UnsupportedError
from .aliasing import Lies, is_computed, place_of
from .captured_program import Binding, CapturedProgram, Output, announce
from .eager_fallback import Fallback
from .emitter import fake_mode
from .features import Features, words_of
from .importer import GraphImporter
from .refusals import UserCalls
from .source_locations import blame
from .tracing import Request

Argument: TypeAlias = tuple[Binding, Node]
"""An argument of a program, and the node that it is in a graph."""


@dataclass
class TracedGraph:
    """A graph of ATen operators that change nothing in place, as it was traced.

    Attributes:
        graph: the graph, which is rewritten on the way.
        arguments: arguments of the program.
        updates: pairs (number among what the graph returns, name of the argument that it replaces).
        results: numbers of the results of the program among what the graph returns.
        examples: leaves of the caller's arguments.
        specs: structure of the caller's arguments, and of the result.
        features: features of the program.
        calls: the user's calls, for errors.
        place: (file, line) of operators of which PyTorch does not know the line.
    """

    graph: Graph
    arguments: list[Argument]
    updates: Sequence[tuple[int, str]]
    results: Sequence[int]
    examples: Sequence[Any]
    specs: tuple[pytree.TreeSpec, pytree.TreeSpec]
    features: Features
    calls: UserCalls
    place: tuple[str, int] | None = None

    @property
    def leaves(self) -> Sequence[Any]:
        """What the graph returns."""
        return self.graph.output_node().args[0]  # pyright: ignore[reportReturnType]


def capture_graph(graph: GraphModule, fallback: Fallback = None, updated: Sequence[str] = ()) -> CapturedProgram:
    """Captures a graph of ATen operators that change nothing in place, with fixed sizes.

    Its arguments are those of the program, a flat list its result. Results lie in memory as they were traced.

    Args:
        graph: the graph, which is rewritten on the way.
        fallback: as for `capture`.
        updated: names of arguments that the last results replace, which are nothing that the program returns.

    Raises:
        UnsupportedError: the graph has something that the torch dialect does not have.
    """
    inputs = [n for n in graph.graph.nodes if n.op == "placeholder"]
    examples = [n.meta.get("val") for n in inputs]
    arguments = [
        *((Binding(n.name, "input", i), n) for i, n in enumerate(inputs) if isinstance(examples[i], torch.Tensor)),
        *((Binding(n.name, "constant", tensor=tensor), n) for n, tensor in _constants(graph)),
    ]
    leaves: Sequence[Any] = graph.graph.output_node().args[0]  # pyright: ignore[reportAssignmentType]
    first = len(leaves) - len(updated)
    lies = [Lies(shares=i, place=place_of(n.meta["val"])) if is_computed(n) else None for i, n in enumerate(leaves)]
    features = Features(words_of(graph), Request(graph, fallback=fallback), {"aliasing": lies[:first]})
    specs = pytree.tree_flatten((tuple(examples), {}))[1], pytree.tree_flatten(list(leaves[:first]))[1]
    calls = UserCalls(fallback=fallback)
    returned = list(enumerate(updated, first)), range(first)
    try:
        return import_graph(TracedGraph(graph.graph, arguments, *returned, examples, specs, features, calls))
    except CompileError as error:
        raise calls.complete(error) from error.__cause__


def _constants(graph: GraphModule) -> list[tuple[Node, torch.Tensor]]:
    """The tensors that a graph holds, which become arguments of it."""
    found: list[tuple[Node, torch.Tensor]] = []
    mode = fake_mode(graph.graph)
    for node in [n for n in graph.graph.nodes if n.op == "get_attr"]:
        tensor = getattr(graph, str(node.target), None)
        if not isinstance(tensor, torch.Tensor):
            continue
        with graph.graph.inserting_before(next(iter(graph.graph.nodes))):
            argument = graph.graph.placeholder(node.name)
        argument.meta = {**node.meta, "val": tensor if mode is None else mode.from_tensor(tensor, static_shapes=True)}
        node.replace_all_uses_with(argument)
        graph.graph.erase_node(node)
        found.append((argument, tensor))
    return found


def import_graph(traced: TracedGraph) -> CapturedProgram:
    """Returns the program of a graph. Raises UnsupportedError for what the torch dialect does not have."""
    graph, features = traced.graph, traced.features
    features.run("rewritten", traced)
    arguments = {node: binding for binding, node in traced.arguments}
    features.names = [node.name for node in arguments]
    sizes = features.facts.get("specialization", ())
    kind: type[GraphImporter] = next((taken for _, taken in features.stage("Importer")), GraphImporter)
    importer = kind(traced.place, sizes, graph.nodes, traced.calls)
    importer.declare([(b.name, node) for node, b in arguments.items()])
    importer.run(graph.nodes)
    features.run("imported", importer)
    leaves, devices = traced.leaves, {node.meta["val"].device.type for node in arguments} or {"cpu"}
    updates = tuple((importer.result_index(leaves[n].name), _updated(importer, name)) for n, name in traced.updates)
    outputs = tuple(_output(importer, leaves[i], devices) for i in traced.results)
    checks = tuple((importer.result_index(name), message) for name, message in importer.checks)
    computed = [leaf for leaf in leaves if is_computed(leaf) and "viewed" in leaf.meta]
    viewed = (
        {i: node.meta["viewed"] for i, node in enumerate(arguments) if "viewed" in node.meta},
        {importer.result_index(leaf.name): leaf.meta["viewed"] for leaf in computed},
    )
    module = importer.finish()
    if updates:
        announce(module, outputs, updates)
    generators = (Binding(f"generator_{i}", "generator", i) for i in range(importer.generators))
    captured = CapturedProgram(
        module,
        (*arguments.values(), *generators),
        outputs,
        updates,
        tuple(traced.examples),
        *traced.specs,
        importer.eager,
        viewed,
        checks=checks,
        f32_matmul_precision="tf32" if allows_tf32() else None,
        calls=traced.calls,
    )
    features.run("captured", captured)
    return captured


def _output(importer: GraphImporter, leaf: Any, devices: set[str]) -> Output:
    """Returns where a leaf of the result of a program comes from."""
    if not isinstance(leaf, Node):
        return Output("constant", value=leaf)
    value = leaf.meta.get("val")
    if not isinstance(value, torch.Tensor):
        error = UnsupportedError("a result that is a number and varies is not supported", kind="dynamic-sizes")
        raise blame(error, leaf, importer.place)
    if value.device.type not in devices:
        at = " and ".join(sorted(devices))
        reason = f"a result is on the device {value.device.type}, but the arguments are on {at}"
        remedy = "move the arguments, or the result after the call (x.to(...))"
        raise blame(UnsupportedError(reason, kind="devices-and-types", remedy=remedy), leaf, importer.place)
    argument = importer.argument_index(leaf.name)
    return Output("result", importer.result_index(leaf.name)) if argument is None else Output("argument", argument)


def _updated(importer: GraphImporter, name: str) -> int:
    argument = importer.argument_index(name)
    if argument is None:
        raise UnsupportedError(f"the program changes {name!r} in a way that is not supported")
    return argument


def allows_tf32() -> bool:
    """Returns true if PyTorch may multiply f32 as tf32 now (`torch.set_float32_matmul_precision` and its relatives)."""
    return torch.backends.cuda.matmul.fp32_precision == "tf32"
