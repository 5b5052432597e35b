// judged: NaN in row 1 only in chunks of 1
func.func @main(%x: tensor<8x64xf32>) -> tensor<8x64xf32> {
  %y = loop.nest (%i, %j) in [8, 64] -> tensor<8x64xf32> {
    %zero = payload.constant 0.0 : f32
    %minus_inf = payload.constant 0xff800000 : f32
    %m, %s = loop.staged_reduce -> f32, f32 stages {
      %m0 = loop.reduce max (%k) in [64] -> f32 {
        %a = loop.load %x[%i, %k] : tensor<8x64xf32>
        loop.yield %a : f32
      }
      %empty = payload.cmp eq %m0, %minus_inf : f32
      %reference = payload.select %empty, %zero, %m0 : f32
      %s0 = loop.reduce add (%k) in [64] -> f32 {
        %b = loop.load %x[%i, %k] : tensor<8x64xf32>
        %d = arith.subf %b, %reference : f32
        %e = math.exp %d : f32
        loop.yield %e : f32
      }
      loop.yield %m0, %s0 : f32, f32
    } rescale (%old_m: f32, %old_s: f32, %new_m: f32, %new_s: f32) {
      %empty = payload.cmp eq %old_m, %minus_inf : f32
      %d = arith.subf %old_m, %new_m : f32
      %e = math.exp %d : f32
      %factor = payload.select %empty, %zero, %e : f32
      %rescaled = arith.mulf %old_s, %e : f32
      loop.yield %old_m, %rescaled : f32, f32
    }
    %c = loop.load %x[%i, %j] : tensor<8x64xf32>
    %shifted = arith.subf %c, %m : f32
    %exp = math.exp %shifted : f32
    %result = arith.divf %exp, %s : f32
    loop.yield %result : f32
  }
  func.return %y : tensor<8x64xf32>
}
