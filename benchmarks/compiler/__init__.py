"""Compile times, and coverage of PyTorch's operators and of torch.compile."""
