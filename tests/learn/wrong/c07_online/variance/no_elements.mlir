// judged: a kernel begins with no elements: for %old_n = 0
func.func @main(%x: tensor<8x64xf32>) -> tensor<8xf32> {
  %y = loop.nest (%i) in [8] -> tensor<8xf32> {
    %n, %s, %q = loop.staged_reduce -> f32, f32, f32 stages {
      %n0 = loop.reduce add (%k) in [64] -> f32 {
        %one = payload.constant 1.0 : f32
        loop.yield %one : f32
      }
      %s0 = loop.reduce add (%k) in [64] -> f32 {
        %a = loop.load %x[%i, %k] : tensor<8x64xf32>
        loop.yield %a : f32
      }
      %mean = arith.divf %s0, %n0 : f32
      %q0 = loop.reduce add (%k) in [64] -> f32 {
        %b = loop.load %x[%i, %k] : tensor<8x64xf32>
        %d = arith.subf %b, %mean : f32
        %square = arith.mulf %d, %d : f32
        loop.yield %square : f32
      }
      loop.yield %n0, %s0, %q0 : f32, f32, f32
    } rescale (%old_n: f32, %old_s: f32, %old_q: f32, %new_n: f32, %new_s: f32, %new_q: f32) {
      %old_mean = arith.divf %old_s, %old_n : f32
      %new_mean = arith.divf %new_s, %new_n : f32
      %difference = arith.subf %old_mean, %new_mean : f32
      %zero = payload.constant 0.0 : f32
      %empty = payload.cmp eq %old_n, %zero : f32
      %move = arith.addf %difference, %zero : f32
      %square = arith.mulf %move, %move : f32
      %moved = arith.mulf %old_n, %square : f32
      %rescaled = arith.addf %old_q, %moved : f32
      loop.yield %old_n, %old_s, %rescaled : f32, f32, f32
    }
    %variance = arith.divf %q, %n : f32
    loop.yield %variance : f32
  }
  func.return %y : tensor<8xf32>
}
