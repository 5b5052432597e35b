# judged: this is the number of kernels
ROWS, COLUMNS = 32, 2048
BYTES = 4 * (7 * ROWS * COLUMNS + 6 * ROWS + COLUMNS)
RATIO = 6
