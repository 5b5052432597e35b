# The layer of this exercise, at the torch level:
#
#   %0 = torch.matmul(self = %x, other = %w)                  line 9 of layer.py
#   %1 = torch.add.Tensor(self = %0, other = %b, alpha = 1)   line 10
#   %2 = torch.sigmoid(self = %1)                             line 11
#   %3 = torch.mul.Tensor(self = %1, other = %2)              line 12
#   %4 = torch.relu(self = %3)                                line 12
#
# and at the loop level, without locations:
#
#   %0 = loop.nest (%i, %j) in [16, 16] -> tensor<16x16xf32> {
#     %1 = loop.reduce add (%k) in [64] -> f32 {
#       %2 = loop.load %x[%i, %k] : tensor<16x64xf32>
#       %3 = loop.load %w[%k, %j] : tensor<64x16xf32>
#       %4 = arith.mulf %2, %3 : f32
#       loop.yield %4 : f32
#     }
#     %5 = loop.load %b[%j] : tensor<16xf32>
#     %6 = arith.addf %1, %5 : f32
#     %7 = payload.constant 1.000000e+00 : f32
#     %8 = arith.negf %6 : f32
#     %9 = math.exp %8 : f32
#     %10 = arith.addf %7, %9 : f32
#     %11 = arith.divf %7, %10 : f32
#     %12 = arith.mulf %6, %11 : f32
#     %13 = payload.constant 0.000000e+00 : f32
#     %14 = arith.maximumf %12, %13 : f32
#     loop.yield %14 : f32
#   }
#
# Which torch operation does each value of the loop level come from?

MATMUL, ADD, SIGMOID, MUL, RELU = "torch.matmul", "torch.add.Tensor", "torch.sigmoid", "torch.mul.Tensor", "torch.relu"

ORIGINS = {
    "%1": ...,  # loop.reduce add
    "%4": ...,  # arith.mulf
    "%6": ...,  # arith.addf
    "%8": ...,  # arith.negf
    "%9": ...,  # math.exp
    "%10": ...,  # arith.addf
    "%11": ...,  # arith.divf
    "%12": ...,  # arith.mulf
    "%14": ...,  # arith.maximumf
}
