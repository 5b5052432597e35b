# A machine that moves 4.8e12 bytes per second from and to memory, and computes 6.7e13 f32 operations per second.

BYTES_PER_SECOND = 4.8e12
OPERATIONS_PER_SECOND = 6.7e13

# What limits each program, "bytes" or "operations"? Compare the times that both need.

LIMITS = {
    "rms_norm": ...,  # nn.RMSNorm(8192)(torch.randn(4096, 8192))
    "softmax": ...,  # torch.softmax(torch.randn(4096, 8192), -1)
    "linear": ...,  # torch.matmul(torch.randn(4096, 4096), torch.randn(4096, 4096))
    "one_row": ...,  # torch.matmul(torch.randn(1, 4096), torch.randn(4096, 4096))
}

# The smallest n, a multiple of 16, for which operations limit
# torch.matmul(torch.randn(n, n), torch.randn(n, n)) on this machine:

SMALLEST = ...
