"""Removed weights are zero in every draw, cost nothing and stay so; what is removed is what ranks lowest (T-11)."""

import copy

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio.calibrators import DecisionWarning
from dubio.nn.rewrite import masked_tensors
from dubio.nn.sources import GaussianPosterior, posteriors
from networks import Tied, mlp

INPUTS = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
TARGETS = torch.randint(4, (60,), generator=torch.Generator().manual_seed(2))
MORE_INPUTS = torch.randn(60, 5, generator=torch.Generator().manual_seed(3))
PRIORS = [dubio.Normal(0.1, 0.5), dubio.ScaleMixture(), dubio.CentredNormal(0.2)]
METHODS = [
    *(dubio.Bayes(init_std=0.2), dubio.Bayes(where="2"), dubio.Deterministic(), dubio.Dropout(), dubio.InputNoise()),
    *(dubio.Flow(), dubio.SESNN(), dubio.VIB(), dubio.PNI(), dubio.PNI(per="element"), dubio.Ensemble(members=3)),
]
NUM_WEIGHTS = 5 * 7 + 7 * 4


def spread(model: nn.Module) -> nn.Module:
    """Scales that differ, so that ratios rank otherwise than magnitudes."""
    with torch.no_grad():
        for posterior in posteriors(model):
            posterior.rho += torch.randn(posterior.rho.shape)
    return model


def bayes(estimator: str = "local", prior: object = PRIORS[0]) -> nn.Module:
    return spread(dubio.Bayes(prior, estimator, init_std=0.2).convert(mlp(5, 7, 4))).eval()


def removed(model: nn.Module) -> dict[str, Tensor]:
    """Masks by parameter."""
    state = model.state_dict()
    return {name: state[mask] for name, mask, _ in masked_tensors(model)}


def drawn_weights(model: nn.Module, num_draws: int = 3) -> list[dict[str, Tensor]]:
    """What each layer computes with in some draws."""
    found: list[dict[str, Tensor]] = []
    names = {module: name for name, module in model.named_modules() if hasattr(module, "in_features")}
    handles = [
        module.register_forward_pre_hook(lambda own, _: found[-1].update({names[own]: own.weight.detach()}))
        for module in names
    ]
    for _ in range(num_draws):
        found.append({})
        model(INPUTS)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_t11_removing_nothing_is_the_identity(method: object) -> None:
    model = method.convert(mlp(5, 7, 4)).eval()
    before = dubio.sample(model, INPUTS, 3, seed=1)
    record = dubio.prune(model, 0.0)
    assert record.num_removed == 0
    assert record.bytes_after == record.bytes_before
    assert dubio.spec(model).pruning is None
    assert torch.equal(dubio.sample(model, INPUTS, 3, seed=1), before)


@pytest.mark.parametrize("estimator", ["weight", "local", "flipout"])
def test_t11_removing_all_weights_leaves_the_biases(estimator: str) -> None:
    model = bayes(estimator)
    dubio.prune(model, 1.0)
    with dubio.noise_off():
        assert torch.equal(model(INPUTS), model[-1].bias.expand(6, 4))
    draws, others = (dubio.sample(model, x, 4, seed=1) for x in (INPUTS, INPUTS + 1.0))
    assert torch.equal(draws, others)
    assert draws.std(dim=0).min() > 0.0  # biases are random still


@pytest.mark.parametrize("executor", ["vmap", "loop"])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_t11_removed_weights_are_zero_in_every_draw(method: object, executor: str) -> None:
    """A network with zeros written into its means and deviations is what a pruned one is."""
    model = method.convert(mlp(5, 7, 4)).eval()
    record = dubio.prune(model, 0.5)
    assert record.num_removed == record.num_weights // 2
    masks = removed(model)
    assert sum(int(mask.sum()) for mask in masks.values()) == record.num_removed
    if isinstance(method, dubio.Ensemble):
        for place, member in enumerate(model.members):
            own = masks[f"members.{place}.0.weight"]
            assert torch.equal(member[0].weight == 0.0, own)
        draws = dubio.sample(model, INPUTS, 3, executor=executor)
        torch.testing.assert_close(draws, torch.stack([member(INPUTS) for member in model.members]))
        return
    seen = drawn_weights(model)
    for name, mask in masks.items():
        for draw in seen:
            weight = draw[name.removesuffix(".weight")]
            assert not weight[mask].any()
            assert weight[~mask].all()
    assert dubio.sample(model, INPUTS, 3, seed=1, executor=executor).isfinite().all()


@pytest.mark.feature("Pruned weights are zero in every draw, cost no divergence and stay zero in training")
@pytest.mark.parametrize("estimator", ["weight", "local", "flipout"])
def test_t11_outputs_do_not_depend_on_inputs_whose_weights_are_gone(estimator: str) -> None:
    model = bayes(estimator)
    gone = torch.zeros(7, 5, dtype=torch.bool)
    gone[:, 2] = True
    model[0].weight_posterior.remove(gone)
    moved = INPUTS.clone()
    moved[:, 2] += 100.0
    draws, others = (dubio.sample(model, x, 4, seed=1) for x in (INPUTS, moved))
    assert torch.equal(draws, others)
    with dubio.noise_off():
        assert torch.equal(model(INPUTS), model(moved))


@pytest.mark.parametrize("by", ["snr", "magnitude"])
def test_t11_the_lowest_of_all_layers_together_are_removed_and_sets_are_nested(by: str) -> None:
    whole = bayes()
    scores = {
        name: (posterior.mean.abs() / (posterior.std if by == "snr" else 1.0)).detach()
        for name, posterior in (("0", whole[0].weight_posterior), ("2", whole[2].weight_posterior))
    }
    joined = torch.cat([own.flatten() for own in scores.values()])
    former = {f"{name}.weight": torch.zeros_like(own, dtype=torch.bool) for name, own in scores.items()}
    for fraction, count in ((0.1, 6), (0.5, 31), (0.9, 56), (1.0, 63)):
        model = copy.deepcopy(whole)
        record = dubio.prune(model, fraction, by=by)
        assert (record.num_removed, record.num_weights) == (count, NUM_WEIGHTS)
        masks = former | removed(model)
        largest = torch.cat([scores[name.partition(".")[0]][mask] for name, mask in masks.items()]).max()
        assert largest == joined.sort().values[count - 1]
        assert all(bool((mask | ~former[name]).all()) for name, mask in masks.items())
        assert {name: layer.num_removed for name, layer in record.per_layer.items()} == {
            name: int(mask.sum()) for name, mask in masks.items()
        }
        former = masks


def test_ratios_rank_otherwise_than_magnitudes_and_are_the_default_where_there_are_any() -> None:
    whole = bayes()
    models = {by: copy.deepcopy(whole) for by in (None, "snr", "magnitude")}
    records = {by: dubio.prune(model, 0.5, by=by) for by, model in models.items()}
    assert records[None].by == "snr"
    assert records[None] == records["snr"]
    assert not torch.equal(removed(models["snr"])["0.weight"], removed(models["magnitude"])["0.weight"])
    assert dubio.prune(dubio.Deterministic().convert(mlp(5, 4)), 0.5).by == "magnitude"


@pytest.mark.parametrize("prior", PRIORS, ids=lambda prior: type(prior).__name__)
def test_removed_weights_have_no_part_in_divergence_and_entropy(prior: object) -> None:
    """They cost what a posterior over the weights that are left costs, in closed form and from noise."""
    whole, mask, noise = bayes(prior=prior)[0].weight_posterior, torch.rand(7, 5) < 0.6, torch.randn(7, 5)
    whole.remove(mask)
    left = GaussianPosterior(whole.mean.detach()[~mask], prior, 0.1)
    left.rho.data = whole.rho.detach()[~mask]
    left.centre = None if whole.centre is None else whole.centre[~mask]
    assert whole.num_random == left.num_random == int((~mask).sum())
    torch.testing.assert_close(whole.closed_entropy(), left.closed_entropy())
    torch.testing.assert_close(whole.estimated_divergence(noise), left.estimated_divergence(noise[~mask]))
    if prior.has_closed_divergence:
        torch.testing.assert_close(whole.closed_divergence(), left.closed_divergence())
    (whole.estimated_divergence(noise) + whole.closed_entropy()).backward()
    for parameter in (whole.mean, whole.rho):
        assert torch.equal(parameter.grad == 0.0, mask)


@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_removed_weights_stay_removed_in_training(method: object, optimizer: str) -> None:
    model = method.convert(mlp(5, 7, 4))
    made = {"adam": None, "momentum": lambda groups: torch.optim.SGD(groups, momentum=0.9)}[optimizer]
    data = (MORE_INPUTS, TARGETS)
    dubio.prune(model, 0.5)
    masks = {name: mask.clone() for name, mask in removed(model).items()}
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    dubio.fit(model, data, data, epochs=2, weight_decay=0.1, optimizer=made, lr=0.05, progress=False)
    assert all(torch.equal(mask, masks[name]) for name, mask in removed(model).items())
    state = model.state_dict()
    for name, _, tensors in masked_tensors(model):
        for tensor in tensors:
            assert not state[tensor][masks[name]].any()
        assert not torch.equal(state[tensors[0]], before[tensors[0]])


def test_an_optimiser_that_was_moving_before_pruning_moves_nothing_that_is_gone() -> None:
    model = bayes("weight")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    objective = dubio.ELBO(60)

    def step() -> None:
        optimiser.zero_grad()
        objective(model, MORE_INPUTS, TARGETS, 2).total.backward()
        optimiser.step()

    step()
    dubio.prune(model, 0.5)
    step()
    masks = removed(model)
    assert model[0].weight_posterior.mean[masks["0.weight"]].abs().max() > 0.0  # the parameter drifts ...
    for draw in drawn_weights(model):  # ... and nobody sees it
        assert not draw["0"][masks["0.weight"]].any()
    assert not dubio.to_mean(model)[0].weight[masks["0.weight"]].any()
    assert dubio.divergence(model).isfinite()


def test_noise_off_the_mean_network_and_exports_agree() -> None:
    model = bayes()
    dubio.prune(model, 0.7)
    with dubio.noise_off():
        off = model(INPUTS)
    plain = dubio.to_mean(model)
    assert torch.equal(plain(INPUTS), off)
    assert type(plain[0]) is nn.Linear
    assert torch.equal(plain[0].weight == 0.0, removed(model)["0.weight"])
    assert torch.equal(dubio.export(model, INPUTS).module()(INPUTS), off)
    program = dubio.export(model, INPUTS, noise="frozen", num_samples=3, seed=4)
    with dubio._engine.Using(estimator="weight"):
        expected = dubio.sample(model, INPUTS, 3, seed=4)
    torch.testing.assert_close(program.module()(INPUTS), expected)


def test_a_pruned_network_compiles(compiler: None) -> None:
    for model in (bayes(), dubio.Deterministic().convert(mlp(5, 7, 4)).eval()):
        dubio.prune(model, 0.5)
        with dubio.noise_off():
            torch.testing.assert_close(torch.compile(model, backend="eager")(INPUTS), model(INPUTS))
    record = dubio.prune(torch.compile(model), 0.75)
    assert record.num_removed == int(0.75 * NUM_WEIGHTS)


def test_a_second_pruning_counts_what_the_first_removed() -> None:
    model = bayes()
    first = dubio.prune(model, 0.5)
    masks = {name: mask.clone() for name, mask in removed(model).items()}
    assert dubio.prune(model, 0.25).num_removed == first.num_removed
    assert all(torch.equal(mask, masks[name]) for name, mask in removed(model).items())
    assert dubio.prune(model, 0.75, by="magnitude").num_removed == int(0.75 * NUM_WEIGHTS)
    assert all(bool((mask | ~masks[name]).all()) for name, mask in removed(model).items())


def test_checkpoints_from_before_load_and_what_is_gone_stays_gone() -> None:
    plain, whole, model = mlp(5, 7, 4), bayes(), bayes()
    dubio.prune(model, 0.5)
    mask = removed(model)["0.weight"].clone()
    for state, weight in ((plain.state_dict(), plain[0].weight), (whole.state_dict(), whole[0].weight_posterior.mean)):
        model.load_state_dict(state)
        assert torch.equal(dubio.to_mean(model)[0].weight, weight.masked_fill(mask, 0.0))


@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_members_are_pruned_alone_and_still_run_as_one(executor: str) -> None:
    model = dubio.Ensemble(members=3).convert(mlp(5, 7, 4)).eval()
    record = dubio.prune(model, 1.0, where="members.0.*")
    assert list(record.per_layer) == ["members.0.0.weight", "members.0.2.weight"]
    draws = dubio.sample(model, INPUTS, 3, executor=executor)
    torch.testing.assert_close(draws, torch.stack([member(INPUTS) for member in model.members]))
    assert torch.equal(draws[0], model.members[0][2].bias.expand(6, 4))


def test_layers_are_chosen_and_biases_go_when_asked_for() -> None:
    model = bayes()
    record = dubio.prune(model, 1.0, where="2", biases=True)
    assert list(record.per_layer) == ["2.weight", "2.bias"]
    assert (record.num_removed, record.num_weights) == (32, 32)
    assert not dubio.sample(model, INPUTS, 2).any()
    assert "0.weight" not in removed(model)


def test_what_has_no_posterior_is_not_ranked_by_ratios() -> None:
    model = dubio.Bayes(where="2").convert(mlp(5, 7, 4))
    assert list(dubio.prune(model, 0.5).per_layer) == ["2.weight"]
    assert list(dubio.prune(model, 0.9, by="magnitude").per_layer) == ["0.weight", "2.weight"]


def test_norms_and_the_padding_row_of_an_embedding_stay() -> None:
    net = nn.Sequential(nn.Embedding(6, 3, padding_idx=0), nn.Flatten(), nn.BatchNorm1d(6), nn.Linear(6, 4))
    model = dubio.Bayes(norms=True, bayesian_bias=False).convert(net)
    record = dubio.prune(model, 1.0)
    assert {name: layer.num_weights for name, layer in record.per_layer.items()} == {"0.weight": 15, "3.weight": 24}
    assert not removed(model)["0.weight"][0].any()


def test_tied_weights_are_one_where_they_are_drawn_and_refused_where_they_are_not() -> None:
    tied = dubio.Bayes().convert(Tied())
    counts = dubio.prune(tied, 0.5).per_layer
    assert sum("decode" in name or "encode" in name for name in counts) == 1
    with pytest.raises(ValueError, match=r"cannot prune .*: it shares its weights with another layer"):
        dubio.prune(dubio.Deterministic().convert(Tied()), 0.5)


def test_a_pruned_network_is_not_converted_again() -> None:
    model = dubio.Deterministic().convert(mlp(5, 7, 4))
    dubio.prune(model, 0.5)
    with pytest.raises(
        ValueError, match=r"net is pruned: weights of 0 were removed and would come back; dubio.to_mean"
    ):
        dubio.Bayes().convert(model)
    again = dubio.Bayes().convert(dubio.to_mean(model))
    assert torch.equal(dubio.to_mean(again)[0].weight, dubio.to_mean(model)[0].weight)


def test_what_was_decided_for_the_whole_network_is_dropped_with_a_warning_once_anything_goes() -> None:
    from dubio.convert.spec import change_spec

    model = bayes()
    made = dubio.Temperature(2.0), dubio.Threshold("confidence", 0.5), dubio.PredictionSets("lac", 0.5, 0.9)
    change_spec(model, calibration=made[0], threshold=made[1], sets=made[2], evaluated=("d",))
    for nothing in (0.0, 0.01):
        dubio.prune(model, nothing)
        assert dubio.spec(model).calibration == made[0]
    told = "pruning changes the predictions, so the calibration, the threshold and the sets of this network had to be"
    with pytest.warns(DecisionWarning, match=told):
        dubio.prune(model, 0.1)
    found = dubio.spec(model)
    assert (found.calibration, found.threshold, found.sets, found.evaluated) == (None, None, None, ("d",))


def test_describe_tells_what_was_removed() -> None:
    model = bayes()
    dubio.prune(model, 1.0, where="0")
    described = dubio.describe(model)
    assert [layer.num_removed for layer in described.layers] == [35, 0]
    assert [layer.num_random for layer in described.layers] == [7, 32]
    assert "35 of 42 weights removed" in str(described)
    assert "39 weights are random, 0 are not, 35 were removed" in str(described)
    plain = dubio.Ensemble(members=2).convert(mlp(5, 7, 4))
    dubio.prune(plain, 0.5)
    assert dubio.describe(plain).num_removed == NUM_WEIGHTS


def test_removed_weights_do_not_count_as_collapsed() -> None:
    from dubio.training.diagnosis import warn_of_collapse

    model = bayes()
    dubio.prune(model, 0.9)
    warn_of_collapse(model, {"accuracy": 0.25}, 4)  # a warning would be an error


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, r"exactly one of fraction and max_loss must be given, got neither"),
        ({"fraction": 0.5, "max_loss": 0.1}, r"exactly one of .* got fraction=0.5 and max_loss=0.1"),
        ({"fraction": 75}, r"fraction must be in \[0, 1\], a share of what is there, got 75"),
        ({"fraction": "half"}, r"fraction must be a number, got 'half'"),
        ({"fraction": 0.5, "by": "size"}, r"by must be 'snr' or 'magnitude', got 'size'"),
        ({"fraction": 0.5, "what": "rows"}, r"what must be 'weights' or 'units', got 'rows'"),
        ({"fraction": 0.5, "where": "9"}, r"nothing to prune: where='9' chooses no layer that has weights"),
        ({"fraction": 0.5, "each_layer": True}, r"each_layer must be False for what='weights'"),
        ({"fraction": 0.5, "what": "units", "biases": True}, r"biases must be False for what='units'"),
        ({"max_loss": 0.1}, r"validation must be given with max_loss"),
        ({"max_loss": -0.1, "validation": 1}, r"max_loss must be finite and at least 0, got -0.1"),
        ({"max_loss": "x", "validation": 1}, r"max_loss must be a number, got 'x'"),
        ({"fraction": 0.5, "num_samples": 0}, r"num_samples must be at least 1"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, object], told: str) -> None:
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises((ValueError, TypeError), match=told):
            dubio.prune(bayes(), **options)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def test_networks_without_a_record_or_without_ratios_are_refused() -> None:
    with pytest.raises(ValueError, match="was not converted by a dubio method"):
        dubio.prune(mlp(5, 4), 0.5)
    with pytest.raises(ValueError, match=r"by must be 'magnitude' for a network without Gaussian posteriors"):
        dubio.prune(dubio.PNI().convert(mlp(5, 4)), 0.5, by="snr")
