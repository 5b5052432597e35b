"""Hand-written CUDA kernels and their launch plans, for tests of the emulator."""

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
    """Returns a plan that launches one kernel on inputs `x0`, `x1`, … and outputs `y0`, `y1`, ….

    Args:
        inputs: shapes of the inputs.
        outputs: shapes of the outputs.
        grid: number of blocks.
        threads: threads of a block.
        shared: bytes of shared memory of a block.
        name: name of the kernel.
        dtype: element type of all buffers.
    """
    buffers = [Buffer(f"x{i}", s, dtype, 0, 0) for i, s in enumerate(inputs)]
    buffers += [Buffer(f"y{i}", s, dtype, 0, 0, written=True) for i, s in enumerate(outputs)]
    launch = Launch(name, (grid,), (threads,), shared, tuple(range(len(buffers))))
    return LaunchPlan(tuple(buffers), (launch,), len(buffers), len(inputs))


def kernel(body: str, parameters: str = "const float* __restrict__ x, float* __restrict__ y") -> str:
    """Returns the CUDA of a kernel `k0` with a float array `s` in shared memory. `body` starts at line 3."""
    head = f'extern "C" __global__ void __launch_bounds__(128) k0({parameters}) {{\n'
    return f"{head}  extern __shared__ __align__(16) float s[]; const int t = threadIdx.x;\n{body}\n}}\n"
