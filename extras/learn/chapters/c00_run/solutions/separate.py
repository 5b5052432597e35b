ROWS, COLUMNS = 32, 2048

LARGE, ROW, WEIGHT = 4 * ROWS * COLUMNS, 4 * ROWS, 4 * COLUMNS

BYTES = (
    (LARGE + LARGE)  # pow
    + (LARGE + ROW)  # mean
    + (ROW + ROW)  # add
    + (ROW + ROW)  # rsqrt
    + (LARGE + ROW + LARGE)  # mul by r
    + (LARGE + WEIGHT + LARGE)  # mul by the weight
)
RATIO = BYTES / (LARGE + WEIGHT + LARGE)
