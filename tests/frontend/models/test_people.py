"""Modules as people write them are right, or refused by name (`programs/people`).

`--people all` runs every program on the reference and as printed CUDA on the CPU; otherwise programs that are not in
`COVERED` run on the reference, and every eighth program runs there and as CUDA. All of these are lowered to kernels.
With the simple strategies `--people all` runs every program as CUDA and as C++, and otherwise a few.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from programs.people import PROGRAMS
from torch.utils import _pytree as pytree

import deplodock
from deplodock.dialects.loop import NestOp
from deplodock.frontend.executors import make_executor
from deplodock.passes.planning.plan_schedules import check_schedule
from deplodock.target.attribute import get_target

REFUSED: dict[str, str] = {}
"""Program -> what the refusal has to name. A program that starts to work has to leave this list."""

EVERY, EVERY_SIMPLE = 8, 48

COVERED = set(
    """
    adam_step adaptive_instance_norm add_noise affine_coupling_flow alibi_attention associative_memory
    attention_over_columns autocorrelation barlow_twins batch_hard_triplets binary_cross_entropy_with_weights blur_pool
    bottleneck_with_groups camera_projection capsule_routing center_loss chamfer_distance channel_and_spatial_attention
    channel_shuffle clip_by_global_norm conformer_convolution conjugate_gradients continuous_filter_convolution
    convnext_block coordinate_convolution crops_by_bilinear_sampling cross_entropy_of_pixels
    cross_entropy_with_soft_targets decode_boxes deep_and_cross deep_sets detection_transformer_head dice_loss
    dilated_pyramid dilation_and_erosion distributional_projection documents_in_one_sequence dropout_between_layers
    equivariant_update euler_steps_of_an_ode experts_as_batched_matmul exponential_moving_average factorisation_machine
    finite_scalar_quantisation focal_loss forward_algorithm_of_an_hmm gaussian_blur gemma_layer_with_soft_caps
    generalised_iou_loss gpt_loss gpt_without_flash gram_matrix_style_loss graph_attention graph_convolution_of_a_matrix
    guided_prediction gumbel_arg_max hashed_embeddings heat_equation heat_map_peaks highway_layers inception_block
    induced_set_attention information_noise_contrast int8_weights_by_group interest_attention isomorphism_network
    jensen_shannon_divergence kolmogorov_arnold_layer latent_attention layer_with_normed_queries layerwise_trust_ratio
    linear_interpolation lion_and_sign_momentum llama_layer lloyd_step low_rank_adapter masked_autoencoder_shuffle
    matching_costs maximum_of_neighbours mel_cepstra messages_by_index_add mixed_up_batch mlp_mixer
    modulated_convolution multi_head_attention_with_weights newton_schulz_orthogonalisation normal_by_box_muller
    normalised_histogram optimal_transport_by_sinkhorn parallel_attention_and_mlp patch_discriminator
    policy_gradient_loss power_iteration preference_loss q_learning_loss quasi_recurrent_pooling radiance_field
    ranking_gain rays_and_spheres regression_losses regularised_loss_of_a_module rotations_from_quaternions
    rotations_from_six_numbers rwkv_time_mixing selective_state_space separation_masks shallow_water_step
    shifted_windows sigmoid_contrast signal_to_distortion_ratio sine_network sliding_window_attention small_resnet
    sobel_edges soft_decision_trees softmax_over_incoming_edges spectrogram_by_convolution spherical_harmonics
    squeezed_fire_module structural_similarity t5_relative_positions temporal_convolutions
    three_dimensional_convolutions tokens_of_most_weight top_k_filter_and_penalty top_p_filter total_variation
    tree_search_scores two_towers_with_batch_softmax variational_autoencoder_loss vector_quantisation vision_transformer
    volume_rendering wavenet weight_normalised_layer
    """.split()
)
"""Programs that execute no branch of the library that the other programs do not, as `coverage run --branch` showed.

A new program is not in this list, so that it always runs.
"""


def compare(actual: Any, expected: Any) -> None:
    """Values, types and structure, with a tolerance for sums in another order."""
    got, structure = pytree.tree_flatten(actual)
    wanted, wanted_structure = pytree.tree_flatten(expected)
    assert structure == wanted_structure
    for a, b in zip(got, wanted, strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        assert a.shape == b.shape
        narrow = b.dtype in (torch.bfloat16, torch.float16)
        rtol, atol = (5e-2, 5e-2) if narrow else (2e-4, 2e-5)
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, request: pytest.FixtureRequest) -> None:
    """Compiled, run twice (buffers may change), and compared with PyTorch."""
    emulated = request.config.getoption("--people") == "all" or [*PROGRAMS].index(name) % EVERY == 0
    if name in COVERED and not emulated:
        pytest.skip("--people all runs it")
    torch.manual_seed(0)
    function, args = PROGRAMS[name]()
    if name in REFUSED:
        with pytest.raises(deplodock.CompileError, match=REFUSED[name]):
            deplodock.compile(function, args, executor="reference").check()
        return
    with torch.no_grad():
        compiled = deplodock.compile(function, args, executor="reference")
        compiled.check()
        for executor in ("reference", "emulator") if emulated else ("reference",):
            ours = copy.deepcopy(compiled)
            ours._executor = make_executor(executor, compiled.compilation)
            eager = copy.deepcopy(function) if isinstance(function, torch.nn.Module) else function
            for _ in range(2):
                compare(ours(*args), eager(*args))


@pytest.mark.parametrize(("target", "executor"), [("sm_90a", "emulator"), ("cpu", "cpu")])
@pytest.mark.parametrize("name", PROGRAMS)
def test_simple_strategies(name: str, target: str, executor: str, request: pytest.FixtureRequest) -> None:
    """The simple strategies give schedules that are legal, and kernels that are right."""
    number = [*PROGRAMS].index(name)
    if request.config.getoption("--people") != "all" and number % EVERY_SIMPLE:
        pytest.skip("--people all runs it")
    torch.manual_seed(0)
    function, args = PROGRAMS[name]()
    with torch.no_grad():
        ours = deplodock.compile(function, args, target=target, executor=executor, strategy="simple", record="none")
        nests = [op for op in ours.compilation.scheduled().walk() if isinstance(op, NestOp)]
        for nest in nests:
            check_schedule(nest, get_target(target))
        assert nests
        compare(ours(*args), function(*args))


def test_size_of_the_corpus() -> None:
    assert len(PROGRAMS) >= 150
    assert len(PROGRAMS) - len(REFUSED) >= 140
    assert PROGRAMS.keys() >= COVERED
