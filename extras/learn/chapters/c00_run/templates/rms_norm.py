# The work of nn.RMSNorm(COLUMNS)(torch.randn(ROWS, COLUMNS)).
#
# Choose ROWS from 2 to 64 and COLUMNS from 128 to 8192, but not the 32 x 2048 of the page.
# Then compute the three numbers. Each may be 1 % off. An f32 has 4 bytes.

ROWS, COLUMNS = ..., ...

BYTES_READ = ...  # from memory
BYTES_WRITTEN = ...  # to memory
OPERATIONS = ...  # floating-point operations, of the whole kernel
