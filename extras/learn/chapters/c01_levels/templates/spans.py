# The same layer, compiled for sm_90a. At which levels do these operations occur?
# For each give the first and the last level, such as ("tensor", "loop"); both are equal for one level.
#
# `deplodock compile layer.py --ir LEVEL --target sm_90a` prints a level.

LEVELS = ["torch", "tensor", "loop", "tile", "kernel"]

SPANS = {
    "torch.sigmoid": ...,
    "tensor.index_map": ...,
    "loop.load": ...,
    "tile.dot": ...,
    "kernel.barrier": ...,
    "math.exp": ...,
    "scf.for": ...,  # a loop with a counter
}
