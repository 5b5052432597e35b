# A tile of 16 x 32 elements, held by two warps of 32 lanes with 8 registers each:
REG = [[0, 1], [0, 2], [4, 1]]
LANE = [[0, 4], [0, 8], [0, 16], [1, 0], [2, 0]]
WARP = [[8, 0]]

# (register, lane, warp) -> the element [row, column] that the register holds.
elements = {
    (0, 0, 0): [0, 0],
    (3, 1, 0): ...,
    (2, 24, 1): ...,
    (5, 0, 0): ...,
}

# (row, column) of an element -> (register, lane, warp) that hold it.
holders = {
    (0, 20): ...,
    (12, 1): ...,
}
