"""The record that a converted network carries."""

import copy
import pickle
from dataclasses import FrozenInstanceError

import pytest
from torch import nn

import dubio
from networks import mlp

METHOD = dubio.Bayes(prior=dubio.ScaleMixture(), estimator="flipout", init_std=0.1, where=("0", nn.Linear))
LIKELIHOOD = dubio.Gaussian(std=0.3)


def test_a_converted_network_carries_its_method_and_likelihood() -> None:
    record = dubio.spec(METHOD.convert(mlp(5, 4, 3), LIKELIHOOD))
    assert record == dubio.ModelSpec(METHOD, LIKELIHOOD)
    assert dubio.spec(dubio.Bayes().convert(mlp(5, 3))).likelihood == dubio.Categorical()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_the_spec_survives_copies(copied: object) -> None:
    model = METHOD.convert(mlp(5, 4, 3), LIKELIHOOD)
    assert dubio.spec(copied(model)) == dubio.ModelSpec(METHOD, LIKELIHOOD)  # type: ignore[operator]


def test_the_spec_is_immutable() -> None:
    with pytest.raises(FrozenInstanceError):
        dubio.spec(METHOD.convert(mlp(5, 3))).likelihood = dubio.Categorical()  # type: ignore[misc]


def test_the_spec_is_no_part_of_the_state() -> None:
    model = METHOD.convert(mlp(5, 3))
    assert not any("spec" in name for name in model.state_dict())


def test_a_plain_network_has_no_spec() -> None:
    with pytest.raises(ValueError, match=r"this Sequential was not converted by a dubio method"):
        dubio.spec(mlp(5, 3))
