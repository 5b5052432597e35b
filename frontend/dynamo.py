"""Backend of `torch.compile(..., backend="deplodock")`. Compiles the graphs that Dynamo captures.

- A graph of fixed sizes becomes one program (`compile_fixed`).
- Dynamo passes sizes that vary as integer arguments, before the tensors that have these sizes. Such a graph becomes a
  program with symbolic sizes (`VaryingGraph`). If the compiler refuses that, each shape becomes a program of its own.
- If gradients may be needed, AOTAutograd splits a graph into a forward and a backward graph, and both are compiled
  (`compile_with_gradients`).
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
from .capture.decompositions.data_sizes import DATA_SIZES
from .capture.decompositions.operators import by_operator
from .capture.decompositions.table import decomposition_table, of_packages
from .capture.eager_fallback import has_effects
from .capture.features import FEATURES
from .capture.graph_capture import capture_graph
from .capture.tracing import stand_ins
from .object_arguments import is_object, is_wrapper, object_arguments, with_objects

LARGEST = 65535
"""Largest value of an integer argument that one program with symbols serves."""

MODES = {"default": False, "reduce-overhead": True, "max-autotune": True, "max-autotune-no-cudagraphs": False}
"""Mode of torch.compile -> value of the option `cuda_graphs`. In PyTorch a mode also sets how many schedules are tried.
Here a cost model chooses every schedule, so the kernels are the same in all modes."""

Run = Callable[..., Any]

aten: Any = torch.ops.aten

_COMPARISONS = {aten.eq.Tensor, aten.ne.Tensor, aten.lt.Tensor, aten.le.Tensor, aten.gt.Tensor, aten.ge.Tensor}

_CHOOSING = ("amax", "amin", "max", "min", "maximum", "minimum", "sort", "topk", "kthvalue", "median", "nanmedian")
_MOVING = ("cat", "clone", "gather", "index", "index_select", "flip", "roll", "repeat", "constant_pad_nd", "stack")
_EXACT = {*_CHOOSING, *_MOVING, "aminmax", "where", "masked_fill", "_to_copy", "cummax", "cummin", "mode", "take"}
"""Operators whose results have the same bits in every graph that computes them, because they do not round.

Elementwise operators have this property too (`_is_elementwise`)."""

_SUMS = ("sum", "mean", "prod", "var", "var_mean", "std", "mm", "bmm", "addmm", "baddbmm", "mv", "dot", "convolution")
_ROUNDED = {*_SUMS, "cumsum", "cumprod", "linalg_vector_norm", "native_layer_norm", "_softmax", "_log_softmax"}
"""Operators whose last bits depend on the order in which they add or multiply."""


# Dynamo itself marks the sizes that vary, and passes parameters as arguments.
_NOT_OF_GRAPHS = ("dynamic_shapes", "prepack_weights")

OPTIONS = [name for name in Options.__annotations__ if name not in _NOT_OF_GRAPHS]
"""The arguments of `compile` that `torch.compile(..., options=...)` takes."""


def torch_compile_backend(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles a graph that Dynamo captured, and its gradients if they may be needed.

    `torch.compile(m, backend="deplodock", options={"fallback": "eager"})` calls this function.

    Args:
        graph: the graph.
        example_inputs: its arguments: tensors, and symbols for the sizes that vary.
        mode: mode of torch.compile (`MODES`). `reduce-overhead` and `max-autotune` turn on `cuda_graphs`.
        options: keyword arguments of `compile`, except `_NOT_OF_GRAPHS`.

    Returns:
        a function of the arguments of the graph that returns its results as a tuple or a list.

    Raises:
        CompileError: the graph, the mode or an option is not supported.
    """
    try:
        if mode not in (None, *MODES):
            raise CompileError(f"expected one of {', '.join(MODES)}, but got {mode!r}", argument="mode")
        compile_options = dict(options or {})
        if mode is not None:
            compile_options.setdefault("cuda_graphs", MODES[mode])
        for unknown in sorted(set(compile_options) - set(OPTIONS)):
            raise CompileError(f"expected one of the options {', '.join(OPTIONS)}", argument=unknown)
        varying = VaryingGraph(graph, compile_options)
        return compile_fixed(graph, example_inputs, compile_options) if varying.is_fixed else varying
    except DeplodockError as error:
        raise presented(error) from error.__cause__


class RecompileWarning(UserWarning):
    """Warning that a graph of varying sizes is compiled for each shape, or that its limit of programs is reached."""


def compile_fixed(graph: nn.Module, examples: Sequence[Any], options: Mapping[str, Any]) -> Run:
    """Compiles a graph for tensors of the shapes of the examples, and its gradients if they may be needed.

    A graph that switches autocast or gradients, or that has an argument such as a `DTensor`, goes through AOTAutograd
    too, because PyTorch's exporter does not support every such graph. After a graph break, a tensor and its view may
    both be arguments. If the graph changes one of two arguments that share memory, both become views of that memory
    (`CommonMemory`).

    Args:
        graph: the graph.
        examples: an example of each argument.
        options: keyword arguments of `compile`.

    Returns:
        a function of the arguments of the graph that returns its results as a tuple or a list.

    Raises:
        CompileError: an operator is not supported.
    """
    tensors = [t for t in (*examples, *graph.parameters()) if isinstance(t, torch.Tensor)]
    graphs = (m.graph for m in graph.modules() if isinstance(m, GraphModule))
    switches = any(n.target in (_enter_autocast, torch._C._set_grad_enabled) for g in graphs for n in g.nodes)
    if switches or any(map(is_wrapper, tensors)) or torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return compile_with_gradients(graph, examples, options)
    examples = [_example(e) for e in examples]
    common = CommonMemory(graph, examples)
    # Outside of Dynamo's tracing, so that accesses to the memory add no guards.
    with tracing(None) if common.views else nullcontext():
        try:
            compiled = compile(graph, examples, **options)
        except CompileError as error:
            if error.kind != "mutation-and-aliasing" or not common.views:
                raise
            on_memory = compile(common, common.forward_arguments(examples), **options)
            return lambda *args: _as_tuple(on_memory(*common.forward_arguments(args)))
    return lambda *args: _as_tuple(compiled(*args))


def compile_with_gradients(graph: nn.Module, examples: Sequence[Any], options: Mapping[str, Any]) -> Callable[..., Any]:
    """Compiles a graph for tensors of the shapes of the examples, such that its results can be differentiated.

    PyTorch's partitioner decides which values the forward graph saves and which the backward graph computes again.
    Attention is differentiated as two matmuls and a softmax.

    Args:
        graph: the graph.
        examples: an example of each argument.
        options: keyword arguments of `compile`.

    Returns:
        a function of the arguments of the graph. Its results are part of PyTorch's autograd graph.

    Raises:
        CompileError: an operator of the forward or the backward graph is not supported. With `fallback="eager"`
            PyTorch computes such an operator.
    """

    def compiler(part: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        if objects := object_arguments(part.graph):
            return with_objects(compiler, part, objects)
        compile_options = {name: value for name, value in options.items() if name != "fallback"}
        inputs_of_part = part.graph.find_nodes(op="placeholder")
        sizes = {i for i, n in enumerate(inputs_of_part) if isinstance(n.meta.get("val"), torch.SymInt)}
        with unset_fake_temporarily():  # Constants of the graph are real tensors.
            program = CompiledFunction(capture_graph(part, options.get("fallback")), **compile_options)
            program._lower()

        # Operators with side effects take tokens that order them. PyTorch passes None as a token.
        tokens = any(map(has_effects, part.graph.nodes))

        def run(*args: Any) -> list[Any]:
            arguments = [torch.empty(0) if a is None else a for a in args] if tokens else args
            if sizes:
                arguments = [torch.tensor(a) if i in sizes else a for i, a in enumerate(arguments)]
            with torch.no_grad():
                return list(program(*arguments))

        return make_boxed_func(run)

    table = {**decomposition_table(), **by_operator(DATA_SIZES), **of_packages(graph)}
    backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler, partition_fn=_partition, decompositions=table)
    replaced = stand_ins([f for f in FEATURES if f.name in ("known_sizes", "loops")])
    with sdpa_kernel(SDPBackend.MATH), replaced, above_autograd(), AddressedViews():
        return backend(graph, examples)  # pyright: ignore[reportArgumentType]


def _partition(joint: GraphModule, *args: Any, **kwargs: Any) -> tuple[GraphModule, GraphModule]:
    """Splits a joint graph into the forward and the backward graph.

    The forward graph saves all random numbers, even inside of a checkpoint, which normally draws them again. A program
    has no generator state that could be restored for that. The forward graph also saves the values that must have the
    same bits in both graphs (`_save_compared`).
    """
    for node in joint.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            for random in (node, *(u for u in node.users if u.target is operator.getitem)):
                random.meta.pop("recompute", None)
    _save_compared(joint.graph)
    return min_cut_rematerialization_partition(joint, *args, **kwargs)


class VaryingGraph:
    """A graph with varying sizes or numbers. It is called like the graph, and compiles a program when a call needs one.

    There are two kinds of programs:

    - A program with symbols for all integer arguments from 2 to `LARGEST`. It serves calls whose sizes compare like
      those of its first call: `x[:n]` has one program for `n` up to the size of `x`, and one for larger `n`.
    - A program for one shape, if the compiler refuses symbols or if gradients are needed.

    All other numbers (floats, integers out of range) are constants of a program, so each value has programs of its own.
    If symbols for the integers are refused, the integers become constants too. After
    `torch._dynamo.config.recompile_limit` programs, PyTorch runs the graph for further shapes and numbers, and a
    RecompileWarning tells the user.

    Attributes:
        is_fixed: whether no size and no number varies, so that `compile_fixed` can compile the graph.
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
        """Runs the program for these arguments, and compiles it if there is none. Raises CompileError."""
        numbers = {i: _number(args[i]) for i in self._numbers if not (i in self._integers and 1 < args[i] <= LARGEST)}
        # The key has the text of each number, because 0.0 and -0.0 are equal but need two programs.
        number_key = tuple((i, repr(n)) for i, n in numbers.items())
        for general in self._general.get(number_key, ()):
            try:
                return general(*args)
            except ShapeError:  # The program does not serve these sizes.
                pass
        others = (a for i, a in enumerate(args) if i not in numbers)
        key = (number_key, *((t.shape, t.stride()) if isinstance(t, torch.Tensor) else t for t in others))
        program = self._programs.get(key) or self._compile(numbers, key, args)
        return program(*args)

    def _compile(self, numbers: Mapping[int, Any], key: Any, args: Sequence[Any]) -> Run:
        if len(self._programs) + sum(map(len, self._general.values())) >= config.recompile_limit:
            if None not in self._programs:
                limit = f"compiled for {config.recompile_limit} shapes or numbers, torch._dynamo.config.recompile_limit"
                warnings.warn(f"{limit}; PyTorch runs this graph for all others", RecompileWarning, stacklevel=4)
                self._programs[None] = self._graph
            return self._graph
        grad = torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in args)
        wrapped = any(is_object(a) or isinstance(a, torch.Tensor) and is_wrapper(a) for a in args)
        if key[0] not in self._refused and not grad and not wrapped:
            program = self._compile_general(numbers, args)
            if program is None:
                self._refused.add(key[0])
            else:
                self._general.setdefault(key[0], []).extend([program] if program is not self else [])
                return program
        tensors = [i for i, a in enumerate(args) if (isinstance(a, torch.Tensor) or is_object(a)) and i not in numbers]
        constants = {i: _number(a) for i, a in enumerate(args) if i not in tensors}
        run = compile_fixed(with_numbers(self._graph, constants), [args[i] for i in tensors], self._options)
        self._programs[key] = lambda *args: run(*(args[i] for i in tensors))
        return self._programs[key]

    def _compile_general(self, numbers: Mapping[int, Any], args: Sequence[Any]) -> Run | None:
        """Returns a program with symbols for all sizes and integers, or None if the compiler refuses the symbols.

        Returns `self` if the integers of the graph have become constants, so that the caller tries again.
        """
        others = [i for i in range(len(args)) if i not in numbers]
        try:
            program = TensorsOnly(with_numbers(self._graph, numbers))
            shapes = {"tensors": tuple(program.shapes)}
            if not any(program.shapes):
                return None
            examples = program.forward_arguments([args[i] for i in others])
            # Outside of Dynamo's tracing, so that comparisons of these sizes add no guards.
            with tracing(None):
                varying = compile(program, examples, dynamic_shapes=shapes, **self._options)
        except CompileError as error:
            if any(i not in numbers for i in self._integers):
                # Integers are constants from now on. The sizes of tensors may still vary.
                self._integers.clear()
                return self
            text = re.sub(r"\b(the size )?(s|size|number)\d+\b", "a size", str(error))
            reason = f"{text}; so there is a program for each shape"
            warnings.warn(f"a graph of sizes that vary is refused: {reason}", RecompileWarning, stacklevel=5)
            return None
        return lambda *args: program.run(varying, program.forward_arguments([args[i] for i in others]))


def _is_symbol(value: Any) -> bool:
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _is_boxed_number(placeholder: Node) -> bool:
    """Returns true if the graph uses an argument only as `x.item()`. Dynamo passes varying floats as such tensors."""
    users = list(placeholder.users)
    return bool(users) and all(u.op == "call_method" and u.target == "item" and not u.args[1:] for u in users)


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def with_numbers(graph: GraphModule, numbers: Mapping[int, Any]) -> GraphModule:
    """Returns a copy of a graph with constants in place of some arguments. `numbers`: argument index -> constant."""
    if not numbers:
        return graph
    inputs = graph.graph.find_nodes(op="placeholder")
    values: dict[Node, Any] = {inputs[i]: number for i, number in numbers.items()}
    values |= {user: n for i, n in numbers.items() for user in inputs[i].users if _is_boxed_number(inputs[i])}
    copied = torch.fx.Graph()
    copied.output(copied.graph_copy(graph.graph, values))
    return GraphModule(graph, copied)


class TensorsOnly(nn.Module):
    """Wraps a graph of tensors and integers as a module that takes and returns tensors only.

    The exporter allows symbolic sizes, but no symbolic integer arguments. So `forward` computes the integer arguments
    from the sizes of its tensors. An integer `n` that is not a size gets a tensor of shape `[n, 0]`, without elements.

    Attributes:
        tensors: indices of the tensors among the arguments of the graph.
        integers: indices of the integers that are not the size of a tensor.
        shapes: for each tensor of `forward`, dimension -> `Dim.AUTO` for the dimensions that vary.
        sources: for each argument of the graph, the index of a tensor of `forward`, or (tensor, dimension) of a size.
        computed: index of an integer result of the graph -> its expression in symbols.
    """

    def __init__(self, graph: GraphModule) -> None:
        super().__init__()
        self.graph = graph
        values = [n.meta.get("example_value") for n in graph.graph.nodes if n.op == "placeholder"]
        self.tensors = [i for i, v in enumerate(values) if isinstance(v, torch.Tensor)]
        self.dimensions: dict[str, tuple[int, int]] = {}
        """Symbol -> a tensor that has it as a size, and the dimension of that size."""
        self.shapes: list[dict[int, Any]] = []
        self.equal: list[tuple[tuple[int, int], tuple[int, int]]] = []
        """Pairs of (tensor, dimension) that have the same size."""
        for position, i in enumerate(self.tensors):
            varying = [d for d, n in enumerate(values[i].shape) if isinstance(n, torch.SymInt)]
            for d in varying:
                dimension = self.dimensions.setdefault(str(values[i].shape[d]), (position, d))
                self.equal += [(dimension, (position, d))] if dimension != (position, d) else []
            self.shapes.append(dict.fromkeys(varying, Dim.AUTO))
        self.integers = [i for i, v in enumerate(values) if i not in self.tensors and str(v) not in self.dimensions]
        for i in self.integers:
            self.dimensions[str(values[i])] = len(self.shapes), 0
            self.shapes.append({0: Dim.AUTO})
        self.sources = [
            self.tensors.index(i) if i in self.tensors else self.dimensions[str(v)] for i, v in enumerate(values)
        ]
        results: Sequence[Any] = graph.graph.output_node().args[0]  # pyright: ignore[reportAssignmentType]
        result_values = [n.meta.get("example_value") if isinstance(n, Node) else None for n in results]
        self.computed = {i: n.node.expr for i, n in enumerate(result_values) if isinstance(n, torch.SymInt)}
        for symbol in (s for expr in self.computed.values() for s in expr.free_symbols):
            if str(symbol) not in self.dimensions:
                raise UnsupportedError(f"a result that depends on {symbol}, whose value is fixed, is not supported")

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Returns the tensors among the results of the graph."""
        for (t, d), (other, e) in self.equal:
            torch._check(tensors[t].shape[d] == tensors[other].shape[e])
        full = [tensors[s] if isinstance(s, int) else tensors[s[0]].shape[s[1]] for s in self.sources]
        return tuple(r for i, r in enumerate(self.graph(*full)) if i not in self.computed)

    def run(self, program: Run, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """Runs `program`, the compiled `forward`, computes the integers, and returns all results of the graph."""
        results = list(program(*tensors))
        for i, expr in sorted(self.computed.items()):
            symbols = {s: self.dimensions[str(s)] for s in expr.free_symbols}
            results.insert(i, int(expr.subs({s: tensors[t].shape[d] for s, (t, d) in symbols.items()})))
        return results

    def forward_arguments(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        """Returns the arguments of `forward`: the tensors among those of the graph, and a tensor for each integer."""
        return [arguments[i] for i in self.tensors] + [torch.empty(arguments[i], 0) for i in self.integers]


class CommonMemory(nn.Module):
    """Wraps a graph such that arguments that share memory become views of one argument, the whole memory.

    A program cannot change an argument that overlaps another one. It can change one argument through its views.
    """

    def __init__(self, graph: nn.Module, examples: Sequence[Any]) -> None:
        super().__init__()
        self.graph = graph
        owners: dict[tuple[int, torch.dtype], list[int]] = {}
        for i, t in enumerate(examples):
            if isinstance(t, torch.Tensor):
                owners.setdefault((t.untyped_storage()._cdata, t.dtype), []).append(i)
        self.views = {i: same[0] for same in owners.values() if len(same) > 1 for i in same}
        """Index of an argument that shares memory -> index of the first argument with that memory."""
        self.layouts = {i: (examples[i].shape, examples[i].stride(), examples[i].storage_offset()) for i in self.views}

    def forward(self, *args: Any) -> Any:
        """Returns the results of the graph on the arguments of `forward_arguments`."""
        views = (args[self.views[i]].as_strided(*self.layouts[i]) if i in self.views else a for i, a in enumerate(args))
        return self.graph(*views)

    def forward_arguments(self, args: Sequence[Any]) -> list[Any]:
        """Returns the arguments of `forward`: the whole memory for the first argument that has it, None for its
        others."""
        memory: Callable[[Any], Any] = lambda t: t.new_empty(0).set_(t.untyped_storage())  # noqa: E731
        return [memory(a) if i in self.views.values() else None if i in self.views else a for i, a in enumerate(args)]


def _example(value: Any) -> Any:
    """Returns an argument, or a tensor of zeros of the same type and strides for a fake tensor of Dynamo."""
    if isinstance(value, torch.Tensor) and type(value).__name__ == "FakeTensor":
        empty = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        return empty.zero_().requires_grad_(value.requires_grad)
    return value


def _as_tuple(value: Any) -> Any:
    return value if isinstance(value, tuple | list) else (value,)


def _save_compared(graph: Graph) -> None:
    """Marks the values of a joint graph that the forward graph must save, because recomputing them may change bits.

    These are the results of decisions (`_decides`), and rounded values (sums) from which both sides of a comparison are
    computed. PyTorch's partitioner lets the backward graph recompute cheap values and those of a checkpoint. The
    kernels of the two graphs may add a sum in different orders, so that the last bits differ. Example: the gradient of
    a maximum goes to the elements that equal it. If none equals the maximum that the forward graph has saved, the
    gradient is 0 / 0. Likewise, a recomputed `argmax` may choose another element.
    `passes/tensor/fusion/inline.py` has the same rule for the kernels of one graph.
    """
    sums: list[Node] = []
    # Bit i of `nearest[node]` is set if sum i reaches the node through exact and elementwise operators.
    nearest: dict[Node, int] = {}
    compared = 0
    for node in graph.nodes:
        if not isinstance(target := node.target, torch._ops.OpOverload):
            nearest[node] = nearest[node.args[0]] if target is operator.getitem else 0
            continue
        name = target._schema.name.removeprefix("aten::")
        of_inputs = [nearest[n] for n in node.all_input_nodes]
        if target in _COMPARISONS and node.args[0] is not node.args[1]:
            compared |= nearest[node.args[0]] & nearest[node.args[1]]  # pyright: ignore[reportArgumentType]
        elif _decides(node):
            _save(node)
        through = 0
        for bits in of_inputs if name not in _ROUNDED else ():
            through |= bits
        if name not in _EXACT and not _is_elementwise(target):
            through |= 1 << len(sums)
            sums.append(node)
        nearest[node] = through
    for i, node in enumerate(sums):
        if compared >> i & 1:
            _save(node)


def _is_elementwise(target: torch._ops.OpOverload) -> bool:
    return torch.Tag.pointwise in target.tags or any(r.alias_info for r in target._schema.returns)


def _decides(node: Node) -> bool:
    """Returns true if an operator compares floats and returns integers or booleans, such as `argmax` and `topk`."""
    if _is_elementwise(node.target):  # pyright: ignore[reportArgumentType]
        return False
    read = (n.meta.get("val") for n in node.all_input_nodes)
    results = pytree.tree_leaves(node.meta.get("val"))
    chosen = any(isinstance(v, torch.Tensor) and not v.dtype.is_floating_point for v in results)
    return chosen and any(isinstance(v, torch.Tensor) and v.dtype.is_floating_point for v in read)


def _save(node: Node) -> None:
    parts = [u for u in node.users if u.target is operator.getitem]
    for part in parts or [node]:
        part.meta["recompute"] = CheckpointPolicy.MUST_SAVE
