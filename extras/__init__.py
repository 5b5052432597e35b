"""Optional packages. Each is a plug-in: `pyproject.toml` has its entry points, as for a third-party package.

| package | adds | needed by |
|---|---|---|
| `artifact` | saved programs: `save`, `load`, `run ARTIFACT` | `llm` |
| `llm` | language models: `compile MODEL`, `tune MODEL`, `generate` | |
| `ray_workers` | measuring on a Ray cluster: `tune --ray` | |
| `standalone` | self-checking `.cu` and `.cpp` files: `compile --emit standalone` | |

Code outside of this folder does not import from it. To remove a package, remove its folder and its entry points in
`pyproject.toml`.
"""
