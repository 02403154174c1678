"""Perturbations made elsewhere: on the noise-off copy, or on another network."""

import torch
from torch import Tensor, nn

from attack_table import bayesian_net, examples, plain_net
from dubio import attacks

PGD = attacks.PGD(epsilon=0.2, steps=4, num_samples=3, seed=2)


def test_without_a_source_the_network_itself_is_attacked_with_its_noise_off() -> None:
    model = bayesian_net("local")
    inputs, labels = examples(rows=20)
    found = attacks.Transfer(attack=PGD, seed=5)(model, inputs, labels)
    assert torch.equal(
        found.inputs, attacks.PGD(epsilon=0.2, steps=4, noise="off", seed=2)(model, inputs, labels).inputs
    )
    assert not torch.equal(found.inputs, PGD(model, inputs, labels).inputs)


def test_a_source_is_attacked_as_the_attack_says() -> None:
    source, model = bayesian_net("weight"), plain_net()
    inputs, labels = examples(rows=20)
    found = attacks.Transfer(attack=PGD, source=source)(model, inputs, labels)
    on_source = PGD(source, inputs, labels)
    assert torch.equal(found.inputs, on_source.inputs)
    assert found.forwards == on_source.forwards + 1
    assert found.backwards == on_source.backwards
    with torch.no_grad():
        assert torch.equal(found.fooled, model(found.inputs).argmax(dim=1) != labels)
        torch.testing.assert_close(
            found.loss, nn.functional.cross_entropy(model(found.inputs), labels, reduction="none")
        )


def test_a_victim_without_gradients_needs_a_source_that_has_them() -> None:
    def hard(inputs: Tensor) -> Tensor:
        return nn.functional.one_hot(plain_net()(inputs).argmax(dim=1), 4).float()

    inputs, labels = examples(rows=20)
    found = attacks.Transfer(attack=PGD, source=plain_net())(hard, inputs, labels)
    assert found.fooled.any()
