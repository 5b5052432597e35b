// Softmax of each row, in three passes over x: the maximum, the sum, the result. The program is right.
// ... Change it so that the maximum and the sum are computed in one pass, also for rows that begin with -inf.
func.func @main(%x: tensor<8x64xf32>) -> tensor<8x64xf32> {
  %y = loop.nest (%i, %j) in [8, 64] -> tensor<8x64xf32> {
    %m = loop.reduce max (%k) in [64] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<8x64xf32>
      loop.yield %a : f32
    }
    %s = loop.reduce add (%k) in [64] -> f32 {
      %b = loop.load %x[%i, %k] : tensor<8x64xf32>
      %d = arith.subf %b, %m : f32
      %e = math.exp %d : f32
      loop.yield %e : f32
    }
    %c = loop.load %x[%i, %j] : tensor<8x64xf32>
    %shifted = arith.subf %c, %m : f32
    %exp = math.exp %shifted : f32
    %result = arith.divf %exp, %s : f32
    loop.yield %result : f32
  }
  func.return %y : tensor<8x64xf32>
}
