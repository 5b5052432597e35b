"""A fold: a function applied again and again, to what it gave before and to the next slice of some tensors."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntegerAttr, ModuleOp, SymbolRefAttr, TensorType, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import AttrSizedOperandSegments, base, irdl_op_definition, prop_def, var_operand_def, var_result_def
from xdsl.traits import SymbolTable
from xdsl.utils.exceptions import VerifyException

from ..payload import element_type
from ..shapes.extents import extents_of, tensor_of
from ..support.assembly import NO_NUMBERS, NUMBERS, PureOp


@irdl_op_definition
class ScanOp(PureOp):
    """A recurrence over the leading dimension of some tensors: carries = @step(carries, slices, shared), `count` times.

    `@step` takes the carries, then slice `t` (element `t` of the leading dimension) of every tensor in `each`, then
    the tensors in `with`, which stay the same; it gives the next carries. Every carry has one result: its last value,
    or, if its number is in `history`, the values after each of the steps, stacked. It is an operation of the host, like
    a call: it may stand at the tensor, loop and tile level, and becomes a loop of launches.

    ```
    %h, %c = tensor.scan @step 50 carry(%h0, %c0 : tensor<4x8xf32>, tensor<4x8xf32>) each(%x : tensor<50x4x32xf32>)
      with(%w : tensor<32x8xf32>) history [0] -> tensor<50x4x8xf32>, tensor<4x8xf32>
    ```
    """

    name = "tensor.scan"
    step = prop_def(SymbolRefAttr)
    count = prop_def(IntegerAttr.constr(i64))
    history = prop_def(NUMBERS, default_value=NO_NUMBERS)
    carries = var_operand_def(base(TensorType))
    each = var_operand_def(base(TensorType))
    shared = var_operand_def(base(TensorType))
    res = var_result_def(base(TensorType))
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$step $count `carry` `(` $carries `:` type($carries) `)` (`each` `(` $each^ `:` type($each) `)`)?"
        " (`with` `(` $shared^ `:` type($shared) `)`)? (`history` $history^)? attr-dict `->` type($res)"
    )

    def __init__(
        self,
        step: str,
        count: int,
        carries: Sequence[SSAValue],
        each: Sequence[SSAValue],
        shared: Sequence[SSAValue],
        history: Sequence[int] = (),
    ):
        res, steps = _result_types(carries, count, history), IntegerAttr(count, i64)
        super().__init__(step=step, count=steps, carries=carries, each=each, shared=shared, history=history, res=res)

    @property
    def steps(self) -> int:
        """How often the function is applied."""
        return self.count.value.data

    @property
    def kept(self) -> tuple[int, ...]:
        """The carries of which the result is the history."""
        return tuple(int(i) for i in self.history.get_values())

    @property
    def step_types(self) -> list[Attribute]:
        """The types of the arguments that `@step` has to take."""
        slices = [tensor_of(element_type(v.type), extents_of(v.type)[1:]) for v in self.each]
        return [*(v.type for v in self.carries), *slices, *(v.type for v in self.shared)]

    def verify_(self) -> None:
        if self.steps < 1:
            raise VerifyException(f"a fold has at least one step, not {self.steps}")
        if not self.carries:
            raise VerifyException("a fold without carries computes nothing")
        for v in self.each:
            if not extents_of(v.type) or extents_of(v.type)[0] != self.steps:
                raise VerifyException(f"{v.type} has no slice for each of {self.steps} steps")
        kept = self.kept
        if list(kept) != sorted(set(kept)) or not all(0 <= i < len(self.carries) for i in kept):
            raise VerifyException(f"histories {list(kept)} are not distinct, ascending and below {len(self.carries)}")
        want = _result_types(self.carries, self.steps, kept)
        if len(self.res) != len(want):
            raise VerifyException(f"{len(self.res)} results of {len(want)} carries")
        for i, (result, type) in enumerate(zip(self.res, want, strict=True)):
            if result.type != type:
                raise VerifyException(f"result {i} is {type}, not {result.type}")
        self._verify_function()

    def _verify_function(self) -> None:
        root = self.get_toplevel_object()
        if not isinstance(root, ModuleOp):
            return  # still being built
        name = self.step.string_value()
        function = SymbolTable.lookup_symbol(root, name)
        if not isinstance(function, FuncOp):
            raise VerifyException(f"applies @{name}, which is no function of this module")
        takes, gives = list(function.function_type.inputs), list(function.function_type.outputs)
        if takes != self.step_types:
            raise VerifyException(f"@{name} does not take the carries, the slices and the shared tensors")
        if gives != [v.type for v in self.carries]:
            raise VerifyException(f"@{name} does not give the next carries")


def _result_types(carries: Sequence[SSAValue], steps: int, history: Sequence[int]) -> list[Attribute]:
    """The types of the carries, stacked for those in `history`."""
    stacked = ([steps] if i in history else [] for i in range(len(carries)))
    return [tensor_of(element_type(v.type), [*n, *extents_of(v.type)]) for v, n in zip(carries, stacked, strict=True)]
