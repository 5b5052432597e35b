"""Kernels that do not need each other run in one launch, each on blocks of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from xdsl.context import Context
from xdsl.dialects import arith, func, scf
from xdsl.dialects.builtin import ArrayAttr, IndexType, MemRefType, ModuleOp, StringAttr
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from ..dialects import kernel, payload
from ..dialects.locations import location_of

PARTS = "parts"
"""The attribute of a kernel that names the kernels it stands for, in the order of their blocks."""


def parts_of(function: kernel.FuncOp) -> tuple[str, ...]:
    """The names of the kernels that `function` stands for: its own, unless it was made for several."""
    parts = function.attributes.get(PARTS)
    if not isinstance(parts, ArrayAttr):
        return (function.sym_name.data,)
    names = cast("ArrayAttr[Attribute]", parts).data
    return tuple(name.data for name in names if isinstance(name, StringAttr))


_READS = (kernel.LoadOp, kernel.CopyAsyncOp)


@dataclass(frozen=True)
class ShareLaunchesPass(ModulePass):
    """Launch two kernels as one where neither needs what the other does and both read the same.

    What: of two launches with blocks of equally many warps, of which the first can wait for the second, one is made:
    of a kernel with the blocks of both, of which the first so many do what the first kernel does and the others what
    the second does. Kernels differ in what their blocks need; one that multiplies on tensor cores is not put together
    with one that does not, nor one with more than twice the other's shared memory, because the blocks of the
    lighter one would be held back.
    Why: a launch less, and the multiprocessors that the last blocks of the first kernel leave idle are used at once:
    the projections to queries and to keys and values have different extents, so they cannot be one nest.
    Why here: after barriers and shared memory were placed in each kernel by itself; nothing but the number of the
    block changes in them. Calls are not inlined yet, so a layer is looked at once; no launch is moved past a call.

    ```mlir
    kernel.func @k0(%x: memref<64xf32>, %y: memref<64xf32>) grid 2 warps 1 {...}
    kernel.func @k1(%x: memref<64xf32>, %z: memref<96xf32>) grid 3 warps 1 {...}
    kernel.launch @k0(%x, %y) : ...    kernel.launch @k1(%x, %z) : ...
    ```
    becomes
    ```mlir
    kernel.func @k0_k1(%x: memref<64xf32>, %y: memref<64xf32>, %z: memref<96xf32>) grid 5 warps 1 {
      %block = kernel.id block
      %first = payload.cmp lt %block, %c2 : index
      scf.if %first {...} else {...}
    }
    kernel.launch @k0_k1(%x, %y, %z) : ...
    ```
    """

    name = "share-launches"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        sharing = _Sharing({k.sym_name.data: k for k in op.ops if isinstance(k, kernel.FuncOp)})
        for function in op.ops:
            if isinstance(function, func.FuncOp) and not function.is_declaration:
                sharing.share(function.body.block)
        launched = {launch.kernel.string_value() for launch in op.walk() if isinstance(launch, kernel.LaunchOp)}
        for name in sorted(sharing.replaced - launched):
            unused = sharing.kernels[name]
            unused.detach()
            unused.erase()


@dataclass
class _Sharing:
    """`kernels` by name, with those that were made for two; `replaced` are those that a made one stands for."""

    kernels: dict[str, kernel.FuncOp]
    made: dict[tuple[object, ...], kernel.FuncOp] = field(default_factory=dict[tuple[object, ...], kernel.FuncOp])
    replaced: set[str] = field(default_factory=set[str])

    def share(self, block: Block) -> None:
        """Put together the launches of one list, each with the nearest one behind it that fits."""
        steps = [op for op in block.ops if not isinstance(op, kernel.AllocOp)]
        while steps:
            first = steps.pop(0)
            if not isinstance(first, kernel.LaunchOp):
                continue
            for second in steps:
                if not isinstance(second, kernel.LaunchOp) or self._conflict(first, second):
                    break
                if self._fit(first, second):
                    self._replace(first, second)
                    steps.remove(second)
                    break

    def _kernel(self, launch: kernel.LaunchOp) -> kernel.FuncOp:
        return self.kernels[launch.kernel.string_value()]

    def _written(self, launch: kernel.LaunchOp) -> set[SSAValue]:
        """The buffers of a launch that its kernel does not only read."""
        arguments = self._kernel(launch).body.block.args
        return {b for b, a in zip(launch.buffers, arguments, strict=True) if not _only_read(a)}

    def _conflict(self, first: kernel.LaunchOp, second: kernel.LaunchOp) -> bool:
        """Whether the order of the two matters."""
        return not (self._written(first).isdisjoint(second.buffers) and self._written(second).isdisjoint(first.buffers))

    def _fit(self, first: kernel.LaunchOp, second: kernel.LaunchOp) -> bool:
        """Whether the two read the same, and their blocks need about the same."""
        a, b = self._kernel(first), self._kernel(second)
        if not _plain(a) or not _plain(b) or a.warps != b.warps or set(first.buffers).isdisjoint(second.buffers):
            return False
        less, more = sorted(k.shared.data if k.shared is not None else 0 for k in (a, b))
        return more <= 2 * less and _multiplies(a) == _multiplies(b)

    def _replace(self, first: kernel.LaunchOp, second: kernel.LaunchOp) -> None:
        """One launch in place of `second` for both."""
        buffers = list(dict.fromkeys((*first.buffers, *second.buffers)))
        places = tuple(tuple(buffers.index(b) for b in launch.buffers) for launch in (first, second))
        a, b = self._kernel(first), self._kernel(second)
        key = (a.sym_name.data, b.sym_name.data, places)
        if key not in self.made:
            self.made[key] = self._make(a, b, places)
            self.replaced |= {a.sym_name.data, b.sym_name.data}
        launch = kernel.LaunchOp(self.made[key].sym_name.data, buffers)
        launch.location = first.location
        parent = second.parent
        assert parent is not None
        parent.insert_op_before(launch, second)
        for old in (first, second):
            old.detach()
            old.erase()

    def _make(self, a: kernel.FuncOp, b: kernel.FuncOp, places: tuple[tuple[int, ...], ...]) -> kernel.FuncOp:
        """The kernel for both, in front of `a`: its argument `places[i][j]` is argument j of kernel i."""
        arguments: dict[int, SSAValue] = {}
        for function, own in zip((a, b), places, strict=True):
            for argument, place in zip(function.body.block.args, own, strict=True):
                arguments.setdefault(place, argument)
        block = Block(arg_types=[arguments[i].type for i in range(len(arguments))])
        for i, argument in enumerate(block.args):
            argument.name_hint = arguments[i].name_hint
        number, count = kernel.IdOp("block"), arith.ConstantOp.from_int_and_width(a.blocks, IndexType())
        first = payload.CmpOp("lt", number.result, count.result)
        bodies: list[Region] = []
        for function, own in zip((a, b), places, strict=True):
            inner = Block()
            own_number = _rest(inner, number.result, count.result) if bodies else number.result
            values: dict[SSAValue, SSAValue] = {
                old: block.args[i] for old, i in zip(function.body.block.args, own, strict=True)
            }
            for op in function.body.block.ops:
                if isinstance(op, kernel.IdOp) and op.kind.data == kernel.Id.BLOCK:
                    values[op.result] = own_number
                else:
                    inner.add_op(op.clone(values))
            inner.add_op(scf.YieldOp())
            bodies.append(Region(inner))
        parts: tuple[Operation, ...] = (number, count, first, scf.IfOp(first.result, [], bodies[0], bodies[1]))
        for op in parts:
            op.location = location_of(a)
            block.add_op(op)
        return self._insert(a, b, block)

    def _insert(self, a: kernel.FuncOp, b: kernel.FuncOp, block: Block) -> kernel.FuncOp:
        name = f"{a.sym_name.data}_{b.sym_name.data}"
        while name in self.kernels:
            name += "_"
        shared = max((k.shared.data for k in (a, b) if k.shared is not None), default=None)
        made = kernel.FuncOp(name, a.blocks + b.blocks, a.warps.data, Region(block), shared)
        made.attributes[PARTS] = ArrayAttr([StringAttr(k.sym_name.data) for k in (a, b)])
        if all("schedule" in k.attributes for k in (a, b)):
            made.attributes["schedules"] = ArrayAttr([k.attributes["schedule"] for k in (a, b)])
        made.location = location_of(a)
        parent = a.parent
        assert parent is not None
        parent.insert_op_before(made, a)
        self.kernels[name] = made
        return made


def _only_read(argument: SSAValue) -> bool:
    """Whether a kernel does nothing else with its argument, itself or through tensor maps."""
    return all(
        isinstance(use.operation, _READS)
        and use.operation.memory is argument
        or isinstance(use.operation, kernel.TensorMapOp)
        and all(isinstance(u.operation, kernel.TmaLoadOp) for u in use.operation.result.uses)
        for use in argument.uses
    )


def _plain(function: kernel.FuncOp) -> bool:
    """Whether all warps of a kernel's blocks run one program, on buffers, that is no two kernels already, and
    how many blocks there are is known. Groups of warps that multiply together have programs of their own."""
    return (
        function.roles is None
        and not any(isinstance(op, kernel.TensorMapOp | kernel.WgmmaOp) for op in function.walk())
        and PARTS not in function.attributes
        and all(isinstance(n, int) for n in function.factors)
        and all(isinstance(a.type, MemRefType) for a in function.body.block.args)
    )


def _multiplies(function: kernel.FuncOp) -> bool:
    return any(isinstance(op, kernel.MmaOp) for op in function.walk())


def _rest(block: Block, number: SSAValue, count: SSAValue) -> SSAValue:
    """The number of a block among those behind the first `count`; that it is not negative is said for later passes."""
    zero = arith.ConstantOp.from_int_and_width(0, IndexType())
    behind = arith.SubiOp(number, count)
    rest = arith.MaxSIOp(behind.result, zero.result)
    for op in (zero, behind, rest):
        block.add_op(op)
    rest.result.name_hint = "block"
    return rest.result
