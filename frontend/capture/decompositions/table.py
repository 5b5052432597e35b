"""Tables of decompositions for the export: entries of PyTorch, and entries of this library."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, wraps
from typing import Any

import torch
import torch._refs  # adds entries to PyTorch's table
from torch._decomp import _core_aten_decompositions_post_autograd, get_decompositions as pytorchs
from torch._export.utils import _collect_all_valid_cia_ops_for_aten_namespace, _special_op_to_preserve_cia
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.export import ExportedProgram, exported_program
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from ....plugins import plugins
from ..addressed_views import addressed_views
from ..importer import is_ours
from . import DECOMPOSITIONS, fake_results  # noqa: F401 (its rules register themselves)
from .families import lists, primitives
from .operators import by_operator, operators_named

Decomposition = Callable[..., Any]
"""Decomposition: a function with the arguments of the operator."""

_FILTERS = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")
"""Interpolations that are decomposed for floats only: PyTorch's kernels round integers in another way."""

_RARE = (
    *_FILTERS,
    *"""
    as_strided_copy batch_norm_backward _native_batch_norm_legit_functional _batch_norm_with_update_functional
    _fused_rms_norm _fused_rms_norm_backward _native_batch_norm_legit _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d cauchy dist exponential gelu isinf ldexp linalg_vector_norm
    log_normal narrow_copy native_layer_norm permute_copy repeat rrelu_with_noise_backward unbind_copy
    upsample_nearest1d upsample_nearest2d upsample_nearest3d view_copy
    """.split(),
)
"""Operators that PyTorch decomposes for its own compiler, but not by default in an export."""

_OF_FLOATS = (
    *(f"{name}.default" for name in _FILTERS),
    *(f"{name}.vec" for name in _FILTERS),
    *"""
    _embedding_bag.default _embedding_bag_forward_only.default _prelu_kernel.default gelu.default hardsigmoid.default
    hardswish.default lerp.Scalar lerp.Tensor max_pool2d_with_indices_backward.default native_group_norm.default
    native_layer_norm.default
    """.split(),
)
"""Operators that are decomposed for floats only. Except `_FILTERS`, PyTorch has no kernel for integers."""

_OF_NUMBERS = """
    bucketize.Tensor dot.default kthvalue.default median.default median.dim mv.default nanmedian.default
    nanmedian.dim searchsorted.Scalar searchsorted.Tensor vdot.default
""".split()
"""Operators without a kernel for booleans in PyTorch."""


_BAGS = operators_named(
    (
        "embedding_bag.default",
        "embedding_bag.padding_idx",
        "_embedding_bag.default",
        "_embedding_bag_forward_only.default",
    )
)
"""Operators whose decomposition has only a correct first result. If another result is used, the operator stays, and is
refused."""


@cache
def decomposition_table(also: Collection[Any] = (), of_lists: bool = True) -> Mapping[Any, Callable[..., Any]]:
    """Returns the decomposition by operator, for operators that the torch dialect does not have.

    PyTorch decomposes composite operators before it looks at this table; see `tables`.

    Args:
        also: operators of the torch dialect that are decomposed as well.
        of_lists: whether the table has operators on lists of tensors.
    """
    table: Any = {**_core_aten_decompositions_post_autograd(), **pytorchs(operators_named(_RARE))}
    table = {t: decomposition for t, decomposition in table.items() if not is_ours(t) or t in also}
    ours = by_operator(DECOMPOSITIONS) | primitives() | (lists() if of_lists else {})
    table |= {t: _on_device(decomposition) for t, decomposition in ours.items()}
    _refuse(table, _OF_FLOATS, lambda x: not x.is_floating_point())
    _refuse(table, _OF_NUMBERS, lambda x: x.dtype == torch.bool)
    return table


@cache
def tables(
    also: Collection[Any] = (), of_lists: bool = True
) -> tuple[Mapping[Any, Callable[..., Any]], Mapping[Any, Callable[..., Any]]]:
    """Returns two tables: for composite operators, and `decomposition_table`.

    PyTorch decomposes a composite operator by itself unless the first table has an entry, which replaces or keeps the
    operator. An operator may be in both tables: `_fused_rms_norm` is composite except on a GPU.
    """
    table = decomposition_table(also, of_lists)
    composite = {
        t for t in _collect_all_valid_cia_ops_for_aten_namespace() if t in table or is_ours(t) and t not in also
    }
    return {t: table.get(t, _special_op_to_preserve_cia) for t in composite}, table


PACKAGE_OPERATORS = "deplodock.package_operators"
"""Group of entry points for operators of Python packages. The name of an entry is the namespace of the operators, the
value a dict: overload (`nms.default`) -> decomposition."""


@cache
def package_decompositions(namespace: str) -> Mapping[Any, Decomposition]:
    """Returns the decomposition by operator that plugins declare for the operators of a namespace, such as
    `torchvision`.

    Raises PluginError if a plugin cannot be loaded.
    """
    load = plugins(PACKAGE_OPERATORS, (), "set of package operators").get(namespace)
    return {} if load is None else {t: _on_device(f) for t, f in by_operator(load(), namespace).items()}


def of_packages(module: torch.nn.Module) -> dict[Any, Decomposition]:
    """Returns the decompositions of the operators of Python packages in the graphs of a module. Imports only their
    plugins."""
    graphs = [m.graph for m in module.modules() if isinstance(m, GraphModule)]
    targets = (n.target for graph in graphs for n in graph.nodes)
    spaces = {namespace for t in targets if (namespace := _namespace(t)) is not None} - {"aten", "prims"}
    return {t: function for space in sorted(spaces) for t, function in package_decompositions(space).items()}


def _namespace(target: Any) -> str | None:
    """Returns the namespace of an operator, or of an operator with all its overloads; None for another function."""
    if isinstance(target, torch._ops.OpOverloadPacket):
        return target._qualified_op_name.partition("::")[0]
    return target.namespace if isinstance(target, torch._ops.OpOverload) else None


def decomposed(
    program: ExportedProgram,
    also: Collection[Any],
    of_lists: bool,
    more: Mapping[Any, Decomposition] | None = None,
) -> ExportedProgram:
    """Decomposes an exported program into operators of the torch dialect, without changes in place.

    It does the same as `ExportedProgram.run_decompositions`, which is slower because it builds tables of all operators
    in each call.

    Args:
        program: the program.
        also: operators of the torch dialect that are decomposed as well.
        of_lists: whether the program has operators on lists of tensors.
        more: further decompositions. One that returns NotImplemented does not apply.
    """
    composite, others = tables(frozenset(also), of_lists)
    if more:
        composite, others = {t: f for t, f in composite.items() if t not in more}, {**others, **more}
    read = (user.args[1] for n in program.graph.nodes if n.target in _BAGS for user in n.users if user.users)
    if any(read):
        others = {target: decomposition for target, decomposition in others.items() if target not in _BAGS}
    others = {**others, **of_packages(program.graph_module)}
    with unset_fake_temporarily(), addressed_views(program.graph_module):
        return exported_program._decompose_exported_program(
            program,
            cia_to_decomp=dict(composite),
            python_decomp_table=others,
            joint_loss_index=None,
            decompose_custom_triton_ops=False,
        )


def _on_device(function: Decomposition) -> Decomposition:
    """Wraps a decomposition so that tensors that it creates without a device are on the device of its first tensor."""

    @wraps(function)
    def placed(*args: Any, **kwargs: Any) -> Any:
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        # A tensor without dimensions may be a number on the host, so others have priority.
        device = max(tensors, key=lambda x: bool(x.dim())).device if tensors else None
        if device is None or device == torch.get_default_device():
            return function(*args, **kwargs)
        with device:
            return function(*args, **kwargs)

    return placed


def _refuse(table: dict[Any, Decomposition], names: Iterable[str], refused: Callable[[torch.Tensor], bool]) -> None:
    """Restricts the decompositions of some operators to the data types that PyTorch supports.

    `refused` returns true for a first argument of an unsupported type.
    """
    for target in operators_named(names):
        if target in table:
            table[target] = _refusing(table[target], refused)


def _refusing(function: Callable[..., Any], refused: Callable[[torch.Tensor], bool]) -> Callable[..., Any]:
    """Returns a decomposition that does not apply if `refused` is true for the first argument."""

    @wraps(function)
    def checked(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if refused(input):
            # The operator stays in the graph, and the import refuses it by name.
            return NotImplemented
        return function(input, *args, **kwargs)

    return checked
