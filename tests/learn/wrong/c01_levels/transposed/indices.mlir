// judged: coordinate 0 is 16, outside 0..15, at %j = 0, %k = 16
func.func @main(%x: tensor<16x64xf32>, %w: tensor<16x64xf32>, %b: tensor<16xf32>) -> tensor<16x16xf32> {
  %0 = loop.nest (%i, %j) in [16, 16] -> tensor<16x16xf32> {
    %1 = loop.reduce add (%k) in [64] -> f32 {
      %2 = loop.load %x[%i, %k] : tensor<16x64xf32>
      %3 = loop.load %w[%k, %j] : tensor<16x64xf32>
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
