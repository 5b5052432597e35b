# judged: scf.for: the first level is not loop
SPANS = {
    "torch.sigmoid": ("torch", "torch"),
    "tensor.index_map": ("tensor", "tensor"),
    "loop.load": ("loop", "loop"),
    "tile.dot": ("tile", "tile"),
    "kernel.barrier": ("kernel", "kernel"),
    "math.exp": ("tensor", "kernel"),
    "scf.for": ("loop", "kernel"),  # a loop in the kernel
}
