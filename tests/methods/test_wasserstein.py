"""``Wasserstein``: clouds, directions and margins of its head, and what it refuses; T-52, T-53, T-54."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio import functional
from dubio._engine.passes import Pass, joined_pass
from dubio._engine.settings import Settings, seed_tensor
from dubio.nn.heads import WassersteinHead
from networks import mlp

ROWS, CLASSES, WIDTH = 7, 3, 8
SMALL = dubio.Wasserstein(
    num_points=4, dim=6, noise_dim=3, hidden=16, num_directions=9, eval_redraws=2, trained_scale=False
)
INPUTS = torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(1))
TARGETS = torch.arange(ROWS) % CLASSES


def convert(method: dubio.Wasserstein) -> tuple[nn.Module, WassersteinHead, Tensor]:
    """A network, its head, and what the head sees."""
    torch.manual_seed(0)
    net = mlp(5, WIDTH, CLASSES)
    model = method.convert(net)
    return model, model[-1], net[:-1](INPUTS)


def replayed(head: WassersteinHead, code: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Clouds of inputs and of classes, and the directions, of the first draw with a seed."""
    running = Pass(Settings("frozen", seed_tensor(seed)))
    with dubio.frozen(seed=seed):
        features, classes = head.clouds(code), head.class_clouds(code)
    count = head.options.num_directions * (1 if head.training else head.options.eval_redraws)
    directions = functional.wasserstein.unit_directions(
        running.noise_for_weights(head.directions, torch.empty(count, head.dim))
    )
    return features, classes, directions


def noise_seen(maker: nn.Module) -> list[Tensor]:
    """What a maker of clouds is given from now on."""
    seen: list[Tensor] = []
    maker.register_forward_pre_hook(lambda module, args: seen.append(args[1]))
    return seen


@pytest.mark.parametrize("prototype", ["generated", "free"])
@pytest.mark.parametrize(("p", "root"), [(2, False), (2, True), (1, False)])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_all_pairs_of_a_pass_share_directions_and_class_clouds(prototype: Any, p: int, root: bool, mode: str) -> None:
    model, head, code = convert(replace(SMALL, prototype=prototype, p=p, root=root))
    model.train(mode == "train")
    features, classes, directions = replayed(head, code, seed=2)
    expected = torch.stack(
        [
            torch.stack([functional.wasserstein.sliced_wasserstein(f, c, directions, p, root) for c in classes])
            for f in features
        ]
    )
    with dubio.frozen(seed=2):
        torch.testing.assert_close(model(INPUTS), -expected)
    assert features.shape == (ROWS, 4, 6)
    assert classes.shape == (CLASSES, 4, 6)
    assert directions.shape == (9 if mode == "train" else 18, 6)


def test_entropic_distances_are_those_of_the_clouds() -> None:
    model, head, code = convert(replace(SMALL, distance="sinkhorn", regularisation=0.7, num_iterations=5))
    features, classes, _ = replayed(head, code, seed=2)
    with dubio.frozen(seed=2):
        torch.testing.assert_close(model(INPUTS), -functional.wasserstein.sinkhorn_matrix(features, classes, 0.7, 5))


def test_clouds_of_classes_and_directions_change_from_draw_to_draw() -> None:
    _, head, code = convert(SMALL)
    one, other = (replayed(head, code, seed) for seed in (1, 2))
    assert all(not torch.allclose(a, b, atol=1e-2) for a, b in zip(one, other, strict=True))


def test_evaluation_draws_more_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    original = functional.wasserstein.sliced_wasserstein_matrix

    def spy(features: Tensor, classes: Tensor, directions: Tensor, p: int, root: bool) -> Tensor:
        seen.append(len(directions))
        return original(features, classes, directions, p, root)

    monkeypatch.setattr(functional.wasserstein, "sliced_wasserstein_matrix", spy)
    model, _, _ = convert(replace(SMALL, eval_redraws=5))
    model.train()(INPUTS)
    model.eval()(INPUTS)
    assert seen == [9, 45]


@pytest.mark.parametrize("noise", ["normal", "uniform"])
def test_noise_is_of_its_kind(noise: Any) -> None:
    model, head, _ = convert(replace(SMALL, noise=noise, num_points=64, noise_dim=8))
    seen = [noise_seen(maker) for maker in (head.features, head.classes)]
    model(INPUTS)
    for (values,), shape in zip(seen, ((ROWS, 64, 8), (CLASSES, 64, 8)), strict=True):
        assert values.shape == shape
        assert abs(values.mean()) < 0.1
        assert values.std().item() == pytest.approx(1.0 if noise == "normal" else 3**-0.5, rel=0.05)
        assert (values.abs().max() <= 1.0) == (noise == "uniform")
        assert values.abs().max() > 0.98


def test_a_trained_scale_multiplies_the_logits_and_is_trained() -> None:
    model, head, _ = convert(replace(SMALL, trained_scale=True))
    plain, _, _ = convert(SMALL)
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if "log_scale" not in name})
    nn.init.constant_(head.log_scale, 0.5)
    for context in (dubio.frozen(seed=3), dubio.noise_off()):
        with context:
            torch.testing.assert_close(model(INPUTS), plain(INPUTS) * torch.tensor(0.5).exp())
    dubio.ELBO(10)(model, INPUTS, TARGETS).total.backward()
    assert head.log_scale.grad.abs() > 1e-4


def test_margins_are_collected_and_weighted() -> None:
    model, head, code = convert(replace(SMALL, margin=2.0, feature_weight=0.3, class_weight=0.7))
    features, classes, _ = replayed(head, code, seed=2)
    loss = dubio.ELBO(10)(model, INPUTS, TARGETS, 1, seed=2)
    expected = [
        weight * (2.0 - clouds.var(dim=1).mean(dim=-1)).clamp_min(0.0).mean()
        for weight, clouds in ((0.3, features), (0.7, classes))
    ]
    torch.testing.assert_close([loss.terms["feature_margin"], loss.terms["class_margin"]], expected)
    torch.testing.assert_close(loss.total, loss.nll + sum(expected))
    free, _, _ = convert(replace(SMALL, feature_weight=0.0, class_weight=0.0))
    assert set(dubio.ELBO(10)(free, INPUTS, TARGETS).terms) == {"divergence"}


def hinge(scale: float) -> tuple[float, Tensor, WassersteinHead]:
    """The margin's term of inputs, and its gradient for what makes points of noise, that times a scale."""
    model, head, _ = convert(replace(SMALL, feature_weight=1.0, class_weight=0.0, margin=0.5))
    with torch.no_grad():
        head.features.noise.weight.mul_(scale)
    term = dubio.ELBO(10)(model, INPUTS, TARGETS, 1, seed=2).terms["feature_margin"]
    (gradient,) = torch.autograd.grad(term, head.features.noise.weight)
    return term.item(), gradient, head


def test_t52_the_hinge_is_zero_for_wide_clouds() -> None:
    term, gradient, _ = hinge(100.0)
    assert term == 0.0
    assert (gradient == 0.0).all()


def test_t52_a_collapsed_cloud_costs_the_margin_and_is_pushed_apart() -> None:
    """At exact collapse the gradient of a variance is zero: it can be pushed only once its points are not all equal."""
    term, gradient, _ = hinge(1e-3)
    assert term == pytest.approx(0.5, abs=1e-5)
    assert gradient.abs().max() > 1e-6
    term, gradient, _ = hinge(0.0)
    assert term == 0.5
    assert (gradient == 0.0).all()


@pytest.mark.parametrize("prototype", ["generated", "free"])
def test_t53_noise_off_is_the_squared_distance_of_points_over_the_dimension(prototype: Any) -> None:
    model, head, code = convert(replace(SMALL, prototype=prototype))
    one_hot = torch.eye(CLASSES)
    f = head.features.out(head.features.code(code).relu())
    g = head.prototypes.mean(dim=1) if prototype == "free" else head.classes.out(head.classes.code(one_hot).relu())
    with dubio.noise_off():
        torch.testing.assert_close(model(INPUTS), -(f.unsqueeze(1) - g).square().sum(dim=-1) / 6)


@pytest.mark.parametrize(("p", "root"), [(2, False), (1, False)])
def test_t53_without_width_of_noise_logits_are_those_of_points_on_average_over_directions(p: int, root: bool) -> None:
    model, head, code = convert(replace(SMALL, noise_dim=0, p=p, root=root, num_directions=500))
    model.train()
    with torch.no_grad():
        assert torch.equal(head.clouds(code), head.clouds(code)[:, :1].expand(ROWS, 4, 6))
        draws = dubio.sample(model, INPUTS, 40, seed=1)
        with dubio.noise_off():
            expected = model(INPUTS)
    error = draws.std(dim=0) / 40**0.5
    assert ((draws.mean(dim=0) - expected).abs() < 4.5 * error).all()
    assert (error < 0.02 * expected.abs()).all()


def test_t53_with_the_root_too_noise_off_is_that_of_points() -> None:
    model, _, _ = convert(replace(SMALL, root=True))
    squared, _, _ = convert(SMALL)
    with dubio.noise_off():
        torch.testing.assert_close(model(INPUTS), -squared(INPUTS).neg().sqrt())


def test_t54_one_point_gives_logits_and_is_refused_for_a_variance() -> None:
    with pytest.raises(ValueError, match="num_points must be at least 2 for clouds to have a variance; set both"):
        dubio.Wasserstein(num_points=1)
    model, _, _ = convert(replace(SMALL, num_points=1, feature_weight=0.0, class_weight=0.0))
    assert model(INPUTS).shape == (ROWS, CLASSES)
    assert dubio.ELBO(10)(model, INPUTS, TARGETS).total.isfinite()


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_the_size_of_batches_does_not_change_predictions(executor: Any) -> None:
    model, _, _ = convert(SMALL)
    inputs = torch.randn(40, 5)
    whole, cut = (dubio.predict(model, inputs, 3, seed=1, batch_size=size, executor=executor).probs for size in (40, 9))
    torch.testing.assert_close(cut, whole, rtol=1e-5, atol=1e-5)


def test_an_example_is_run_and_proves_no_equality() -> None:
    SMALL.convert(mlp(5, WIDTH, CLASSES), example=INPUTS)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        SMALL.convert(mlp(5, WIDTH, CLASSES), example=INPUTS[:, :4])


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"num_points": 0}, "num_points must be a whole number of at least 1, got 0"),
        ({"dim": True}, "dim must be a whole number of at least 1, got True"),
        ({"noise_dim": -1}, "noise_dim must be a whole number of at least 0, got -1"),
        ({"hidden": 1.5}, "hidden must be a whole number of at least 1, got 1.5"),
        ({"num_directions": 0}, "num_directions must be a whole number of at least 1, got 0"),
        ({"eval_redraws": 0}, "eval_redraws must be a whole number of at least 1, got 0"),
        ({"num_iterations": 0}, "num_iterations must be a whole number of at least 1, got 0"),
        ({"noise": "cauchy"}, "noise must be 'normal' or 'uniform', got 'cauchy'"),
        ({"prototype": "none"}, "prototype must be 'generated' or 'free', got 'none'"),
        ({"distance": "exact"}, "distance must be 'sliced' or 'sinkhorn', got 'exact'"),
        ({"p": 3}, "p must be 1 or 2, got 3"),
        ({"margin": -1.0}, "margin must be finite and at least 0, got -1.0"),
        ({"feature_weight": float("nan")}, "feature_weight must be finite and at least 0, got nan"),
        ({"class_weight": -0.5}, "class_weight must be finite and at least 0, got -0.5"),
        ({"regularisation": 0.0}, "regularisation must be positive and finite, got 0.0"),
    ],
)
def test_fields_are_refused_by_name_rule_and_value(
    field: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as a user runs it
    with pytest.raises(ValueError, match=message):
        dubio.Wasserstein(**field)


def test_an_example_shows_which_layer_is_the_classifier(tmp_path: Path) -> None:
    class Reversed(nn.Module):
        """Registers its classifier first."""

        def __init__(self) -> None:
            super().__init__()
            self.classifier, self.body = nn.Linear(4, 3), nn.Linear(5, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.classifier(self.body(x).relu())

    model = SMALL.convert(Reversed(), example=INPUTS)
    assert isinstance(model.classifier, WassersteinHead)
    assert dubio.spec(model).method.where == "classifier"
    dubio.save(model, tmp_path / "model.safetensors")
    assert isinstance(dubio.load(tmp_path / "model.safetensors", Reversed()).classifier, WassersteinHead)


def test_a_head_of_distances_is_for_classes() -> None:
    with pytest.raises(TypeError, match="likelihood must be a Categorical, since the head compares classes, got Gau"):
        dubio.Wasserstein().convert(mlp(5, 3), dubio.Gaussian())


def test_calls_of_one_pass_share_class_clouds_and_directions() -> None:
    head = SMALL.convert(mlp(5, 4, 3))[-1]
    assert isinstance(head, WassersteinHead)
    code = torch.randn(6, 4)
    with joined_pass():
        assert torch.equal(head.class_clouds(code), head.class_clouds(code))
    assert not torch.equal(head.class_clouds(code), head.class_clouds(code))
