"""Benchmarks of compiled programs and of the compiler: `python -m benchmarks.FOLDER.NAME`, from the root.

| folder | its commands measure |
|---|---|
| `suite` | four suites of programs, compared with PyTorch: the 84 shapes, the classes with targets, models, decoding |
| `cpu` | operators and networks on the CPU, compared with PyTorch and other runtimes |
| `gpu`, `gpu_minutes` | the host time of a call, the error of the planning model, and nine minutes on a GPU |
| `search` | the search policies of `deplodock tune` on kernels whose best schedule is known |
| `compiler` | compile times, and which operators and uses of PyTorch give right results |

`common` has the programs and the file formats that these folders share. `results` has the results of the last run on
each kind of machine, from which docs/results.md is written. `convnets.py` and `compiler_path.py` are run as files:
`python benchmarks/convnets.py`.

Words: a *case* is one program with its inputs. An *arm* is one of the compared versions of a case: eager PyTorch,
torch.compile, or deplodock. A *row* is the JSON object with the results of a case. A *journal* is a file with the rows
of a run, from which an interrupted run continues.
"""
