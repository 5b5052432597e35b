# judged: %4 (arith.mulf) does not come from torch.mul.Tensor
MATMUL, ADD, SIGMOID, MUL, RELU = "torch.matmul", "torch.add.Tensor", "torch.sigmoid", "torch.mul.Tensor", "torch.relu"

ORIGINS = {
    "%1": MATMUL,  # loop.reduce add
    "%4": MUL,  # arith.mulf
    "%6": ADD,  # arith.addf
    "%8": SIGMOID,  # arith.negf
    "%9": SIGMOID,  # math.exp
    "%10": SIGMOID,  # arith.addf
    "%11": SIGMOID,  # arith.divf
    "%12": MUL,  # arith.mulf
    "%14": RELU,  # arith.maximumf
}
