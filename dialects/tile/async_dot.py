"""Asynchronous contractions in the tile dialect, as warpgroups compute them.

Accumulators in flight are values of a type of their own, which nothing but these ops and loops that carry them takes.
So a sum cannot be read before it was waited for, and where the waits stand cannot change what is computed.
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
    """What keeps its place among the asynchronous contractions of a block."""

    def verify_(self) -> None:
        for result in self.results:
            users = [use.operation for use in result.uses]
            if not isinstance(result.type, AsyncAccumulatorsType):
                continue
            if len(users) > 1:
                raise VerifyException("accumulators in flight are used once: the hardware has no second copy of them")
            if any(not isinstance(user, DotAsyncOp | DotWaitOp | scf.ForOp | scf.YieldOp) for user in users):
                raise VerifyException(f"{users[0].name} uses accumulators in flight, before a tile.dot_wait")


@irdl.irdl_op_definition
class AccumulatorsOp(_InFlight):
    """A tile becomes accumulators. Without one they hold no values, and the first contraction has to overwrite them.

    ```
    %p = tile.accumulators %sums : tensor<64x64xf32, #acc> -> !tile.async_accumulators<tensor<64x64xf32, #acc>>
    %q = tile.accumulators -> !tile.async_accumulators<tensor<64x64xf32, #acc>>
    ```
    """

    name = "tile.accumulators"
    start = irdl.opt_operand_def(irdl.base(TensorType))
    result = irdl.result_def(irdl.base(AsyncAccumulatorsType))
    assembly_format = "($start^ `:` type($start))? attr-dict `->` type($result)"

    def verify_(self) -> None:
        super().verify_()
        if self.start is not None and self.start.type != without_flight(self.result.type):
            raise VerifyException(f"{self.start.type} does not start {self.result.type}")
        user = self.result.get_user_of_unique_use()
        if self.start is None and isinstance(user, DotAsyncOp) and user.scale_d_zero is None:
            raise VerifyException("accumulators without values have to be overwritten (scale_d_zero)")


@irdl.irdl_op_definition
class DotAsyncOp(_InFlight):
    """Start a contraction by warpgroups, into accumulators that are in flight from then on.

    Contractions of a block that go into the same accumulators, one behind the other, are one group, as
    `tile.dot_wait` counts them. `scale_d_zero`: the old values are overwritten. `use_acc`: they count where the
    condition holds.

    ```
    %q = tile.dot_async %a, %b into %p use_acc %more
      : tensor<64x16xbf16, #a>, tensor<16x64xbf16, #b>, !tile.async_accumulators<tensor<64x64xf32, #acc>>
    ```
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
            raise VerifyException("a contraction with scale-d = 0 has no `use_acc`")
        verify_contraction(self.lhs.type, self.rhs.type, without_flight(self.acc.type), "wgmma")


@irdl.irdl_op_definition
class DotWaitOp(_InFlight):
    """Wait until all groups of contractions but the `pending` newest are done; then they no longer read their operands.

    The accumulators are a tile again if their group is done: with 0, or with `pending` groups that start after theirs
    in the same block. Otherwise they stay in flight.

    ```
    %q = tile.dot_wait %p pending 1
      : !tile.async_accumulators<tensor<64x64xf32, #acc>> -> !tile.async_accumulators<tensor<64x64xf32, #acc>>
    %sums = tile.dot_wait %q pending 0
      : !tile.async_accumulators<tensor<64x64xf32, #acc>> -> tensor<64x64xf32, #acc>
    ```
    """

    name = "tile.dot_wait"
    acc = irdl.operand_def(irdl.base(AsyncAccumulatorsType))
    pending = irdl.prop_def(IntAttr)
    result = irdl.result_def(irdl.base(AsyncAccumulatorsType) | irdl.base(TensorType))
    assembly_format = "$acc `pending` custom<Int>($pending) attr-dict `:` type($acc) `->` type($result)"

    def __init__(self, acc: SSAValue, pending: int, *, done: bool = False):
        """`done`: the group of `acc` is not among the pending ones."""
        super().__init__(acc, pending, without_flight(acc.type) if done or not pending else acc.type)

    def verify_(self) -> None:
        super().verify_()
        pending = self.pending.data
        if not 0 <= pending < 8:
            raise VerifyException(f"waits until 0 to 7 groups are left, not {pending}")
        if pending and self.result.type == self.acc.type:
            return
        if self.result.type != without_flight(self.acc.type) or pending > self._newer_groups():
            raise VerifyException("accumulators become a tile of their type once they are not pending, and only then")

    def _newer_groups(self) -> int:
        """Returns the number of groups that start between the last contraction into `acc` and this wait."""
        groups, op = 0, self.prev_op
        while op is not None and op is not self.acc.owner:
            groups += isinstance(op, DotAsyncOp) and not isinstance(op.result.get_user_of_unique_use(), DotAsyncOp)
            op = op.prev_op
        return 0 if op is None else groups
