"""Features of capture: code for programs of some kind, entered where a program calls for it.

A feature is a file of this folder and a line of `FEATURES`. The line says what calls for the feature: words of the
traced graph, which one scan finds (`words_of`), functions that the program calls while it is traced, or errors with
which the trace ends. The file has functions for the stages that it takes part in:

- `called(function, args, kwargs)` returns what stands in for a call, or NotImplemented. It may raise `Retrace`.
- `retraced(request)`, which `Retrace` has, returns the exported program of a request.
- `failed(export)` returns what `export` returns when it is called again, or raises what it raises.
- `traced(program, features)` returns facts of the program as PyTorch has exported it, before it is decomposed.
- `split(graph, features)` adds the operators to `features.split` that PyTorch must decompose although the torch level
  has them.
- `decomposed(program, features)` rewrites the exported program of ATen operators that is imported.
- `checked(program, features)` raises a CompileError for a program that does not hold for all that was asked.
- `rewritten(traced, features)` rewrites the graph of a `TracedGraph` right before it is imported.
- `imported(importer, features)` sees the importer after all operators are imported.
- `captured(program, features)` changes the captured program.
- `Importer` is the class of importers in place of `GraphImporter`.

Words of a graph are the names of its operators, and these:

- `alias`, `detached`: operators with results in the memory of arguments, and through which no gradient flows to all
  arguments.
- `AutocastCPU`, `AutocastCUDA`, `composite`: operators that autocast casts, and others that consist of operators.
- `foreign`: operators that PyTorch must decompose, or that take a graph.
- `complex`, `float8`, `integer`: kinds of element types; truth values are integers.
- `between`: values may lie between kernels: there are several operators, or one that is not elementwise.
- `results`, `strided`: several results, or one with strides that are not those of its shape.
- `switched`, `below_autograd`: the program switches gradients on or off, or was traced below autograd.
- `fallback`, `shapes`: options of the request that are set.

The result of a stage, unless it is None, replaces the fact of the feature. A file that does not apply is not imported.
Without a file and its line the other programs are captured as before.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from ..arrays import FLOAT8
from ..importer import is_ours

if TYPE_CHECKING:
    from ..tracing import Request

AUTOCAST = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
"""Device -> the word of the operators that autocast casts there."""

_ASSERTIONS = (torch.ops.aten._assert_tensor_metadata.default, torch.ops.aten._assert_async.msg)


@dataclass(frozen=True)
class Feature:
    """A file `name` of this folder, for programs that have one of the `words`, call one of the functions `calls` while
    they are traced, or fail with one of the `errors`.

    A function is named as torch's function modes know it; one that they do not see has the path of its attribute.
    """

    name: str
    words: str = ""
    calls: str = ""
    errors: str = ""

    def applies(self, words: set[str]) -> bool:
        """Returns true if a graph of these words needs the feature."""
        return not words.isdisjoint(self.words.split())

    def get(self, stage: str) -> Any:
        """Returns the function or class of a stage, or None if the feature has none."""
        return getattr(import_module(f"{__name__}.{self.name}"), stage, None)


_AUTOGRAD = "torch._export.utils._maybe_find_pre_dispatch_tf_mode_for_export torch.autograd._engine_run_backward"
"""Where a transform asks whether the exporter records its step, and where autograd runs."""

_SIZES = """
    torch.nn.modules.batchnorm._BatchNorm.forward bincount cov corrcoef combinations masked_select bartlett_window
    blackman_window hamming_window kaiser_window __getitem__ __and__ __or__ __xor__ __invert__ logical_and logical_or
    logical_xor logical_not expand view reshape flatten squeeze unsqueeze t transpose permute flip roll repeat
"""
"""Functions that ask for what a tensor holds, and functions of constants."""

_ADDRESSES = "aten.as_strided.default aten.as_strided_copy.default aten.as_strided_scatter.default aten.resize.default"

_SWITCHES = "_set_grad_enabled torch.is_grad_enabled torch.inference_mode.__enter__"

FEATURES = (
    Feature("transforms", calls=_AUTOGRAD),
    Feature("branches", calls="cond", errors="GuardOnDataDependentSymNode DataDependentOutputException"),
    Feature("known_sizes", calls=_SIZES),
    Feature("specialization", "shapes"),
    Feature("known_indices", "integer"),
    Feature("addresses", _ADDRESSES),
    Feature("complex", "complex"),
    Feature("float8", "float8"),
    Feature("aliasing", "alias results strided"),
    Feature("autocast", "composite below_autograd"),
    Feature("gradients", "alias detached integer results switched", calls=_SWITCHES),
    Feature("memory_limit", "between"),
    Feature("eager", "fallback"),
)
"""The features, in the order in which they run at a stage."""


def words_of(module: torch.nn.Module) -> set[str]:
    """Returns the words of a graph."""
    words, calls = set[str](), 0
    for graph in [m.graph for m in module.modules() if isinstance(m, GraphModule)]:
        for node in graph.nodes:
            if node.op == "call_function" and node.target is not operator.getitem:
                words |= words_of_operator(node.target)
                calls += 1
            words.update(map(_kind, pytree.tree_leaves(node.meta.get("val"))))
            if node.op == "get_attr":
                words |= {"alias", "foreign"}
            if "custom" in node.meta:
                words.add("switched")
        words |= _words_of_results(graph)
    return words | ({"between"} if calls > 1 else set[str]())


_has_kernel: Any = torch._C._dispatch_has_kernel_for_dispatch_key


@cache
def words_of_operator(target: Any) -> frozenset[str]:
    """Returns the words of an operator."""
    if not isinstance(target, torch._ops.OpOverload):
        return frozenset({str(target), "alias", "between", "foreign"})
    name, has_kernel = target._schema.name.removeprefix("aten::"), partial(_has_kernel, target.name())
    words = {str(target), *filter(has_kernel, AUTOCAST.values())}
    if len(words) <= len(AUTOCAST) and has_kernel("CompositeImplicitAutograd"):
        words.add("composite")
    if target._schema.is_mutable or not is_ours(target) and target not in _ASSERTIONS:
        words.add("foreign")
    if any(a.alias_info for a in target._schema.arguments):
        words.add("alias")
    if name in ("detach", "to") or name.endswith(("_like", "_as")) or name.startswith("new_"):
        words.add("detached")
    return frozenset(words if torch.Tag.pointwise in target.tags else words | {"between"})


def _kind(value: Any) -> str:
    """Returns the word of an element type; empty for plain floats, and for what is no tensor."""
    if not isinstance(value, torch.Tensor) or value.dtype.is_floating_point and value.dtype not in FLOAT8:
        return ""
    return "complex" if value.is_complex() else "float8" if value.dtype in FLOAT8 else "integer"


def _words_of_results(graph: Graph) -> set[str]:
    leaves = pytree.tree_leaves(graph.output_node().args)
    nodes = [leaf for leaf in leaves if isinstance(leaf, Node)]
    words = {"results"} if len(leaves) > 1 else set[str]()
    words |= {"alias" for node in nodes if node.op == "placeholder"}
    return words | {"strided" for node in nodes if not _is_plain(node.meta.get("val"))}


def _is_plain(value: Any) -> bool:
    """Returns whether a value is no tensor, or one that is known to have the strides of its shape. Symbols are not
    compared, which would be a guard."""
    if not isinstance(value, torch.Tensor):
        return True
    if value.layout is not torch.strided or any(not isinstance(n, int) for n in (*value.shape, *value.stride())):
        return False
    return value.stride() == torch.empty(value.shape, device="meta").stride()


def autocast_state(devices: Iterable[str]) -> dict[str, torch.dtype | None]:
    """Returns the type that autocast casts to now on each device, or None where it is off."""
    return {d: torch.get_autocast_dtype(d) if torch.is_autocast_enabled(d) else None for d in devices}


@dataclass
class Features:
    """The features that apply to one program.

    Args:
        words: the words of its graph; the options of the request that are set are words, too.
        request: the request.
        facts: facts by the name of the feature.
        split: operators of the torch level that PyTorch must decompose.
        names: names of the arguments of the captured program in the graph.
    """

    words: set[str]
    request: Request
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    split: set[Any] = field(default_factory=set[Any])
    names: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.words |= {option for option in ("fallback", "shapes") if getattr(self.request, option) is not None}

    def stage(self, name: str) -> list[tuple[Feature, Any]]:
        """Returns the features that apply and take part in a stage, each with its function or class."""
        applying = [f for f in FEATURES if f.applies(self.words)]
        return [(f, taken) for f in applying if (taken := f.get(name)) is not None]

    def run(self, stage: str, subject: Any) -> None:
        """Calls the functions of a stage, and notes the facts that they return."""
        for feature, function in self.stage(stage):
            result = function(subject, self)
            if result is not None:
                self.facts[feature.name] = result
