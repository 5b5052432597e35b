// judged: relu(relu(x)): for x = -1 the program returns 0.0, but -1
pdl.pattern @maximum_twice : benefit(1) {
  %type = pdl.type
  %x = pdl.operand
  %c = pdl.operand
  %inner_op = pdl.operation "arith.maximumf" (%x, %c : !pdl.value, !pdl.value) -> (%type : !pdl.type)
  %inner = pdl.result 0 of %inner_op
  %outer_op = pdl.operation "arith.maximumf" (%inner, %c : !pdl.value, !pdl.value) -> (%type : !pdl.type)
  pdl.rewrite %outer_op {
    pdl.replace %outer_op with (%x : !pdl.value)
  }
}
