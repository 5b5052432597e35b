"""deplodock: PyTorch in, readable CUDA out, through five xDSL dialects."""
