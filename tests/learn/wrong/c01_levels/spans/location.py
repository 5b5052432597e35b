# judged: is a location, not an operation
SPANS = {
    "torch.sigmoid": ("torch", "kernel"),
    "tensor.index_map": ("tensor", "tensor"),
    "loop.load": ("loop", "loop"),
    "tile.dot": ("tile", "tile"),
    "kernel.barrier": ("kernel", "kernel"),
    "math.exp": ("tensor", "kernel"),
    "scf.for": ("tile", "kernel"),  # a loop in the kernel
}
