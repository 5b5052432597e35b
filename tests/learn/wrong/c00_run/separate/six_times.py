# judged: this is 6 times the bytes of the one kernel
ROWS, COLUMNS = 32, 2048

BYTES = 6 * 532480
RATIO = 6
