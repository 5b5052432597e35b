"""`payload.assert`: what has to be true of an integer, wherever it is computed."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import IndexType, IntegerType, StringAttr, i1
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    VarConstraint,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.irdl.declarative_assembly_format import (
    CustomDirective,
    ParsingState,
    PrintingState,
    TypeDirective,
    irdl_custom_directive,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from ..support.builders import BuiltOp
from .types import element_type, with_element


@irdl_custom_directive
class ConditionOf(CustomDirective):
    """The type of a value; that of the condition follows from it."""

    value: TypeDirective
    condition: TypeDirective

    def parse(self, parser: Parser, state: ParsingState) -> None:
        t = parser.parse_type()
        self.value.set(state, (t,))
        self.condition.set(state, (with_element(t, i1),))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        printer.print_list(self.value.get(op), printer.print_attribute)


@irdl_op_definition
class AssertOp(BuiltOp):
    """The integer itself, elementwise, where the condition holds; where it does not, the program stops and says the
    message and the integer.

    The integer goes through, so that whatever needs it needs the assertion: it is cloned, moved and hoisted as any
    other payload, and what nobody needs is not asserted. The condition has the container of the integer. It is also
    computed where there is no element, in lanes behind the end of a tensor and in front of a border: whoever makes such
    lanes lets it hold there.

    ```
    %j = payload.assert %i where %legal, "aten.embedding: an index is outside [0, 100)" at "model.py:7" : tensor<5xi64>
    ```
    The place is part of what is computed: kernels that differ in it alone say something else.
    """

    name = "payload.assert"
    T: ClassVar = VarConstraint("T", AnyAttr())
    custom_directives = (ConditionOf,)
    value = operand_def(T)
    condition = operand_def()
    message = prop_def(StringAttr)
    place = opt_prop_def(StringAttr)
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = (
        "$value `where` $condition `,` $message (`at` $place^)? attr-dict"
        " `:` custom<ConditionOf>(type($value), type($condition))"
    )

    @property
    def text(self) -> str:
        """The message behind its place."""
        return self.message.data if self.place is None else f"{self.place.data}: {self.message.data}"

    def verify_(self) -> None:
        if not isinstance(element_type(self.value.type), IntegerType | IndexType):
            raise VerifyException(f"asserts something of {self.value.type}: only integers")
        if self.condition.type != with_element(self.value.type, i1):
            raise VerifyException(f"the condition on {self.value.type} is {self.condition.type}")
