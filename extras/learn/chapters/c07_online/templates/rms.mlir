// Root mean square of each row: y[i] = sqrt((x[i, 0]^2 + ... + x[i, 63]^2) / 64), with one loop.reduce.
func.func @main(%x: tensor<8x64xf32>) -> tensor<8xf32> {
  %y = loop.nest (%i) in [8] -> tensor<8xf32> {
    %count = payload.constant 64.0 : f32
    // ... a loop.reduce, then a division (arith.divf) and a root (math.sqrt)
    loop.yield %count : f32
  }
  func.return %y : tensor<8xf32>
}
