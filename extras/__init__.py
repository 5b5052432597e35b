"""Optional packages, which plug in as a stranger's package does: by entry points, those of `pyproject.toml`.

| package | what it adds | without it |
|---|---|---|
| `artifact` | saved programs: `save`, `load`, `run ARTIFACT` | also no `llm` |
| `llm` | language models: `compile MODEL`, `tune MODEL`, `generate` | |
| `ray_workers` | machines of a Ray cluster: `tune --ray` | |
| `standalone` | one `.cu` or `.cpp` that checks itself: `compile --emit standalone` | |

Nothing outside of this folder imports from it. A package is removed with its folder and its lines in `pyproject.toml`.
"""
