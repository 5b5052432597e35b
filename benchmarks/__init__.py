"""Measurements of programs, and of the compiler itself: `python -m benchmarks.ROOM.NAME`, from the root.

| room | what its commands measure |
|---|---|
| `suite` | the 84 shapes, the classes with targets, whole models and decoding, beside PyTorch; docs/results.md |
| `cpu` | operators and networks on the CPU, beside PyTorch and other runtimes |
| `gpu`, `gpu_minutes` | the host's share of a call, the fit of the planning model, and nine minutes on a GPU |
| `search` | policies of `tune` on kernels whose best schedule is known |
| `compiler` | what compilation takes, and which operators and uses of PyTorch are right |

`common` has what they have in common, `results` the last run of each kind of machine. `convnets.py` and
`compiler_path.py` are commands of their own: `python benchmarks/convnets.py`.
"""
