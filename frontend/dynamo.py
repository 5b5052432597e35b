"""Graphs that Dynamo found, compiled: what `torch.compile(..., backend="deplodock")` calls.

A graph of fixed sizes is one program. In one of sizes that vary, which Dynamo hands over as arguments in front of the
tensors that have them, the sizes stay symbols; where that is refused there is a program for each, as Dynamo itself has
one for each shape before it takes a size for one that varies. Gradients are those of AOTAutograd, which makes a forward
and a backward graph: both are compiled.
"""

from __future__ import annotations

import operator
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch._dynamo import config
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import tracing
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.amp.autocast_mode import _enter_autocast
from torch.export import Dim
from torch.fx import Graph, GraphModule, Node
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointPolicy

from ..errors import CompileError, DeplodockError, ShapeError, UnsupportedError, presented
from .api import CompiledFunction, Options, compile
from .capture.addressed_views import AddressedViews
from .capture.decompositions.backward import above_autograd
from .capture.decompositions.table import decomposition_table
from .capture.eager_fallback import has_effects
from .capture.features import FEATURES
from .capture.graph_capture import capture_graph
from .capture.tracing import stand_ins

LARGEST = 65535
"""The largest value of a size that varies, where Dynamo knows no other."""

MODES = {"default": False, "reduce-overhead": True, "max-autotune": True, "max-autotune-no-cudagraphs": False}
"""The modes of torch.compile, and whether launches become CUDA graphs. They also say how much is tried; here a model of
the GPU chooses every schedule, so all of them give the same program."""

Run = Callable[..., Any]

aten: Any = torch.ops.aten

_COMPARISONS = {aten.eq.Tensor, aten.ne.Tensor, aten.lt.Tensor, aten.le.Tensor, aten.gt.Tensor, aten.ge.Tensor}

_CHOOSING = ("amax", "amin", "max", "min", "maximum", "minimum", "sort", "topk", "kthvalue", "median", "nanmedian")
_MOVING = ("cat", "clone", "gather", "index", "index_select", "flip", "roll", "repeat", "constant_pad_nd", "stack")
_EXACT = {*_CHOOSING, *_MOVING, "aminmax", "where", "masked_fill", "_to_copy", "cummax", "cummin", "mode", "take"}
"""Operators whose results have the same bits wherever they are computed, as those of elementwise ones have."""

_SUMS = ("sum", "mean", "prod", "var", "var_mean", "std", "mm", "bmm", "addmm", "baddbmm", "mv", "dot", "convolution")
_ROUNDED = {*_SUMS, "cumsum", "cumprod", "linalg_vector_norm", "native_layer_norm", "_softmax", "_log_softmax"}
"""Operators whose last bits depend on the order in which they add, or multiply."""


_NOT_OF_GRAPHS = ("dynamic_shapes", "prepack_weights")  # Dynamo marks sizes, and passes parameters like arguments

OPTIONS = [name for name in Options.__annotations__ if name not in _NOT_OF_GRAPHS]
"""The arguments of `compile` that `torch.compile(..., options=...)` takes."""


def torch_compile_backend(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The backend behind `torch.compile(m, backend="deplodock")`: compiles one graph that Dynamo found, and its
    gradients where they may be asked for.

    `options` are the keyword arguments of `compile`: `torch.compile(m, ..., options={"fallback": "eager"})`. Every
    `mode` of PyTorch is taken; all give the same program, `reduce-overhead` and `max-autotune` with `cuda_graphs`.
    Raises CompileError.
    """
    try:
        if mode not in (None, *MODES):
            raise CompileError(f"is {mode!r}; the modes are {', '.join(MODES)}", argument="mode")
        given = dict(options or {})
        if mode is not None:
            given.setdefault("cuda_graphs", MODES[mode])
        for unknown in sorted(set(given) - set(OPTIONS)):
            raise CompileError(f"no such option (options: {', '.join(OPTIONS)})", argument=unknown)
        varying = VaryingGraph(graph, given)
        return compile_fixed(graph, [_example(e) for e in example_inputs], given) if varying.is_fixed else varying
    except DeplodockError as error:
        raise presented(error) from error.__cause__


class RecompileWarning(UserWarning):
    """A graph of sizes that vary is compiled for each size, or not any more."""


def compile_fixed(graph: nn.Module, examples: Sequence[Any], options: Mapping[str, Any]) -> Run:
    """A program for tensors of these shapes, and its gradients if they may be asked for. PyTorch's exporter cannot take
    apart every graph that switches autocast or gradients, so these go through AOTAutograd, too. Arguments that share
    memory, and of which one is changed, as a tensor and its view after a graph break, become views of that memory."""
    tensors = [t for t in (*examples, *graph.parameters()) if isinstance(t, torch.Tensor)]
    graphs = (m.graph for m in graph.modules() if isinstance(m, GraphModule))
    switches = any(n.target in (_enter_autocast, torch._C._set_grad_enabled) for g in graphs for n in g.nodes)
    if switches or torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return compile_with_gradients(graph, examples, options)
    common = CommonMemory(graph, examples)
    with tracing(None) if common.views else nullcontext():  # or Dynamo would guard what is asked of the memory
        try:
            compiled = compile(graph, examples, **options)
        except CompileError as error:
            if error.kind != "mutation-and-aliasing" or not common.views:
                raise
            on_memory = compile(common, common.chosen(examples), **options)
            return lambda *args: _as_tuple(on_memory(*common.chosen(args)))
    return lambda *args: _as_tuple(compiled(*args))


def compile_with_gradients(graph: nn.Module, examples: Sequence[Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    """The graph, compiled for tensors of these shapes, such that results can be differentiated.

    What the backward graph needs is saved by the forward graph, or computed again (PyTorch's partitioner decides).
    Attention is differentiated as the products and the softmax that it is made of. Raises CompileError for an operator
    of either graph that is not supported; with `fallback="eager"` it is left to PyTorch and listed.
    """

    def compiler(part: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        how = {name: value for name, value in options.items() if name != "fallback"}
        with unset_fake_temporarily():  # constants of the graph have contents
            program = CompiledFunction(capture_graph(part, options.get("fallback")), **how)
            program.check()

        tokens = any(map(has_effects, part.graph.nodes))  # which PyTorch hands over as None

        def run(*args: Any) -> list[Any]:
            given = [torch.empty(0) if a is None else a for a in args] if tokens else args
            with torch.no_grad():
                return list(program(*given))

        return make_boxed_func(run)

    backend = aot_autograd(
        fw_compiler=compiler, bw_compiler=compiler, partition_fn=_partition, decompositions=dict(decomposition_table())
    )
    known_sizes = stand_ins([f for f in FEATURES if f.name == "known_sizes"])
    with sdpa_kernel(SDPBackend.MATH), known_sizes, above_autograd(), AddressedViews():
        return backend(graph, examples)  # pyright: ignore[reportArgumentType]


def _partition(joint: GraphModule, *args: Any, **kwargs: Any) -> tuple[GraphModule, GraphModule]:
    """The forward and the backward graph. Random numbers are drawn once, and saved also where a checkpoint says that
    they are drawn again: programs have no state of a generator that could be restored for that. Nor is recomputed what
    has to be the same in both graphs (`_save_compared`)."""
    for node in joint.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            for drawn in (node, *(u for u in node.users if u.target is operator.getitem)):
                drawn.meta.pop("recompute", None)
    _save_compared(joint.graph)
    return min_cut_rematerialization_partition(joint, *args, **kwargs)


class VaryingGraph:
    """A graph with sizes, or with other numbers, that vary: called like it, compiled when it is called.

    Integers of the graph are symbols of its program, whether a tensor has them as a size or not. A program holds for
    sizes that compare as those of its first call: `x[:n]` has one for `n` up to the size of `x`, and one for all
    others. There is a program for each value of the other numbers: floats, integers beyond the range of a size, and all
    integers where a program for all of them is refused. There is one for each shape where the form with symbols is
    refused, or where gradients are needed. There are as many of them as Dynamo allows
    (`torch._dynamo.config.recompile_limit`); then PyTorch itself computes the rest, and a RecompileWarning says so.
    """

    def __init__(self, graph: GraphModule, options: Mapping[str, Any]) -> None:
        self._graph, self._options = graph, options
        self._programs: dict[Any, Run] = {}
        self._general: dict[Any, list[Run]] = {}
        self._refused = set[Any]()
        inputs = [n for n in graph.graph.nodes if n.op == "placeholder"]
        values = [p.meta.get("example_value") for p in inputs]
        extents = {str(n) for v in values for n in getattr(v, "shape", ()) if isinstance(n, torch.SymInt)}
        scalars = [i for i, v in enumerate(values) if _is_symbol(v) and str(v) not in extents]
        self._integers = [i for i in scalars if isinstance(values[i], torch.SymInt) and values[i].node.expr.is_Symbol]
        self._numbers = [i for i, p in enumerate(inputs) if i in scalars or _is_boxed_number(p)]
        self.is_fixed = not self._numbers and not any(
            _is_symbol(v) or isinstance(v, torch.Tensor) and any(map(_is_symbol, v.shape)) for v in values
        )

    def __call__(self, *args: Any) -> Any:
        """Run the program for these arguments. Raises CompileError."""
        numbers = {i: _number(args[i]) for i in self._numbers if not (i in self._integers and 1 < args[i] <= LARGEST)}
        named = tuple((i, repr(n)) for i, n in numbers.items())  # by repr, because 0.0 is not -0.0
        for general in self._general.get(named, ()):
            try:
                return general(*args)
            except ShapeError:  # the sizes are not those for which the program holds
                pass
        others = (a for i, a in enumerate(args) if i not in numbers)
        key = (named, *((t.shape, t.stride()) if isinstance(t, torch.Tensor) else t for t in others))
        program = self._programs.get(key) or self._compile(numbers, key, args)
        return program(*args)

    def _compile(self, numbers: Mapping[int, Any], key: Any, args: Sequence[Any]) -> Run:
        if len(self._programs) + sum(map(len, self._general.values())) >= config.recompile_limit:
            if None not in self._programs:
                done = f"compiled for {config.recompile_limit} shapes or numbers, torch._dynamo.config.recompile_limit"
                warnings.warn(f"{done}; others of this graph are left to PyTorch", RecompileWarning, stacklevel=4)
                self._programs[None] = self._graph
            return self._graph
        grad = torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in args)
        if key[0] not in self._refused and not grad:
            program = self._compile_general(numbers, args)
            if program is None:
                self._refused.add(key[0])
            else:
                self._general.setdefault(key[0], []).extend([program] if program is not self else [])
                return program
        tensors = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor) and i not in numbers]
        known = {i: _number(a) for i, a in enumerate(args) if i not in tensors}
        run = compile_fixed(with_numbers(self._graph, known), [args[i] for i in tensors], self._options)
        self._programs[key] = lambda *args: run(*(args[i] for i in tensors))
        return self._programs[key]

    def _compile_general(self, numbers: Mapping[int, Any], args: Sequence[Any]) -> Run | None:
        """One program for all sizes and all other integers, or None where that is refused."""
        others = [i for i in range(len(args)) if i not in numbers]
        try:
            program = TensorsOnly(with_numbers(self._graph, numbers))
            shapes = {"tensors": tuple(program.shapes)}
            if not any(program.shapes):
                return None
            examples = program.chosen([args[i] for i in others])
            with tracing(None):  # or the sizes here would be guarded as if they were Dynamo's
                varying = compile(program, examples, dynamic_shapes=shapes, **self._options)
        except CompileError as error:
            if any(i not in numbers for i in self._integers):
                self._integers.clear()  # they are fixed from now on, so the sizes may vary at least
                return self
            text = re.sub(r"\b(the size )?(s|size|number)\d+\b", "a size", str(error))
            reason = f"{text}; so there is a program for each shape"
            warnings.warn(f"a graph of sizes that vary is refused: {reason}", RecompileWarning, stacklevel=5)
            return None
        return lambda *args: program.called(varying, program.chosen([args[i] for i in others]))


def _is_symbol(value: Any) -> bool:
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _is_boxed_number(placeholder: Node) -> bool:
    """Whether an argument is a tensor only to be made a number: so Dynamo passes floats that vary."""
    users = list(placeholder.users)
    return bool(users) and all(u.op == "call_method" and u.target == "item" and not u.args[1:] for u in users)


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def with_numbers(graph: GraphModule, numbers: Mapping[int, Any]) -> GraphModule:
    """The graph without the arguments at these places, which are these numbers."""
    if not numbers:
        return graph
    inputs = graph.graph.find_nodes(op="placeholder")
    values: dict[Node, Any] = {inputs[i]: number for i, number in numbers.items()}
    values |= {user: n for i, n in numbers.items() for user in inputs[i].users if _is_boxed_number(inputs[i])}
    copied = torch.fx.Graph()
    copied.output(copied.graph_copy(graph.graph, values))
    return GraphModule(graph, copied)


class TensorsOnly(nn.Module):
    """A graph as a function of its tensors: the sizes among its arguments are read off them, and those among its
    results are computed from them. An integer that is the size of no tensor is that of one more tensor, which has no
    elements (`chosen` adds it).
    """

    def __init__(self, graph: GraphModule) -> None:
        super().__init__()
        self.graph = graph
        values = [n.meta.get("example_value") for n in graph.graph.nodes if n.op == "placeholder"]
        self.tensors = [i for i, v in enumerate(values) if isinstance(v, torch.Tensor)]
        self.places: dict[str, tuple[int, int]] = {}
        """Symbol -> the tensor that has it as a size, and its dimension."""
        self.shapes: list[dict[int, Any]] = []
        self.equal: list[tuple[tuple[int, int], tuple[int, int]]] = []
        """Pairs of (tensor, dimension) that have the same size."""
        for position, i in enumerate(self.tensors):
            varying = [d for d, n in enumerate(values[i].shape) if isinstance(n, torch.SymInt)]
            for d in varying:
                place = self.places.setdefault(str(values[i].shape[d]), (position, d))
                self.equal += [(place, (position, d))] if place != (position, d) else []
            self.shapes.append(dict.fromkeys(varying, Dim.AUTO))
        self.integers = [i for i, v in enumerate(values) if i not in self.tensors and str(v) not in self.places]
        for i in self.integers:
            self.places[str(values[i])] = len(self.shapes), 0
            self.shapes.append({0: Dim.AUTO})
        self.sources = [
            self.tensors.index(i) if i in self.tensors else self.places[str(v)] for i, v in enumerate(values)
        ]
        results: Sequence[Any] = graph.graph.output_node().args[0]  # pyright: ignore[reportAssignmentType]
        known = [n.meta.get("example_value") if isinstance(n, Node) else None for n in results]
        self.computed = {i: n.node.expr for i, n in enumerate(known) if isinstance(n, torch.SymInt)}
        for symbol in (s for expr in self.computed.values() for s in expr.free_symbols):
            if str(symbol) not in self.places:
                raise UnsupportedError(f"a result that depends on {symbol}, whose value is fixed, is not supported")

    def forward(self, *tensors: torch.Tensor) -> Any:
        """The tensors among the results of the graph on its tensors."""
        for (t, d), (other, e) in self.equal:
            torch._check(tensors[t].shape[d] == tensors[other].shape[e])
        full = [tensors[s] if isinstance(s, int) else tensors[s[0]].shape[s[1]] for s in self.sources]
        return tuple(r for i, r in enumerate(self.graph(*full)) if i not in self.computed)

    def called(self, program: Run, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """All results of the graph, those that are tensors by `program`."""
        results = list(program(*tensors))
        for i, expr in sorted(self.computed.items()):
            symbols = {s: self.places[str(s)] for s in expr.free_symbols}
            results.insert(i, int(expr.subs({s: tensors[t].shape[d] for s, (t, d) in symbols.items()})))
        return results

    def chosen(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        """The tensors among the arguments of the graph, and one without elements for each of the integers."""
        return [arguments[i] for i in self.tensors] + [torch.empty(arguments[i], 0) for i in self.integers]


class CommonMemory(nn.Module):
    """A graph as a function of its tensors, in which those that share memory are views of one argument, that memory."""

    def __init__(self, graph: nn.Module, examples: Sequence[Any]) -> None:
        super().__init__()
        self.graph = graph
        owners: dict[tuple[int, torch.dtype], list[int]] = {}
        for i, t in enumerate(examples):
            if isinstance(t, torch.Tensor):
                owners.setdefault((t.untyped_storage()._cdata, t.dtype), []).append(i)
        self.views = {i: same[0] for same in owners.values() if len(same) > 1 for i in same}
        """Argument -> the first one that has its memory."""
        self.places = {i: (examples[i].shape, examples[i].stride(), examples[i].storage_offset()) for i in self.views}

    def forward(self, *args: Any) -> Any:
        """The results of the graph."""
        views = (args[self.views[i]].as_strided(*self.places[i]) if i in self.views else a for i, a in enumerate(args))
        return self.graph(*views)

    def chosen(self, args: Sequence[Any]) -> list[Any]:
        """The arguments of the graph, with the whole memory in place of those that share it."""
        memory: Callable[[Any], Any] = lambda t: t.new_empty(0).set_(t.untyped_storage())  # noqa: E731
        return [memory(a) if i in self.views.values() else None if i in self.views else a for i, a in enumerate(args)]


def _example(value: Any) -> Any:
    """Dynamo may hand over fake tensors; an example of the same type stands in for one."""
    if isinstance(value, torch.Tensor) and type(value).__name__ == "FakeTensor":
        empty = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        return empty.zero_().requires_grad_(value.requires_grad)
    return value


def _as_tuple(value: Any) -> Any:
    return value if isinstance(value, tuple | list) else (value,)


def _save_compared(graph: Graph) -> None:
    """Mark in a graph of both directions what a backward graph must not compute again, so that the forward graph saves
    it: decisions, and sums that are compared with themselves.

    PyTorch's partitioner lets the backward graph recompute what is cheap, or what a checkpoint says. A sum that is
    computed in two graphs may be added in two orders, and the last bits differ. Then no element equals the maximum that
    the forward graph has saved, so the gradient of the maximum is 0 / 0; and an `argmax` may decide otherwise than the
    forward graph did. `passes/tensor/fusion/inline.py` has the same rule for the kernels of one graph."""
    sums: list[Node] = []
    nearest: dict[Node, int] = {}
    found = 0
    for node in graph.nodes:
        if not isinstance(target := node.target, torch._ops.OpOverload):
            nearest[node] = nearest[node.args[0]] if target is operator.getitem else 0
            continue
        name = target._schema.name.removeprefix("aten::")
        read = [nearest[n] for n in node.all_input_nodes]
        if target in _COMPARISONS and node.args[0] is not node.args[1]:
            found |= nearest[node.args[0]] & nearest[node.args[1]]  # pyright: ignore[reportArgumentType]
        elif _decides(node):
            _save(node)
        through = 0
        for one in read if name not in _ROUNDED else ():
            through |= one
        if name not in _EXACT and not _is_elementwise(target):
            through |= 1 << len(sums)
            sums.append(node)
        nearest[node] = through
    for i, node in enumerate(sums):
        if found >> i & 1:
            _save(node)


def _is_elementwise(target: torch._ops.OpOverload) -> bool:
    return torch.Tag.pointwise in target.tags or any(r.alias_info for r in target._schema.returns)


def _decides(node: Node) -> bool:
    """Whether an operator chooses among numbers, and tells places: an `argmax`, a `topk`."""
    if _is_elementwise(node.target):  # pyright: ignore[reportArgumentType]
        return False
    read = (n.meta.get("val") for n in node.all_input_nodes)
    made = pytree.tree_leaves(node.meta.get("val"))
    chosen = any(isinstance(v, torch.Tensor) and not v.dtype.is_floating_point for v in made)
    return chosen and any(isinstance(v, torch.Tensor) and v.dtype.is_floating_point for v in read)


def _save(node: Node) -> None:
    parts = [u for u in node.users if u.target is operator.getitem]
    for part in parts or [node]:
        part.meta["recompute"] = CheckpointPolicy.MUST_SAVE
