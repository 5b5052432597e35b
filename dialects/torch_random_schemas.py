"""The schemas of the operators that draw random numbers, and which operators may draw.

The text is PyTorch's own (see `torch_schemas.py`). PyTorch's operators take their random numbers from a global
generator. Here every operator that draws has an operand for it, `generator`: a tensor of a key and a number, from
which all it draws follows. Where PyTorch's schema has no such argument it is added behind the others.
"""

from __future__ import annotations

RANDOM_SCHEMA_TEXT = """
bernoulli(Tensor self, *, Generator? generator=None) -> Tensor
bernoulli.Tensor(Tensor self, Tensor p, *, Generator? generator=None) -> Tensor
bernoulli.p(Tensor self, float p, *, Generator? generator=None) -> Tensor
cauchy(Tensor self, float median=0., float sigma=1., *, Generator? generator=None) -> Tensor
exponential(Tensor self, float lambd=1., *, Generator? generator=None) -> Tensor
geometric(Tensor self, float p, *, Generator? generator=None) -> Tensor
log_normal(Tensor self, float mean=1., float std=2., *, Generator? generator=None) -> Tensor
multinomial(Tensor self, int num_samples, bool replacement=False, *, Generator? generator=None) -> Tensor
native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)
normal.Tensor_Tensor(Tensor mean, Tensor std, *, Generator? generator=None) -> Tensor
normal.Tensor_float(Tensor mean, float std=1., *, Generator? generator=None) -> Tensor
normal.float_Tensor(float mean, Tensor std, *, Generator? generator=None) -> Tensor
normal.float_float(float mean, float std, int[] size, *, Generator? generator=None, ScalarType? dtype=None, Layout?
    layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
normal_functional(Tensor self, float mean=0., float std=1., *, Generator? generator=None) -> Tensor
rand(int[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
rand_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None,
    MemoryFormat? memory_format=None) -> Tensor
randint(int high, int[] size, *, ScalarType? dtype=4, Layout? layout=None, Device? device=None, bool?
    pin_memory=None) -> Tensor
randint.low(int low, int high, int[] size, *, ScalarType? dtype=4, Layout? layout=None, Device? device=None, bool?
    pin_memory=None) -> Tensor
randint_like(Tensor self, int high, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool?
    pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
randint_like.low_dtype(Tensor self, int low, int high, *, ScalarType? dtype=None, Layout? layout=None, Device?
    device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
randn(int[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
randn_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None,
    MemoryFormat? memory_format=None) -> Tensor
randperm(int n, *, ScalarType? dtype=4, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
uniform(Tensor self, float from=0., float to=1., *, Generator? generator=None) -> Tensor
"""

DRAWING = frozenset(
    {
        "dropout",
        "gru.input",
        "lstm.input",
        "rnn_relu.input",
        "rnn_tanh.input",
        "rrelu_with_noise_functional",
        "scaled_dot_product_attention",
    }
)
"""Operators with schemas elsewhere that draw random numbers where their arguments ask for it."""
