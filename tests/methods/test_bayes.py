"""``Bayes`` as a value: it prints, compares, hashes and cannot be changed."""

import copy
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from torch import nn

import dubio
from dubio.nn.sources import posteriors
from networks import mlp

METHODS = (
    dubio.Bayes(),
    dubio.Bayes(prior=dubio.Normal(0.0, 0.5)),
    dubio.Bayes(prior=dubio.CentredNormal(0.1)),
    dubio.Bayes(prior=dubio.ScaleMixture(0.25, 1.0, 0.01)),
    dubio.Bayes(estimator="weight"),
    dubio.Bayes(estimator="flipout"),
    dubio.Bayes(init_std=0.1),
    dubio.Bayes(bayesian_bias=False),
    dubio.Bayes(norms=True),
    dubio.Bayes(beta=1.0),
    dubio.Bayes(where="head"),
    dubio.Bayes(where=("head", "body.*")),
)
NAMES = {name: getattr(dubio, name) for name in ("Bayes", "Normal", "CentredNormal", "ScaleMixture")}


@pytest.mark.parametrize("method", METHODS, ids=range(len(METHODS)))
def test_a_method_is_written_as_it_is_made(method: dubio.Bayes) -> None:
    assert eval(repr(method), NAMES) == method
    assert copy.deepcopy(method) == pickle.loads(pickle.dumps(method)) == method
    assert hash(copy.deepcopy(method)) == hash(method)


def test_methods_with_any_difference_are_different() -> None:
    assert len(set(METHODS)) == len(METHODS)
    assert dubio.Bayes(where=nn.Linear) == dubio.Bayes(where=nn.Linear) != dubio.Bayes(where=nn.Conv1d)


def test_a_method_cannot_be_changed_but_replaced() -> None:
    method = dubio.Bayes()
    with pytest.raises(FrozenInstanceError):
        method.init_std = 1.0  # type: ignore[misc]
    assert replace(method, init_std=1.0) == dubio.Bayes(init_std=1.0)
    with pytest.raises(ValueError, match=r"init_std must be positive and finite, got -1\.0"):
        replace(method, init_std=-1.0)


def test_the_defaults_are_those_of_the_design() -> None:
    assert repr(dubio.Bayes()) == (
        "Bayes(prior=Normal(mean=0.0, std=1.0), estimator='local', init_std=0.005, bayesian_bias=True, "
        "norms=False, beta=0.03, where=None)"
    )


@pytest.mark.parametrize("method", METHODS[:10], ids=range(10))
def test_a_methods_values_reach_every_posterior(method: dubio.Bayes) -> None:
    model = method.convert(mlp(5, 4, 3))
    assert len(posteriors(model)) == (4 if method.bayesian_bias else 2)
    for posterior in posteriors(model):
        assert posterior.prior == method.prior
        torch.testing.assert_close(posterior.std, torch.full_like(posterior.mean, method.init_std))
    assert model[0].estimator == model[2].estimator == method.estimator


@pytest.mark.parametrize("init_std", [1e-12, 1e-4, 0.05, 3.0, 200.0])
def test_init_std_survives_the_softplus(init_std: float) -> None:
    (weight, bias) = posteriors(dubio.Bayes(init_std=init_std).convert(nn.Linear(3, 2)))
    for posterior in (weight, bias):
        torch.testing.assert_close(posterior.std, torch.full_like(posterior.mean, init_std), rtol=1e-5, atol=0.0)


def test_one_method_converts_many_networks_independently() -> None:
    method, net = dubio.Bayes(), mlp(5, 4, 3)
    first, second = method.convert(net), method.convert(net)
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.zero_()
    assert torch.equal(second[0].weight, net[0].weight)


def test_a_choice_by_function_is_kept_as_the_names_it_chose() -> None:
    """A function could be neither pickled nor written to a file."""
    model = dubio.Bayes(where=lambda name, module: name != "2").convert(mlp(5, 4, 3))
    assert dubio.spec(model).method == dubio.Bayes(where=("0",))
    again = pickle.loads(pickle.dumps(model))
    inputs = torch.randn(2, 5)
    assert torch.equal(dubio.sample(again, inputs, 2, seed=1), dubio.sample(model, inputs, 2, seed=1))
    assert dubio.spec(dubio.Bayes(where=nn.Linear).convert(mlp(5, 3))).method.where is nn.Linear
