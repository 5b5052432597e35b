"""The CUDA runtime: on a GPU against the emulator, and anywhere against a stand-in for CuPy that keeps notes."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_standalone import KERNEL, MAIN, module

from deplodock.backend import runtime
from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.emulator import run_cuda_on_cpu
from deplodock.backend.launch_plan import make_plan
from deplodock.backend.runtime import CudaProgram, arch_of, time_on_device
from deplodock.errors import ExecutionError, ShapeError, TargetError


@pytest.fixture(scope="module")
def program():
    kernels = module(KERNEL + MAIN)
    return kernels, print_cuda(kernels)


@pytest.mark.gpu
def test_right_on_the_device(program):
    x = torch.randn(4, 256)
    (y,) = CudaProgram(*program).run([x])
    (want,), reports = run_cuda_on_cpu(program[1], make_plan(program[0]), [x.numpy()])
    assert not reports
    torch.testing.assert_close(y, torch.from_numpy(want), rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
def test_results_stay_where_the_inputs_are(program):
    cuda = CudaProgram(*program)
    x = torch.randn(4, 257, device="cuda")[:, 1:]
    (y,) = cuda.run([x])
    assert y.is_cuda
    (want,) = cuda.run([x.cpu()])
    assert not want.is_cuda
    torch.testing.assert_close(y.cpu(), want, rtol=0, atol=0)


@pytest.mark.gpu
def test_runs_on_the_current_stream(program):
    cuda, x = CudaProgram(*program), torch.randn(4, 256, device="cuda")
    (want,) = cuda.run([x])
    with torch.cuda.stream(torch.cuda.Stream()):
        (y,) = cuda.run([x])
        torch.cuda.current_stream().synchronize()
    torch.testing.assert_close(y, want, rtol=0, atol=0)


@pytest.mark.gpu
def test_times_are_positive(program):
    cuda, x = CudaProgram(*program), torch.randn(4, 256, device="cuda")
    times = time_on_device({"a": lambda: cuda.run([x]), "b": lambda: x + 1}, repetitions=5)
    assert set(times) == {"a", "b"}
    assert all(0 < t < 1 for t in times.values())


@pytest.mark.gpu
def test_every_helper_means_the_same_on_both_sides():
    from deplodock.backend.cuda.helpers import HELPERS

    for key, f in {"to_bf16": "to_bf16(x[i]).bits", "to_f16": "to_f16(x[i]).bits"}.items():
        values = np.concatenate(
            [np.arange(0, 2**32, 65521, dtype=np.uint64).astype(np.uint32), [0x7F800000, 0xFF800000, 0x33000001]]
        ).astype(np.uint32)
        struct = f"struct {key[3:]} {{ unsigned short bits; }};\n"
        body = "const int i = blockIdx.x * 128 + threadIdx.x;"
        text = (
            f"{struct}{HELPERS[key].cuda}\n"
            'extern "C" __global__ void __launch_bounds__(128) k0(const float* x, int* y) {\n'
            f"  {body}\n  if (i < {len(values)}) y[i] = {f};\n}}\n"
        )
        from test_emulator import one_launch

        from deplodock.backend.launch_plan import Buffer, LaunchPlan

        blocks = -(-len(values) // 128)
        launch = one_launch([], [], grid=blocks).launches[0]
        buffers = (Buffer("x", values.shape, "f32"), Buffer("y", values.shape, "i32", written=True))
        plan = LaunchPlan(buffers, (type(launch)("k0", (blocks,), (128,), 0, (0, 1)),), 2, 1)
        (host,), reports = run_cuda_on_cpu(text, plan, [values.view(np.float32)], seeds=(0,))
        assert not reports
        cupy = pytest.importorskip("cupy")
        loaded = cupy.RawModule(code=text).get_function("k0")
        y = cupy.empty(len(values), np.int32)
        loaded((blocks,), (128,), (cupy.asarray(values.view(np.float32)), y))
        nan = np.isnan(values.view(np.float32))
        np.testing.assert_array_equal(y.get()[~nan], host[~nan])


class Notes:
    """What the stand-in for CuPy was asked to do."""

    def __init__(self) -> None:
        self.loaded = b""
        self.shared: dict[str, int] = {}
        self.launches: list[tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...], int]] = []


@pytest.fixture
def notes(monkeypatch):
    """CuPy and the device replaced by the host, where nothing runs but every call is noted."""
    taken = Notes()

    class Function:
        def __init__(self, name: str) -> None:
            self.ptr = self.name = name

        def __call__(self, grid, block, arguments, *, shared_mem, stream):
            assert all(type(a) in (np.uint64, np.int32) for a in arguments)
            taken.launches.append((self.name, grid, block, tuple(map(int, arguments)), shared_mem))

    class Device:
        def __init__(self, index: int) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    driver = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8,
        CUDADriverError=RuntimeError,
        funcSetAttribute=lambda ptr, attribute, value: taken.shared.update({ptr: value}),
    )
    loader = SimpleNamespace(load=lambda cubin: setattr(taken, "loaded", cubin), get_function=Function)
    cuda = SimpleNamespace(
        Device=Device,
        driver=driver,
        function=SimpleNamespace(Module=lambda: loader),
        ExternalStream=lambda pointer: pointer,
    )
    monkeypatch.setattr(runtime, "_cupy", lambda: SimpleNamespace(cuda=cuda))
    host = SimpleNamespace(
        current_device=lambda: 0,
        get_device_capability=lambda _: (9, 0),
        current_stream=lambda _: SimpleNamespace(cuda_stream=0),
    )
    stand_in = SimpleNamespace(**{n: getattr(torch, n) for n in ("empty", "float32", "bfloat16", "uint8")})
    stand_in.cuda, stand_in.device = host, lambda *_: torch.device("cpu")
    monkeypatch.setattr(runtime, "_torch_with_cuda", lambda: stand_in)
    compiled = SimpleNamespace(cubin=b"machine code", kernels={})
    monkeypatch.setattr(runtime, "compile_cubin", lambda source, arch: compiled)
    return taken


def test_launches_follow_the_plan(program, notes):
    x = torch.randn(4, 256)
    (y,) = CudaProgram(*program).run([x])
    assert (y.shape, y.dtype) == ((4, 256), torch.float32)
    assert notes.loaded == b"machine code"
    assert [n[:3] + n[4:] for n in notes.launches] == [("k0", (4, 1, 1), (64, 1, 1), 8)] * 5
    pointers = [n[3] for n in notes.launches]
    first, second = pointers[0][1], pointers[1][1]
    assert pointers[0][0] == x.data_ptr()
    assert second == first + 4096
    assert pointers[1:4] == [(first, second), (second, first), (first, second)]
    assert pointers[4][0] == second


def test_a_misaligned_input_is_copied(program, notes):
    storage = torch.zeros(1025)
    x = storage[1:].view(4, 256)
    CudaProgram(*program).run([x])
    assert x.data_ptr() % 16
    assert notes.launches[0][3][0] % 16 == 0


SIZES = """
#s0 = #payload.symbol<s0[0:1001]>
!V = memref<?xf32, #payload.extents<#s0>>
kernel.func @k(%x: !V, %y: !V) grid [#s0 / 32, 2] warps 1 {
  %lane = kernel.id lane
  %f = payload.constant 0.0 : f32
  %v = kernel.load %x[%lane] where (%lane) in [0:#s0] else %f : !V (index, index) -> vector<1xf32>
  kernel.store %v, %y[%lane] where (%lane) in [0:#s0] : !V (index, index), vector<1xf32>
}
func.func @main(%x: !V, %y: !V) {
  %t = kernel.alloc : !V
  kernel.launch @k(%x, %t) : !V, !V
  kernel.launch @k(%t, %y) : !V, !V
  func.return
}
"""


def test_sizes_known_at_a_call(notes):
    """The grid, the scratch memory and what kernels take follow the shapes; nothing is launched for nothing."""
    program = CudaProgram(module(SIZES), "")
    for n in (33, 1000, 33, 0):
        x = torch.randn(n)
        (y,) = program.run([x])
        assert y.shape == (n,)
        if not n:
            assert not notes.launches
            continue
        (name, grid, block, first, _), (_, _, _, second, _) = notes.launches
        assert (name, grid, block) == ("k0", (-(-n // 32) * 2, 1, 1), (32, 1, 1))
        assert (first[0], first[1], first[2]) == (x.data_ptr(), second[0], n)
        assert second[1:] == (y.data_ptr(), n)
        notes.launches.clear()
    assert program._plans[(33,),][2] == 256
    assert program._plans[(1000,),][2] == 4096
    with pytest.raises(ShapeError, match="the size s0 is 1001, outside of 0 to 1000"):
        program.run([torch.randn(1001)])


def test_much_shared_memory_is_asked_for(notes):
    kernels = module(KERNEL.replace("shared 8", "shared 60000") + MAIN)
    CudaProgram(kernels, "")
    assert notes.shared == {"k0": 60000}


def test_arguments_are_checked(program, notes):
    with pytest.raises(ExecutionError, match=r"x: is bfloat16\[4, 256\], not f32\[4, 256\]"):
        CudaProgram(*program).run([torch.zeros(4, 256, dtype=torch.bfloat16)])
    with pytest.raises(ExecutionError, match="x is missing"):
        CudaProgram(*program).run([])


def test_without_a_device(program, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ExecutionError, match="PyTorch sees no CUDA device"):
        CudaProgram(*program)


def test_without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ExecutionError, match="CuPy is not installed"):
        runtime._cupy()


def test_archs():
    assert [arch_of(c) for c in ((8, 0), (8, 6), (8, 9), (9, 0), (12, 0))] == [
        *("sm_80", "sm_80", "sm_89"),
        *("sm_90a", "sm_120"),
    ]
    with pytest.raises(TargetError, match=r"7\.5"):
        arch_of((7, 5))
