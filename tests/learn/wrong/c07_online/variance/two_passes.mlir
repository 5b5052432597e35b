// judged: loads each element of x twice; once is enough
func.func @main(%x: tensor<8x64xf32>) -> tensor<8xf32> {
  %y = loop.nest (%i) in [8] -> tensor<8xf32> {
    %n = payload.constant 64.0 : f32
    %s = loop.reduce add (%k) in [64] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<8x64xf32>
      loop.yield %a : f32
    }
    %mean = arith.divf %s, %n : f32
    %q = loop.reduce add (%k) in [64] -> f32 {
      %b = loop.load %x[%i, %k] : tensor<8x64xf32>
      %d = arith.subf %b, %mean : f32
      %square = arith.mulf %d, %d : f32
      loop.yield %square : f32
    }
    %variance = arith.divf %q, %n : f32
    loop.yield %variance : f32
  }
  func.return %y : tensor<8xf32>
}
