# judged: SMALLEST = 176 is too large
BYTES_PER_SECOND, OPERATIONS_PER_SECOND = 4.8e12, 6.7e13
LIMITS = {"rms_norm": "bytes", "softmax": "bytes", "linear": "operations", "one_row": "bytes"}
SMALLEST = 176  # n^3 operations: the additions are not counted
