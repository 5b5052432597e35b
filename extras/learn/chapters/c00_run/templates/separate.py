# RMSNorm with one kernel for each operator. Every kernel reads its arguments from memory and writes its result.
#
#   p = pow(x, 2)              # ROWS x COLUMNS
#   m = mean(p, dim=1)         # ROWS x 1
#   e = add(m, 1.2e-07)        # ROWS x 1
#   r = rsqrt(e)               # ROWS x 1
#   y = mul(x, r)              # ROWS x COLUMNS
#   z = mul(y, weight)         # ROWS x COLUMNS; weight has COLUMNS elements
#
# How many bytes do the six kernels read and write, in total? How many times as many is that as in one kernel?
# Both numbers may be 1 % off.

ROWS, COLUMNS = 32, 2048

BYTES = ...
RATIO = ...
