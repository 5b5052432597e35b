// relu(x @ w + b) at the loop level. Change it so that it computes relu(x @ w.T + b).
//   w has now 16 rows and 64 columns; x, b and the result stay as they are.
//   Do not transpose in an operation of its own: the answer has as many operations as this program.
func.func @main(%x: tensor<16x64xf32>, %w: tensor<64x16xf32>, %b: tensor<16xf32>) -> tensor<16x16xf32> {
  %0 = loop.nest (%i, %j) in [16, 16] -> tensor<16x16xf32> {
    %1 = loop.reduce add (%k) in [64] -> f32 {
      %2 = loop.load %x[%i, %k] : tensor<16x64xf32>
      %3 = loop.load %w[%k, %j] : tensor<64x16xf32>
      %4 = arith.mulf %2, %3 : f32
      loop.yield %4 : f32
    }
    %5 = loop.load %b[%j] : tensor<16xf32>
    %6 = arith.addf %1, %5 : f32
    %7 = payload.constant 0.0 : f32
    %8 = arith.maximumf %6, %7 : f32
    loop.yield %8 : f32
  }
  func.return %0 : tensor<16x16xf32>
}
