# judged: you count 3 for each element of x, the kernel computes 4
ROWS, COLUMNS = 16, 512
BYTES_READ = 4 * (ROWS * COLUMNS + COLUMNS)
BYTES_WRITTEN = 4 * ROWS * COLUMNS
OPERATIONS = 3 * ROWS * COLUMNS  # x * x and two multiplications
