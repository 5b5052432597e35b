"""Seconds of compilation, and coverage of PyTorch."""
