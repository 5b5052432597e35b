// judged: from %old_m, %new_m and %new_s; it needs %old_m, %old_s and %new_m
func.func @main(%x: tensor<8x64xf32>) -> tensor<8xf32> {
  %y = loop.nest (%i) in [8] -> tensor<8xf32> {
    %m, %s = loop.staged_reduce -> f32, f32 stages {
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
      loop.yield %m0, %s0 : f32, f32
    } rescale (%old_m: f32, %old_s: f32, %new_m: f32, %new_s: f32) {
      %d = arith.subf %old_m, %new_m : f32
      %factor = math.exp %d : f32
      %rescaled = arith.mulf %new_s, %factor : f32
      loop.yield %old_m, %rescaled : f32, f32
    }
    %log = math.log %s : f32
    %result = arith.addf %m, %log : f32
    loop.yield %result : f32
  }
  func.return %y : tensor<8xf32>
}
