ROWS, COLUMNS = 16, 512

BYTES_READ = 4 * (ROWS * COLUMNS + COLUMNS)  # x once, and the weight
BYTES_WRITTEN = 4 * ROWS * COLUMNS
OPERATIONS = 4 * ROWS * COLUMNS  # x * x, the sum, two multiplications
