"""Hand-written CUDA and its plan, for the emulator."""

from __future__ import annotations

from deplodock.backend.host.launch_plan import Buffer, Launch, LaunchPlan


def one_launch(
    inputs: list[tuple[int, ...]],
    outputs: list[tuple[int, ...]],
    grid: int = 1,
    threads: int = 128,
    shared: int = 0,
    name: str = "k0",
    dtype: str = "f32",
) -> LaunchPlan:
    """A plan with one kernel on inputs `x0 …` and outputs `y0 …`."""
    buffers = [Buffer(f"x{i}", s, dtype, 0, 0) for i, s in enumerate(inputs)]
    buffers += [Buffer(f"y{i}", s, dtype, 0, 0, written=True) for i, s in enumerate(outputs)]
    launch = Launch(name, (grid,), (threads,), shared, tuple(range(len(buffers))))
    return LaunchPlan(tuple(buffers), (launch,), len(buffers), len(inputs))


def kernel(body: str, parameters: str = "const float* __restrict__ x, float* __restrict__ y") -> str:
    """A kernel `k0` with a float array `s` in shared memory; the body starts at line 3."""
    head = f'extern "C" __global__ void __launch_bounds__(128) k0({parameters}) {{\n'
    return f"{head}  extern __shared__ __align__(16) float s[]; const int t = threadIdx.x;\n{body}\n}}\n"
