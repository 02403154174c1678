"""Attacks on a network that shows the votes of its draws and nothing else."""

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio import attacks


class Voter(nn.Module):
    """Nine thresholds on the mean of the pixels; a draw says yes where its own is passed."""

    def __init__(self) -> None:
        super().__init__()
        self.thresholds = nn.Parameter(torch.linspace(0.42, 0.62, 9))

    def forward(self, inputs: Tensor) -> Tensor:
        yes = (inputs.flatten(1).mean(dim=1, keepdim=True) > self.thresholds[torch.randint(9, ())]).float()
        return 20.0 * torch.cat([1.0 - yes, yes], dim=1)


@pytest.mark.slow
def test_square_finds_its_way_by_votes_alone() -> None:
    images, labels = torch.full((4, 1, 6, 6), 0.6), torch.ones(4, dtype=torch.int64)

    def mean_after(steps: int) -> float:
        attack = attacks.Square(epsilon=0.2, steps=steps, num_samples=40, objective="votes", seed=0)
        return attack(Voter(), images, labels, progress=False).inputs.mean().item()

    assert mean_after(200) < mean_after(1) - 0.05


def test_an_attack_by_gradients_refuses_votes() -> None:
    with pytest.raises(ValueError, match="objective must not be 'votes' for an attack by gradients: votes have none"):
        attacks.PGD(epsilon=0.1, objective="votes")


def test_the_majority_of_an_ensemble_can_be_attacked() -> None:
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Flatten(), nn.Linear(36, 3)) for _ in range(3)]
    model = dubio.Ensemble().convert(nets)
    images = torch.rand(16, 1, 6, 6)
    labels = dubio.predict(model, images, 3).votes.argmax(dim=-1)
    attack = attacks.Square(epsilon=0.8, steps=60, num_samples=3, objective="votes", seed=0)

    attacked = attack(model, images, labels, progress=False).inputs

    after = dubio.predict(model, attacked, 3).votes.argmax(dim=-1)
    assert (after == labels).float().mean() < 0.3
