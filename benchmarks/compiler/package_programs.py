"""Compiles programs of Python packages: mixtures of experts, graph networks, detection, packed images.

    python -m benchmarks.compiler.package_programs            # prints the table
    python -m benchmarks.compiler.package_programs navit gcn  # some programs
    python -m benchmarks.compiler.package_programs --update   # writes docs/packages.md

Each program is compiled for `cpu` by `deplodock.compile` and compared with eager PyTorch on the example and on other
data, for which sizes that depend on data differ. A program that `deplodock.compile` refuses is compiled by
`torch.compile`; the table then lists the graph breaks. Needs transformers and torch_geometric. If torchvision is
missing, `tests/support/torchvision_operators.py` registers its operators.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import deplodock
from deplodock.errors import DeplodockError

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

Tensor = torch.Tensor
Example = tuple[nn.Module, list[tuple[Any, ...]]]
"""A module, and arguments of several calls. The program is compiled for the first ones."""


@dataclass(frozen=True)
class Program:
    """A program of a package.

    Attributes:
        name: name in the table.
        package: package whose operators or modules it uses.
        build: function that returns the module and its arguments.
    """

    name: str
    package: str
    build: Callable[[], Example]


# Mixtures of experts

_SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


class Logits(nn.Module):
    """The logits of a language model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(input_ids=tokens, use_cache=False).logits


def _language_model(name: str, **sizes: Any) -> Callable[[], Example]:
    """Returns a function that builds a language model of transformers with random weights.

    Args:
        name: name of the model in class names, such as `Mixtral`.
        sizes: fields of the configuration.
    """

    def build() -> Example:
        import transformers

        config = getattr(transformers, f"{name}Config")(**{**_SIZES, **sizes})
        model = getattr(transformers, f"{name}ForCausalLM")(config)
        return Logits(model.eval()), [(torch.randint(3, 64, (2, 9)),) for _ in range(2)]

    return build


class Router(nn.Module):
    """Layer of experts as a loop, with `torch.where` and `index_add_` (the form of many repositories)."""

    def __init__(self, size: int = 16, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(size, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(size, 24), nn.SiLU(), nn.Linear(24, size)) for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        weights = weights / weights.sum(-1, keepdim=True)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            result.index_add_(0, token, expert(x[token]) * weights[token, place, None])
        return result


class TokenDropping(nn.Module):
    """Switch layer with a capacity: an expert takes its first tokens, and the others skip the layer."""

    def __init__(self, size: int = 16, experts: int = 4, capacity: int = 5) -> None:
        super().__init__()
        self.gate, self.capacity = nn.Linear(size, experts), capacity
        self.weight = nn.Parameter(torch.randn(experts, size, size) / 4)

    def forward(self, x: Tensor) -> Tensor:
        probability, expert = self.gate(x).softmax(-1).max(-1)
        chosen = F.one_hot(expert, self.weight.shape[0])
        position = (chosen.cumsum(0) * chosen).sum(-1) - 1
        fits = position < self.capacity
        slots = x.new_zeros(self.weight.shape[0], self.capacity, x.shape[1])
        slots[expert[fits], position[fits]] = x[fits]
        computed = torch.relu(slots @ self.weight)
        result = x.clone()
        result[fits] = computed[expert[fits], position[fits]] * probability[fits, None]
        return result


class MambaExperts(nn.Module):
    """Block of a selective state space and a layer of experts, as in Mamba with mixtures of experts."""

    def __init__(self, size: int = 16, states: int = 4, experts: int = 4) -> None:
        super().__init__()
        self.project, self.convolve = nn.Linear(size, 2 * size), nn.Conv1d(size, size, 3, padding=2, groups=size)
        self.select, self.out = nn.Linear(size, 2 * states + 1), nn.Linear(size, size)
        self.log_a = nn.Parameter(torch.randn(size, states) / 4)
        self.norm, self.gate = nn.RMSNorm(size), nn.Linear(size, experts)
        self.up, self.down = (nn.Parameter(torch.randn(experts, size, size) / 4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Returns the block's result for x of shape [batch, steps, size]."""
        u, z = self.project(x).chunk(2, -1)
        u = F.silu(self.convolve(u.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        b, c, step = self.select(u).split([self.log_a.shape[1]] * 2 + [1], -1)
        step = F.softplus(step)
        state, steps = x.new_zeros(x.shape[0], *self.log_a.shape), list[Tensor]()
        for t in range(x.shape[1]):
            decay = torch.exp(-step[:, t, :, None] * self.log_a.exp())
            state = decay * state + (step[:, t] * u[:, t])[:, :, None] * b[:, t, None]
            steps.append((state * c[:, t, None]).sum(-1))
        x = x + self.out(torch.stack(steps, 1) * F.silu(z))
        flat = self.norm(x).reshape(-1, x.shape[-1])
        weight, expert = self.gate(flat).softmax(-1).topk(1)
        order = expert[:, 0].argsort(stable=True)
        ends = torch.bincount(expert[:, 0], minlength=self.up.shape[0]).cumsum(0).to(torch.int32)
        grouped = torch.ops.transformers.grouped_mm_fallback
        y = grouped(F.silu(grouped(flat[order], self.up, ends)), self.down, ends)
        return x + (torch.zeros_like(y).index_copy(0, order, y) * weight).reshape(x.shape)


def _of_vectors(module: Callable[[], nn.Module], *shape: int) -> Callable[[], Example]:
    return lambda: (module(), [(torch.randn(shape),) for _ in range(3)])


def _mamba_experts() -> Example:
    import transformers.integrations.moe  # noqa: F401  # pyright: ignore[reportUnusedImport]

    return MambaExperts(), [(torch.randn(2, 6, 16),) for _ in range(2)]


# Graph networks


def _graph(nodes: int = 10, edges: int = 24) -> Tensor:
    """Returns the edges of a random graph, with some loops from a node to itself."""
    return torch.randint(0, nodes, (2, edges))


def _graph_layer(name: str, *args: Any, **kwargs: Any) -> Callable[[], Example]:
    """Returns a function that builds a layer of PyTorch Geometric and random graphs.

    Args:
        name: class of the layer.
        args, kwargs: arguments of the layer.
    """

    def build() -> Example:
        from torch_geometric import nn as layers

        relations = kwargs.get("num_relations")
        more = [() if relations is None else (torch.randint(0, relations, (24,)),) for _ in range(3)]
        return getattr(layers, name)(*args, **kwargs).eval(), [(torch.randn(10, 8), _graph(), *m) for m in more]

    return build


# Detection


def _boxes(count: int, size: float) -> Tensor:
    corner = torch.rand(count, 2) * size * 0.7
    return torch.cat([corner, corner + torch.rand(count, 2) * size * 0.4 + 1], 1)


def _decoded(boxes: Tensor, shifts: Tensor, size: float) -> Tensor:
    """Returns boxes that are moved and scaled by the shifts that a detector predicts, clipped to the image."""
    extents = boxes[:, 2:] - boxes[:, :2]
    centres = boxes[:, :2] + extents / 2 + shifts[:, :2] / 10 * extents
    extents = extents * torch.exp(shifts[:, 2:] / 5)
    return torch.cat([centres - extents / 2, centres + extents / 2], 1).clamp(0, size)


class RoiHeads(nn.Module):
    """Second stage of Faster R-CNN for one image, with the post-processing of torchvision's `RoIHeads`."""

    def __init__(self, channels: int = 4, classes: int = 3, size: float = 32.0) -> None:
        super().__init__()
        self.classes, self.size = classes, size
        self.hidden = nn.Linear(channels * 9, 24)
        self.scores, self.shifts = nn.Linear(24, classes), nn.Linear(24, classes * 4)

    def forward(self, features: Tensor, proposals: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        vision = torch.ops.torchvision
        rois = torch.cat([torch.zeros_like(proposals[:, :1]), proposals], 1)
        pooled = vision.roi_align(features, rois, 0.25, 3, 3, 2, False)
        hidden = torch.relu(self.hidden(pooled.flatten(1)))
        scores, shifts = self.scores(hidden).softmax(-1), self.shifts(hidden).reshape(-1, self.classes, 4)
        boxes = torch.stack([_decoded(proposals, shifts[:, n], self.size) for n in range(1, self.classes)], 1)
        labels = torch.arange(1, self.classes).expand(len(proposals), -1)
        boxes, scores, labels = boxes.reshape(-1, 4), scores[:, 1:].reshape(-1), labels.reshape(-1)
        chosen = torch.where(scores > 0.3)[0]
        boxes, scores, labels = boxes[chosen], scores[chosen], labels[chosen]
        large = torch.where(((boxes[:, 2:] - boxes[:, :2]) >= 0.5).all(1))[0]
        boxes, scores, labels = boxes[large], scores[large], labels[large]
        # Boxes of different classes are moved apart, so that they do not suppress each other.
        moved = boxes + labels.to(boxes)[:, None] * (self.size + 1)
        best = vision.nms(moved, scores, 0.5)[:10]
        return boxes[best], scores[best], labels[best]


def _roi_heads() -> Example:
    from support import torchvision_operators  # noqa: F401  # pyright: ignore[reportUnusedImport]

    return RoiHeads(), [(torch.randn(1, 4, 8, 8), _boxes(12, 32.0)) for _ in range(3)]


class SsdPostprocess(nn.Module):
    """Post-processing of SSD: the best boxes of each class above a score, then nms over all classes."""

    def __init__(self, classes: int = 3, most: int = 8) -> None:
        super().__init__()
        self.classes, self.most = classes, most
        self.register_buffer("anchors", _boxes(20, 40.0))

    def forward(self, logits: Tensor, shifts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        probabilities, boxes = logits.softmax(-1), _decoded(self.anchors, shifts, 40.0)
        all_boxes, all_scores, all_labels = list[Tensor](), list[Tensor](), list[Tensor]()
        for label in range(1, self.classes):
            scores, index = probabilities[:, label].topk(self.most)
            chosen = scores > 0.3
            all_boxes.append(boxes[index[chosen]])
            all_scores.append(scores[chosen])
            all_labels.append(torch.full_like(scores[chosen], label, dtype=torch.int64))
        boxes, scores, labels = torch.cat(all_boxes), torch.cat(all_scores), torch.cat(all_labels)
        best = torch.ops.torchvision.nms(boxes + labels.to(boxes)[:, None] * 100, scores, 0.45)
        return boxes[best], scores[best], labels[best]


def _ssd() -> Example:
    from support import torchvision_operators  # noqa: F401  # pyright: ignore[reportUnusedImport]

    return SsdPostprocess(), [(torch.randn(20, 3), torch.randn(20, 4)) for _ in range(3)]


class PastedMasks(nn.Module):
    """Masks of boxes, drawn into the image (the export form of torchvision's Mask R-CNN)."""

    def forward(self, masks: Tensor, boxes: Tensor, scores: Tensor) -> Tensor:
        chosen = scores > 0.5
        masks, boxes = masks[chosen], boxes[chosen]
        y, x = torch.arange(24) + 0.5, torch.arange(20) + 0.5
        x1, y1, x2, y2 = boxes.unbind(1)
        y = (y - y1[:, None]) / (y2 - y1)[:, None] * 2 - 1
        x = (x - x1[:, None]) / (x2 - x1)[:, None] * 2 - 1
        grid = torch.stack([x[:, None, :].expand(-1, y.shape[1], -1), y[:, :, None].expand(-1, -1, x.shape[1])], 3)
        return F.grid_sample(masks[:, None], grid, align_corners=False)[:, 0] > 0.5


def _pasted_masks() -> Example:
    return PastedMasks(), [(torch.rand(5, 7, 7), _boxes(5, 20.0), torch.rand(5)) for _ in range(3)]


class DeformableBlock(nn.Module):
    """Residual block with a deformable convolution whose offsets and masks a convolution predicts (DCN v2)."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.predict = nn.Conv2d(channels, 27, 3, padding=1)
        self.weight, self.bias = nn.Parameter(torch.randn(channels, channels, 3, 3) / 6), nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        offset, mask = self.predict(x).split([18, 9], 1)
        y = torch.ops.torchvision.deform_conv2d(
            x, self.weight, offset, mask.sigmoid(), self.bias, 1, 1, 1, 1, 1, 1, 1, 1, True
        )
        return x + torch.relu(y)


def _deformable() -> Example:
    from support import torchvision_operators  # noqa: F401  # pyright: ignore[reportUnusedImport]

    return DeformableBlock(), [(torch.randn(1, 4, 7, 6),) for _ in range(2)]


# Packed images


class NaViT(nn.Module):
    """Vision transformer on images of different sizes that are packed in one sequence (as in vit-pytorch).

    Each image is a block of the patches of a grid, with its rows and columns; attention is masked between images. The
    number of patches of a batch depends on the sizes, which are data.
    """

    def __init__(self, size: int = 16, patch: int = 4, most: int = 6) -> None:
        super().__init__()
        self.patch = patch
        self.embed, self.norm = nn.Linear(3 * patch * patch, size), nn.LayerNorm(size)
        self.rows, self.columns = (nn.Parameter(torch.randn(most, size) / 4) for _ in range(2))
        self.query = nn.Parameter(torch.randn(size))
        self.project, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.feed = nn.Sequential(nn.LayerNorm(size), nn.Linear(size, 32), nn.GELU(), nn.Linear(32, size))
        self.head = nn.Linear(size, 5)

    def forward(self, images: Tensor, sizes: Tensor) -> Tensor:
        """Returns the logits of each image.

        Args:
            images: padded images of shape [n, 3, height, width].
            sizes: rows and columns of patches of each image, of shape [n, 2].
        """
        n, _, height, width = images.shape
        rows, columns = height // self.patch, width // self.patch
        patches = images.reshape(n, 3, rows, self.patch, columns, self.patch).permute(0, 2, 4, 1, 3, 5)
        exists = (torch.arange(rows)[:, None] < sizes[:, :1, None]) & (torch.arange(columns) < sizes[:, 1:, None])
        image, row, column = torch.where(exists)
        x = self.embed(patches.flatten(3)[image, row, column]) + self.rows[row] + self.columns[column]
        allowed = image[:, None] == image[None, :]
        q, k, v = self.project(self.norm(x)).reshape(-1, 3, 2, x.shape[1] // 2).permute(1, 2, 0, 3)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, allowed).transpose(0, 1).flatten(1))
        x = x + self.feed(x)
        belongs = torch.arange(n)[:, None] == image
        weights = (x @ self.query).masked_fill(~belongs, -1e9).softmax(-1)
        return self.head(weights @ x)


def _navit() -> Example:
    return NaViT().eval(), [(torch.randn(3, 3, 16, 24), torch.randint(1, 5, (3, 2))) for _ in range(3)]


PROGRAMS = (
    Program("Qwen2-MoE", "transformers", _language_model(
        "Qwen2Moe", num_experts=8, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=40,
    )),
    Program("OLMoE", "transformers", _language_model("Olmoe", num_experts=8, num_experts_per_tok=2)),
    Program("DeepSeek-V3", "transformers", _language_model(
        "DeepseekV3", n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=24, n_group=2, topk_group=1,
        q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, first_k_dense_replace=1,
    )),
    Program("Mixtral", "transformers", _language_model(
        "Mixtral", num_hidden_layers=1, num_local_experts=4, num_experts_per_tok=2,
    )),
    Program("GCN", "torch_geometric", _graph_layer("GCNConv", 8, 6)),
    Program("GAT", "torch_geometric", _graph_layer("GATConv", 8, 6, heads=2)),
    Program("Cheb", "torch_geometric", _graph_layer("ChebConv", 8, 6, K=3)),
    Program("RGCN", "torch_geometric", _graph_layer("RGCNConv", 8, 6, num_relations=3)),
    Program("graph transformer", "torch_geometric", _graph_layer("TransformerConv", 8, 6, heads=2)),
    Program("Faster R-CNN head", "torchvision", _roi_heads),
    Program("SSD post-processing", "torchvision", _ssd),
    Program("Mask R-CNN paste", "torchvision", _pasted_masks),
    Program("deformable block", "torchvision", _deformable),
    Program("NaViT", "vit-pytorch", _navit),
    Program("router loop", "own", _of_vectors(Router, 12, 16)),
    Program("token dropping", "own", _of_vectors(TokenDropping, 18, 16)),
    Program("Mamba-MoE", "own", _mamba_experts),
)  # fmt: skip
"""The programs, with random weights. Programs of vit-pytorch and torchvision are written here, as in these packages."""


@dataclass(frozen=True)
class Outcome:
    """Result of a program.

    Attributes:
        way: `compile`, `torch.compile`, or empty if no way is right.
        error: largest error, relative to the largest value.
        seconds: seconds of compiling and running.
        note: graph breaks, or the refusal.
    """

    way: str
    error: float
    seconds: float
    note: str


def run(program: Program, executor: str | None = None) -> Outcome:
    """Compiles a program for `cpu` and compares it with eager PyTorch.

    Args:
        program: the program.
        executor: executor of `deplodock.compile`, or None for the one of `cpu`.
    """
    torch.manual_seed(0)
    module, calls = program.build()
    start = time.perf_counter()
    options = {"target": "cpu"} if executor is None else {"executor": executor}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = [module(*args) for args in calls]
        try:
            compiled, way, note = deplodock.compile(module, calls[0], **options), "compile", ""
            error = _largest_error(compiled, calls, expected)
        except DeplodockError as refusal:
            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
            compiled, way = torch.compile(module, backend="deplodock", options=options), "torch.compile"
            note = _brief(str(refusal).partition(";")[0])
            try:
                error = _largest_error(compiled, calls, expected)
            except Exception as failure:
                return Outcome("", float("nan"), time.perf_counter() - start, f"{note}; then: {failure}")
            breaks = torch._dynamo.utils.counters["graph_break"]
            note += "; graph breaks: " + ("; ".join(map(_brief, breaks)) or "none")
    return Outcome(way if error < 1e-4 else "", error, time.perf_counter() - start, note)


def _brief(text: str) -> str:
    """Returns the first 160 characters of a message in one line, with names of files without their folders."""
    return re.sub(r"\S*/(?=[\w.]+\.py)", "", " ".join(text.split()))[:160]


def _largest_error(function: Callable[..., Any], calls: list[tuple[Any, ...]], expected: list[Any]) -> float:
    """Returns the largest difference from the expected results, relative to the largest expected value; infinity if a
    shape or a type differs."""
    worst = 0.0
    for args, results in zip(calls, expected, strict=True):
        actual = function(*args)
        pairs = [(actual, results)] if isinstance(results, Tensor) else list(zip(actual, results, strict=True))
        for a, e in pairs:
            if a.shape != e.shape or a.dtype != e.dtype:
                return float("inf")
            if e.numel():
                difference = (a.to(torch.float64) - e.to(torch.float64)).abs().max().item()
                worst = max(worst, difference / max(e.to(torch.float64).abs().max().item(), 1e-6))
    return worst


def main() -> None:
    """Runs the programs and prints a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="words of the names of programs; default: all")
    parser.add_argument("--update", action="store_true", help="write docs/packages.md")
    args = parser.parse_args()
    chosen = [p for p in PROGRAMS if not args.words or any(w.lower() in p.name.lower() for w in args.words)]
    lines = list[str]()
    for program in chosen:
        o = run(program)
        shown = o.way or "refused or wrong"
        lines.append(f"| {program.name} | {program.package} | {shown} | {o.error:.1e} | {o.note} |")
        print(f"{lines[-1]} {o.seconds:.0f} s", flush=True)
    right = sum("| compile |" in line for line in lines)
    print(f"{right} of {len(lines)} by deplodock.compile")
    if args.update:
        head = ["| program | package | way | error | note |", "|---|---|---|---|---|"]
        text = _PAGE.format(version=torch.__version__, right=right, count=len(lines))
        (ROOT / "docs" / "packages.md").write_text("\n".join([text, *head, *lines, ""]), encoding="utf-8")


_PAGE = """# Programs of packages

Mixtures of experts, graph networks, detection and packed images, with PyTorch {version}: compiled for `cpu` and
compared with eager PyTorch, on several inputs with different sizes of data-dependent results. `compile` is
`deplodock.compile`, which serves {right} of {count}; `torch.compile` is the backend, with its graph breaks. The error
is relative to the largest value. Written by `python -m benchmarks.compiler.package_programs --update`.
"""


if __name__ == "__main__":
    main()
