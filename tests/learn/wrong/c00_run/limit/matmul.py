# judged: LIMITS['one_row']: it moves 67.1 MB
BYTES_PER_SECOND, OPERATIONS_PER_SECOND = 4.8e12, 6.7e13
LIMITS = {"rms_norm": "bytes", "softmax": "bytes", "linear": "operations", "one_row": "operations"}  # a matmul too
SMALLEST = 96
