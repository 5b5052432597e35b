"""The schemas of the ATen operators that the torch dialect mirrors, and how a schema is read.

The text is PyTorch's own, without alias annotations and with `int` for `SymInt`; a test compares the two. A line that
starts with a space continues the one before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from xdsl.dialects.builtin import i64

from .torch_random_schemas import DRAWING, RANDOM_SCHEMA_TEXT
from .torch_rare_schemas import RARE_SCHEMA_TEXT

SCHEMA_TEXT = """
__and__.Scalar(Tensor self, Scalar other) -> Tensor
__and__.Tensor(Tensor self, Tensor other) -> Tensor
__lshift__.Scalar(Tensor self, Scalar other) -> Tensor
__lshift__.Tensor(Tensor self, Tensor other) -> Tensor
__or__.Scalar(Tensor self, Scalar other) -> Tensor
__or__.Tensor(Tensor self, Tensor other) -> Tensor
__rshift__.Scalar(Tensor self, Scalar other) -> Tensor
__rshift__.Tensor(Tensor self, Tensor other) -> Tensor
__xor__.Scalar(Tensor self, Scalar other) -> Tensor
__xor__.Tensor(Tensor self, Tensor other) -> Tensor
_prelu_kernel(Tensor self, Tensor weight) -> Tensor
_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool
    non_blocking=False, MemoryFormat? memory_format=None) -> Tensor
abs(Tensor self) -> Tensor
acos(Tensor self) -> Tensor
acosh(Tensor self) -> Tensor
add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor
add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
addcdiv(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor
addcmul(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor
alias(Tensor self) -> Tensor
asin(Tensor self) -> Tensor
asinh(Tensor self) -> Tensor
atan(Tensor self) -> Tensor
atan2(Tensor self, Tensor other) -> Tensor
atanh(Tensor self) -> Tensor
bitwise_and.Scalar(Tensor self, Scalar other) -> Tensor
bitwise_and.Tensor(Tensor self, Tensor other) -> Tensor
bitwise_left_shift.Tensor(Tensor self, Tensor other) -> Tensor
bitwise_left_shift.Tensor_Scalar(Tensor self, Scalar other) -> Tensor
bitwise_not(Tensor self) -> Tensor
bitwise_or.Scalar(Tensor self, Scalar other) -> Tensor
bitwise_or.Tensor(Tensor self, Tensor other) -> Tensor
bitwise_right_shift.Tensor(Tensor self, Tensor other) -> Tensor
bitwise_right_shift.Tensor_Scalar(Tensor self, Scalar other) -> Tensor
bitwise_xor.Scalar(Tensor self, Scalar other) -> Tensor
bitwise_xor.Tensor(Tensor self, Tensor other) -> Tensor
ceil(Tensor self) -> Tensor
celu(Tensor self, Scalar alpha=1.) -> Tensor
clamp(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor
clamp.Tensor(Tensor self, Tensor? min=None, Tensor? max=None) -> Tensor
clamp_max(Tensor self, Scalar max) -> Tensor
clamp_max.Tensor(Tensor self, Tensor max) -> Tensor
clamp_min(Tensor self, Scalar min) -> Tensor
clamp_min.Tensor(Tensor self, Tensor min) -> Tensor
clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor
contiguous(Tensor self, *, MemoryFormat memory_format=0) -> Tensor
copysign.Scalar(Tensor self, Scalar other) -> Tensor
copysign.Tensor(Tensor self, Tensor other) -> Tensor
cos(Tensor self) -> Tensor
cosh(Tensor self) -> Tensor
deg2rad(Tensor self) -> Tensor
detach(Tensor self) -> Tensor
div.Scalar(Tensor self, Scalar other) -> Tensor
div.Scalar_mode(Tensor self, Scalar other, *, str? rounding_mode) -> Tensor
div.Tensor(Tensor self, Tensor other) -> Tensor
div.Tensor_mode(Tensor self, Tensor other, *, str? rounding_mode) -> Tensor
dropout(Tensor input, float p, bool train) -> Tensor
elu(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) -> Tensor
eq.Scalar(Tensor self, Scalar other) -> Tensor
eq.Tensor(Tensor self, Tensor other) -> Tensor
erf(Tensor self) -> Tensor
erfc(Tensor self) -> Tensor
exp(Tensor self) -> Tensor
exp2(Tensor self) -> Tensor
expm1(Tensor self) -> Tensor
float_power.Scalar(Scalar self, Tensor exponent) -> Tensor
float_power.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor
float_power.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor
floor(Tensor self) -> Tensor
floor_divide(Tensor self, Tensor other) -> Tensor
floor_divide.Scalar(Tensor self, Scalar other) -> Tensor
fmax(Tensor self, Tensor other) -> Tensor
fmin(Tensor self, Tensor other) -> Tensor
fmod.Scalar(Tensor self, Scalar other) -> Tensor
fmod.Tensor(Tensor self, Tensor other) -> Tensor
frac(Tensor self) -> Tensor
ge.Scalar(Tensor self, Scalar other) -> Tensor
ge.Tensor(Tensor self, Tensor other) -> Tensor
gelu(Tensor self, *, str approximate="none") -> Tensor
glu(Tensor self, int dim=-1) -> Tensor
gt.Scalar(Tensor self, Scalar other) -> Tensor
gt.Tensor(Tensor self, Tensor other) -> Tensor
hardshrink(Tensor self, Scalar lambd=0.5) -> Tensor
hardsigmoid(Tensor self) -> Tensor
hardswish(Tensor self) -> Tensor
hardtanh(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor
heaviside(Tensor self, Tensor values) -> Tensor
hypot(Tensor self, Tensor other) -> Tensor
isclose(Tensor self, Tensor other, float rtol=1.0000000000000001e-05, float atol=1e-08, bool equal_nan=False) ->
    Tensor
isfinite(Tensor self) -> Tensor
isinf(Tensor self) -> Tensor
isnan(Tensor self) -> Tensor
isneginf(Tensor self) -> Tensor
isposinf(Tensor self) -> Tensor
le.Scalar(Tensor self, Scalar other) -> Tensor
le.Tensor(Tensor self, Tensor other) -> Tensor
leaky_relu(Tensor self, Scalar negative_slope=0.01) -> Tensor
lerp.Scalar(Tensor self, Tensor end, Scalar weight) -> Tensor
lerp.Tensor(Tensor self, Tensor end, Tensor weight) -> Tensor
lift_fresh_copy(Tensor self) -> Tensor
log(Tensor self) -> Tensor
log10(Tensor self) -> Tensor
log1p(Tensor self) -> Tensor
log2(Tensor self) -> Tensor
log_sigmoid(Tensor self) -> Tensor
logaddexp(Tensor self, Tensor other) -> Tensor
logaddexp2(Tensor self, Tensor other) -> Tensor
logical_and(Tensor self, Tensor other) -> Tensor
logical_not(Tensor self) -> Tensor
logical_or(Tensor self, Tensor other) -> Tensor
logical_xor(Tensor self, Tensor other) -> Tensor
logit(Tensor self, float? eps=None) -> Tensor
lt.Scalar(Tensor self, Scalar other) -> Tensor
lt.Tensor(Tensor self, Tensor other) -> Tensor
masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor
masked_fill.Tensor(Tensor self, Tensor mask, Tensor value) -> Tensor
max.other(Tensor self, Tensor other) -> Tensor
maximum(Tensor self, Tensor other) -> Tensor
min.other(Tensor self, Tensor other) -> Tensor
minimum(Tensor self, Tensor other) -> Tensor
mish(Tensor self) -> Tensor
mul.Scalar(Tensor self, Scalar other) -> Tensor
mul.Tensor(Tensor self, Tensor other) -> Tensor
nan_to_num(Tensor self, float? nan=None, float? posinf=None, float? neginf=None) -> Tensor
ne.Scalar(Tensor self, Scalar other) -> Tensor
ne.Tensor(Tensor self, Tensor other) -> Tensor
neg(Tensor self) -> Tensor
positive(Tensor self) -> Tensor
pow.Scalar(Scalar self, Tensor exponent) -> Tensor
pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor
pow.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor
prelu(Tensor self, Tensor weight) -> Tensor
rad2deg(Tensor self) -> Tensor
reciprocal(Tensor self) -> Tensor
relu(Tensor self) -> Tensor
relu6(Tensor self) -> Tensor
remainder.Scalar(Tensor self, Scalar other) -> Tensor
remainder.Scalar_Tensor(Scalar self, Tensor other) -> Tensor
remainder.Tensor(Tensor self, Tensor other) -> Tensor
round(Tensor self) -> Tensor
round.decimals(Tensor self, *, int decimals) -> Tensor
rsqrt(Tensor self) -> Tensor
rsub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor
rsub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
selu(Tensor self) -> Tensor
sgn(Tensor self) -> Tensor
sigmoid(Tensor self) -> Tensor
sign(Tensor self) -> Tensor
signbit(Tensor self) -> Tensor
silu(Tensor self) -> Tensor
sin(Tensor self) -> Tensor
sinc(Tensor self) -> Tensor
sinh(Tensor self) -> Tensor
softplus(Tensor self, Scalar beta=1, Scalar threshold=20) -> Tensor
softshrink(Tensor self, Scalar lambd=0.5) -> Tensor
sqrt(Tensor self) -> Tensor
square(Tensor self) -> Tensor
sub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor
sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
tan(Tensor self) -> Tensor
tanh(Tensor self) -> Tensor
threshold(Tensor self, Scalar threshold, Scalar value) -> Tensor
to.device(Tensor self, Device device, ScalarType dtype, bool non_blocking=False, bool copy=False, MemoryFormat?
    memory_format=None) -> Tensor
to.dtype(Tensor self, ScalarType dtype, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) ->
    Tensor
to.dtype_layout(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool?
    pin_memory=None, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) -> Tensor
to.other(Tensor self, Tensor other, bool non_blocking=False, bool copy=False, MemoryFormat? memory_format=None) ->
    Tensor
true_divide.Tensor(Tensor self, Tensor other) -> Tensor
trunc(Tensor self) -> Tensor
type_as(Tensor self, Tensor other) -> Tensor
where.Scalar(Tensor condition, Scalar self, Scalar other) -> Tensor
where.ScalarOther(Tensor condition, Tensor self, Scalar other) -> Tensor
where.ScalarSelf(Tensor condition, Scalar self, Tensor other) -> Tensor
where.self(Tensor condition, Tensor self, Tensor other) -> Tensor
xlogy.Scalar_Other(Tensor self, Scalar other) -> Tensor
xlogy.Scalar_Self(Scalar self, Tensor other) -> Tensor
xlogy.Tensor(Tensor self, Tensor other) -> Tensor
copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor
fill.Scalar(Tensor self, Scalar value) -> Tensor
fill.Tensor(Tensor self, Tensor value) -> Tensor
_fused_rms_norm(Tensor input, int[] normalized_shape, Tensor? weight, float? eps) -> (Tensor, Tensor)
_log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor
_native_batch_norm_legit_no_training(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, Tensor
    running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor)
_softmax(Tensor self, int dim, bool half_to_float) -> Tensor
_unsafe_view(Tensor self, int[] size) -> Tensor
view.dtype(Tensor self, ScalarType dtype) -> Tensor
adaptive_avg_pool1d(Tensor self, int[1] output_size) -> Tensor
adaptive_avg_pool2d(Tensor self, int[2] output_size) -> Tensor
addbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor
addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor
addmv(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> Tensor
all(Tensor self) -> Tensor
all.dim(Tensor self, int dim, bool keepdim=False) -> Tensor
all.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor
amax(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor
amin(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor
aminmax(Tensor self, *, int? dim=None, bool keepdim=False) -> (Tensor min, Tensor max)
any(Tensor self) -> Tensor
any.dim(Tensor self, int dim, bool keepdim=False) -> Tensor
any.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor
arange(Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) ->
    Tensor
arange.start(Scalar start, Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool?
    pin_memory=None) -> Tensor
arange.start_step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None, Layout? layout=None, Device?
    device=None, bool? pin_memory=None) -> Tensor
argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor
argmin(Tensor self, int? dim=None, bool keepdim=False) -> Tensor
avg_pool1d(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=[0], bool ceil_mode=False, bool
    count_include_pad=True) -> Tensor
avg_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, bool ceil_mode=False, bool
    count_include_pad=True, int? divisor_override=None) -> Tensor
baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor
batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, bool training, float
    momentum, float eps, bool cudnn_enabled) -> Tensor
bmm(Tensor self, Tensor mat2) -> Tensor
cat(Tensor[] tensors, int dim=0) -> Tensor
chunk(Tensor self, int chunks, int dim=0) -> Tensor[]
constant_pad_nd(Tensor self, int[] pad, Scalar value=0) -> Tensor
conv1d(Tensor input, Tensor weight, Tensor? bias=None, int[1] stride=[1], int[1] padding=[0], int[1] dilation=[1], int
    groups=1) -> Tensor
conv2d(Tensor input, Tensor weight, Tensor? bias=None, int[2] stride=[1, 1], int[2] padding=[0, 0], int[2]
    dilation=[1, 1], int groups=1) -> Tensor
conv3d(Tensor input, Tensor weight, Tensor? bias=None, int[3] stride=[1, 1, 1], int[3] padding=[0, 0, 0], int[3]
    dilation=[1, 1, 1], int groups=1) -> Tensor
convolution(Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation, bool transposed,
    int[] output_padding, int groups) -> Tensor
count_nonzero(Tensor self, int? dim=None) -> Tensor
count_nonzero.dim_IntList(Tensor self, int[] dim) -> Tensor
cumprod(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor
cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor
diag_embed(Tensor self, int offset=0, int dim1=-2, int dim2=-1) -> Tensor
diagonal(Tensor self, int offset=0, int dim1=0, int dim2=1) -> Tensor
dot(Tensor self, Tensor tensor) -> Tensor
einsum(str equation, Tensor[] tensors, *, int[]? path=None) -> Tensor
embedding(Tensor weight, Tensor indices, int padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False) ->
    Tensor
empty.memory_format(int[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool?
    pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
empty_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None,
    MemoryFormat? memory_format=None) -> Tensor
expand(Tensor self, int[] size, *, bool implicit=False) -> Tensor
expand_as(Tensor self, Tensor other) -> Tensor
eye(int n, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
eye.m(int n, int m, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) ->
    Tensor
flatten.using_ints(Tensor self, int start_dim=0, int end_dim=-1) -> Tensor
flip(Tensor self, int[] dims) -> Tensor
full(int[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool?
    pin_memory=None) -> Tensor
full_like(Tensor self, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool?
    pin_memory=None, MemoryFormat? memory_format=None) -> Tensor
gather(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor
group_norm(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, float eps=1.0000000000000001e-05,
    bool cudnn_enabled=True) -> Tensor
index.Tensor(Tensor self, Tensor?[] indices) -> Tensor
index_fill.int_Scalar(Tensor self, int dim, Tensor index, Scalar value) -> Tensor
index_select(Tensor self, int dim, Tensor index) -> Tensor
layer_norm(Tensor input, int[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float
    eps=1.0000000000000001e-05, bool cudnn_enable=True) -> Tensor
linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) ->
    Tensor
linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor
linspace(Scalar start, Scalar end, int steps, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None,
    bool? pin_memory=None) -> Tensor
log_softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor
logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor
matmul(Tensor self, Tensor other) -> Tensor
max(Tensor self) -> Tensor
max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)
max_pool1d(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=[0], int[1] dilation=[1], bool
    ceil_mode=False) -> Tensor
max_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, bool
    ceil_mode=False) -> Tensor
mean(Tensor self, *, ScalarType? dtype=None) -> Tensor
mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
min(Tensor self) -> Tensor
min.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)
mm(Tensor self, Tensor mat2) -> Tensor
movedim.int(Tensor self, int source, int destination) -> Tensor
movedim.intlist(Tensor self, int[] source, int[] destination) -> Tensor
mv(Tensor self, Tensor vec) -> Tensor
nansum(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
narrow(Tensor self, int dim, int start, int length) -> Tensor
native_group_norm(Tensor input, Tensor? weight, Tensor? bias, int N, int C, int HxW, int group, float eps) -> (Tensor,
    Tensor, Tensor)
native_layer_norm(Tensor input, int[] normalized_shape, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor,
    Tensor)
new_empty(Tensor self, int[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool?
    pin_memory=None) -> Tensor
new_full(Tensor self, int[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device?
    device=None, bool? pin_memory=None) -> Tensor
new_ones(Tensor self, int[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool?
    pin_memory=None) -> Tensor
new_zeros(Tensor self, int[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool?
    pin_memory=None) -> Tensor
norm.Scalar(Tensor self, Scalar p=2) -> Tensor
norm.ScalarOpt_dim(Tensor self, Scalar? p, int[1] dim, bool keepdim=False) -> Tensor
norm.ScalarOpt_dim_dtype(Tensor self, Scalar? p, int[1] dim, bool keepdim, *, ScalarType dtype) -> Tensor
numpy_T(Tensor self) -> Tensor
ones(int[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor
ones_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None,
    MemoryFormat? memory_format=None) -> Tensor
outer(Tensor self, Tensor vec2) -> Tensor
pad(Tensor self, int[] pad, str mode="constant", float? value=None) -> Tensor
permute(Tensor self, int[] dims) -> Tensor
prod(Tensor self, *, ScalarType? dtype=None) -> Tensor
prod.dim_int(Tensor self, int dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
ravel(Tensor self) -> Tensor
reflection_pad1d(Tensor self, int[2] padding) -> Tensor
reflection_pad2d(Tensor self, int[4] padding) -> Tensor
repeat(Tensor self, int[] repeats) -> Tensor
repeat_interleave.self_int(Tensor self, int repeats, int? dim=None, *, int? output_size=None) -> Tensor
replication_pad1d(Tensor self, int[2] padding) -> Tensor
replication_pad2d(Tensor self, int[4] padding) -> Tensor
reshape(Tensor self, int[] shape) -> Tensor
reshape_as(Tensor self, Tensor other) -> Tensor
rms_norm(Tensor input, int[] normalized_shape, Tensor? weight=None, float? eps=None) -> Tensor
roll(Tensor self, int[1] shifts, int[1] dims=[]) -> Tensor
scalar_tensor(Scalar s, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) ->
    Tensor
scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0., bool
    is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor
select.int(Tensor self, int dim, int index) -> Tensor
select_scatter(Tensor self, Tensor src, int dim, int index) -> Tensor
slice.Tensor(Tensor self, int dim=0, int? start=None, int? end=None, int step=1) -> Tensor
slice_scatter(Tensor self, Tensor src, int dim=0, int? start=None, int? end=None, int step=1) -> Tensor
softmax.int(Tensor self, int dim, ScalarType? dtype=None) -> Tensor
split.Tensor(Tensor self, int split_size, int dim=0) -> Tensor[]
split.sizes(Tensor self, int[] split_size, int dim=0) -> Tensor[]
split_with_sizes(Tensor self, int[] split_sizes, int dim=0) -> Tensor[]
squeeze(Tensor self) -> Tensor
squeeze.dim(Tensor self, int dim) -> Tensor
squeeze.dims(Tensor self, int[] dim) -> Tensor
stack(Tensor[] tensors, int dim=0) -> Tensor
std(Tensor self, bool unbiased=True) -> Tensor
std.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor
std.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> Tensor
std_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor, Tensor)
sum(Tensor self, *, ScalarType? dtype=None) -> Tensor
sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor
swapaxes(Tensor self, int axis0, int axis1) -> Tensor
t(Tensor self) -> Tensor
take(Tensor self, Tensor index) -> Tensor
take_along_dim(Tensor self, Tensor indices, int? dim=None) -> Tensor
transpose.int(Tensor self, int dim0, int dim1) -> Tensor
tril(Tensor self, int diagonal=0) -> Tensor
triu(Tensor self, int diagonal=0) -> Tensor
unbind.int(Tensor self, int dim=0) -> Tensor[]
unflatten.int(Tensor self, int dim, int[] sizes) -> Tensor
unfold(Tensor self, int dimension, int size, int step) -> Tensor
unsqueeze(Tensor self, int dim) -> Tensor
var(Tensor self, bool unbiased=True) -> Tensor
var.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> Tensor
var.dim(Tensor self, int[1]? dim, bool unbiased=True, bool keepdim=False) -> Tensor
var_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool keepdim=False) -> (Tensor, Tensor)
vdot(Tensor self, Tensor other) -> Tensor
view(Tensor self, int[] size) -> Tensor
view.dtype(Tensor self, ScalarType dtype) -> Tensor
view_as(Tensor self, Tensor other) -> Tensor
zeros(int[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) ->
    Tensor
zeros_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None,
    MemoryFormat? memory_format=None) -> Tensor
"""


@dataclass(frozen=True)
class Argument:
    """One argument of a schema. `type` is as written: `Tensor?[]`, `int[2]`, `Scalar?`."""

    name: str
    type: str
    default: object = None
    has_default: bool = False

    @cached_property
    def base(self) -> str:
        """The type without its suffixes: `Tensor`, `Scalar`, `int`, `float`, `bool`, `str`, `ScalarType`, ..."""
        return self.type.partition("[")[0].rstrip("?")

    @cached_property
    def is_list(self) -> bool:
        return "[" in self.type

    @cached_property
    def optional(self) -> bool:
        return self.type.endswith("?")

    @cached_property
    def length(self) -> int:
        """N of `int[N]`, which a lone integer is repeated to; 0 where the schema gives none."""
        size = self.type.partition("[")[2].partition("]")[0]
        return int(size) if size else 0

    def element(self) -> Argument:
        """An element of this list argument, as an argument of the same name."""
        return Argument(self.name, self.type.partition("[")[0])


@dataclass(frozen=True)
class Schema:
    """An overload: its name (`add.Tensor`, `relu`), its arguments in order, and the types of its results."""

    name: str
    arguments: tuple[Argument, ...]
    results: tuple[str, ...]
    text: str

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(a.name for a in self.arguments)


def read_schemas(text: str = SCHEMA_TEXT + RARE_SCHEMA_TEXT, random: str = RANDOM_SCHEMA_TEXT) -> dict[str, Schema]:
    """The schemas in `text` and in `random` by name; those in `random` and in `DRAWING` take a generator."""
    schemas = {s.name: s for s in _schemas(text)}
    drawing = [*_schemas(random), *(schemas[name] for name in sorted(DRAWING & schemas.keys()))]
    return schemas | {s.name: _with_generator(s) for s in drawing}


def _schemas(text: str) -> list[Schema]:
    lines = text.replace("\n    ", " ").split("\n")
    return [read_schema(line) for line in lines if line]


def _with_generator(schema: Schema) -> Schema:
    if "generator" in schema.names:
        return schema
    return replace(schema, arguments=(*schema.arguments, Argument("generator", "Generator?", None, True)))


def read_schema(line: str) -> Schema:
    """The schema in one line: `relu(Tensor self) -> Tensor`."""
    head, _, results = line.rpartition(" -> ")
    name, _, arguments = head.partition("(")
    pieces = [p for p in _split(arguments.removesuffix(")")) if p != "*"]
    outputs = _split(results[1:-1]) if results.startswith("(") else [results]
    return Schema(name, tuple(map(_read_argument, pieces)), tuple(o.partition(" ")[0] for o in outputs), line)


def _split(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    pieces, depth = [""], 0
    for char in text:
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += char
    return [p.strip() for p in pieces if p.strip()]


def _read_argument(text: str) -> Argument:
    type, _, rest = text.partition(" ")
    name, equals, default = rest.partition("=")
    if not equals:
        return Argument(name, type)
    return Argument(name, type, _read_default(default, type), True)


_WORDS: dict[str, object] = {"None": None, "True": True, "False": False, "[]": []}


def _read_default(text: str, type: str) -> object:
    if text in _WORDS:
        return _WORDS[text]
    if type.startswith("ScalarType"):
        return {"4": i64}[text]
    if type.startswith("MemoryFormat"):
        return {"0": "contiguous_format"}[text]
    if text.startswith("["):
        return [_read_default(t, type.partition("[")[0]) for t in _split(text[1:-1])]
    if text.startswith('"'):
        return text.strip('"')
    return float(text) if "." in text or "e" in text or type.startswith("float") else int(text)
