"""What a fused kernel computes, what that costs, and which kernels to make of a program."""
