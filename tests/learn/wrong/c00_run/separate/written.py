# judged: these are the bytes written
ROWS, COLUMNS = 32, 2048
BYTES = 4 * (3 * ROWS * COLUMNS + 3 * ROWS)
RATIO = 1.5
