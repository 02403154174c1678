"""Where time goes on a GPU: kernels told apart by their names, and sums that lose none of them."""

import json
from pathlib import Path

import pytest
import torch

NAMES = {
    "triton_red_fused__to_copy_convolution_native_batch_norm_12": "reductions",
    "triton_per_fused_add_sum_3": "reductions",
    "triton_poi_fused_convolution_relu_7": "elementwise",
    "triton_tem_fused_mm_1": "matrix products of the compiler",
    "sm90_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x32": "convolutions",
    "void cutlass_cudnn::Kernel<cutlass_tensorop_bf16_s16816wgrad_optimized>": "convolutions",
    "void cudnn::ops::nchwToNhwcKernel<__nv_bfloat16>": "layouts",
    "nvjet_tst_128x64_64x9_1x2_h_bz_coopB_TNN": "matrix products",
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64_32x6_tn_align4>": "matrix products",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float>": "matrix products",
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>": "updates",
    "Memset (Device)": "copies",
    "Memcpy DtoD (Device -> Device)": "copies",
    "void at::native::vectorized_elementwise_kernel<4, at::native::relu>": "elementwise by torch",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>": "reductions by torch",
    "some_kernel_of_tomorrow": "other",
}


@pytest.mark.parametrize("name", NAMES)
def test_kernels_are_told_apart_by_their_names(name: str) -> None:
    from kernels import group_of

    assert group_of(name) == NAMES[name]


def test_sums_hold_every_kernel_and_the_longest_come_first() -> None:
    from kernels import LONGEST, summary

    kernels = [(f"triton_poi_fused_{index}", float(index), 2.0) for index in range(1, 20)] + [("gemm", 100.0, 1.0)]
    found = summary(kernels)
    assert found["busy"] == 290.0
    assert found["groups"] == {"elementwise": [190.0, 38.0], "matrix products": [100.0, 1.0]}
    assert list(found["groups"]) == ["elementwise", "matrix products"]
    assert [name for name, _, _ in found["longest"][:2]] == ["gemm", "triton_poi_fused_19"]
    assert len(found["longest"]) == LONGEST


def test_a_record_is_told_in_words() -> None:
    from kernels import CASES, summary, told

    record = {**CASES[3]._asdict(), "milliseconds": 20.0, **summary([("gemm", 8.25, 200.0), ("x" * 200, 1.0, 0.5)])}
    lines = told(record).splitlines()
    assert lines[0] == "784-1200-1200-10, local, S = 100, bf16, prediction: 20.000 ms, busy for 9.250 ms"
    assert lines[1].split() == ["8.250", "ms", "200.0", "launches", "matrix", "products"]
    assert max(map(len, lines)) < 150


def test_a_page_shows_groups_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import figures
    from kernels import CASES, summary

    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    records = [
        {**CASES[0]._asdict(), "milliseconds": 0.5, **summary([("gemm", 0.3, 12.0), ("Memset", 0.01, 3.0)])},
        {**CASES[5]._asdict(), "milliseconds": 30.0, **summary([("cudnn_conv", 20.0, 120.0), ("gemm", 1.0, 4.0)])},
    ]
    stored = {"commit": "0123456789", "hardware": "a GPU", "versions": {"torch": "2"}, "records": {"kernels": records}}
    (tmp_path / "kernels_here.json").write_text(json.dumps(stored))
    rows = figures.table("kernels:here", "page.md").splitlines()
    assert rows[0] == "| what | in all | the GPU works | matrix products | convolutions | copies |"
    assert rows[2] == "| step of 784-1200-1200-10, local, S = 10, tf32 | 0.5 | 0.31 | 0.3 (12) | - | 0.01 (3) |"
    assert rows[3] == "| step of resnet18, local, S = 10, bf16 | 30 | 21 | 1 (4) | 20 (120) | - |"
    assert rows[-1].endswith("a GPU, torch 2, commit 0123456: `benchmarks/results/kernels_here.json`.")


@pytest.mark.parametrize(("data", "told"), [("cifar10", False), ("random images", True)])
def test_data_that_random_ones_stand_in_for_are_told(
    data: str, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import figures

    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    records = [{"what": "training", "seconds": 3.0, "capture_seconds": 30.0, "data": data}]
    stored = {"commit": "0123456789", "hardware": "a GPU", "versions": {"torch": "2"}, "records": {"fitting": records}}
    (tmp_path / "fitting_here.json").write_text(json.dumps(stored))
    assert ("random images stood in, as many" in figures.table("epochs:here", "page.md")) is told


def test_without_a_gpu_there_is_nothing_to_look_at(cpu: torch.device) -> None:
    from kernels import measure

    with pytest.raises(SystemExit, match="kernels needs a GPU"):
        measure(cpu)


def test_a_network_that_is_not_looked_at_is_refused() -> None:
    from kernels import measure

    with pytest.raises(SystemExit, match="kernels looks at 784-1200-1200-10, resnet18, got 784-800-800-10"):
        measure(torch.device("cuda"), nets=["resnet18", "784-800-800-10"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_step_on_a_gpu_is_busy_with_products_for_most_of_its_time() -> None:
    from kernels import CASES, look_at

    found = look_at(CASES[1], torch.device("cuda"))
    assert 0.5 * found["milliseconds"] < found["busy"] < 1.1 * found["milliseconds"]
    assert next(iter(found["groups"])) == "matrix products"
