# judged: the kernel also reads the weight
ROWS, COLUMNS = 16, 512
BYTES_READ = 4 * ROWS * COLUMNS
BYTES_WRITTEN = 4 * ROWS * COLUMNS
OPERATIONS = 4 * ROWS * COLUMNS
