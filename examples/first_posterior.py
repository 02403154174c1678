"""A first posterior: train a Bayesian network on handwritten digits and ask it what it does not know.

Runs in a few seconds on two cores. The data are scikit-learn's embedded 8x8 digits.
"""

import os

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import dubio

EPOCHS = 2 if os.environ.get("DUBIO_TINY") else 40
BATCH = 64


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    train, test = order[: -len(order) // 4], order[-len(order) // 4 :]
    return inputs[train], targets[train], inputs[test], targets[test]


def train(model: nn.Module, inputs: Tensor, targets: Tensor) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(1, EPOCHS + 1):
        for rows in torch.randperm(len(inputs)).split(BATCH):
            logits = dubio.sample(model, inputs[rows], num_samples=2)  # (sample, batch, class)
            log_likelihood = logits.log_softmax(dim=-1)[:, range(len(rows)), targets[rows]].mean()
            loss = -log_likelihood + dubio.divergence(model) / len(inputs)  # the free energy, per example
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % 10 == 0 or epoch == EPOCHS:
            print(f"epoch {epoch:3d}  loss {loss.item():.3f}  log-likelihood {log_likelihood.item():.3f}")


def main() -> None:
    torch.manual_seed(0)
    inputs, targets, test_inputs, test_targets = digits()
    net = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))
    model = dubio.Bayes(prior=dubio.Normal(0.0, 1.0), estimator="local", init_std=0.05).convert(net)
    train(model, inputs, targets)

    known = dubio.predict(model, test_inputs, num_samples=100, seed=0)
    strange = dubio.predict(model, torch.rand(450, 64), num_samples=100, seed=0)
    print(f"\n{dubio.describe(model)}\n")
    print(f"accuracy on {len(test_targets)} test digits: {(known.label == test_targets).float().mean():.3f}")
    wrong = known.label != test_targets
    rows = {"right": known.entropy[~wrong], "wrong": known.entropy[wrong], "pure noise": strange.entropy}
    for name, entropy in rows.items():
        print(f"mean entropy, {name:<10} {entropy.mean():.3f} nats over {len(entropy)} inputs")


if __name__ == "__main__":
    main()
