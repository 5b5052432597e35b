// judged: factor
func.func @main(%x: tensor<8x64xf32>, %v: tensor<64x4xf32>) -> tensor<8x4xf32> {
  %y = loop.nest (%i, %j) in [8, 4] -> tensor<8x4xf32> {
    %m, %s, %t = loop.staged_reduce -> f32, f32, f32 stages {
      %m0 = loop.reduce max (%k) in [64] -> f32 {
        %a = loop.load %x[%i, %k] : tensor<8x64xf32>
        loop.yield %a : f32
      }
      %s0 = loop.reduce add (%k) in [64] -> f32 {
        %b = loop.load %x[%i, %k] : tensor<8x64xf32>
        %d = arith.subf %b, %m0 : f32
        %e = math.exp %d : f32
        loop.yield %e : f32
      }
      %t0 = loop.reduce add (%k) in [64] -> f32 {
        %c = loop.load %x[%i, %k] : tensor<8x64xf32>
        %d = arith.subf %c, %m0 : f32
        %e = math.exp %d : f32
        %value = loop.load %v[%k, %j] : tensor<64x4xf32>
        %term = arith.mulf %e, %value : f32
        loop.yield %term : f32
      }
      loop.yield %m0, %s0, %t0 : f32, f32, f32
    } rescale (%old_m: f32, %old_s: f32, %old_t: f32, %new_m: f32, %new_s: f32, %new_t: f32) {
      %d = arith.subf %old_m, %new_m : f32
      %factor = math.exp %d : f32
      %rescaled_s = arith.mulf %old_s, %factor : f32
      %rescaled_t = arith.mulf %old_t, %factor : f32
      loop.yield %old_m, %rescaled_s, %rescaled_t : f32, f32, f32
    }
    loop.yield %t : f32
  }
  func.return %y : tensor<8x4xf32>
}
