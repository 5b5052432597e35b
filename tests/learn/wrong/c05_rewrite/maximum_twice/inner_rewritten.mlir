// judged: %outer_op is described, but nothing uses it: should pdl.rewrite name it, and not %inner_op?
pdl.pattern @maximum_twice : benefit(1) {
  %type = pdl.type
  %x = pdl.operand
  %c = pdl.operand
  %inner_op = pdl.operation "arith.maximumf" (%x, %c : !pdl.value, !pdl.value) -> (%type : !pdl.type)
  %inner = pdl.result 0 of %inner_op
  %outer_op = pdl.operation "arith.maximumf" (%inner, %c : !pdl.value, !pdl.value) -> (%type : !pdl.type)
  pdl.rewrite %inner_op {
    pdl.replace %inner_op with (%x : !pdl.value)
  }
}
