"""Convert a pretrained network and fine-tune it with few labels, on images that have changed.

A plain convolutional network is pretrained on upright digits. A new scanner then mirrors the images, and only a hundred
mirrored images have labels. The last two layers become Bayesian, with a prior centred at the pretrained weights; the
convolutions remain unchanged. The prior is wide (a standard deviation of 1) because mirroring changes much: a standard
deviation of 0.1 keeps the network too close to the pretrained one.

``convert(net, example=...)`` verifies on real images that the converted network with noise off equals the pretrained
one, so that nothing is lost before fine-tuning.

Expect the accuracy on mirrored digits to rise from below 0.5 to above 0.8, as with ordinary fine-tuning. The posterior
adds uncertainty: a lower negative log-likelihood, and draws that disagree more than twice as much where the network is
wrong as where it is right. The example takes about fifteen seconds.
"""

import copy
import os

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import dubio

TINY = bool(os.environ.get("DUBIO_TINY"))
NUM_OLD, NUM_NEW = 1000, 100


class Net(nn.Module):
    """Two convolutions and two linear layers: 38,282 weights."""

    def __init__(self) -> None:
        super().__init__()
        convolutions = (nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU())
        self.features = nn.Sequential(*convolutions, nn.MaxPool2d(2), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, pictures: Tensor) -> Tensor:
        """Logits of the ten digits."""
        return self.head(self.features(pictures))


def digits() -> tuple[Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    pictures = torch.tensor(images / 16.0, dtype=torch.float32).view(-1, 1, 8, 8)
    return pictures[order], torch.tensor(labels)[order]


def train_plainly(net: nn.Module, pictures: Tensor, labels: Tensor, epochs: int, batch_size: int) -> None:
    optimizer = torch.optim.Adam([weight for weight in net.parameters() if weight.requires_grad], lr=2e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(labels)).split(batch_size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(pictures[rows]), labels[rows]).backward()
            optimizer.step()


def report(name: str, model: nn.Module, pictures: Tensor, labels: Tensor) -> None:
    pred = dubio.predict(model, pictures, num_samples=100, seed=0)
    right = pred.label == labels
    print(f"{name:<22}accuracy {right.float().mean():.3f}  nll {nn.functional.nll_loss(pred.log_probs, labels):.3f}")
    for kind, uncertainty in {"entropy": pred.entropy, "mutual information": pred.mutual_information}.items():
        print(f"  {kind:<20}{uncertainty[right].mean():.3f} where right, {uncertainty[~right].mean():.3f} where wrong")


def main() -> None:
    torch.manual_seed(0)
    pictures, labels = digits()
    mirrored = pictures.flip(-1)
    old, new, test = torch.arange(len(labels)).split([NUM_OLD, NUM_NEW, len(labels) - NUM_OLD - NUM_NEW])
    epochs = 1 if TINY else 100

    net = Net()
    train_plainly(net, pictures[old], labels[old], epochs=1 if TINY else 20, batch_size=64)
    net.features.requires_grad_(False)

    method = dubio.Bayes(prior=dubio.CentredNormal(std=1.0), init_std=0.02, beta=1.0, where="head.*")
    model = method.convert(net, example=pictures[test])  # raises if noise off differs from the pretrained network
    print(f"{dubio.describe(model)}\n")
    dubio.fit(model, (mirrored[new], labels[new]), epochs=epochs, batch_size=25, num_samples=4, progress=False)

    plain = copy.deepcopy(net)
    train_plainly(plain, mirrored[new], labels[new], epochs, batch_size=25)

    report("pretrained, upright", net, pictures[test], labels[test])
    report("pretrained, mirrored", net, mirrored[test], labels[test])
    report("fine-tuned, plain", plain, mirrored[test], labels[test])
    report("fine-tuned, Bayesian", model, mirrored[test], labels[test])


if __name__ == "__main__":
    main()
