"""Run a program on the GPU: cubins from NVRTC, loaded by CuPy, on torch's current stream and with torch's memory.

torch and CuPy are imported only here, and only when a program is made. CuPy arrays know no bf16, so buffers are torch
tensors throughout and kernels get raw pointers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from threading import Lock
from time import perf_counter
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from ....dialects.payload import AssertOp
from ....errors import ExecutionError, TargetError
from ....target.attribute import arch_of
from ...dtypes import DTYPES
from ...host import calls
from ...host.calls import KEPT_PLANS, Key, compute_eagerly, key_of, new_results
from ...host.launch_plan import EagerStep, LaunchPlan, make_plan
from ...host.timing import Span
from ..kernel_texts import unpack
from .driver import LOST_CONTEXT, advice, check_driver, driver_version
from .graphs import LaunchGraph, Moving, PreparedLaunches, all_addresses
from .nvrtc import Compiled, compile_cubin, compiler_build
from .repeated import make_calls

ALIGNMENT = 16
"""Bytes to which the start of every buffer is aligned: the widest access of a kernel."""

KEPT_GRAPHS = 16
"""So many CUDA graphs of a program are kept, those that were used last, each with its scratch memory."""

_CYCLES_TO_LAUNCH = 50_000
"""Cycles of the device in which the host queues a launch with its event, and more."""

_SHARED_WITHOUT_ASKING = 48 * 1024


class GraphWarning(UserWarning):
    """Launches are not made a CUDA graph."""


class CudaProgram:
    """A compiled program on a CUDA device, the current one if no number is given; `run` takes and gives torch tensors.
    Arguments on another device are computed there, by the same program, made when it is needed.

    `module` is at the kernel level, or the plan of such a one, and `cuda` its text. Making one compiles and loads the
    kernels; `saved` is (arch, cubin) of an earlier compilation to load instead;
    `eager` computes, on tensors on the device, the functions that are left to PyTorch. With `graphs` the launches of a
    call become a CUDA graph, one for each of the last sets of shapes, from the second call with them on. Launches are
    plain where there is one only, in a call that is traced or part of a CUDA graph of the caller's, and, with a
    GraphWarning, where something is left to PyTorch or the driver refuses the graph.
    Raises ExecutionError where there is no CUDA device or no CuPy, or while a CUDA graph is captured; TargetError for a
    device that no target, or not the saved one, fits, and for a driver that is too old for the machine code.

    `run` may be part of a CUDA graph (`torch.cuda.graph`): then nothing is copied from or to the host. Keep the program
    as long as graphs of it are replayed, since they run its kernels.
    """

    def __init__(
        self,
        module: ModuleOp | LaunchPlan,
        cuda: str,
        saved: tuple[str, bytes] | None = None,
        eager: Mapping[str, Callable[[Sequence[Any]], Sequence[Any]]] | None = None,
        graphs: bool = False,
        device: int | None = None,
    ) -> None:
        self.torch, self.cupy, self.eager = torch_with_cuda(), _cupy(), eager or {}
        if self.torch.cuda.is_current_stream_capturing():
            raise ExecutionError(
                "is compiled and loaded at its first call: call it once before a CUDA graph is captured"
            )
        self.plan = module if isinstance(module, LaunchPlan) else make_plan(module)
        self.device = self.torch.device("cuda", self.torch.cuda.current_device() if device is None else device)
        self._made_of, self._elsewhere = (module, cuda, saved, eager, graphs), dict[Any, CudaProgram]()
        arch = arch_of(self.torch.cuda.get_device_capability(self.device))
        if saved is not None and saved[0] != arch:
            raise TargetError(f"was compiled for {saved[0]}, the device is {arch}", operator="cuda")
        compiled = None if saved is not None else _compile(cuda, arch)
        self.use = compiled.kernels if compiled is not None else {}
        cubin = compiled.cubin if compiled is not None else (saved or ("", b""))[1]
        with self.cupy.cuda.Device(self.device.index):
            self._load(cubin, arch)
        self.asserts = isinstance(module, ModuleOp) and any(isinstance(op, AssertOp) for op in module.walk())
        self._plans: dict[Key, PreparedLaunches] = {}
        self._graphs: dict[PreparedLaunches, LaunchGraph] = {}
        self._making = Lock()
        self.graphs = graphs and not self.plan.eager
        if graphs and self.plan.eager:
            left = self.plan.eager[0].function
            warnings.warn(f"launches go without a CUDA graph: {left} is left to PyTorch", GraphWarning, stacklevel=4)

    def _load(self, cubin: bytes, arch: str) -> None:
        """Loads machine code and looks up its kernels. Raises ExecutionError if the driver refuses it."""
        self.functions: dict[str, Any] = {}
        code, modules = unpack(cubin) if self.plan.launches else {}, dict[bytes, Any]()
        try:
            for launch in self.plan.launches:
                if launch.kernel not in self.functions:
                    found = code[launch.kernel]
                    if found.cubin not in modules:
                        modules[found.cubin] = self.cupy.cuda.function.Module()
                        modules[found.cubin].load(found.cubin)
                    self.functions[launch.kernel] = self._prepare(modules[found.cubin], found.entry, launch.shared)
        except self.cupy.cuda.driver.CUDADriverError as error:
            runs = "CUDA {}.{}".format(*driver_version())
            reason = f"the driver, of {runs}, refuses code for {arch}: {error}{advice(error.status)}"
            raise ExecutionError(reason, operator="cuda") from error

    def _prepare(self, module: Any, entry: str, shared: int) -> Any:
        """Returns the loaded function, with permission for its shared memory. It keeps its module alive."""
        function = module.get_function(entry)
        if shared > _SHARED_WITHOUT_ASKING:
            driver = self.cupy.cuda.driver
            attribute = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            driver.funcSetAttribute(function.ptr, attribute, shared)
        return function

    def run(self, args: Sequence[Any], clock: list[Any] | None = None) -> list[Any]:
        """Returns the results for the tensors `args`, on the device if any of these is there, else on the host. A
        `clock` gets an event before each step and one after the last. Asynchronous on torch's current stream, unless
        the program has assertions. Raises ExecutionError if the arguments do not fit or a launch fails, or for copies
        from or to the host while a CUDA graph is captured."""
        there = next((a.device for a in args if getattr(a, "is_cuda", False)), self.device)
        if there != self.device:
            return self._on(there).run(args, clock)
        torch, launches = self.torch, self._placed(args)
        plan = launches.plan
        capturing = torch.cuda.is_current_stream_capturing()
        stays = any(getattr(a, "is_cuda", False) for a in args)
        if capturing and not stays:
            raise ExecutionError("its results go to the host, which cannot be part of a CUDA graph", operator="cuda")
        inputs = [
            a if self._is_ready(a) else self._on_device(a, b.name, capturing)
            for a, b in zip(args, plan.input_buffers, strict=True)
        ]
        outputs = new_results(plan, inputs, self._empty)
        if clock is None and not capturing and not plan.eager:
            self.launch(launches, [t.data_ptr() for t in (*inputs, *outputs)])
        else:
            arguments = [*inputs, *outputs]
            self._launch_steps(launches, [t.data_ptr() for t in arguments], arguments, clock)
        if self.asserts and not capturing:
            self._wait()
        return outputs if stays else [t.cpu() for t in outputs]

    def _on(self, device: Any) -> CudaProgram:
        """Returns the same program on another device."""
        with self._making:
            if device not in self._elsewhere:
                self._elsewhere[device] = CudaProgram(*self._made_of, device=device.index)
            return self._elsewhere[device]

    def launch(self, launches: PreparedLaunches, addresses: Sequence[int], like: Moving | None = None) -> None:
        """Launches a program without steps of PyTorch, as a graph if there is one. `addresses` and `like` are as for
        `LaunchGraph.launch`. Raises ExecutionError."""
        if self.graphs and len(launches.steps) > 1:  # one launch costs less than a graph
            stream = self.torch.cuda.current_stream(self.device)
            with self.cupy.cuda.Device(self.device.index) as device:
                device.use()  # see _launch_steps
                graph = self._graph(launches, addresses, like, stream)
                if graph is not None and graph.launch(addresses, stream, like):
                    return
        self._launch_steps(launches, all_addresses(addresses, like))

    def _launch_steps(
        self,
        launches: PreparedLaunches,
        addresses: Sequence[int],
        arguments: Sequence[Any] = (),
        clock: list[Any] | None = None,
    ) -> None:
        """Runs all steps of a call whose arguments are at `addresses`, with events for the `clock`. Steps of PyTorch
        take the `arguments` as tensors. Raises ExecutionError."""
        torch, plan = self.torch, launches.plan
        scratch = self._arena(plan)
        frame, launch = launches.take(), self.cupy.cuda.driver.launchKernel
        stream = torch.cuda.current_stream(self.device).cuda_stream
        try:
            with self.cupy.cuda.Device(self.device.index) as device:
                # cuLaunchKernel and cuTensorMapEncodeTiled need a current context in the calling thread. CuPy's own
                # launches ensure one, but this loop bypasses them. `with Device` calls nothing if the thread has that
                # device already, with or without a context. `use` is cudaSetDevice, which makes the context current.
                device.use()
                frame.fill(addresses, scratch)
                for step in frame.steps:
                    if clock is not None:
                        clock.append(self._event())
                    if isinstance(step, EagerStep):
                        compute_eagerly(step, self.eager, plan, arguments, scratch, torch)
                    else:
                        launch(*step[0], stream, step[1], 0)
                if clock is not None:
                    clock.append(self._event())
        except self.cupy.cuda.driver.CUDADriverError as error:
            raise ExecutionError(f"a launch failed: {error}{advice(error.status)}", operator="cuda") from error
        launches.give_back(frame)

    def repeated_calls(self, *described: Any) -> Any:
        """Returns calls of this program that are like earlier ones, `described` as in `calls.cpp`; None without any."""
        native = calls.extension()
        return None if native is None or self.asserts else make_calls(self, native, described)

    def remember(self, known: Any, tensors: Sequence[Any], results: Sequence[Any], updates: Sequence[Any]) -> None:
        """Notes a call in `known`, of `repeated_calls`: its arguments and results."""
        known.remember(self._placed(tensors), tensors, [self._is_ready(t) for t in tensors], results)

    def _graph(
        self, launches: PreparedLaunches, addresses: Sequence[int], like: Moving | None, stream: Any
    ) -> LaunchGraph | None:
        """Returns the graph for these launches. The last ones that were used are kept, each with its scratch memory."""
        with self._making:
            if (found := self._graphs.pop(launches, None)) is not None:
                self._graphs[launches] = found
            elif launches.called:
                try:
                    scratch, places = self._arena(launches.plan), all_addresses(addresses, like)
                    found = self._graphs[launches] = LaunchGraph(launches, places, scratch, stream)
                except ExecutionError as error:
                    self.graphs = False
                    warnings.warn(f"launches go without a CUDA graph: {error}", GraphWarning, stacklevel=5)
                while len(self._graphs) > KEPT_GRAPHS:
                    self._graphs.pop(next(iter(self._graphs))).close()
            launches.called = True
        return found

    def _arena(self, plan: LaunchPlan) -> Any:
        """Returns memory for scratch buffers, a tensor of bytes; None where there are none."""
        size = plan.arena_bytes
        return self._empty((size,), "ui8") if size else None

    def trace(self, args: Sequence[Any]) -> list[Span]:
        """Runs the program for `args` and returns when each step ran, by events. The device sleeps until all steps are
        queued, so that it never waits for the host. Raises as `run`."""
        steps, clock = self._placed(args).plan.steps, list[Any]()
        self.torch.cuda._sleep(_CYCLES_TO_LAUNCH * (1 + len(steps)))
        begin = perf_counter()
        self.run(args, clock)
        clock[-1].synchronize()
        names = [s.function if isinstance(s, EagerStep) else s.kernel for s in steps]
        times = [clock[0].elapsed_time(event) / 1e3 for event in clock]
        return [Span(n, begin + a, b - a) for n, (a, b) in zip(names, pairwise(times), strict=True)]

    def _event(self) -> Any:
        event = self.torch.cuda.Event(enable_timing=True)
        event.record(self.torch.cuda.current_stream(self.device))
        return event

    def _wait(self) -> None:
        """Waits for the launches. Raises ExecutionError for one that stopped; the device has printed why."""
        try:
            self.torch.cuda.current_stream(self.device).synchronize()
        except RuntimeError as error:
            reason = f"stopped, by an assertion if the device printed one: {str(error).splitlines()[0]}; {LOST_CONTEXT}"
            raise ExecutionError(reason, operator="cuda") from error

    def _placed(self, args: Sequence[Any]) -> PreparedLaunches:
        """Returns the launches for arguments of these shapes and types; the last ones are kept. Raises ExecutionError
        for arguments that the program does not take."""
        key = key_of(args)
        if (found := self._plans.get(key)) is None:
            if len(self._plans) >= KEPT_PLANS:
                self._plans.clear()
            functions = {name: function.ptr for name, function in self.functions.items()}
            found = self._plans[key] = PreparedLaunches(self.plan.check_tensors(args), functions)
        return found

    def _is_ready(self, tensor: Any) -> bool:
        """Returns true if a tensor is on the device as kernels read it."""
        plain = tensor.device == self.device and tensor.is_contiguous() and not tensor.is_neg()
        return plain and not tensor.data_ptr() % ALIGNMENT

    def _on_device(self, tensor: Any, name: str, capturing: bool) -> Any:
        """Returns the argument `name` on the device, dense and aligned. Raises ExecutionError if it comes from the host
        while a CUDA graph is captured."""
        if capturing and not tensor.is_cuda:
            raise ExecutionError("is on the host, and a CUDA graph copies nothing from there", argument=name)
        tensor = tensor.detach().to(self.device).resolve_neg().contiguous()
        return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor

    def _empty(self, shape: Sequence[int], dtype: str) -> Any:
        return self.torch.empty(shape, dtype=getattr(self.torch, DTYPES[dtype].torch), device=self.device)


def torch_with_cuda() -> Any:
    """Returns torch, with CUDA initialised. Raises ExecutionError where it sees no device."""
    import torch

    if not torch.cuda.is_available():
        raise ExecutionError("PyTorch sees no CUDA device", operator="cuda")
    torch.cuda.init()
    return torch


def _compile(cuda: str, arch: str) -> Compiled:
    """Returns machine code that the driver takes. Raises TargetError if NVRTC makes none."""
    check_driver(compiler_build()[0], driver_version())
    return compile_cubin(cuda, arch)


def _cupy() -> Any:
    try:
        import cupy  # pyright: ignore[reportMissingImports]
        import cupy.cuda.function  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        reason = "CuPy is not installed (pip install 'deplodock[cuda]')"
        raise ExecutionError(reason, operator="cuda") from error
    return cupy
