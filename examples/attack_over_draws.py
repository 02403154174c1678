"""Attacks over draws: what the gradient of a single draw hides, and what more draws and other attacks reveal.

Two networks classify digits. The weights of the first get Gaussian noise of standard deviation 0.15 after ordinary
training, a defence that has often been proposed. The second is Bayesian and has learned its noise. Each network is
attacked by PGD and by a single step, with gradients averaged over K = 1, 2, 5, 10, 20 and 50 draws, by PGD on the mean
logits, and by images made on the network with its noise off (transfer). The example reports the remaining accuracy of
the mean over 200 fresh draws.

Expect the network with added noise to look better by a few percentage points at K = 1 than at K = 50. Expect mean
logits and transfer, which is the cheapest attack, to leave about ten points less. Learned noise is smaller and hides
less. The last line shows a coin, which ignores its input and is right about half of the time: the flags of an attack
report every image as "broken", and fresh draws give the true accuracy.

The example takes about two minutes; the picture needs matplotlib. The picture in docs/images is made by
``python examples/attack_over_draws.py --out docs/images/eot.png``.
"""

import argparse
import os
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import dubio
from dubio.attacks.attack import Attack
from dubio.attacks.black_box import RandomNoise, Transfer
from dubio.attacks.gradient import FGSM, PGD
from dubio.attacks.score import score

TINY = bool(os.environ.get("DUBIO_TINY"))
EPOCHS, NUM_IMAGES, NUM_DRAWS, NUM_SEEDS = (1, 20, 10, 1) if TINY else (30, 449, 200, 3)
DRAWS = (1, 2) if TINY else (1, 2, 5, 10, 20, 50)
EPSILON, ADDED_STD = 0.1, 0.15
SCORING = 999  # a seed that no attack uses
COLOURS = {"one step": "#e69f00", "PGD": "#0072b2", "PGD, mean logits": "#cc79a7"}


def networks(seed: int = 0) -> dict[str, nn.Module]:
    """The two networks, by name."""
    train = dubio.data.load("digits").train.tensors
    torch.manual_seed(seed)
    bayes = dubio.Bayes(beta=1.0, init_std=0.05)  # Bayes' rule itself: draws differ more than with the default
    plain, learned = dubio.models.mlp(64, 100, 100, 10), bayes.convert(dubio.models.mlp(64, 100, 100, 10))
    dubio.fit(plain, train, epochs=EPOCHS, seed=seed, progress=False)
    dubio.fit(learned, train, epochs=EPOCHS, seed=seed, progress=False)
    return {"noise added": dubio.Bayes(init_std=ADDED_STD).convert(plain), "noise learned": learned}


def attack(name: str, num_samples: int, seed: int) -> Attack:
    """The attack with a name of the picture."""
    if name == "one step":
        return FGSM(epsilon=EPSILON, num_samples=num_samples, seed=seed)
    if name == "transfer":
        return Transfer(attack=PGD(epsilon=EPSILON, seed=seed), seed=seed)
    objective = "mean_logit" if name == "PGD, mean logits" else "predictive"
    return PGD(epsilon=EPSILON, num_samples=num_samples, objective=objective, seed=seed)


def left(model: nn.Module, name: str, num_samples: int, images: tuple[Tensor, Tensor]) -> float:
    """Accuracy after an attack, on fresh draws: the mean over the seeds of the attack."""
    scores = []
    for seed in range(NUM_SEEDS):
        moved = attack(name, num_samples, seed)(model, *images).inputs
        scores.append(score(model, moved, images[1], num_samples=NUM_DRAWS, seed=SCORING).predictive.value)
    return sum(scores) / len(scores)


def measure(model: nn.Module, images: tuple[Tensor, Tensor]) -> dict[str, list[float]]:
    """Accuracy after every attack, for each number of draws; transfer has a single value."""
    curves = {name: [left(model, name, num_samples, images) for num_samples in DRAWS] for name in COLOURS}
    return curves | {"transfer": [left(model, "transfer", 1, images)]}


def coin(inputs: Tensor) -> Tensor:
    """Logits of a classifier that ignores its input and predicts 0 with probability 0.51."""
    says = (torch.rand(len(inputs)) > 0.51).long()
    return 10.0 * nn.functional.one_hot(says, 2).float()


def draw(path: Path, scores: dict[str, dict[str, list[float]]]) -> None:
    """Draw the picture."""
    figure = Figure(figsize=(8.4, 3.7), layout="constrained")
    for axes, (title, curves) in zip(figure.subplots(1, len(scores), sharey=True), scores.items(), strict=True):
        for name, colour in COLOURS.items():
            values = [100.0 * value for value in curves[name]]
            axes.plot(DRAWS, values, "o-", color=colour, markersize=4, label=name)
        transfer = 100.0 * curves["transfer"][0]
        axes.axhline(transfer, color="black", linestyle="--", label="transfer from the noise-off network")
        axes.set(title=title, xscale="log", xlabel="draws K that a gradient averages")
        axes.set_xticks(DRAWS, [str(num_samples) for num_samples in DRAWS])
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel(f"% right after the attack\n(mean over {NUM_DRAWS} fresh draws)")
    figure.axes[0].legend(frameon=False, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description="Attacks over draws.")
    parser.add_argument("--out", type=Path, default=Path("runs/eot.png"), help="path of the picture")
    options = parser.parse_args()

    images = dubio.data.load_test("digits")[:NUM_IMAGES].tensors
    scores = {}
    for name, model in networks().items():
        clean = score(model, *images, num_samples=NUM_DRAWS, seed=SCORING)
        print(f"{name}: accuracy without attack {clean.predictive.value:.3f}, of one draw {clean.single.value:.3f}")
        scores[name] = measure(model, images)
        print(f"  {'K':<18}" + "".join(f"{num_samples:>7}" for num_samples in DRAWS))
        for attack_name, values in scores[name].items():
            print(f"  {attack_name:<18}" + "".join(f"{value:>7.3f}" for value in values))
    draw(options.out, scores)
    print(f"picture: {options.out}")

    zeros = torch.zeros(NUM_IMAGES, dtype=torch.long)
    tried = RandomNoise(epsilon=EPSILON, num_samples=1, tries=10, seed=0)(coin, images[0], zeros)
    truth = score(coin, tried.inputs, zeros, num_samples=NUM_DRAWS, seed=SCORING)
    print(f"coin: accuracy by flags {1.0 - tried.fooled.float().mean():.3f}, on fresh draws {truth.single.value:.3f}")


if __name__ == "__main__":
    main()
