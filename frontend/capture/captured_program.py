"""Captured program: a module of the torch dialect, with the mapping from a Python call to its arguments and results.

In a call, `bind` checks the Python arguments and returns the tensors for `@main`. After the execution, `restore` builds
the Python result from the tensors that `@main` returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import torch
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import ModuleOp

from ...dialects.shapes.binding import bind_sizes, symbols_of
from ...dialects.support.calls import CONSTANTS, UPDATES, main_function, set_numbers, set_pairs
from ...errors import CompileError, ExecutionError, ShapeError
from .aliasing import Place, Step
from .arguments import leaf_names, parameter_names, rearranged, structure_problem
from .arrays import capturing, describe_tensor, kind_of
from .eager_fallback import EagerCall
from .refusals import UserCalls

State: TypeAlias = Mapping[str, torch.dtype | None]
"""State of autocast by device type: the data type that it casts to, or None if it is off."""

Layout: TypeAlias = tuple[tuple[int, ...], int]
"""Strides and storage offset of a tensor, in elements."""


@dataclass(frozen=True)
class Binding:
    """Source of an argument of `@main`.

    Attributes:
        name: name of the argument.
        kind: `input` for an argument of the caller; `parameter`, `buffer` or `constant` for a tensor of the module;
            `generator` for the key of a generator of random numbers.
        leaf: for an input, number of the leaf of the caller's arguments; for a generator, its number in the program.
        tensor: for a parameter, buffer or constant, the tensor.
    """

    name: str
    kind: Literal["input", "parameter", "buffer", "constant", "generator"]
    leaf: int = -1
    tensor: torch.Tensor | None = None


@dataclass(frozen=True)
class Output:
    """Source of a leaf of the Python result.

    Attributes:
        kind: a result of `@main`, an argument of `@main`, a Python constant, or a Python number in a result of `@main`.
        index: number of the result or argument.
        value: the constant.
        steps: operators of the view of the argument that is returned.
        place: position of the leaf in the result of `@main`; None if it is that result.
    """

    kind: Literal["result", "argument", "constant", "number"]
    index: int = -1
    value: Any = None
    steps: tuple[Step, ...] = ()
    place: Place | None = None

    def of(self, source: torch.Tensor, sizes: Mapping[str, int]) -> torch.Tensor:
        """Returns the leaf for a call, from the result or argument. `sizes` has the values of symbolic sizes by
        name."""
        for step in self.steps:
            source = step(source, sizes)
        return source if self.place is None else self.place.restored(source)


@dataclass
class CapturedProgram:
    """Module of the torch dialect, with the mapping from a Python call to `@main` and back.

    Attributes:
        module: module with one function with a body, `@main`.
        bindings: source of each argument of `@main`.
        outputs: source of each leaf of the Python result.
        updates: pairs (result, argument) of `@main`: the result replaces the contents of the argument.
        examples: leaves of the example arguments.
        in_spec: structure of the arguments.
        out_spec: structure of the result.
        eager: operators that PyTorch computes, by the name of their declared function.
        viewed: caller's data types of the arguments, and of the results, that executors handle as another type, by
            number. Executors handle float8 as bytes, and complex numbers as pairs of real ones in a last dimension.
        layouts: required layouts of arguments whose memory an operator addresses, by number.
        checks: pairs (result, message): the program asserts that the result of `@main` is true.
        f32_matmul_precision: `tf32` if PyTorch was allowed to multiply f32 matrices in TF32, else None.
        needs: argument numbers that each output, and then each update, depends on for autograd. The first entry is for
            calls with gradients disabled, the second for calls with gradients enabled. Empty if gradients do not
            matter.
        autocast: state of autocast when the program was traced, on the devices where it matters.
        calls: the user's calls, for errors.
    """

    module: ModuleOp
    bindings: tuple[Binding, ...]
    outputs: tuple[Output, ...]
    updates: tuple[tuple[int, int], ...]
    examples: tuple[Any, ...]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    eager: Mapping[str, EagerCall] = field(default_factory=dict[str, EagerCall])
    viewed: tuple[Mapping[int, torch.dtype], Mapping[int, torch.dtype]] = field(default_factory=lambda: ({}, {}))
    layouts: Mapping[int, Layout] = field(default_factory=dict[int, Layout])
    checks: tuple[tuple[int, str], ...] = ()
    f32_matmul_precision: str | None = None
    needs: tuple[tuple[frozenset[int], ...], ...] = ()
    autocast: State = field(default_factory=dict[str, torch.dtype | None])
    calls: UserCalls = field(default_factory=UserCalls, compare=False)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> list[torch.Tensor]:
        """Returns the arguments of `@main` for a call.

        Raises ShapeError if the call differs from the example call: in structure, in a shape (outside of the range of a
        varying size), in a data type, or in a value that is not a tensor.
        """
        leaves, varying = self._leaves(args, kwargs), self._varying
        for i, (leaf, example) in enumerate(zip(leaves, self.examples, strict=True)):
            if not _is_like(leaf, example) and (problem := _difference(leaf, example, i in varying)) is not None:
                raise ShapeError(problem, argument=self._leaf_names[i], kind="wrong-arguments", remedy=_REMEDY)
        if self.draws:
            key = _new_key()
            tensors = [_tensor(b, leaves, key) for b in self.bindings]
        else:
            tensors = [leaves[b.leaf] if b.tensor is None else b.tensor for b in self.bindings]
        if self.layouts:
            self._check_layouts(tensors)
        if self.viewed[0]:
            tensors = [_stored(t) if i in self.viewed[0] else t for i, t in enumerate(tensors)]
        if varying:
            try:
                bind_sizes(main_function(self.module), [t.shape for t in tensors], [b.name for b in self.bindings])
            except CompileError as error:
                error.kind, error.remedy = "dynamic-sizes", "compile again for other sizes, or with a wider range (Dim)"
                raise
        if self.updates:
            self._check_leaves(tensors)
            self._check_alone(tensors)
        return tensors

    def _leaves(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Sequence[Any]:
        """Returns the leaves of a call's arguments. Raises ShapeError if their structure differs from the example
        call."""
        if not kwargs and len(args) == self._plain_arguments and all([isinstance(a, torch.Tensor) for a in args]):
            return args
        named = dict(kwargs or {})
        if named.keys() == set(self._keywords):
            named = {name: named[name] for name in self._keywords}
        leaves, spec = pytree.tree_flatten((tuple(args), named))
        if spec != self.in_spec:
            example = pytree.tree_unflatten(list(self.examples), self.in_spec)
            moved = rearranged(self._parameters, example, args, named)
            leaves, spec = pytree.tree_flatten((tuple(args), named) if moved is None else moved)
            if spec != self.in_spec:
                problem = structure_problem(self._parameters, example, args, named)
                raise ShapeError(problem, kind="wrong-arguments")
        return leaves

    @cached_property
    def _parameters(self) -> tuple[str, ...]:
        """Names of the positional parameters; empty if they are not known."""
        args, _ = pytree.tree_unflatten(list(self.examples), self.in_spec)
        return parameter_names(self.calls.function, len(args))

    @cached_property
    def _leaf_names(self) -> list[str]:
        return leaf_names(self._parameters, *pytree.tree_unflatten(list(self.examples), self.in_spec))

    @cached_property
    def _plain_arguments(self) -> int:
        """Number of arguments if all are positional and single leaves, else -1."""
        count = self.in_spec.num_leaves
        plain = pytree.tree_structure(((torch.empty(0),) * count, {}))
        return count if self.in_spec == plain else -1

    @cached_property
    def _keywords(self) -> list[str]:
        """Names of the keyword arguments, in the order of the example call."""
        _, kwargs = pytree.tree_unflatten([None] * self.in_spec.num_leaves, self.in_spec)
        return list(kwargs)

    @cached_property
    def _varying(self) -> set[int]:
        """Numbers of the leaves of the arguments with a symbolic shape."""
        types = main_function(self.module).function_type.inputs
        return {b.leaf for b, t in zip(self.bindings, types, strict=True) if symbols_of([t]) and b.tensor is None}

    def _check_layouts(self, tensors: Sequence[torch.Tensor]) -> None:
        for i, (stride, offset) in self.layouts.items():
            layout = tensors[i].stride(), tensors[i].storage_offset()
            if layout != (stride, offset):
                reason = f"expected strides {stride} and storage offset {offset}, but got {layout[0]} and {layout[1]}"
                why = "as_strided addresses its memory; pass a tensor of that layout, or compile again for this one"
                raise ShapeError(f"{reason}: {why}", argument=self.bindings[i].name)

    def _check_leaves(self, tensors: Sequence[torch.Tensor]) -> None:
        """Refuses changes in place that PyTorch refuses as well.

        These are changes of a leaf of autograd's graph that requires gradients, if gradients are enabled, and changes
        of an inference tensor outside of inference mode.
        """
        recorded, inference = self._needed()[len(self.outputs) :], torch.is_inference_mode_enabled()
        for i, (_, argument) in enumerate(self.updates):
            tensor, name = tensors[argument], self.bindings[argument].name
            if recorded and argument in recorded[i] and tensor.requires_grad and tensor.is_leaf:
                reason = "a leaf that requires a gradient would be changed in place"
                raise ExecutionError(reason, argument=name, kind=_ALIASING, remedy="call it under torch.no_grad()")
            if tensor.is_inference() and not inference:
                reason = "a tensor of inference mode would be changed in place outside of it"
                raise ExecutionError(reason, argument=name)

    def _check_alone(self, tensors: Sequence[torch.Tensor]) -> None:
        """Refuses a changed argument that shares memory with another argument, or that has overlapping elements.

        The program was compiled for arguments in disjoint memory.
        """
        changed = {argument for _, argument in self.updates}
        shared = {i for i in changed if _repeats(tensors[i])}
        # Arguments are visited in the order of their addresses. `end` is the largest last address so far, and `owner`
        # the argument that has it.
        end, owner = 0, -1
        for first, last, i in sorted((*_extent(t), i) for i, t in enumerate(tensors) if changed and t.numel()):
            if first < end:
                shared |= {i, owner} & changed
            if last > end:
                end, owner = last, i
        if shared:
            name, remedy = self.bindings[min(shared)].name, "pass a copy (x.clone())"
            raise ShapeError("changed in place, and shares memory", argument=name, kind=_ALIASING, remedy=remedy)

    def updating(self, updates: Sequence[tuple[int, int]]) -> CapturedProgram:
        """Returns the program with other updates, as pairs (result, argument).

        If the caller also gets an updating result as a leaf, this leaf becomes the updated argument itself.
        """
        place = dict(updates)
        outputs = tuple(
            Output("argument", place[o.index]) if o.kind == "result" and o.index in place else o for o in self.outputs
        )
        announce(self.module, outputs, updates)
        return replace(self, outputs=outputs, updates=tuple(updates))

    def constant_module(self) -> ModuleOp:
        """Returns the module with its parameters and buffers marked as constants, except those that the program
        changes."""
        module, changed = self.module.clone(), {argument for _, argument in self.updates}
        constants = [i for i, b in enumerate(self.bindings) if b.tensor is not None and i not in changed]
        set_numbers(main_function(module), CONSTANTS, constants)
        return module

    def on(self, device: str, moved: dict[int, torch.Tensor]) -> CapturedProgram:
        """Returns the program with its parameters, buffers and constants on `device`.

        `moved` maps the identity of a tensor to its copy, so that programs with common tensors share the copies.
        """

        def copy_of(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) not in moved:
                moved[id(tensor)] = tensor.to(device)
            return moved[id(tensor)]

        bindings = (b if b.tensor is None else replace(b, tensor=copy_of(b.tensor)) for b in self.bindings)
        return replace(self, bindings=tuple(bindings))

    @cached_property
    def draws(self) -> bool:
        """True if the program draws random numbers. For the same seed, they differ from the numbers of eager
        PyTorch."""
        return any(b.kind == "generator" for b in self.bindings)

    def restore(self, results: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor] | None = None) -> Any:
        """Returns the Python result for the results of `@main`, after it has checked assertions and updated arguments.

        `arguments` is the result of `bind`; it is required if the program returns or updates an argument. Raises
        ExecutionError for a failed assertion. While a CUDA graph is captured, the host cannot read the assertion. Then
        the check becomes part of the graph, and stops the device.
        """
        if arguments is None and (self.updates or any(o.kind == "argument" for o in self.outputs)):
            raise CompileError(
                "this program returns or changes its arguments, so they are needed to restore its result"
            )
        for result, message in self.checks:
            if capturing():
                torch.ops.aten._assert_async.msg(results[result], message)
            elif not results[result]:
                raise ExecutionError(message, operator="assertion")
        tensors = list(arguments or [])
        for result, argument in self.updates:
            target = tensors[argument]
            if target.data_ptr() != results[result].data_ptr():
                with torch.no_grad():
                    target.copy_(results[result])
            else:
                # The program has written the argument in place. Autograd may have saved it for a backward pass.
                torch.autograd.graph.increment_version(target)
        typed = _viewed(tensors, self.viewed[0]), _viewed(results, self.viewed[1])
        sizes = self._sizes(tensors) if any([o.steps for o in self.outputs]) else {}
        leaves: list[Any] = []
        needed = self._needed()
        for i, (o, same) in enumerate(self._same):
            if o.kind == "constant":
                leaves.append(o.value)
            elif o.kind == "number":
                leaves.append(results[o.index].item())
            elif same < len(leaves):
                leaves.append(leaves[same])
            elif not o.steps or not needed:
                leaves.append(o.of(typed[o.kind == "result"][o.index], sizes))
            else:
                with torch.set_grad_enabled(bool(needed[i])):
                    leaves.append(o.of(typed[False][o.index], sizes))
        if any(needed) and any([a.requires_grad for a in tensors]):
            with torch.enable_grad():
                self._note_missing_gradients(leaves, tensors, needed)
        return leaves[0] if self.out_spec.is_leaf() else pytree.tree_unflatten(leaves, self.out_spec)

    @cached_property
    def _same(self) -> list[tuple[Output, int]]:
        """Outputs, each with the number of the first equal output. The caller gets one tensor for equal outputs."""
        return [(o, self.outputs.index(o)) for o in self.outputs]

    def _sizes(self, arguments: Sequence[torch.Tensor]) -> Mapping[str, int]:
        if not self._varying:
            return {}
        shapes, names = [t.shape for t in arguments], [b.name for b in self.bindings]
        return bind_sizes(main_function(self.module), shapes, names).values

    def _needed(self) -> tuple[frozenset[int], ...]:
        """Returns the entry of `needs` for the present gradient mode; empty if there is none."""
        return self.needs[torch.is_grad_enabled()] if self.needs else ()

    def _note_missing_gradients(
        self, leaves: list[Any], arguments: Sequence[torch.Tensor], needed: Sequence[frozenset[int]]
    ) -> None:
        """Makes computed results require gradients if they do in eager PyTorch. A backward pass then raises an
        error."""
        sources = [[arguments[n] for n in sorted(entry) if arguments[n].requires_grad] for entry in needed]
        for i, (o, same) in enumerate(self._same):
            if o.kind == "result":
                leaves[i] = leaves[same] if same < i else _without_gradient(leaves[i], sources[i])
        for (_, argument), tensors in zip(self.updates, sources[len(leaves) :], strict=True):
            if tensors:
                _Missing.apply(arguments[argument], *(t for t in tensors if t is not arguments[argument]))

    def flatten(self, value: Any) -> list[torch.Tensor]:
        """Returns the results of `@main` for a Python result, in their order: the inverse of `restore`."""
        leaves = pytree.tree_flatten(value)[0]
        results: dict[int, torch.Tensor] = {}
        for leaf, output in zip(leaves, self.outputs, strict=True):
            if output.kind == "result" and (output.place is None or output.place.order):
                written = _stored(leaf) if output.index in self.viewed[1] else leaf
                results.setdefault(output.index, written if output.place is None else output.place.of(written))
        return [results[i] for i in sorted(results)]


def _new_key() -> torch.Tensor:
    """Returns the key of a call's random numbers, drawn from PyTorch's default generator.

    So `torch.manual_seed` determines it, and each call has another key. While a CUDA graph is captured, the device's
    generator is used, so each replay has another key.
    """
    device = "cuda" if capturing() else "cpu"
    return torch.randint(-(2**63), 2**63 - 1, (1,), dtype=torch.int64, device=device)


def _tensor(binding: Binding, leaves: Sequence[Any], key: torch.Tensor | None) -> torch.Tensor:
    """Returns the tensor for a binding in a call. A generator's tensor is the key of the call and the generator's
    number."""
    if key is not None and binding.kind == "generator":
        return torch.cat([key, torch.full_like(key, binding.leaf)])
    return leaves[binding.leaf] if binding.tensor is None else binding.tensor


def _viewed(tensors: Sequence[torch.Tensor], dtypes: Mapping[int, torch.dtype]) -> Sequence[torch.Tensor]:
    """Returns `tensors`, with those in `dtypes` converted from the executors' type to the caller's data type."""
    if not dtypes:
        return tensors

    def restored(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return torch.view_as_complex(tensor) if dtype.is_complex else tensor.view(dtype)

    return [restored(t, dtypes[i]) if i in dtypes else t for i, t in enumerate(tensors)]


def _stored(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a float8 or complex tensor in the type that executors use for it."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor.view(torch.uint8)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Returns the address of a tensor's first byte, and the address after its last byte; equal for an empty tensor."""
    first = tensor.data_ptr()
    if not tensor.numel():
        return first, first
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (last + 1) * tensor.element_size()


def _repeats(tensor: torch.Tensor) -> bool:
    """Returns true if several elements of a tensor have one address, as after `expand`."""
    return any(n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True))


_ALIASING = "mutation-and-aliasing"
_REMEDY = "compile again for other shapes or types, or declare sizes that vary (dynamic_shapes)"

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _is_like(value: Any, example: Any) -> bool:
    """Returns true if both values are plain dense tensors of one type and shape.

    The test is fast. `_difference` decides all other cases.
    """
    return (
        type(value) in _PLAIN
        and type(example) in _PLAIN
        and value.dtype == example.dtype
        and value.shape == example.shape
        and value.layout == torch.strided
        and not value.is_nested
        and not value.is_meta
    )


def _difference(value: Any, example: Any, varying: bool) -> str | None:
    """Returns a message if `value` differs from the example, or None. The shape is not compared if it may vary."""
    if not isinstance(example, torch.Tensor):
        same = type(value) is type(example) and (value == example or value != value and example != example)
        brief = "a tensor" if isinstance(value, torch.Tensor) else repr(value)[:80]
        return None if same else f"expected {example!r}, as the program was compiled for, but got {brief}"
    if not isinstance(value, torch.Tensor):
        return f"expected a tensor, but got {type(value).__name__}"
    if (kind := kind_of(value)) is not None:
        return f"a tensor of another kind: {kind}"
    if value.is_meta:
        return "a tensor without contents, on the meta device"
    if value.dtype != example.dtype or not varying and value.shape != example.shape:
        expected = describe_tensor(example)
        return f"expected {expected}, as the program was compiled for, but got {describe_tensor(value)}"
    return None


def announce(module: ModuleOp, outputs: Sequence[Output], updates: Sequence[tuple[int, int]]) -> None:
    """Marks the results of `@main` that may be written over the arguments that they replace.

    A result that the caller also gets as a tensor of its own is not marked.

    Args:
        module: module with `@main`, which gets the attribute.
        outputs: leaves of the result.
        updates: pairs (result, argument).
    """
    returned = {o.index for o in outputs if o.kind == "result"}
    only = {result: argument for result, argument in reversed(updates) if result not in returned}
    set_pairs(main_function(module), UPDATES, sorted(only.items()))


class _Missing(torch.autograd.Function):
    """Autograd function that returns its first argument, as if it depended on the other arguments.

    The result requires gradients, as it does in eager PyTorch, but the backward pass raises an error. Without this
    function the result would be a constant, and training through it would silently change nothing.
    """

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(value)
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise ExecutionError(
            "a program of deplodock.compile has no gradients",
            kind="gradients",
            remedy='call it under torch.no_grad(), or train with torch.compile(module, backend="deplodock")',
        )


def _without_gradient(value: torch.Tensor, others: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns a computed result that requires gradients, and raises an error in the backward pass.

    Returns `value` unchanged if no other tensor requires gradients.
    """
    if not others:
        return value
    # Autograd does not record `_Missing` for the base of a view, so the result becomes a tensor of the same memory.
    if value._base is not None:
        memory = value.untyped_storage()
        place = value.storage_offset(), value.shape, value.stride()
        value = torch.empty(0, dtype=value.dtype, device=value.device).set_(memory, *place)
    return _Missing.apply(value, *others)  # pyright: ignore[reportReturnType]
