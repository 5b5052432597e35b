"""The suites beside PyTorch, and the page of their results."""
