"""An operator of `torch.library` and an op of a dialect, of somebody else's: what each of them computes."""

from xdsl.interpreter import Interpreter, InterpreterFunctions, impl, register_impls
from xdsl.ir import Dialect, SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, result_def

from deplodock.dialects.tensor.builder import Builder
from deplodock.passes.convert.torch_to_tensor.registry import decomposes


@decomposes("strength.twice")
def twice(b: Builder, self: SSAValue) -> SSAValue:
    """The operator at the tensor level: every pass below knows it then."""
    return b.scaled(b.working(self), 2)


@irdl_op_definition
class TwiceOp(IRDLOperation):
    """Two times a tensor."""

    name = "strength.twice"
    source, result = operand_def(), result_def()
    assembly_format = "$source attr-dict `:` type($source) `->` type($result)"


Strength = Dialect("strength", [TwiceOp])


@register_impls
class StrengthFunctions(InterpreterFunctions):
    """What the op computes, in a scalar domain: floats, float64, or numbers modulo two primes."""

    def __init__(self, domain, sizes) -> None:
        self.domain = domain

    @impl(TwiceOp)
    def twice(self, interpreter: Interpreter, op: TwiceOp, args: tuple) -> tuple:
        return (self.domain.binary("arith.addf", args[0], args[0], op.result.type.element_type),)
