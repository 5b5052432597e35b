"""Is found as CuPy; the stub that `torch` brings takes its place."""

import torch  # noqa: F401
