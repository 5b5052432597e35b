"""Executor `cuda`: runs a compiled program on the GPU.

NVRTC compiles the kernels, and CuPy loads them. They run on torch's current stream, in memory that torch allocates.
A plan is the list of steps of a call. A step is a kernel launch, or a function that PyTorch computes.

torch and CuPy are imported when a program is made. CuPy arrays do not support bf16, so buffers are torch tensors, and
kernels get raw pointers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from threading import Lock
from time import perf_counter
from typing import Any, TypeAlias

from xdsl.dialects.builtin import ModuleOp

from ....dialects.payload import AssertOp
from ....errors import ExecutionError, TargetError
from ....target.attribute import arch_of
from ...dtypes import DTYPES
from ...host import calls
from ...host.calls import KEPT_PLANS, Key, compute_eagerly, key_of, new_results
from ...host.launch_plan import EagerStep, Launch, LaunchPlan, Step, make_plan
from ...host.segments import Segments
from ...host.timing import Span
from ..kernel_texts import unpack
from .driver import LOST_CONTEXT, advice, check_driver, driver_version
from .graphs import LaunchGraph, Moving, PreparedLaunches, all_addresses
from .nvrtc import Compiled, compile_cubin, compiler_build
from .repeated import make_calls

ALIGNMENT = 16
"""Alignment of buffers in bytes, the widest access of a kernel."""

KEPT_GRAPHS = 16
"""Largest number of CUDA graphs of a program, with their scratch memory. The least recently used one is dropped."""

_CYCLES_TO_LAUNCH = 50_000
"""Device cycles in which the host can queue one launch and its event. A safe estimate, tuned by hand."""

_DEFAULT_SHARED_LIMIT_BYTES = 48 * 1024
"""Shared memory that a block may use without an attribute of its function (CUDA programming guide)."""


Clock: TypeAlias = list[tuple[str | None, Any]]
"""Names of steps, each with an event before the step. The end of a list of steps has the name None."""


class GraphWarning(UserWarning):
    """Warning that the launches of a call cannot be a CUDA graph."""


class CudaProgram:
    """Compiled program on torch tensors of a CUDA device.

    Making a program compiles and loads its kernels. Arguments on another device are computed there, by a second program
    that is made on demand.

    With `graphs` the launches of a call become a CUDA graph at the second call with a set of shapes. A single launch, a
    traced call, and a call inside a CUDA graph of the caller are plain launches. So are programs with steps of PyTorch,
    and graphs that the driver refuses; these emit a GraphWarning.

    `run` may be captured in a CUDA graph (`torch.cuda.graph`). Then nothing is copied from or to the host. The program
    must live as long as the graph is replayed.

    Args:
        module: module at the kernel level, or its launch plan.
        cuda: CUDA text of the module.
        saved: (arch, cubin) of an earlier compilation to load instead.
        eager: functions that PyTorch computes on the device, by name.
        graphs: whether to use CUDA graphs.
        device: number of the device; default: the current one.

    Raises:
        ExecutionError: without a CUDA device or CuPy, or while a CUDA graph is captured.
        TargetError: if no target, or not the saved one, fits the device, or if the driver is too old for the code.
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
            raise TargetError(
                f"expected a device of {saved[0]}, for which the program was compiled, but got {arch}", operator="cuda"
            )
        compiled = None if saved is not None else _compile(cuda, arch)
        self.use = compiled.kernels if compiled is not None else {}
        cubin = compiled.cubin if compiled is not None else (saved or ("", b""))[1]
        with self.cupy.cuda.Device(self.device.index):
            self._load(cubin, arch)
        self.asserts = isinstance(module, ModuleOp) and any(isinstance(op, AssertOp) for op in module.walk())
        self._plans: dict[Key, PreparedLaunches] = {}
        self._graphs: dict[PreparedLaunches, LaunchGraph] = {}
        self._segments = self._divided() if self.plan.reads_sizes else None
        self._making = Lock()
        reason = None if self._segments is None else "sizes depend on data"
        if self.plan.eager:
            reason = f"{self.plan.eager[0].function} is left to PyTorch"
        self.graphs = graphs and reason is None
        if graphs and reason is not None:
            warnings.warn(f"launches go without a CUDA graph: {reason}", GraphWarning, stacklevel=4)

    def _load(self, cubin: bytes, arch: str) -> None:
        """Loads machine code and looks up its kernels. Raises ExecutionError if the driver refuses it."""
        self.functions: dict[str, Any] = {}
        code, modules = unpack(cubin) if self.plan.launches else {}, dict[bytes, Any]()
        try:
            for launch in self.plan.launches:
                if launch.kernel not in self.functions:
                    machine_code = code[launch.kernel]
                    if machine_code.cubin not in modules:
                        modules[machine_code.cubin] = self.cupy.cuda.function.Module()
                        modules[machine_code.cubin].load(machine_code.cubin)
                    self.functions[launch.kernel] = self._prepare(
                        modules[machine_code.cubin], machine_code.entry, launch.shared
                    )
        except self.cupy.cuda.driver.CUDADriverError as error:
            runs = "CUDA {}.{}".format(*driver_version())
            reason = f"the driver, of {runs}, refuses code for {arch}: {error}{advice(error.status)}"
            raise ExecutionError(reason, operator="cuda") from error

    def _prepare(self, module: Any, entry: str, shared: int) -> Any:
        """Returns a loaded function whose limit of shared memory is raised. The function owns its module."""
        function = module.get_function(entry)
        if shared > _DEFAULT_SHARED_LIMIT_BYTES:
            driver = self.cupy.cuda.driver
            attribute = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            driver.funcSetAttribute(function.ptr, attribute, shared)
        return function

    def run(self, args: Sequence[Any], clock: Clock | None = None) -> list[Any]:
        """Runs the program, asynchronously on torch's current stream unless it has assertions or reads a size.

        Args:
            args: tensors. The results are on the device if one of them is, else on the host.
            clock: list that gets the name of each step and an event before it, and None and an event at the end.

        Raises:
            ExecutionError: if the arguments do not fit, if a launch fails, or for copies from or to the host while a
                CUDA graph is captured.
        """
        target_device = next((a.device for a in args if getattr(a, "is_cuda", False)), self.device)
        if target_device != self.device:
            return self._on(target_device).run(args, clock)
        torch, launches = self.torch, self._placed(args) if self._segments is None else None
        plan = self.plan.with_inputs(len(args)) if launches is None else launches.plan
        capturing = torch.cuda.is_current_stream_capturing()
        if capturing and launches is None:
            raise ExecutionError("the host reads a size, which cannot be part of a CUDA graph", operator="cuda")
        stays = any(getattr(a, "is_cuda", False) for a in args)
        if capturing and not stays:
            raise ExecutionError("its results go to the host, which cannot be part of a CUDA graph", operator="cuda")
        inputs = [
            a if self._is_ready(a) else self._on_device(a, b.name, capturing)
            for a, b in zip(args, plan.input_buffers, strict=True)
        ]
        if self._segments is not None:
            outputs = self._segments.run(inputs, clock)
        else:
            assert launches is not None
            outputs = self._execute(launches, inputs, clock, capturing)
        if self.asserts and not capturing:
            self._wait()
        return outputs if stays else [t.cpu() for t in outputs]

    def _execute(
        self, launches: PreparedLaunches, inputs: Sequence[Any], clock: Clock | None, capturing: bool = False
    ) -> list[Any]:
        """Runs prepared launches on tensors that kernels can read in place, and returns the results."""
        outputs = new_results(launches.plan, inputs, self._empty)
        arguments = [*inputs, *outputs]
        if clock is None and not capturing and not launches.plan.eager:
            self.launch(launches, [t.data_ptr() for t in arguments])
        else:
            self._launch_steps(launches, [t.data_ptr() for t in arguments], arguments, clock)
        return outputs

    def _divided(self) -> Segments[PreparedLaunches]:
        """Returns the driver of a program that reads sizes from its data."""
        functions = {name: function.ptr for name, function in self.functions.items()}

        def read(tensor: Any) -> int:
            if self.asserts:
                self._wait()
            return int(tensor)

        return Segments(
            self.plan,
            lambda plan, sizes: PreparedLaunches(plan, functions),
            self._execute,
            read,
            self.plan.check_tensors,
        )

    def _on(self, device: Any) -> CudaProgram:
        """Returns the same program on another device, made on demand."""
        with self._making:
            if device not in self._elsewhere:
                self._elsewhere[device] = CudaProgram(*self._made_of, device=device.index)
            return self._elsewhere[device]

    def launch(self, launches: PreparedLaunches, addresses: Sequence[int], like: Moving | None = None) -> None:
        """Launches a program without steps of PyTorch, as a CUDA graph if there is one.

        Args:
            launches: the prepared steps.
            addresses: addresses of the arguments `like.arguments`, or of all arguments if `like` is None.
            like: group of similar calls, or None.

        Raises:
            ExecutionError: if a launch fails.
        """
        # A single launch costs less than a graph.
        if self.graphs and len(launches.steps) > 1:
            stream = self.torch.cuda.current_stream(self.device)
            with self.cupy.cuda.Device(self.device.index) as device:
                device.use()  # makes the context current, see `_launch_steps`
                graph = self._graph(launches, addresses, like, stream)
                if graph is not None and graph.launch(addresses, stream, like):
                    return
        self._launch_steps(launches, all_addresses(addresses, like))

    def _launch_steps(
        self,
        launches: PreparedLaunches,
        addresses: Sequence[int],
        arguments: Sequence[Any] = (),
        clock: Clock | None = None,
    ) -> None:
        """Runs all steps of a call.

        Args:
            launches: the steps.
            addresses: addresses of all arguments.
            arguments: the arguments as tensors, for steps of PyTorch.
            clock: as for `run`.

        Raises:
            ExecutionError: if a launch fails.
        """
        torch, plan = self.torch, launches.plan
        scratch = self._arena(plan)
        frame, launch = launches.acquire(), self.cupy.cuda.driver.launchKernel
        stream = torch.cuda.current_stream(self.device).cuda_stream
        try:
            with self.cupy.cuda.Device(self.device.index) as device:
                # cuLaunchKernel and cuTensorMapEncodeTiled need a current context in the calling thread. CuPy's own
                # launches ensure one, but this loop bypasses them. `with Device` calls nothing if the thread has that
                # device already, with or without a context. `use` is cudaSetDevice, which makes the context current.
                device.use()
                frame.fill(addresses, scratch)
                for step, named in zip(frame.steps, plan.steps, strict=True):
                    if clock is not None:
                        clock.append((_name(named), self._event()))
                    if isinstance(step, EagerStep):
                        compute_eagerly(step, self.eager, plan, arguments, scratch, torch)
                    else:
                        launch(*step[0], stream, step[1], 0)
                if clock is not None:
                    clock.append((None, self._event()))
        except self.cupy.cuda.driver.CUDADriverError as error:
            raise ExecutionError(f"a launch failed: {error}{advice(error.status)}", operator="cuda") from error
        launches.release(frame)

    def repeated_calls(self, *described: Any) -> Any:
        """Returns a cache of calls that need no Python (`repeated.Calls`), or None if Python must make every call."""
        native = calls.extension()
        python = native is None or self.asserts or self._segments is not None
        return None if python else make_calls(self, native, described)

    def remember(self, repeated: Any, tensors: Sequence[Any], results: Sequence[Any], updates: Sequence[Any]) -> None:
        """Adds a call to a cache of `repeated_calls`.

        Args:
            repeated: the cache (`repeated.Calls`).
            tensors: arguments.
            results: results.
            updates: always empty: a program that changes its arguments has no cache.
        """
        repeated.remember(self._placed(tensors), tensors, [self._is_ready(t) for t in tensors], results)

    def _graph(
        self, launches: PreparedLaunches, addresses: Sequence[int], like: Moving | None, stream: Any
    ) -> LaunchGraph | None:
        """Returns the CUDA graph of a call, or None.

        The first call with a set of shapes has none. The second one builds the graph, and later ones reuse it.
        """
        with self._making:
            if (graph := self._graphs.pop(launches, None)) is not None:
                self._graphs[launches] = graph
            elif launches.called:
                try:
                    scratch, places = self._arena(launches.plan), all_addresses(addresses, like)
                    graph = self._graphs[launches] = LaunchGraph(launches, places, scratch, stream)
                except ExecutionError as error:
                    self.graphs = False
                    warnings.warn(f"launches go without a CUDA graph: {error}", GraphWarning, stacklevel=5)
                while len(self._graphs) > KEPT_GRAPHS:
                    self._graphs.pop(next(iter(self._graphs))).close()
            launches.called = True
        return graph

    def _arena(self, plan: LaunchPlan) -> Any:
        """Returns the memory of the scratch buffers of a call (the arena) as a tensor, or None if it is empty."""
        size = plan.arena_bytes
        return self._empty((size,), "ui8") if size else None

    def trace(self, args: Sequence[Any]) -> list[Span]:
        """Runs the program and returns the times of its steps, by events. Raises as `run`.

        The device sleeps until all steps are queued, so that it does not wait for the host.
        """
        clock: Clock = []
        self.torch.cuda._sleep(_CYCLES_TO_LAUNCH * (1 + len(self.plan.steps)))
        begin = perf_counter()
        self.run(args, clock)
        clock[-1][1].synchronize()
        times = [(name, clock[0][1].elapsed_time(event) / 1e3) for name, event in clock]
        return [Span(name, begin + a, b - a) for (name, a), (_, b) in pairwise(times) if name is not None]

    def _event(self) -> Any:
        event = self.torch.cuda.Event(enable_timing=True)
        event.record(self.torch.cuda.current_stream(self.device))
        return event

    def _wait(self) -> None:
        """Waits for all launches. Raises ExecutionError if an assertion failed; the device has printed its message."""
        try:
            self.torch.cuda.current_stream(self.device).synchronize()
        except RuntimeError as error:
            reason = f"stopped, by an assertion if the device printed one: {str(error).splitlines()[0]}; {LOST_CONTEXT}"
            raise ExecutionError(reason, operator="cuda") from error

    def _placed(self, args: Sequence[Any]) -> PreparedLaunches:
        """Returns the launches for the shapes and types of `args`. Raises ExecutionError for illegal arguments."""
        key = key_of(args)
        if (launches := self._plans.get(key)) is None:
            if len(self._plans) >= KEPT_PLANS:
                self._plans.clear()
            functions = {name: function.ptr for name, function in self.functions.items()}
            launches = self._plans[key] = PreparedLaunches(self.plan.check_tensors(args), functions)
        return launches

    def _is_ready(self, tensor: Any) -> bool:
        """Returns true if kernels can read a tensor in place: it is on the device, dense and aligned."""
        plain = tensor.device == self.device and tensor.is_contiguous() and not tensor.is_neg()
        return plain and not tensor.data_ptr() % ALIGNMENT

    def _on_device(self, tensor: Any, name: str, capturing: bool) -> Any:
        """Returns a dense and aligned copy of an argument on the device.

        Raises:
            ExecutionError: if it is on the host while a CUDA graph is captured.
        """
        if capturing and not tensor.is_cuda:
            raise ExecutionError("is on the host, and a CUDA graph copies nothing from there", argument=name)
        tensor = tensor.detach().to(self.device).resolve_neg().contiguous()
        return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor

    def _empty(self, shape: Sequence[int], dtype: str) -> Any:
        return self.torch.empty(shape, dtype=getattr(self.torch, DTYPES[dtype].torch), device=self.device)


def _name(step: Step) -> str:
    return step.kernel if isinstance(step, Launch) else step.function if isinstance(step, EagerStep) else str(step)


def torch_with_cuda() -> Any:
    """Returns torch with CUDA initialised. Raises ExecutionError without a device."""
    import torch

    if not torch.cuda.is_available():
        raise ExecutionError("PyTorch sees no CUDA device", operator="cuda")
    torch.cuda.init()
    return torch


def _compile(cuda: str, arch: str) -> Compiled:
    """Compiles CUDA. Raises TargetError if the driver is too old for the code of NVRTC."""
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
