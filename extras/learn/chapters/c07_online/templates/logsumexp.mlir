// log(sum of exp(x[i, k]) over k) of each row. The stages are complete; the second region is a hole.
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
      // ... %old_s is a sum of exp(x - %old_m); yield the same sum of exp(x - %new_m)
      loop.yield %old_m, %old_s : f32, f32
    }
    %log = math.log %s : f32
    %result = arith.addf %m, %log : f32
    loop.yield %result : f32
  }
  func.return %y : tensor<8xf32>
}
