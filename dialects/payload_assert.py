"""`payload.assert`: what has to be true of an integer, wherever it is computed."""

from __future__ import annotations

from xdsl.dialects.builtin import IndexType, IntegerType, StringAttr, i1
from xdsl.ir import SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, opt_prop_def, prop_def, result_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from .payload_types import element_type, with_element


@irdl_op_definition
class AssertOp(IRDLOperation):
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
    value = operand_def()
    condition = operand_def()
    message = prop_def(StringAttr)
    place = opt_prop_def(StringAttr)
    result = result_def()
    traits = traits_def(Pure())

    def __init__(self, value: SSAValue, condition: SSAValue, message: str, place: str | None = None):
        super().__init__(
            operands=[value, condition],
            properties={"message": StringAttr(message), "place": None if place is None else StringAttr(place)},
            result_types=[value.type],
        )

    @property
    def text(self) -> str:
        """The message behind its place."""
        return self.message.data if self.place is None else f"{self.place.data}: {self.message.data}"

    def verify_(self) -> None:
        if not isinstance(element_type(self.value.type), IntegerType | IndexType):
            raise VerifyException(f"asserts something of {self.value.type}: only integers")
        if self.result.type != self.value.type:
            raise VerifyException(f"gives {self.result.type} for {self.value.type}")
        if self.condition.type != with_element(self.value.type, i1):
            raise VerifyException(f"the condition on {self.value.type} is {self.condition.type}")

    @classmethod
    def parse(cls, parser: Parser) -> AssertOp:
        value = parser.parse_unresolved_operand()
        parser.parse_keyword("where")
        condition = parser.parse_unresolved_operand()
        parser.parse_punctuation(",")
        message = parser.parse_str_literal()
        place = parser.parse_str_literal() if parser.parse_optional_keyword("at") else None
        attrs = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        t = parser.parse_type()
        operands = parser.resolve_operand(value, t), parser.resolve_operand(condition, with_element(t, i1))
        op = cls(*operands, message, place)
        op.attributes.update(attrs)
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.value)
        printer.print_string(" where ")
        printer.print_ssa_value(self.condition)
        printer.print_string(", ")
        printer.print_string_literal(self.message.data)
        if self.place is not None:
            printer.print_string(" at ")
            printer.print_string_literal(self.place.data)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)
