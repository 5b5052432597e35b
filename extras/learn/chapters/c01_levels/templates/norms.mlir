// The lengths of the rows of %x at the loop level: sqrt((x * x).sum(-1)).
//   One nest, which loads each element in one place. `math.sqrt %v : f32` is the square root of a scalar.
func.func @main(%x: tensor<12x40xf32>) -> tensor<12xf32> {
  %0 = loop.nest (%i) in [12] -> tensor<12xf32> {
    // ... load, square, sum over the row, take the root
    %1 = payload.constant 0.0 : f32
    loop.yield %1 : f32
  }
  func.return %0 : tensor<12xf32>
}
