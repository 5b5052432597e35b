"""From a graph of ATen operators to a captured program: a graph that something else has traced, or an exported one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from ...backend.interpreter.running import main_function
from ...errors import CompileError, UnsupportedError
from .addresses import ADDRESSING, address_elements
from .aliasing import A_COPY, Lies, place_of
from .captured_program import Binding, CapturedProgram, Output, announce, float8_in
from .complex import Rewritten, without_complex, without_rule
from .complex.pairs import fake_mode
from .eager_fallback import Fallback, warn
from .features import Features, words_of
from .importer import GraphImporter
from .refusals import UserCalls
from .source_locations import blame
from .symbolic_shapes import NamedDim

Argument: TypeAlias = tuple[Binding, Node]
"""An argument of a program, and the node that it is in a graph."""


def capture_graph(graph: GraphModule, fallback: Fallback = None, updated: Sequence[str] = ()) -> CapturedProgram:
    """Capture a graph of ATen operators that change nothing in place, with fixed sizes.

    Its arguments are those of the program, a flat list its result. `updated` are the names of arguments that the last
    results replace, which are nothing that the program returns. Results lie in memory as they were traced. `graph` is
    rewritten on the way. Raises UnsupportedError.
    """
    inputs = [n for n in graph.graph.nodes if n.op == "placeholder"]
    examples = [n.meta.get("val") for n in inputs]
    arguments = [
        *((Binding(n.name, "input", i), n) for i, n in enumerate(inputs) if isinstance(examples[i], torch.Tensor)),
        *((Binding(n.name, "constant", tensor=tensor), n) for n, tensor in _constants(graph)),
    ]
    leaves: Sequence[Any] = graph.graph.output_node().args[0]  # pyright: ignore[reportAssignmentType]
    first = len(leaves) - len(updated)
    lies = [Lies(shares=i, place=place_of(n.meta["val"])) if _is_computed(n) else None for i, n in enumerate(leaves)]
    specs = pytree.tree_flatten((tuple(examples), {}))[1], pytree.tree_flatten(list(leaves[:first]))[1]
    updates, results = list(enumerate(updated, first)), range(first)
    given = graph.graph, arguments, updates, results, lies[:first], examples, specs, Features(words_of(graph))
    calls = UserCalls(fallback=fallback)
    try:
        return import_graph(*given, fallback=fallback, calls=calls)
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


def _is_computed(leaf: Any) -> bool:
    return isinstance(leaf, Node) and leaf.op != "placeholder" and isinstance(leaf.meta.get("val"), torch.Tensor)


def import_graph(
    graph: Graph,
    arguments: Sequence[Argument],
    updates: Sequence[tuple[int, str]],
    results: Sequence[int],
    lies: Sequence[Lies | None],
    examples: Sequence[Any],
    specs: tuple[pytree.TreeSpec, pytree.TreeSpec],
    features: Features,
    place: tuple[str, int] | None = None,
    fallback: Fallback = None,
    sizes: Sequence[NamedDim] = (),
    calls: UserCalls | None = None,
) -> CapturedProgram:
    """The program of a graph, which is rewritten on the way.

    `updates` are pairs (number among what the graph returns, name of the argument that it replaces), `results` the
    numbers of the results, of which `lies` says where they lie in memory, `examples` the leaves of the caller's
    arguments, `specs` their structure and that of the result, `features` those of the program. For the others see
    `capture`. Raises UnsupportedError.
    """
    addressed = address_elements(graph) if features.words & ADDRESSING else {}
    is_complex = "complex" in features.words
    left = is_complex and fallback is not None and bool(without_rule(graph))
    rewritten = without_complex(graph) if is_complex and not left else Rewritten()
    arguments = [*arguments, *((Binding(name, "constant", tensor=t), node) for name, node, t in rewritten.constants)]
    leaves: Sequence[Any] = graph.output_node().args[0]  # pyright: ignore[reportAssignmentType]
    found = [(leaves[i], x) for i, x in zip(results, lies, strict=True)]
    written = {
        leaf: x.place.written(graph, leaf)
        for i, (leaf, x) in enumerate(found)
        if x is not None and x.place and x.shares == i and _is_computed(leaf)
    }
    rewritten.results |= {
        w.name: rewritten.results.pop(n.name) for n, w in written.items() if n.name in rewritten.results
    }
    importer = GraphImporter(place, fallback, sizes, graph.nodes, calls)
    importer.declare([(b.name, node) for b, node in arguments])
    importer.run(graph.nodes)
    tensors = [node.meta.get("val") for _, node in arguments] + [torch.empty(0)] * (not arguments)
    devices = {t.device.type for t in tensors if isinstance(t, torch.Tensor)}

    def output(leaf: Any, x: Lies | None) -> Output:
        if x is not None and x.source:
            steps = tuple(step.sized(importer.extent) for step in x.steps)
            return Output("argument", importer.argument_index(x.source) or 0, steps=steps)
        if not isinstance(leaf, Node):
            return Output("constant", value=leaf)
        if not isinstance(leaf.meta.get("val"), torch.Tensor):
            error = UnsupportedError("a result that is a number and varies is not supported", kind="dynamic-sizes")
            raise blame(error, leaf, place)
        if (device := leaf.meta["val"].device.type) not in devices:
            reason = f"a result is on the device {device}, but the arguments are on {' and '.join(sorted(devices))}"
            raise blame(UnsupportedError(reason, kind="devices-and-types", remedy=_DEVICE), leaf, place)
        owner = leaf if x is None else found[x.shares][0]
        argument = importer.argument_index(owner.name)
        if argument is not None:  # with a place PyTorch left out what made a copy of it
            return Output("argument", argument, steps=() if x is None else (A_COPY,))
        return Output("result", importer.result_index(written.get(owner, owner).name), place=x and x.place)

    replaced = list[tuple[int, int]]()
    for number, name in updates:
        argument = importer.argument_index(name)
        if argument is None:
            raise UnsupportedError(f"the program changes {name!r} in a way that is not supported")
        replaced.append((importer.result_index(leaves[number].name), argument))
    outputs = tuple(output(*result) for result in found)
    bindings = [b for b, _ in arguments]
    captured = _finish(importer, bindings, outputs, replaced, examples, specs, None if left else rewritten)
    if "float8" in features.words:
        types = main_function(captured.module).function_type
        captured.viewed[0].update(float8_in(types.inputs.data))
        captured.viewed[1].update(float8_in(types.outputs.data))
    names = {node.name: layout for node, layout in addressed.items()}
    captured = replace(captured, layouts={i: names[n.name] for i, (_, n) in enumerate(arguments) if n.name in names})
    return features.captured(captured, [node.name for _, node in arguments])


_DEVICE = "move the arguments, or the result after the call (x.to(...))"


def _finish(
    importer: GraphImporter,
    bindings: Sequence[Binding],
    outputs: tuple[Output, ...],
    updates: Sequence[tuple[int, int]],
    examples: Sequence[Any],
    specs: tuple[pytree.TreeSpec, pytree.TreeSpec],
    rewritten: Rewritten | None,
) -> CapturedProgram:
    """What the importer made, with what lies between it and the caller."""
    if importer.eager:
        warn(list(importer.eager.values()))
    checks = tuple((importer.result_index(name), message) for name, message in importer.checks)
    module = importer.finish()
    if updates:
        announce(module, outputs, updates)
    viewed = dict[int, torch.dtype](), dict[int, torch.dtype]()
    if rewritten is not None:
        tensors = [examples[b.leaf] if b.kind == "input" else b.tensor for b in bindings]
        viewed[0].update({i: t.dtype for i, t in enumerate(tensors) if t is not None and t.is_complex()})
        viewed[1].update({importer.result_index(name): dtype for name, dtype in rewritten.results.items()})
    return CapturedProgram(
        module,
        (*bindings, *(Binding(f"generator_{i}", "generator", i) for i in range(importer.generators))),
        outputs,
        tuple(updates),
        tuple(examples),
        *specs,
        importer.eager,
        viewed,
        checks=checks,
        f32_matmul_precision="tf32" if allows_tf32() else None,
        calls=importer.calls,
    )


def allows_tf32() -> bool:
    """Whether PyTorch may multiply f32 as tf32 now (`torch.set_float32_matmul_precision` and its relatives)."""
    return torch.backends.cuda.matmul.fp32_precision == "tf32"
