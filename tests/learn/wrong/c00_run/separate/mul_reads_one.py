# judged: this is 6 times the size of x
ROWS, COLUMNS = 32, 2048
LARGE = 4 * ROWS * COLUMNS
BYTES = 2 * LARGE + LARGE + 2 * LARGE + LARGE  # the last mul only writes
RATIO = BYTES / (2 * LARGE)
