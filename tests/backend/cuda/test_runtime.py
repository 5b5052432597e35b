"""The CUDA runtime without a GPU: every launch is checked against the IR and run by the emulator (`stub_cuda`)."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from stub_cuda import StubError
from stub_cuda.libcuda import MAPS
from stub_cuda.state import Stream
from support.scaled_rows import KERNEL, MAIN, SIZES, five_times, module

import deplodock
from deplodock.backend.cuda import runtime
from deplodock.backend.cuda.kernel_texts import MachineCode, pack
from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.cuda.runtime import CudaProgram, arch_of, driver, graphs
from deplodock.backend.cuda.runtime.driver import check_driver
from deplodock.backend.dtypes import DTYPES
from deplodock.backend.host import launch_plan
from deplodock.errors import DeplodockError, ExecutionError, ShapeError, TargetError
from deplodock.frontend.capture import arrays, captured_program


@pytest.fixture(scope="module")
def product():
    """Returns a bf16 matmul with TMA loads at the kernel level, and its CUDA."""
    x, w = (torch.randn(s, dtype=torch.bfloat16) for s in ((256, 256), (128, 256)))
    boxes = "block=64,64 chunk=64 warps=4 atom=wgmma copy=tma stages=2"
    compiled = deplodock.compile(F.linear, (x, w), executor="cuda", schedule=boxes)
    assert any(launch.maps for launch in launch_plan.make_plan(compiled.compilation.at("kernel")).launches)
    return compiled.compilation.at("kernel"), compiled.ir("cuda")


def factors() -> list[torch.Tensor]:
    """Returns operands of `product` on the stubbed device."""
    return [torch.randn(s, dtype=torch.bfloat16, device="cuda") for s in ((256, 256), (128, 256))]


def test_launches_follow_the_plan(program, stub_cuda) -> None:
    x = torch.randn(4, 256)
    (y,) = CudaProgram(*program).run([x])
    assert not y.is_cuda
    torch.testing.assert_close(y, five_times(x), rtol=1e-4, atol=1e-5)
    assert [(r.name, r.grid, r.block, r.shared) for r in stub_cuda.launches] == [("k0", (4, 1, 1), (64, 1, 1), 8)] * 5
    pointers = [tuple(map(int, r.arguments)) for r in stub_cuda.launches]
    first, second = pointers[0][1], pointers[1][1]
    assert second == first + 4096
    assert pointers[1:4] == [(first, second), (second, first), (first, second)]
    assert pointers[4][0] == second


def test_another_device_has_a_program_of_its_own(program, stub_cuda) -> None:
    """A program that was made for one device also runs on the device of its arguments, with code loaded there."""
    cuda, x = CudaProgram(*program, device=1), torch.randn(4, 256, device="cuda")
    for _ in range(2):
        (y,) = cuda.run([x])
        assert y.device == x.device != cuda.device
        torch.testing.assert_close(y.cpu(), five_times(x.cpu()), rtol=1e-4, atol=1e-5)
    assert [str(d) for d in cuda._elsewhere] == ["cuda:0"]
    functions = [f for p in (cuda, cuda._elsewhere[x.device]) for f in p.functions.values()]
    assert [f.device for f in functions] == [1, 0]
    (y,) = cuda.run([x.cpu()])
    torch.testing.assert_close(y, five_times(x.cpu()), rtol=1e-4, atol=1e-5)


def test_a_misaligned_input_is_copied(program, stub_cuda) -> None:
    x = torch.randn(1025, device="cuda")[1:].view(4, 256)
    assert x.data_ptr() % 16
    (y,) = CudaProgram(*program).run([x])
    assert y.is_cuda
    torch.testing.assert_close(y.cpu(), five_times(x.cpu()), rtol=1e-4, atol=1e-5)


def test_sizes_known_at_a_call(stub_cuda) -> None:
    """Grid, scratch memory and kernel arguments follow the dynamic sizes. For size 0 nothing is launched."""
    kernels = module(SIZES)
    program = CudaProgram(kernels, print_cuda(kernels))
    stub_cuda.execute = False
    for n in (33, 1000, 33, 0):
        x = torch.randn(n, device="cuda")
        (y,) = program.run([x])
        assert y.shape == (n,)
        if not n:
            assert not stub_cuda.launches
            continue
        one, two = stub_cuda.launches
        assert (one.name, one.grid, one.block) == ("k0", (-(-n // 32) * 2, 1, 1), (32, 1, 1))
        assert one.arguments == (x.data_ptr(), two.arguments[0], n)
        assert two.arguments[1:] == (y.data_ptr(), n)
        stub_cuda.launches.clear()
    assert _arena(program, 33) == 256
    assert _arena(program, 1000) == 4096
    with pytest.raises(ShapeError, match="the size s0 is 1001, outside of 0 to 1000"):
        program.run([torch.randn(1001)])


def _arena(program: CudaProgram, size: int) -> int:
    return program._plans[((size,), torch.float32),].plan.arena_bytes


def test_much_shared_memory_is_asked_for(stub_cuda, monkeypatch) -> None:
    kernels = module(KERNEL.replace("shared 8", "shared 60000") + MAIN)
    x = torch.randn(4, 256, device="cuda")
    CudaProgram(kernels, print_cuda(kernels)).run([x])
    assert {r.allowed for r in stub_cuda.launches} == {60000}
    monkeypatch.setattr(runtime, "_DEFAULT_SHARED_LIMIT_BYTES", 1 << 20)
    with pytest.raises(StubError, match="needs 60000 bytes of shared memory, but its attribute permits 0"):
        CudaProgram(kernels, print_cuda(kernels)).run([x])


def test_arguments_are_checked(program, stub_cuda) -> None:
    with pytest.raises(ExecutionError, match=r"x: is bfloat16\[4, 256\], not f32\[4, 256\]"):
        CudaProgram(*program).run([torch.zeros(4, 256, dtype=torch.bfloat16)])
    with pytest.raises(ExecutionError, match="x is missing"):
        CudaProgram(*program).run([])


def test_tensor_maps_are_encoded_once(product, stub_cuda) -> None:
    program, (x, w) = CudaProgram(*product), factors()
    before = len(MAPS)
    results = [program.run([x, w])[0] for _ in range(3)]
    for y in results:
        torch.testing.assert_close(y.cpu(), F.linear(x.cpu(), w.cpu()))
    inputs = [m for m in MAPS[before:] if m.address in (x.data_ptr(), w.data_ptr())]
    assert len(inputs) == len(set(inputs)) > 1
    assert stub_cuda.opened == 1
    assert driver.encode.cache_info().maxsize == driver.KEPT_MAPS


class Plants:
    """Planted bugs of the runtime, each with the message of the stub that detects it."""

    @staticmethod
    def another_box(monkeypatch: Any) -> None:
        real = launch_plan._tensor_map
        monkeypatch.setattr(
            launch_plan, "_tensor_map", lambda *a: replace(m := real(*a), box=(m.box[0] // 2, *m.box[1:]))
        )

    @staticmethod
    def too_wide_a_box(monkeypatch: Any) -> None:
        real = launch_plan._tensor_map
        monkeypatch.setattr(launch_plan, "_tensor_map", lambda *a: replace(m := real(*a), box=(*m.box[:-1], 512)))

    @staticmethod
    def no_swizzle(monkeypatch: Any) -> None:
        monkeypatch.setattr(driver, "_SWIZZLES", dict.fromkeys((0, 32, 64, 128), 0))

    @staticmethod
    def another_type(monkeypatch: Any) -> None:
        monkeypatch.setattr(driver, "DTYPES", {**DTYPES, "bf16": DTYPES["f16"]})

    @staticmethod
    def strides_in_elements(monkeypatch: Any) -> None:
        real = driver.pitches
        monkeypatch.setattr(driver, "pitches", lambda shape: [(n // 2, sizes) for n, sizes in real(shape)])

    @staticmethod
    def maps_before_buffers(monkeypatch: Any) -> None:
        _reorder(monkeypatch, lambda arguments: (*arguments[3:], *arguments[:3]))

    @staticmethod
    def an_argument_too_few(monkeypatch: Any) -> None:
        _reorder(monkeypatch, lambda arguments: (*arguments[:-1], 0))

    @staticmethod
    def buffers_in_another_order(monkeypatch: Any) -> None:
        _reorder(monkeypatch, lambda arguments: (arguments[1], arguments[0], *arguments[2:]))

    @staticmethod
    def a_grid_of_another_size(monkeypatch: Any) -> None:
        real: Any = launch_plan.Launch.blocks
        monkeypatch.setattr(launch_plan.Launch, "blocks", property(lambda self: (real.fget(self)[0] + 1,)))

    @staticmethod
    def threads_of_another_number(monkeypatch: Any) -> None:
        real = graphs._three
        monkeypatch.setattr(graphs, "_three", lambda sizes: real(tuple(n // 2 if n % 128 == 0 else n for n in sizes)))

    @staticmethod
    def another_stream(monkeypatch: Any) -> None:
        monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: Stream(8))

    @staticmethod
    def too_little_scratch(monkeypatch: Any) -> None:
        monkeypatch.setattr(launch_plan.Buffer, "bytes", property(lambda self: self.elements // 2))


def _reorder(monkeypatch: Any, change: Any) -> None:
    """Replaces the parameter addresses of all launches by `change` of them."""
    real = graphs.Frame.fill

    def fill(self: graphs.Frame, *args: Any) -> None:
        real(self, *args)
        self.parameters[:] = change(tuple(self.parameters))

    monkeypatch.setattr(graphs.Frame, "fill", fill)


PLANTED = {
    "another_box": "a tensor map is .*, not EncodedMap",
    "too_wide_a_box": r"the driver refuses a map of bf16\[.*in boxes \[.*512\]",
    "no_swizzle": "a tensor map is .*, not EncodedMap",
    "another_type": "a tensor map is .*, not EncodedMap",
    "strides_in_elements": "the driver refuses a map",
    "maps_before_buffers": "bytes, its allocation None",
    "an_argument_too_few": "a parameter of k0 has no address",
    "buffers_in_another_order": "bytes, its allocation|a tensor map is",
    "a_grid_of_another_size": "on a grid of",
    "threads_of_another_number": "with blocks of",
    "another_stream": "a launch on stream",
}


@pytest.mark.parametrize("plant", PLANTED)
def test_mistakes_show(product, stub_cuda, monkeypatch, plant: str) -> None:
    getattr(Plants, plant)(monkeypatch)
    with pytest.raises((StubError, DeplodockError), match=PLANTED[plant]):
        CudaProgram(*product).run(factors())


def test_too_little_scratch_shows(program, stub_cuda, monkeypatch) -> None:
    Plants.too_little_scratch(monkeypatch)
    with pytest.raises(StubError, match="has 4096 bytes, its allocation"):
        CudaProgram(*program).run([torch.randn(4, 256, device="cuda")])


def test_swapped_arguments_of_one_type_show_in_the_result(program, stub_cuda, monkeypatch) -> None:
    _reorder(monkeypatch, lambda arguments: arguments[::-1])
    x = torch.randn(4, 256)
    (y,) = CudaProgram(*program).run([x])
    with pytest.raises(AssertionError):
        torch.testing.assert_close(y, five_times(x), rtol=1e-4, atol=1e-5)


def test_a_cluster_that_the_grid_does_not_fill(stub_cuda) -> None:
    kernels = module((KERNEL + MAIN).replace("grid [4] warps 2", "grid [4] warps 2 cluster 2"))
    text = print_cuda(kernels)
    x = torch.randn(4, 256, device="cuda")
    CudaProgram(kernels, text).run([x])
    with pytest.raises(StubError, match=r"k0 in clusters of 8 \(the IR says 2\) on a grid of 4"):
        CudaProgram(kernels, text.replace("__cluster_dims__(2, 1, 1)", "__cluster_dims__(8, 1, 1)")).run([x])


def test_part_of_a_graph(program, stub_cuda) -> None:
    """A call under capture runs nothing. Each replay reads the present contents of its arguments."""
    cuda, x = CudaProgram(*program), torch.randn(4, 256, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (y,) = cuda.run([x])
    for _ in range(2):
        x.copy_(torch.randn(4, 256))
        graph.replay()
        torch.testing.assert_close(y.cpu(), five_times(x.cpu()), rtol=1e-4, atol=1e-5)


def test_nothing_waits_in_a_graph(program, stub_cuda) -> None:
    """Under capture, copies from and to the host are refused, with the reason."""
    cuda = CudaProgram(*program)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        with pytest.raises(ExecutionError, match="results go to the host, which cannot be part of a CUDA graph"):
            cuda.run([torch.randn(4, 256)])
        with pytest.raises(ExecutionError, match="call it once before a CUDA graph is captured"):
            CudaProgram(*program)
    add = deplodock.compile(torch.add, (torch.zeros(8), torch.zeros(8)))
    on_host = deplodock.compile(torch.add, (torch.zeros(8), torch.zeros(8)), executor="reference")
    x = torch.zeros(8, device="cuda")
    for function in (add, on_host):
        function(x, x)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        with pytest.raises(ExecutionError, match="is on the host, and a CUDA graph copies nothing from there"):
            add(x, torch.zeros(8))
        with pytest.raises(ExecutionError, match="runs on the host, which cannot be part of a CUDA graph"):
            on_host(x, x)


def asserting(x: torch.Tensor) -> torch.Tensor:
    torch.ops.aten._assert_async.msg((x > 0).all(), "x is positive")
    return x + 1


def test_an_assertion_in_a_graph(stub_cuda, monkeypatch) -> None:
    """A captured call checks its assertions in the graph at each replay; other calls check them on return."""
    compiled = deplodock.compile(asserting, (torch.ones(8),))
    x, graph = torch.ones(8, device="cuda"), torch.cuda.CUDAGraph()
    compiled(x)
    with torch.cuda.graph(graph):
        y = compiled(x)
    graph.replay()
    torch.testing.assert_close(y.cpu(), torch.full((8,), 2.0))
    x.neg_()
    with pytest.raises(RuntimeError, match="x is positive"):
        graph.replay()
    with pytest.raises(ExecutionError, match="x is positive"):
        compiled(x)
    monkeypatch.setattr(captured_program, "capturing", lambda: False)
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            compiled(x)


def test_a_checked_program_is_waited_for(stub_cuda, monkeypatch) -> None:
    """A call of a checked program waits and raises if a kernel stopped. Calls of other programs do not wait."""
    args = torch.randn(8, 4, device="cuda"), torch.tensor([0, -1], device="cuda")
    checked, plain = (deplodock.compile(lambda x, i: x[i], args, executor="cuda", checked=c) for c in (True, False))
    torch.testing.assert_close(checked(*args), args[0][[0, 7]])

    def stopped(_: object) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure\nand more")

    plain(*args), monkeypatch.setattr(Stream, "synchronize", stopped), plain(*args)
    with pytest.raises(ExecutionError, match="stopped, by an assertion .*: CUDA error: unspecified launch failure; "):
        checked(*args)


def test_random_numbers_in_a_graph(stub_cuda) -> None:
    """The seed comes from the device's generator, so each replay draws other numbers."""
    compiled = deplodock.compile(lambda x: x + torch.rand_like(x), (torch.zeros(64),))
    x, graph = torch.zeros(64, device="cuda"), torch.cuda.CUDAGraph()
    compiled(x)
    with torch.cuda.graph(graph):
        y = compiled(x)
    graph.replay()
    first = y.cpu()
    graph.replay()
    assert not torch.equal(first, y.cpu())
    assert arrays.capturing() is False


def test_the_driver_is_asked_first(program, stub_cuda) -> None:
    stub_cuda.driver = 12080
    with pytest.raises(
        TargetError, match=r"the driver runs CUDA up to 12.8, and NVRTC 13\.\d makes code for drivers of"
    ):
        CudaProgram(*program)
    check_driver((12, 9), (13, 0))
    check_driver((13, 5), (13, 0))
    stub_cuda.driver, stub_cuda.capability = 13000, (8, 0)
    with pytest.raises(ExecutionError, match="the driver, of CUDA 13.0, refuses code for sm_80: .*INVALID_IMAGE"):
        CudaProgram(*program, saved=("sm_80", pack({"k0": MachineCode(b"no code", "k")})))
    with pytest.raises(ExecutionError, match="expected machine code that deplodock has saved"):
        CudaProgram(*program, saved=("sm_80", b"no code"))


def test_without_a_device(program, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ExecutionError, match="PyTorch sees no CUDA device"):
        CudaProgram(*program)


def test_without_a_driver(monkeypatch) -> None:
    driver.library.cache_clear()
    with pytest.raises(ExecutionError, match="there is no CUDA driver"):
        driver.library()


def test_without_cupy(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ExecutionError, match="CuPy is not installed"):
        runtime._cupy()


def test_archs() -> None:
    assert [arch_of(c) for c in ((8, 0), (8, 6), (8, 9), (9, 0), (12, 0))] == [
        *("sm_80", "sm_80", "sm_89"),
        *("sm_90a", "sm_120"),
    ]
    with pytest.raises(TargetError, match=r"7\.5"):
        arch_of((7, 5))
