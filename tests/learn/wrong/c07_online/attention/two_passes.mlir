// judged: 3 times
// Attention: y[i, j] is the mean of v[k, j] over k with the weights softmax(x[i, :])[k].
// The program is right. ... Change it so that it loads each element of x and of v once.
func.func @main(%x: tensor<8x64xf32>, %v: tensor<64x4xf32>) -> tensor<8x4xf32> {
  %y = loop.nest (%i, %j) in [8, 4] -> tensor<8x4xf32> {
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
    %mean = loop.reduce add (%k) in [64] -> f32 {
      %c = loop.load %x[%i, %k] : tensor<8x64xf32>
      %d = arith.subf %c, %m : f32
      %e = math.exp %d : f32
      %weight = arith.divf %e, %s : f32
      %value = loop.load %v[%k, %j] : tensor<64x4xf32>
      %term = arith.mulf %weight, %value : f32
      loop.yield %term : f32
    }
    loop.yield %mean : f32
  }
  func.return %y : tensor<8x4xf32>
}
