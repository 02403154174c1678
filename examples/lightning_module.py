"""A Lightning module: dubio inside another trainer.

An objective needs a network and a batch, which ``training_step`` provides. Five lines use dubio: convert, create the
objective, call it, log its terms, predict. Lightning is not a dependency of dubio; without it, this script prints a
message and exits.

Expect an accuracy above 0.93. The example takes about fifteen seconds.
"""

import os
import sys

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import dubio

try:
    import lightning
except ImportError:
    print("This example requires Lightning: pip install lightning")
    sys.exit(0)


class Bayesian(lightning.LightningModule):
    """A Bayesian version of any network."""

    def __init__(self, net: nn.Module, num_data: int) -> None:
        super().__init__()
        self.model = dubio.Bayes().convert(net)
        self.objective = dubio.ELBO(num_data)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """The loss of a batch."""
        loss = self.objective(self.model, *batch)
        self.log_dict({"loss": loss.total, "nll": loss.nll, **loss.terms}, prog_bar=True)
        return loss.total

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer of ``dubio.fit``."""
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def main() -> None:
    lightning.seed_everything(0, verbose=False)
    images, labels = load_digits(return_X_y=True)
    inputs, targets = torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels)
    test, train = torch.randperm(len(inputs)).split([450, len(inputs) - 450])

    module = Bayesian(dubio.models.mlp(64, 100, 100, 10), num_data=len(train))
    trainer = lightning.Trainer(
        max_epochs=2 if os.environ.get("DUBIO_TINY") else 50,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=sys.stdout.isatty(),
    )
    trainer.fit(module, DataLoader(TensorDataset(inputs[train], targets[train]), batch_size=128, shuffle=True))
    losses = "  ".join(f"{name} {value.item():.3f}" for name, value in trainer.logged_metrics.items())
    print(f"last batch: {losses}")

    pred = dubio.predict(module.model, inputs[test], num_samples=100, seed=0)
    accuracy = (pred.label == targets[test]).float().mean()
    print(f"accuracy {accuracy:.3f}, mean entropy {pred.entropy.mean():.3f}")


if __name__ == "__main__":
    main()
