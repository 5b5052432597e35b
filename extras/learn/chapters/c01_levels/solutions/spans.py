SPANS = {
    "torch.sigmoid": ("torch", "torch"),
    "tensor.index_map": ("tensor", "tensor"),
    "loop.load": ("loop", "loop"),
    "tile.dot": ("tile", "tile"),
    "kernel.barrier": ("kernel", "kernel"),
    "math.exp": ("tensor", "kernel"),
    "scf.for": ("tile", "kernel"),  # a loop with a counter
}
