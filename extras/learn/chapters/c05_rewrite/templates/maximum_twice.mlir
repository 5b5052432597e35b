// Replace maximum(maximum(x, c), c) by maximum(x, c): the second relu of relu(relu(x)) does nothing.
pdl.pattern @maximum_twice : benefit(1) {
  %type = pdl.type
  %x = pdl.operand
  %c = pdl.operand
  %inner_op = pdl.operation "arith.maximumf" (%x, %c : !pdl.value, !pdl.value) -> (%type : !pdl.type)
  %inner = pdl.result 0 of %inner_op
  // ... describe the outer maximum here. The rewrite must replace the outer one, not this one.
  pdl.rewrite %inner_op {
    pdl.replace %inner_op with (%x : !pdl.value)
  }
}
