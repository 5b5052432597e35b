"""Asynchronous dots of warpgroups (`wgmma`).

Accumulators in flight have a type of their own, which only these operations, and loops that carry them, accept. So a
result cannot be read before a wait, and the position of the waits does not change results:

```
%p = tile.accumulators %acc : tensor<64x64xf32, #acc> -> !tile.async_accumulators<tensor<64x64xf32, #acc>>
%q = tile.dot_async %a, %b into %p : ...
%sums = tile.dot_wait %q pending 0 : !tile.async_accumulators<...> -> tensor<64x64xf32, #acc>
```
"""

from __future__ import annotations

from typing import ClassVar

from xdsl import irdl
from xdsl.dialects import scf
from xdsl.dialects.builtin import IntAttr, TensorType, UnitAttr, i1
from xdsl.ir import SSAValue
from xdsl.utils.exceptions import VerifyException

from ..layouts import AsyncAccumulatorsType, without_flight
from ..support.assembly import OrderedOp
from .kernel import verify_contraction


class _InFlight(OrderedOp):
    """Base class of the operations on accumulators in flight, which keep their order in a block.

    Accumulators in flight have one user, because the hardware has no second copy of them.
    """

    def verify_(self) -> None:
        for result in self.results:
            users = [use.operation for use in result.uses]
            if not isinstance(result.type, AsyncAccumulatorsType):
                continue
            if len(users) > 1:
                raise VerifyException(
                    f"expected one use of accumulators in flight, which the hardware cannot copy, but got {len(users)}"
                )
            if any(not isinstance(user, DotAsyncOp | DotWaitOp | scf.ForOp | scf.YieldOp) for user in users):
                raise VerifyException(
                    f"expected a tile.dot_wait before other uses of accumulators in flight, but got {users[0].name}"
                )


@irdl.irdl_op_definition
class AccumulatorsOp(_InFlight):
    """Converts a tile to accumulators of asynchronous dots.

    ```
    #acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]],
                        warp = [[16, 0], [32, 0]]>
    %p = tile.accumulators %sums : tensor<64x16xf32, #acc> -> !tile.async_accumulators<tensor<64x16xf32, #acc>>
    %q = tile.accumulators -> !tile.async_accumulators<tensor<64x16xf32, #acc>>
    ```

    Without an operand the accumulators are undefined.

    Operands:
        start: initial values of the accumulators.

    Constraints: the tile has the type inside the result type; undefined accumulators are overwritten by the first dot
    (`scale_d_zero`).
    """

    name = "tile.accumulators"
    start = irdl.opt_operand_def(irdl.base(TensorType))
    result = irdl.result_def(irdl.base(AsyncAccumulatorsType))
    assembly_format = "($start^ `:` type($start))? attr-dict `->` type($result)"

    def verify_(self) -> None:
        super().verify_()
        if self.start is not None and self.start.type != without_flight(self.result.type):
            raise VerifyException(
                f"expected a tile of the type {without_flight(self.result.type)}, but got {self.start.type}"
            )
        user = self.result.get_user_of_unique_use()
        if self.start is None and isinstance(user, DotAsyncOp) and user.scale_d_zero is None:
            raise VerifyException(
                "expected scale_d_zero on the first dot into undefined accumulators, but got a dot without it"
            )


@irdl.irdl_op_definition
class DotAsyncOp(_InFlight):
    """Starts a dot of warpgroups: acc + lhs * rhs, into accumulators in flight.

    ```
    #a = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [1, 0], [2, 0], [4, 0], [8, 0], [16, 0], [32, 0]]>
    #b = #tile.shared<offset = [[0, 1], [0, 2], [0, 4], [0, 8], [1, 0], [2, 0], [4, 0], [8, 0]]>
    #acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]],
                        warp = [[16, 0], [32, 0]]>
    %q = tile.dot_async %a, %b into %p use_acc %more
      : tensor<64x16xbf16, #a>, tensor<16x16xbf16, #b>, !tile.async_accumulators<tensor<64x16xf32, #acc>>
    ```

    Consecutive dots of a block into the same accumulators form one group; `tile.dot_wait` counts groups.

    Operands:
        lhs: left operand [m, k].
        rhs: right operand [k, n], in shared memory.
        acc: accumulators.
        use_acc: condition; if false, the old accumulators are overwritten.

    Attributes:
        scale_d_zero: the old accumulators are always overwritten (PTX scale-d = 0).

    Constraints: the operands are ones that `tile.dot` with atom `wgmma` supports; `use_acc` and `scale_d_zero` exclude
    each other.
    """

    name = "tile.dot_async"
    T: ClassVar = irdl.VarConstraint("T", irdl.base(AsyncAccumulatorsType))
    lhs = irdl.operand_def(irdl.base(TensorType))
    rhs = irdl.operand_def(irdl.base(TensorType))
    acc = irdl.operand_def(T)
    use_acc = irdl.opt_operand_def(i1)
    scale_d_zero = irdl.opt_prop_def(UnitAttr)
    result = irdl.result_def(T)
    irdl_options = (irdl.AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$lhs `,` $rhs `into` $acc (`scale_d_zero` $scale_d_zero^)? (`use_acc` $use_acc^)? attr-dict"
        " `:` type($lhs) `,` type($rhs) `,` type($acc)"
    )

    def verify_(self) -> None:
        super().verify_()
        if self.scale_d_zero is not None and self.use_acc is not None:
            raise VerifyException("expected `use_acc` or `scale_d_zero`, but got both")
        verify_contraction(self.lhs.type, self.rhs.type, without_flight(self.acc.type), "wgmma")


@irdl.irdl_op_definition
class DotWaitOp(_InFlight):
    """Waits until at most the `pending` newest groups of dots are outstanding.

    ```
    #acc = #tile.layout<reg = [[0, 1], [8, 0], [0, 8]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]],
                        warp = [[16, 0], [32, 0]]>
    %q = tile.dot_wait %p pending 1
      : !tile.async_accumulators<tensor<64x16xf32, #acc>> -> !tile.async_accumulators<tensor<64x16xf32, #acc>>
    %sums = tile.dot_wait %q pending 0
      : !tile.async_accumulators<tensor<64x16xf32, #acc>> -> tensor<64x16xf32, #acc>
    ```

    Completed groups no longer read their operands. The result is a tile if the group of `acc` is complete: with
    `pending` = 0, or if `pending` groups started after it in the same block. Otherwise it stays in flight.

    Attributes:
        pending: number of newest groups that may stay outstanding.

    Constraints: `pending` is 0 to 7; the result is a tile only if the group is complete.
    """

    name = "tile.dot_wait"
    acc = irdl.operand_def(irdl.base(AsyncAccumulatorsType))
    pending = irdl.prop_def(IntAttr)
    result = irdl.result_def(irdl.base(AsyncAccumulatorsType) | irdl.base(TensorType))
    assembly_format = "$acc `pending` custom<Int>($pending) attr-dict `:` type($acc) `->` type($result)"

    def __init__(self, acc: SSAValue, pending: int, *, done: bool = False):
        """`done`: the group of `acc` is complete, so the result is a tile."""
        super().__init__(acc, pending, without_flight(acc.type) if done or not pending else acc.type)

    def verify_(self) -> None:
        super().verify_()
        pending = self.pending.data
        if not 0 <= pending < 8:
            raise VerifyException(f"expected 0 to 7 pending groups, but got {pending}")
        if pending and self.result.type == self.acc.type:
            return
        if self.result.type != without_flight(self.acc.type) or pending > self._newer_groups():
            raise VerifyException(
                "expected a tile if the group of the accumulators is complete, otherwise accumulators in flight, but"
                f" got {self.result.type} with pending {pending}"
            )

    def _newer_groups(self) -> int:
        """Returns the number of groups that start between the last dot into `acc` and this wait."""
        groups, op = 0, self.prev_op
        while op is not None and op is not self.acc.owner:
            groups += isinstance(op, DotAsyncOp) and not isinstance(op.result.get_user_of_unique_use(), DotAsyncOp)
            op = op.prev_op
        return 0 if op is None else groups
