"""A captured program: what lies between its module and the Python callable that it came from."""

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
"""For devices on which autocast could cast what a program reads: the type that it casts to, or None if it is off."""

Layout: TypeAlias = tuple[tuple[int, ...], int]
"""Strides and storage offset of a tensor, in elements."""


@dataclass(frozen=True)
class Binding:
    """What an argument of `@main` stands for: leaf `leaf` of the caller's arguments, the tensor `tensor`, or what
    generator number `leaf` of the program starts from."""

    name: str
    kind: Literal["input", "parameter", "buffer", "constant", "generator"]
    leaf: int = -1
    tensor: torch.Tensor | None = None


@dataclass(frozen=True)
class Output:
    """Where a leaf of the program's result comes from: a result of `@main` and its place in that memory, an argument
    and the steps to a view of it, or a Python constant."""

    kind: Literal["result", "argument", "constant"]
    index: int = -1
    value: Any = None
    steps: tuple[Step, ...] = ()
    place: Place | None = None

    def of(self, source: torch.Tensor, sizes: Mapping[str, int]) -> torch.Tensor:
        """The tensor, from the result or argument that it comes from."""
        for step in self.steps:
            source = step(source, sizes)
        return source if self.place is None else self.place.restored(source)


@dataclass
class CapturedProgram:
    """A captured program: the module, and what lies between it and the Python callable.

    `module` has one function `@main`: an argument for every entry of `bindings`, and as results what the program
    computes. `outputs` are the leaves of the Python result, `updates` pairs (result, argument) of tensors that the
    program changes in place. `eager` are the functions that are declared in `module` and left to PyTorch. `viewed` has
    the arguments and the results of `@main` that executors know in another type: eight-bit floats as bytes, complex
    numbers as pairs of real ones in a last dimension. `layouts` has
    strides and storage offsets of the arguments whose memory an operator addresses; `checks` are pairs (result,
    message) of truth values that the program asserts. `f32_matmul_precision` is `tf32` if PyTorch was permitted to
    multiply f32 so. `needs` has, for calls with gradients disabled and enabled, for every one of `outputs` and then of
    `updates` the arguments that it depends on as autograd sees it (`gradients.py`); nothing where that does not
    matter. `autocast` is what autocast did where it was traced, for the devices on which it could cast what one of the
    operators reads. `calls` knows the calls of the user that operators come from, for errors.
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
        """The tensors of all arguments of `@main` for a call with these Python arguments.

        Raises ShapeError unless they are like the example ones: the same structure, shapes (within the ranges of sizes
        that may vary), data types and values of what is not a tensor.
        """
        leaves, varying = self._leaves(args, kwargs), self._varying
        for i, (leaf, example) in enumerate(zip(leaves, self.examples, strict=True)):
            if not _alike(leaf, example) and (problem := _unlike(leaf, example, i in varying)) is not None:
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
        """The leaves of a call's arguments. Raises ShapeError for another structure than that of the example ones."""
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
        """The names of the arguments by position; empty if they are not known."""
        args, _ = pytree.tree_unflatten(list(self.examples), self.in_spec)
        return parameter_names(self.calls.function, len(args))

    @cached_property
    def _leaf_names(self) -> list[str]:
        return leaf_names(self._parameters, *pytree.tree_unflatten(list(self.examples), self.in_spec))

    @cached_property
    def _plain_arguments(self) -> int:
        """How many arguments there are, if each is a leaf, and has a place instead of a name; else -1."""
        count = self.in_spec.num_leaves
        plain = pytree.tree_structure(((torch.empty(0),) * count, {}))
        return count if self.in_spec == plain else -1

    @cached_property
    def _keywords(self) -> list[str]:
        """The names of arguments that are given by name, in the order of the example call."""
        _, kwargs = pytree.tree_unflatten([None] * self.in_spec.num_leaves, self.in_spec)
        return list(kwargs)

    @cached_property
    def _varying(self) -> set[int]:
        """The leaves of the arguments whose shape has symbols."""
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
        """Refuse to change in place, as PyTorch does, a leaf of autograd's graph where gradients are enabled, and a
        tensor of inference mode outside of it."""
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
        """Refuse an argument that is changed in place and shares memory with another, or with itself: the program was
        compiled for arguments that do not."""
        changed = {argument for _, argument in self.updates}
        shared = {i for i in changed if _repeats(tensors[i])}
        end, owner = 0, -1  # of what begins before, the one that reaches furthest
        for first, last, i in sorted((*_extent(t), i) for i, t in enumerate(tensors) if changed and t.numel()):
            if first < end:
                shared |= {i, owner} & changed
            if last > end:
                end, owner = last, i
        if shared:
            name, remedy = self.bindings[min(shared)].name, "pass a copy (x.clone())"
            raise ShapeError("changed in place, and shares memory", argument=name, kind=_ALIASING, remedy=remedy)

    def updating(self, updates: Sequence[tuple[int, int]]) -> CapturedProgram:
        """The same program, but results are written to the arguments that they replace, by pairs (result, argument);
        what was to be returned of them are those arguments."""
        place = dict(updates)
        outputs = tuple(
            Output("argument", place[o.index]) if o.kind == "result" and o.index in place else o for o in self.outputs
        )
        announce(self.module, outputs, updates)
        return replace(self, outputs=outputs, updates=tuple(updates))

    def constant_module(self) -> ModuleOp:
        """The module, which says that parameters and buffers are the same in every call, but for those it changes."""
        module, changed = self.module.clone(), {argument for _, argument in self.updates}
        found = [i for i, b in enumerate(self.bindings) if b.tensor is not None and i not in changed]
        set_numbers(main_function(module), CONSTANTS, found)
        return module

    def on(self, device: str, moved: dict[int, torch.Tensor]) -> CapturedProgram:
        """The same program with its parameters and buffers on `device`; `moved` keeps those that were put there, by the
        identity of what they were, so that programs with common tensors still have them in common."""

        def there(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) not in moved:
                moved[id(tensor)] = tensor.to(device)
            return moved[id(tensor)]

        bindings = (b if b.tensor is None else replace(b, tensor=there(b.tensor)) for b in self.bindings)
        return replace(self, bindings=tuple(bindings))

    @cached_property
    def draws(self) -> bool:
        """Whether the program draws random numbers, which are others than eager PyTorch's."""
        return any(b.kind == "generator" for b in self.bindings)

    def restore(self, results: Sequence[torch.Tensor], arguments: Sequence[torch.Tensor] | None = None) -> Any:
        """The Python result from the results of `@main`, after looking at assertions and carrying out updates.

        `arguments` is what `bind` gave; it is needed where the program returns or updates one. Raises ExecutionError
        for an assertion that does not hold. In a CUDA graph, which cannot wait for it, the assertion is part of the
        graph and stops the device.
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
        given = list(arguments or [])
        for result, argument in self.updates:
            target = given[argument]
            if target.data_ptr() != results[result].data_ptr():
                with torch.no_grad():
                    target.copy_(results[result])
            else:  # the program has written it in place: autograd may have saved it
                torch.autograd.graph.increment_version(target)
        typed = _viewed(given, self.viewed[0]), _viewed(results, self.viewed[1])
        sizes = self._sizes(given) if any([o.steps for o in self.outputs]) else {}
        leaves: list[Any] = []
        needed = self._needed()
        for i, (o, same) in enumerate(self._same):
            if o.kind == "constant":
                leaves.append(o.value)
            elif same < len(leaves):
                leaves.append(leaves[same])
            elif not o.steps or not needed:
                leaves.append(o.of(typed[o.kind == "result"][o.index], sizes))
            else:
                with torch.set_grad_enabled(bool(needed[i])):
                    leaves.append(o.of(typed[False][o.index], sizes))
        if any(needed) and any([a.requires_grad for a in given]):
            with torch.enable_grad():
                self._note_missing_gradients(leaves, given, needed)
        return leaves[0] if self.out_spec.is_leaf() else pytree.tree_unflatten(leaves, self.out_spec)

    @cached_property
    def _same(self) -> list[tuple[Output, int]]:
        """The leaves of the result, each with the first that is the same tensor."""
        return [(o, self.outputs.index(o)) for o in self.outputs]

    def _sizes(self, arguments: Sequence[torch.Tensor]) -> Mapping[str, int]:
        if not self._varying:
            return {}
        shapes, names = [t.shape for t in arguments], [b.name for b in self.bindings]
        return bind_sizes(main_function(self.module), shapes, names).values

    def _needed(self) -> tuple[frozenset[int], ...]:
        """The entry of `needs` for a call now; empty if there is none."""
        return self.needs[torch.is_grad_enabled()] if self.needs else ()

    def _note_missing_gradients(
        self, leaves: list[Any], arguments: Sequence[torch.Tensor], needed: Sequence[frozenset[int]]
    ) -> None:
        """Let results that were computed require gradients where eager PyTorch's would."""
        known = [[arguments[n] for n in sorted(entry) if arguments[n].requires_grad] for entry in needed]
        for i, (o, same) in enumerate(self._same):
            if o.kind == "result":
                leaves[i] = leaves[same] if same < i else _without_gradient(leaves[i], known[i])
        for (_, argument), tensors in zip(self.updates, known[len(leaves) :], strict=True):
            if tensors:
                _Missing.apply(arguments[argument], *(t for t in tensors if t is not arguments[argument]))

    def flatten(self, value: Any) -> list[torch.Tensor]:
        """Of a Python result of the program, the tensors that are results of `@main`, in their order."""
        leaves = pytree.tree_flatten(value)[0]
        found: dict[int, torch.Tensor] = {}
        for leaf, output in zip(leaves, self.outputs, strict=True):
            if output.kind == "result" and (output.place is None or output.place.order):
                written = _stored(leaf) if output.index in self.viewed[1] else leaf
                found.setdefault(output.index, written if output.place is None else output.place.of(written))
        return [found[i] for i in sorted(found)]


def _new_key() -> torch.Tensor:
    """The key of one call's random numbers, from PyTorch's default generator: `torch.manual_seed` fixes it, and every
    call has another. In a CUDA graph it is the device's generator, so every replay has another."""
    device = "cuda" if capturing() else "cpu"
    return torch.randint(-(2**63), 2**63 - 1, (1,), dtype=torch.int64, device=device)


def _tensor(binding: Binding, leaves: Sequence[Any], key: torch.Tensor | None) -> torch.Tensor:
    """What a binding stands for in a call; a generator starts from the call's key and its own number."""
    if key is not None and binding.kind == "generator":
        return torch.cat([key, torch.full_like(key, binding.leaf)])
    return leaves[binding.leaf] if binding.tensor is None else binding.tensor


def _viewed(tensors: Sequence[torch.Tensor], dtypes: Mapping[int, torch.dtype]) -> Sequence[torch.Tensor]:
    """`tensors`, those in `dtypes` as what they are for the caller."""
    if not dtypes:
        return tensors

    def restored(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return torch.view_as_complex(tensor) if dtype.is_complex else tensor.view(dtype)

    return [restored(t, dtypes[i]) if i in dtypes else t for i, t in enumerate(tensors)]


def _stored(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of eight-bit floats or complex numbers as executors know it."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor.view(torch.uint8)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses that a tensor's elements lie between; the same twice if there are none."""
    first = tensor.data_ptr()
    if not tensor.numel():
        return first, first
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (last + 1) * tensor.element_size()


def _repeats(tensor: torch.Tensor) -> bool:
    """Whether several elements lie in one place, as after `expand`."""
    return any(n > 1 and s == 0 for n, s in zip(tensor.shape, tensor.stride(), strict=True))


_ALIASING = "mutation-and-aliasing"
_REMEDY = "compile again for other shapes or types, or declare sizes that vary (dynamic_shapes)"

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _alike(value: Any, example: Any) -> bool:
    """Whether `value` is a tensor in memory, as the example: most are, and `_unlike` takes longer to find out."""
    return (
        type(value) in _PLAIN
        and type(example) in _PLAIN
        and value.dtype == example.dtype
        and value.shape == example.shape
        and value.layout == torch.strided
        and not value.is_nested
        and not value.is_meta
    )


def _unlike(value: Any, example: Any, varying: bool) -> str | None:
    """How `value` differs from what the program was compiled for; the shape is not looked at where it may vary."""
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
    """Say in `@main` which results may be written over arguments: those that replace one, and that nobody gets as a
    tensor of its own."""
    returned = {o.index for o in outputs if o.kind == "result"}
    only = {result: argument for result, argument in reversed(updates) if result not in returned}
    set_pairs(main_function(module), UPDATES, sorted(only.items()))


class _Missing(torch.autograd.Function):
    """The identity, in place, on the first of its arguments, as if it depended on the others.

    In eager PyTorch a result requires a gradient where a parameter does. Here it does, too, but to ask for the gradient
    is an error: were it a plain tensor, whatever is trained through it would silently not be.
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
    """`value`, which a program computed, as a result that depends on `others`, which require gradients."""
    if not others:
        return value
    if value._base is not None:  # of which autograd would not know
        memory = value.untyped_storage()
        place = value.storage_offset(), value.shape, value.stride()
        value = torch.empty(0, dtype=value.dtype, device=value.device).set_(memory, *place)
    return _Missing.apply(value, *others)  # pyright: ignore[reportReturnType]
