// judged: is a part of the pattern not connected to the operation that pdl.rewrite names?
pdl.pattern @maximum_twice : benefit(1) {
  %type = pdl.type
  %x = pdl.operand
  %c = pdl.operand
  %inner_op = pdl.operation "arith.maximumf" (%x, %c : !pdl.value, !pdl.value) -> (%type : !pdl.type)
  %inner = pdl.result 0 of %inner_op
  %outer_op = pdl.operation "arith.maximumf" (%x, %c : !pdl.value, !pdl.value) -> (%type : !pdl.type)
  pdl.rewrite %outer_op {
    pdl.replace %outer_op with (%inner : !pdl.value)
  }
}
