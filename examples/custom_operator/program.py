import torch


@torch.library.custom_op("strength::twice", mutates_args=())
def twice(self: torch.Tensor) -> torch.Tensor:
    return self * 2


twice.register_fake(torch.empty_like)
x = torch.randn(16, 64)
torch.ops.strength.twice(x) + 1
