// RUN: dl-opt %s -p loop-unfold-operands --verify-diagnostics

func.func @main(%x: tensor<9x6xf32>, %at: tensor<4xi32>, %w: tensor<6x5xf32>) -> tensor<4x5xf32> {
  %y = loop.nest (%i, %o) in [4, 5] -> tensor<4x5xf32> {
    %zero = payload.constant 0.0 : f32
    %s = loop.reduce add (%k) in [6] -> f32 {
      %n = loop.load %at[%i] : tensor<4xi32>
      %g = payload.cast %n : i32 -> index
      // expected-error@below {{expected an operand at coordinates of indices alone, but it is gathered}}
      %a = loop.load %x[symbol(%g), %k] where 0 <= symbol(%g) < 9 else %zero {unfold} : tensor<9x6xf32>
      %v = loop.load %w[%k, %o] : tensor<6x5xf32>
      %p = arith.mulf %a, %v : f32
      loop.yield %p : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<4x5xf32>
}
