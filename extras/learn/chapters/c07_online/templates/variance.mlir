// Variance of each row: the mean of (x - mean of x)^2, by one pass over x. The program is right for all real numbers.
// ... Make it right for f32 numbers near 1000, too. It may still load each element once.
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
      %q0 = loop.reduce add (%k) in [64] -> f32 {
        %b = loop.load %x[%i, %k] : tensor<8x64xf32>
        %square = arith.mulf %b, %b : f32
        loop.yield %square : f32
      }
      loop.yield %n0, %s0, %q0 : f32, f32, f32
    } rescale (%old_n: f32, %old_s: f32, %old_q: f32, %new_n: f32, %new_s: f32, %new_q: f32) {
      loop.yield %old_n, %old_s, %old_q : f32, f32, f32
    }
    %mean = arith.divf %s, %n : f32
    %mean_of_squares = arith.divf %q, %n : f32
    %square_of_mean = arith.mulf %mean, %mean : f32
    %variance = arith.subf %mean_of_squares, %square_of_mean : f32
    loop.yield %variance : f32
  }
  func.return %y : tensor<8xf32>
}
