"""The suites compared with PyTorch, and the page of their results."""
