"""Layers really shrink, where exactly one layer reads their units; anything else is refused by name."""

import copy

import pytest
import torch
from torch import Tensor, nn

import dubio
from networks import Dense, Residual, mlp

IMAGES = torch.randn(3, 2, 8, 8, generator=torch.Generator().manual_seed(1))
ROWS = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
METHODS = [
    *(dubio.Bayes(dubio.CentredNormal(0.3), "local"), dubio.Bayes(estimator="flipout", bayesian_bias=False)),
    *(dubio.Deterministic(), dubio.Dropout(0.3), dubio.PNI(per="channel"), dubio.PNI(per="element")),
]


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 4, 3),
        nn.Tanh(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(16, 5),
        nn.ReLU(),
        nn.Linear(5, 3),
        nn.LogSoftmax(dim=1),
    )


class Functions(nn.Module):
    """The same with functions in the place of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 6, 3), nn.Conv2d(6, 4, 3)
        self.hidden, self.last = nn.Linear(16, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = nn.functional.max_pool2d(self.second(x).tanh(), 2, padding=0)
        x = nn.functional.dropout(x, 0.5, training=self.training)
        return self.last(nn.functional.gelu(self.hidden(x.view(len(x), -1))))


class Averaged(nn.Module):
    def __init__(self, axes: tuple[int, int] = (2, -1)) -> None:
        super().__init__()
        self.first, self.last, self.axes = nn.Conv2d(2, 6, 3), nn.Linear(6, 3), axes

    def forward(self, x: Tensor) -> Tensor:
        return self.last(nn.functional.relu_(self.first(x)).mean(dim=self.axes))


def silenced(model: nn.Module, kept: dict[str, list[int]]) -> nn.Module:
    """A copy whose removed units give zero to the next layer, by weights of that layer."""
    quiet = copy.deepcopy(model)
    for name, (following, units, repeats) in {"0": ("4", 6, 1), "4": ("8", 4, 4), "8": ("10", 5, 1)}.items():
        gone = [unit for unit in range(units) if unit not in kept[name]]
        columns = [unit * repeats + place for unit in gone for place in range(repeats)]
        layer = quiet.get_submodule(following)
        weight = layer.weight_posterior.mean if hasattr(layer, "weight_posterior") else layer.weight
        weight.data[:, columns] = 0.0
    return quiet


@pytest.mark.feature("Pruning units makes layers smaller: linear layers, convolutions and the batch norms between")
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_a_smaller_network_computes_what_the_whole_one_does_without_those_units(method: object) -> None:
    model = method.convert(cnn()).eval()
    model[1].running_mean.copy_(torch.randn(6))
    whole = copy.deepcopy(model)
    record = dubio.prune(model, 0.5, what="units", each_layer=True, example=IMAGES)
    sizes = [(layer.units_before, layer.units_after) for layer in record.per_layer.values()]
    assert sizes == [(6, 3), (4, 2), (5, 3), (3, 3)]
    assert (model[0].out_channels, model[1].num_features, model[4].in_channels, model[8].in_features) == (3, 3, 3, 8)
    assert record.num_removed == sum(layer.num_removed for layer in record.per_layer.values())
    assert record.bytes_after < record.bytes_before

    def rows(net: nn.Module, name: str) -> list[Tensor]:
        layer = dubio.to_mean(net).get_submodule(name)
        return list(layer.weight.detach().flatten(1))

    first = [n for n, row in enumerate(rows(whole, "0")) if any(torch.equal(row, own) for own in rows(model, "0"))]
    assert len(first) == 3
    scores = {name: _scores(whole, name) for name in ("0", "4", "8")}
    kept = {name: sorted(own.argsort(stable=True)[own.numel() // 2 :].tolist()) for name, own in scores.items()}
    assert first == kept["0"]
    with dubio.noise_off():
        torch.testing.assert_close(model(IMAGES), silenced(whole, kept)(IMAGES))
    model.train()
    dubio.sample(model, IMAGES, 2).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)


def _scores(model: nn.Module, name: str) -> Tensor:
    layer = model.get_submodule(name)
    posterior = getattr(layer, "weight_posterior", None)
    weight = layer.weight if posterior is None else posterior.mean
    score = weight.abs() / posterior.std if hasattr(posterior, "rho") else weight.abs()
    return score.flatten(1).mean(dim=1)


def test_a_bayesian_layer_shrinks_with_all_that_belongs_to_it() -> None:
    model = dubio.Bayes(dubio.CentredNormal(0.3)).convert(mlp(5, 8, 4))
    before = model[2].weight_posterior.centre.clone()
    weights = dubio.prune(model, 0.3)
    assert weights.num_removed > 0
    dubio.prune(model, 0.5, what="units", example=ROWS)
    posterior = model[2].weight_posterior
    shapes = {tuple(tensor.shape) for tensor in (posterior.mean, posterior.rho, posterior.centre, posterior.removed)}
    assert shapes == {(4, 4)}
    assert all(any(torch.equal(column, own) for own in before.mT) or not column.all() for column in posterior.centre.mT)
    assert dubio.divergence(model).isfinite()
    assert "cut down to 5 inputs and 4 outputs" in str(dubio.describe(model))


def test_units_of_all_layers_are_ranked_together_and_one_of_each_stays() -> None:
    model = dubio.Deterministic().convert(mlp(5, 6, 6, 4))
    with torch.no_grad():
        model[0].weight.mul_(1e-3)
    record = dubio.prune(model, 0.75, what="units", example=ROWS)
    assert {name: layer.units_after for name, layer in record.per_layer.items()} == {"0": 1, "2": 2, "4": 4}
    assert dubio.prune(model, 1.0, what="units", example=ROWS).per_layer["2"].units_after == 1


def test_a_second_pruning_counts_the_units_that_the_first_removed() -> None:
    model = dubio.Deterministic().convert(mlp(5, 16, 4))
    assert dubio.prune(model, 0.5, what="units", example=ROWS).removed == 0.5
    again = dubio.prune(model, 0.5, what="units", example=ROWS)
    assert (model[0].out_features, again.num_removed, again.removed) == (8, 0, 0.5)
    assert dubio.prune(model, 0.25, what="units", example=ROWS).removed == 0.5
    dubio.prune(model, 0.75, what="units", each_layer=True, example=ROWS)
    assert (model[0].out_features, dict(dubio.spec(model).pruning.units)) == (4, {"0": 16})


def test_the_share_that_is_really_gone_is_told_where_layers_keep_their_best_unit() -> None:
    model = dubio.Deterministic().convert(mlp(5, 6, 4))
    data = (ROWS, torch.zeros(3, dtype=torch.int64))
    points = dubio.pruning.curve(model, data, (0.5, 1.0), what="units", num_samples=1)
    assert [(point.fraction, point.removed) for point in points] == [(0.5, 0.5), (1.0, pytest.approx(5 / 6))]
    record = dubio.prune(model, 1.0, what="units", validation=data, num_samples=1)
    assert (record.fraction, record.removed) == (1.0, pytest.approx(5 / 6))
    assert [point.removed for point in record.curve] == [0.0, record.removed]
    assert "fraction 1)" in str(record)
    assert "83.3% of the units are gone" in str(record)


@pytest.mark.parametrize(
    ("net", "example"),
    [(Functions(), IMAGES), (Averaged(), IMAGES), (cnn(), IMAGES)],
    ids=["functions", "mean", "modules"],
)
def test_functions_between_layers_are_followed(net: nn.Module, example: Tensor) -> None:
    model = dubio.Deterministic().convert(net)
    record = dubio.prune(model, 0.5, what="units", each_layer=True, example=example)
    *hidden, last = record.per_layer.values()
    assert all(layer.units_after < layer.units_before for layer in hidden)
    assert last.units_after == last.units_before == 3
    assert model.eval()(example).shape == (3, 3)


@pytest.mark.parametrize("name", ["fc:20-10", "lenet", "dad_cnn"])
def test_networks_that_dubio_built_need_no_example(name: str) -> None:
    model = dubio.Bayes().convert(dubio.models.build(name, inputs=(1, 16, 16), num_classes=4)).train()
    record = dubio.prune(model, 0.5, what="units")
    assert record.num_removed > 0
    assert model.training
    assert dubio.sample(model, torch.randn(2, 1, 16, 16), 2).shape == (2, 2, 4)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(5, 5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(self.inner(x).relu()))


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = self.first(x)
        return self.last(code), code


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.attention, self.last = nn.Linear(5, 6), nn.MultiheadAttention(6, 2), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        code = self.first(x)
        return self.last(self.attention(code, code, code)[0])


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.memory, self.last = nn.Linear(5, 6), nn.LSTM(6, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.memory(self.first(x))[0])


class SameWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.first(x).relu()).relu())


class PartlySet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        code = self.first(x)
        code[:, 0] = 0.0
        return self.last(code.relu())


class Penalised(nn.Module):
    """Reads the parameters of a part besides running it, in a function or inside of another part."""

    def __init__(self, read: str, inside: bool = False) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 4)
        self.reader = Reader(getattr(self, read)) if inside else None
        self.read = read

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.last(self.norm(self.first(x)).relu())
        return outputs + getattr(self, self.read).weight.sum() if self.reader is None else self.reader(outputs)


class Reader(nn.Module):
    def __init__(self, other: nn.Module) -> None:
        super().__init__()
        self.others = [other]  # in a list, so that it is no part of this one

    def forward(self, x: Tensor) -> Tensor:
        return x + self.others[0].weight.sum()


class Listed(nn.Module):
    """Reads values in a way that gives no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        code = self.first(x)
        return self.last(code.relu()) * (1.0 + code.tolist()[0][0])


POOLED = nn.Sequential(nn.Linear(5, 6), nn.AvgPool1d(2), nn.Linear(3, 4))
POOLED_ALIKE = nn.Sequential(nn.Linear(5, 6), nn.AvgPool1d(3, stride=1, padding=1), nn.Linear(6, 4))
ALONE = nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Conv2d(6, 3, 3))
GROUPED = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(64, 3))
GROUPED_FIRST = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 3))
NORMED = nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6), nn.Linear(6, 4))
SOFT = nn.Sequential(nn.Linear(5, 6), nn.Softmax(dim=1), nn.Linear(6, 4))


@pytest.mark.parametrize(
    ("net", "example", "told"),
    [
        (Residual(), torch.randn(2, 3, 8, 8), r"units of stem: its units go to several places: branch .*, add\(\) in"),
        (Dense(), ROWS, r"units of first: cat\(\) in the network itself does not work on every unit by itself"),
        (
            Averaged((1, 2)),
            IMAGES,
            r"units of first: mean\(\) in the network itself does not work on every unit by itself",
        ),
        (Twice(), ROWS, r"units of inner: it is called several times"),
        (TwoOutputs(), ROWS, r"units of first: its units go to several places: last \(Linear\), output\(\)"),
        (Attending(), ROWS, r"units of first: .*multi_head_attention_forward\(\) in attention"),
        (Remembering(), ROWS, r"units of first: memory \(LSTM\) does not work on every unit by itself"),
        (SameWeights(), ROWS, r"units of first: it shares its weights with second"),
        (GROUPED, IMAGES, r"units of 0: 1 \(Conv2d\) is a grouped convolution"),
        (GROUPED_FIRST, IMAGES, r"units of 0: it is a grouped convolution"),
        (NORMED, ROWS, r"units of 0: 1 \(LayerNorm\) does not work on every unit by itself"),
        (SOFT, ROWS, r"units of 0: 1 \(Softmax\) does not work on every unit by itself"),
        (mlp(5, 6, 4), torch.randn(2, 3, 5), r"units of 0: it is applied to inputs of 3 axes"),
        (PartlySet(), ROWS, r"units of first: its units go to several places: setitem\(\) in the network itself, relu"),
        (Listed(), ROWS, r"units of first: its units go to several places: relu\(\) in .*, tolist\(\) in the network"),
        (Penalised("first"), ROWS, r"units of first: its parameters are read by sum\(\) in the network itself"),
        (Penalised("norm"), ROWS, r"units of first: the parameters of norm \(BatchNorm1d\) are read by sum\(\)"),
        (
            Penalised("last"),
            ROWS,
            r"units of first: last \(Linear\) cannot lose inputs: its parameters are read by sum",
        ),
        (Penalised("first", True), ROWS, r"units of first: its parameters are read by sum\(\) in reader"),
        (POOLED, ROWS, r"units of 0: 1 \(AvgPool1d\) does not work on every unit by itself"),
        (POOLED_ALIKE, ROWS, r"units of 0: 1 \(AvgPool1d\) does not work on every unit by itself"),
        (ALONE, IMAGES[0], r"units of 0: it is applied to inputs of 3 axes, which are not rows of features"),
        (nn.Linear(5, 4), ROWS, r"nothing to prune: where=None chooses no layer with units that another layer reads"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_what_is_no_chain_is_refused_by_name(net: nn.Module, example: Tensor, told: str) -> None:
    model = dubio.Deterministic().convert(net)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=told):
        dubio.prune(model, 0.5, what="units", example=example)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_bayesian_layer_whose_weights_are_read_elsewhere_is_refused() -> None:
    model = dubio.Bayes().convert(Penalised("first"))
    with pytest.raises(ValueError, match=r"units of first: its parameters are read by \w+\(\) in the network itself"):
        dubio.prune(model, 0.5, what="units", example=ROWS)


class Viewed(nn.Module):
    """Flattens to a number of features that is written down."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(2, 6, 3), nn.Conv2d(6, 8, 3), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(self.second(self.first(x).relu()).relu(), 2)
        return self.last(x.view(-1, 32))


@pytest.mark.parametrize("way", ["prune", "budget", "curve"])
def test_a_network_that_would_not_run_without_units_is_refused_and_stays_whole(way: str) -> None:
    model = dubio.Bayes().convert(Viewed())
    before, images, data = copy.deepcopy(model.state_dict()), IMAGES, (IMAGES, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(
        ValueError,
        match=r"units of second: the network does not run without them \(.*\); a view of a fixed size, such as x\.view",
    ):
        if way == "prune":
            dubio.prune(model, 0.5, what="units", each_layer=True, example=images)
        elif way == "budget":
            dubio.prune(model, max_loss=1.0, what="units", validation=data, num_samples=1)
        else:
            dubio.pruning.curve(model, data, (0.5,), what="units", each_layer=True, num_samples=1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model(images).shape == (3, 3)
    record = dubio.prune(model, 0.5, what="units", each_layer=True, where="first", example=images)
    assert record.per_layer["first"].units_after == 3


@pytest.mark.parametrize(
    ("method", "told"),
    [
        (
            dubio.Flow(),
            r"units of 0: 2 \(Linear\) has noise on its inputs, whose parameters belong to them; leave it out",
        ),
        (dubio.Wasserstein(num_points=4, dim=6), r"units of 0: 2 \(WassersteinHead\) does not work|nothing to prune"),
        (dubio.VIB(), r"units of 0: 2 \(Linear\) has noise on its inputs"),
        (dubio.Ensemble(), r"what must be 'weights' for an ensemble, whose members keep one shape, got 'units'"),
        (dubio.Bayes(where="2"), r"by must be 'magnitude' where weights have no Gaussian posterior, got 'snr' at 0"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_methods_whose_noise_belongs_to_units_are_refused(method: object, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        dubio.prune(method.convert(mlp(5, 6, 4)), 0.5, what="units", example=ROWS)


def test_an_example_is_asked_for_where_nobody_knows_the_inputs() -> None:
    with pytest.raises(
        ValueError, match=r"example must be given to remove units of a network that dubio did not build"
    ):
        dubio.prune(dubio.Bayes().convert(mlp(5, 6, 4)), 0.5, what="units")
