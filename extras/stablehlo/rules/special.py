"""Rules of special functions that the tensor dialect lacks: their decompositions by StableHLO's own pass.

The pass `chlo-legalize-to-stablehlo` decomposes a function of scalars, whose operations are then applied to tensors. So
XLA computes the same approximations.
"""

from __future__ import annotations

from functools import cache

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from jaxlib.mlir.passmanager import PassManager
from xdsl.ir import SSAValue

from ..files import parsed_module
from ..registry import Builder, HloOperation, rule

FUNCTIONS = "bessel_i1e digamma erf_inv erfc is_inf is_neg_inf is_pos_inf lgamma next_after polygamma zeta"
"""Elementwise functions of CHLO that are decomposed."""


@rule(*(f"chlo.{name}" for name in FUNCTIONS.split()))
def special(b: Builder, op: HloOperation, *operands: SSAValue) -> SSAValue:
    elements = [str(ir.RankedTensorType(v.type).element_type) for v in (*op.ir.operands, *op.ir.results)]
    block = decomposition(op.name, tuple(elements)).body.operations[0].regions[0].blocks[0]
    return op.scope.elementwise(b, block, operands)[0]


@cache
def decomposition(name: str, elements: tuple[str, ...]) -> ir.Module:
    """Returns a module with one function of scalars, which has only operations of StableHLO.

    Args:
        name: name of an operation.
        elements: element types of its operands and of its result.
    """
    types = [f"tensor<{e}>" for e in elements]
    arguments = ", ".join(f"%{n}: {t}" for n, t in enumerate(types[:-1]))
    names = ", ".join(f"%{n}" for n in range(len(types) - 1))
    call = f'%r = "{name}"({names}) : ({", ".join(types[:-1])}) -> {types[-1]} loc(unknown)'
    module = parsed_module(f"func.func @main({arguments}) -> {types[-1]} {{\n{call}\nreturn %r : {types[-1]}\n}}")
    stablehlo.register_stablehlo_passes()
    with module.context:
        PassManager.parse("builtin.module(func.func(chlo-legalize-to-stablehlo))").run(module.operation)
    return module
