"""Collectives inside compiled programs, in two processes: DDP, FSDP2, tensor parallelism, and each collective."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import deplodock
from deplodock.backend.host.launch_plan import make_plan
from deplodock.errors import CompileError
from deplodock.extras.artifact.programs import ArtifactError

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="PyTorch was built without gloo"
)

OPTIONS = {"executor": "reference"}


class Block(nn.Module):
    """Layer of a transformer with two heads of four columns."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(8), nn.LayerNorm(8)
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        q, k, v = (part(y).unflatten(-1, (-1, 4)).transpose(1, 2) for part in (self.q, self.k, self.v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Transformer(nn.Module):
    """Small language model of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)
        self.blocks = nn.ModuleList([Block()])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def data_parallel(model: nn.Module) -> nn.Module:
    """DDP whose reducer has several buckets, at which PyTorch divides the graph."""
    parallel = nn.parallel.DistributedDataParallel(model)
    parallel.bucket_bytes_cap = dist._DEFAULT_FIRST_BUCKET_BYTES = 1500
    return parallel


def fully_sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for block in model.blocks:  # pyright: ignore[reportGeneralTypeIssues]
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tensor_parallel(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    columns, rows = ("q", "k", "v", "up"), ("o", "down")
    plan: dict[str, Any] = {name: ColwiseParallel() for name in columns} | {name: RowwiseParallel() for name in rows}
    for block in model.blocks:  # pyright: ignore[reportGeneralTypeIssues]
        parallelize_module(block, init_device_mesh("cpu", (2,)), plan)
    return model


def compiled(model: nn.Module) -> Any:
    """Compiles a wrapped model with deplodock."""
    return torch.compile(model, backend="deplodock", options=OPTIONS)


PARALLEL = (data_parallel, fully_sharded, tensor_parallel)


def train(
    parallel: Callable[[nn.Module], nn.Module], rank: int, compile: Callable[[nn.Module], Any] = lambda model: model
) -> list[torch.Tensor]:
    """Returns the losses and the local parameters of two steps.

    Args:
        parallel: wraps the model.
        rank: number of the process.
        compile: returns the function of the wrapped model that is called; default: the model, in eager PyTorch.
    """
    torch.manual_seed(0)
    model = parallel(Transformer())
    run = compile(model)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), []
    generator = torch.Generator().manual_seed(0 if parallel is tensor_parallel else rank)
    for _ in range(2):
        tokens = torch.randint(0, 16, (2, 4), generator=generator)
        loss = F.cross_entropy(run(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    if parallel is tensor_parallel:
        with torch.no_grad():
            losses.append(run(torch.arange(8).reshape(2, 4)))
    return losses + [getattr(p, "_local_tensor", p).detach().clone() for p in model.parameters()]


def collectives() -> dict[str, Callable[[torch.Tensor], Any]]:
    """Returns a program for each collective."""
    import torch.distributed._functional_collectives as functional

    group: Any = dist.group.WORLD

    def coalesced(x: torch.Tensor) -> Any:
        larger, largest = functional.all_reduce_coalesced([x, x + 1], "max", group)
        (gathered,) = functional.all_gather_into_tensor_coalesced([larger], group)
        (scattered,) = functional.reduce_scatter_tensor_coalesced([largest], "sum", [0], group)
        return larger + largest, gathered, scattered

    def single(x: torch.Tensor) -> Any:
        gathered = functional.all_gather_tensor(x + 1, 0, group)
        scattered = functional.reduce_scatter_tensor(gathered, "sum", 0, group)
        sent = functional.broadcast(scattered * 2, 1, group)
        return functional.all_to_all_single(sent - x, [2, 2], [2, 2], group) * 2

    def repeated(x: torch.Tensor) -> Any:
        """Equal collectives, and one whose result is not used: each must be issued."""
        functional.all_reduce(x, "sum", group)
        y = x * 1
        dist.all_reduce(y)
        return functional.all_reduce(x, "sum", group) + functional.all_reduce(x, "sum", group) + y

    return {"coalesced": coalesced, "single": single, "repeated": repeated}


def check_steps(parallel: Callable[[nn.Module], nn.Module], rank: int) -> None:
    """Compares compiled with eager steps. One process is compiled, the other one is not."""
    from torch._dynamo.utils import counters

    expected = train(parallel, rank)
    torch.compiler.reset()
    counters.clear()
    results = train(parallel, rank, compiled) if rank == 0 else train(parallel, rank)
    torch.testing.assert_close(results, expected, rtol=1e-4, atol=1e-5)
    if rank == 0:
        # Dynamo breaks the graph inside of the wrapper of DDP, for every backend.
        breaks = [text for text in counters["graph_break"] if "Logger" not in text and "_inside_ddp" not in text]
        assert not breaks
        assert counters["stats"]["unique_graphs"] >= 1


def check_collectives(rank: int) -> None:
    x = torch.arange(12.0).reshape(4, 3) + 10 * rank
    for name, program in collectives().items():
        expected = program(x)
        if rank == 0:
            function = deplodock.compile(program, (x,), **OPTIONS)
            steps = [function.captured.eager[s.function] for s in make_plan(function.compilation.at("kernel")).eager]
            assert all(not call.reason and call.arguments.endswith("'0'") for call in steps)
            issued = [call.operator.partition(".")[2] for call in steps]
            if name == "repeated":
                assert issued == ["all_reduce"] * 4
                with pytest.raises(ArtifactError, match="all_reduce"):
                    function.save("unused")
            results = function(x)
        else:
            results = program(x)
        torch.testing.assert_close(results, expected)


def check_point_to_point(rank: int) -> None:
    if rank == 0 and hasattr(torch.ops._c10d_functional, "isend"):
        send = torch.ops._c10d_functional.isend
        with pytest.raises(CompileError, match="messages from process to process"):
            deplodock.compile(lambda x: send(x, 1, 0, "0") + 1, (torch.ones(2),))


def work(rank: int) -> None:
    """Runs all checks in one process of the group."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    check_collectives(rank)
    check_point_to_point(rank)
    for parallel in PARALLEL:
        check_steps(parallel, rank)
    dist.destroy_process_group()


def test_two_processes() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen([sys.executable, __file__], env=group | {"RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=400)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()


if __name__ == "__main__":
    work(int(os.environ["RANK"]))
