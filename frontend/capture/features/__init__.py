"""Optional parts of capture. A feature is a file of this folder that is imported only for the programs that need it.

Each feature has an entry in `FEATURES`. The entry names the conditions under which the feature applies:

- words: labels of the traced graph, which `words_of` collects in one scan;
- calls: functions that the program calls while it is traced;
- errors: exception types with which tracing ends.

The file defines functions for the stages that it takes part in. The stages, in the order of a capture:

- `called(function, args, kwargs)` replaces a call of one of the functions `calls`. It returns the result, or
  NotImplemented to make the original call. It may raise `Retrace(retraced)`: the next stage then exports the program.
- `retraced(request)` exports the program again in another way, and returns the exported program.
- `failed(export)` handles an export that ended with one of the `errors`. It calls `export` again under other
  conditions.
- `traced(program, features)` analyses the exported program before it is decomposed.
- `split(graph, features)` adds operators to `features.split`. PyTorch decomposes these although the torch level has
  them.
- `decomposed(program, features)` rewrites the exported program after its decomposition into ATen operators.
- `expanded(program, features)` returns the exported program with further operators decomposed.
- `checked(program, features)` raises a CompileError if the program does not satisfy the request.
- `rewritten(traced, features)` rewrites the graph of a `TracedGraph` immediately before its import.
- `Importer` is a subclass of `GraphImporter` that replaces it.
- `NODES` maps targets of nodes to functions of (importer, node) that import such a node.
- `imported(importer, features)` reads the importer after it has imported all operators.
- `captured(program, features)` completes the captured program.

A result of a stage other than None is stored as `features.facts[NAME]`, and replaces an earlier one.

Words of a graph are the names of its operators, and these:

- `alias`: an operator with a result that may share memory with an argument, or an argument that is returned.
- `detached`: an operator through which no gradient flows to some argument, such as `zeros_like`.
- `AutocastCPU`, `AutocastCUDA`: an operator that autocast casts on the device.
- `composite`: an operator that PyTorch implements by other operators.
- `foreign`: an operator that PyTorch must decompose, or that takes a graph.
- `complex`, `float8`, `integer`: element types of the values; booleans count as integers.
- `between`: values may be stored between kernels, because there are several operators, or one that is not elementwise.
- `results`: the program has several results.
- `strided`: a result whose strides are not known to be the contiguous strides of its shape.
- `switched`: the program switches gradients on or off.
- `below_autograd`: the program was traced below autograd.
- the namespace of an operator of another library than ATen.
- `fallback`, `shapes`: options that are set in the request.
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
"""Word of the operators that autocast casts, by device type."""

_ASSERTIONS = (torch.ops.aten._assert_tensor_metadata.default, torch.ops.aten._assert_async.msg)


@dataclass(frozen=True)
class Feature:
    """Entry of a feature in `FEATURES`.

    Attributes:
        name: name of the file in this folder.
        words: words of a graph, separated by spaces. The feature applies to a graph that has one of them.
        calls: functions, separated by spaces, by their `__name__` in torch function modes. A function that such modes
            do not see is given by its import path.
        errors: names of exception types, separated by spaces. The feature handles an export that ends with one of them.
    """

    name: str
    words: str = ""
    calls: str = ""
    errors: str = ""

    def applies(self, words: set[str]) -> bool:
        """Returns true if a graph with these words needs the feature."""
        return not words.isdisjoint(self.words.split())

    def get(self, stage: str) -> Any:
        """Returns the function or class of the feature for a stage, or None if the feature has none."""
        return getattr(import_module(f"{__name__}.{self.name}"), stage, None)


_AUTOGRAD = "torch._export.utils._maybe_find_pre_dispatch_tf_mode_for_export torch.autograd._engine_run_backward"
"""Functions that run when a transform of `torch.func` records a step for the exporter, and when autograd runs."""

_SIZES = """
    torch.nn.modules.batchnorm._BatchNorm.forward bincount cov corrcoef combinations masked_select bartlett_window
    blackman_window hamming_window kaiser_window __getitem__ __and__ __or__ __xor__ __invert__ logical_and logical_or
    logical_xor logical_not expand view reshape flatten squeeze unsqueeze t transpose permute flip roll repeat
"""
"""Functions that `known_sizes.py` replaces: they read elements of a tensor, or only use masks and numbers."""

_ASSOCIATIVE = "associative_scan torch._higher_order_ops.associative_scan.generic_associative_scan"

_ADDRESSES = "aten.as_strided.default aten.as_strided_copy.default aten.as_strided_scatter.default aten.resize.default"

_DATA_SIZES = """
    aten._assert_scalar.default aten.item.default aten._local_scalar_dense.default aten.nonzero.default
    aten.masked_select.default aten.repeat_interleave.Tensor aten._unique2.default aten.unique_dim.default
    aten.unique_consecutive.default
"""
"""Operators of programs whose sizes depend on data. For a size that is no number PyTorch adds assertions."""

_SWITCHES = "_set_grad_enabled torch.is_grad_enabled torch.inference_mode.__enter__"

FEATURES = (
    Feature("transforms", calls=_AUTOGRAD),
    Feature("branches", calls="cond", errors="GuardOnDataDependentSymNode DataDependentOutputException"),
    Feature("loops", "scan map_impl while_loop while_loop_stack_output", calls=_ASSOCIATIVE),
    Feature("known_sizes", calls=_SIZES),
    Feature("specialization", "shapes"),
    Feature("known_indices", "integer"),
    Feature("data_sizes", _DATA_SIZES),
    Feature("addresses", _ADDRESSES),
    Feature("collectives", "_c10d_functional _c10d_functional_autograd _dtensor"),
    Feature("complex", "complex"),
    Feature("float8", "float8"),
    Feature("aliasing", "alias results strided"),
    Feature("autocast", "composite below_autograd"),
    Feature("gradients", "alias detached integer results switched", calls=_SWITCHES),
    Feature("memory_limit", "between"),
    Feature("eager", "fallback"),
)
"""Features, in the order in which they run within a stage."""


def words_of(module: torch.nn.Module) -> set[str]:
    """Returns the words of all graphs of a module."""
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
    """Returns the words of one operator."""
    if not isinstance(target, torch._ops.OpOverload):
        return frozenset({str(target), "alias", "between", "foreign"})
    name, has_kernel = target._schema.name.removeprefix("aten::"), partial(_has_kernel, target.name())
    words = {str(target), *filter(has_kernel, AUTOCAST.values())}
    if len(words) <= len(AUTOCAST) and has_kernel("CompositeImplicitAutograd"):
        words.add("composite")
    if target.namespace != "aten":
        words.add(target.namespace)
    if target._schema.is_mutable or not is_ours(target) and target not in _ASSERTIONS:
        words.add("foreign")
    if any(a.alias_info for a in target._schema.arguments):
        words.add("alias")
    if name in ("detach", "to") or name.endswith(("_like", "_as")) or name.startswith("new_"):
        words.add("detached")
    return frozenset(words if torch.Tag.pointwise in target.tags else words | {"between"})


def _kind(value: Any) -> str:
    """Returns the word of a tensor's element type; empty for ordinary floats, and for a value that is not a tensor."""
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
    """Returns true if a value is not a tensor, or is known to have the contiguous strides of its shape.

    Tensors with symbolic sizes or strides count as not plain: a comparison of symbols would add a guard to the program.
    """
    if not isinstance(value, torch.Tensor):
        return True
    if value.layout is not torch.strided or any(not isinstance(n, int) for n in (*value.shape, *value.stride())):
        return False
    return value.stride() == torch.empty(value.shape, device="meta").stride()


def autocast_state(devices: Iterable[str]) -> dict[str, torch.dtype | None]:
    """Returns, for each device type, the data type that autocast casts to at present, or None if autocast is off."""
    return {d: torch.get_autocast_dtype(d) if torch.is_autocast_enabled(d) else None for d in devices}


@dataclass
class Features:
    """Features that apply to one program, and the facts that they exchange between stages.

    Args:
        words: words of the program's graph; options that are set in the request are added.
        request: request that the program is captured for.
        facts: result of the last stage of each feature that returned one, by the feature's name.
        split: operators of the torch level that PyTorch must decompose nevertheless.
        names: node names of the arguments of the captured program, in their order; set at import.
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
        return [(f, member) for f in applying if (member := f.get(name)) is not None]

    def run(self, stage: str, subject: Any) -> None:
        """Calls the functions of a stage, and stores their results as facts.

        Args:
            stage: name of the stage.
            subject: first argument of the functions, such as the exported program.
        """
        for feature, function in self.stage(stage):
            result = function(subject, self)
            if result is not None:
                self.facts[feature.name] = result
