"""Features of capture: code for programs of some kind, entered where the words of a graph call for it.

One scan of a graph finds its words (`words_of`). A feature is a file of this folder and a line of `FEATURES`, which
names the words of which one suffices. The file has functions for the stages that it takes part in:

- `traced(program)` returns facts of the program as PyTorch has exported it, before it is decomposed, or None.
- `decomposed(graph)` rewrites the graph of ATen operators that is imported.
- `captured(program, facts, names)` returns the captured program with what the facts say; `names` are those of its
  arguments. The facts are None where nothing was traced.

A file that does not apply is not imported. Without a file and its line the other programs are captured as before.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from ..captured_program import CapturedProgram

_KERNELS = {"AutocastCPU": "autocast", "AutocastCUDA": "autocast", "CompositeImplicitAutograd": "composite"}
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True)
class Feature:
    """A file `name` of this folder, for graphs that have one of the `words`."""

    name: str
    words: frozenset[str]

    def applies(self, words: set[str]) -> bool:
        """Returns true if a graph of these words needs the feature."""
        return not self.words.isdisjoint(words)


FEATURES = (
    Feature("aliasing", frozenset({"alias", "results", "strided"})),
    Feature("autocast", frozenset({"autocast", "composite", "below autograd"})),
    Feature("gradients", frozenset({"alias", "detached", "integer", "results", "switched"})),
    Feature("known_indices", frozenset({"integer"})),
    Feature("memory_limit", frozenset({"between"})),
)


def words_of(module: torch.nn.Module) -> set[str]:
    """Returns the words of a graph: the names of its operators, and these.

    - `alias`, `autocast`, `composite`, `detached`: operators with results in the memory of arguments, that autocast
      casts, that consist of others, and through which no gradient flows to all arguments.
    - `complex`, `float8`, `integer`: kinds of element types; truth values are integers.
    - `between`: values may lie between kernels: there are several operators, or one that is not elementwise.
    - `results`, `strided`: several results, or one with strides that are not those of its shape.
    - `switched`: the program switches gradients on or off.
    """
    words, calls = set[str](), 0
    for graph in [m.graph for m in module.modules() if isinstance(m, GraphModule)]:
        for node in graph.nodes:
            if node.op == "call_function" and node.target is not operator.getitem:
                words |= _words_of_operator(node.target)
                calls += 1
            if node.op == "get_attr":
                words.add("alias")
            if "custom" in node.meta:
                words.add("switched")
            for value in pytree.tree_leaves(node.meta.get("val")):
                words.add(_kind(value))
        words |= _words_of_results(graph)
    return words | ({"between"} if calls > 1 else set[str]())


@cache
def _words_of_operator(target: Any) -> frozenset[str]:
    if not isinstance(target, torch._ops.OpOverload):
        return frozenset({str(target), "alias", "between"})
    has_kernel, name = torch._C._dispatch_has_kernel_for_dispatch_key, target._schema.name.removeprefix("aten::")
    words = {str(target), *(word for key, word in _KERNELS.items() if has_kernel(target.name(), key))}
    if any(a.alias_info for a in target._schema.arguments):
        words.add("alias")
    if name in ("detach", "to") or name.endswith(("_like", "_as")) or name.startswith("new_"):
        words.add("detached")
    return frozenset(words if torch.Tag.pointwise in target.tags else words | {"between"})


def _kind(value: Any) -> str:
    """Returns the word of an element type; empty for plain floats, and for what is no tensor."""
    if not isinstance(value, torch.Tensor) or value.dtype.is_floating_point and value.dtype not in _FLOAT8:
        return ""
    return "complex" if value.is_complex() else "float8" if value.dtype in _FLOAT8 else "integer"


def _words_of_results(graph: Graph) -> set[str]:
    leaves = pytree.tree_leaves(graph.output_node().args)
    values = [leaf.meta.get("val") for leaf in leaves if isinstance(leaf, Node)]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    plain = all(map(_is_plain, tensors))
    returned = any(isinstance(leaf, Node) and leaf.op == "placeholder" for leaf in leaves)
    return {
        *(["results"] if len(leaves) > 1 else []),
        *([] if plain else ["strided"]),
        *(["alias"] if returned else []),
    }


def _is_plain(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is known to have the strides of its shape. Symbols are not compared, which would be a
    guard."""
    if tensor.layout is not torch.strided or any(not isinstance(n, int) for n in (*tensor.shape, *tensor.stride())):
        return False
    return tensor.stride() == torch.empty(tensor.shape, device="meta").stride()


@dataclass
class Features:
    """The features that apply to one program, with the words of its graph and the facts of each feature."""

    words: set[str]
    facts: dict[str, Any] = field(default_factory=dict[str, Any])

    def run(self, stage: str, *args: Any) -> list[tuple[str, Any]]:
        """Calls the function `stage` of each feature that applies and has it. Returns the results by name."""
        modules = {f.name: import_module(f"{__name__}.{f.name}") for f in FEATURES if f.applies(self.words)}
        return [(name, getattr(module, stage)(*args)) for name, module in modules.items() if hasattr(module, stage)]

    def traced(self, program: ExportedProgram) -> None:
        """Notes the facts of a traced program."""
        self.facts = dict(self.run("traced", program))

    def captured(self, program: CapturedProgram, names: Sequence[str]) -> CapturedProgram:
        """Returns the captured program with the facts."""
        for feature in [f for f in FEATURES if f.applies(self.words)]:
            module = import_module(f"{__name__}.{feature.name}")
            if hasattr(module, "captured"):
                program = module.captured(program, self.facts.get(feature.name), names)
        return program
