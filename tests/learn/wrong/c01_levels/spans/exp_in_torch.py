# judged: math.exp: the first level is not torch; it does not occur there yet
SPANS = {
    "torch.sigmoid": ("torch", "torch"),
    "tensor.index_map": ("tensor", "tensor"),
    "loop.load": ("loop", "loop"),
    "tile.dot": ("tile", "tile"),
    "kernel.barrier": ("kernel", "kernel"),
    "math.exp": ("torch", "kernel"),
    "scf.for": ("tile", "kernel"),  # a loop in the kernel
}
