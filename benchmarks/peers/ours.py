"""dubio: a converted network, ``Step`` to train it and ``predict``."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

import dubio
from dubio._engine.precision import Precision
from dubio.training.steps import Step
from peers.contestants import Kind, adam
from peers.nets import Net

DIVERGENCE = "closed form, once a step; summed over weights, divided by the size of the data"


@dataclass(frozen=True)
class OurStep:
    """A step on one batch, again and again."""

    step: Step
    inputs: Tensor
    targets: Tensor

    def __call__(self) -> object:
        """Learn from the batch once."""
        return self.step(self.inputs, self.targets)

    @property
    def how(self) -> str:
        """The mode of the step, and why it is not a faster one."""
        step = self.step
        return f"{step.mode}, since {step.reason}" if step.reason else step.mode


@dataclass(frozen=True)
class Ours:
    """An estimator in a precision, captured or compiled where ``fast`` says so."""

    estimator: Literal["local", "weight"]
    precision: Precision = "fp32"
    fast: bool | Literal["auto"] = "auto"
    library: str = "dubio"
    divergence: str = DIVERGENCE
    kind: Kind = "dubio"
    sizes_batches: bool = True

    @property
    def name(self) -> str:
        """The estimator, and whether it is compiled."""
        return f"dubio {self.estimator}{', compiled' if self.fast is True else ''}"

    @property
    def runs(self) -> str:
        """What a step and a prediction run, in words."""
        how = {True: "compiled", False: "eager", "auto": "compiled and captured in a CUDA graph"}[self.fast]
        return f"Bayes(estimator={self.estimator!r}); Step, {how}; predict without keeping draws"

    def training_step(self, net: Net, num_samples: int, device: torch.device) -> Callable[[], object]:
        """A ``Step`` that learns from one batch again and again."""
        model = self._model(net, device)
        objective = dubio.Bayes(estimator=self.estimator, beta=1.0, init_std=0.05).objective(net.num_data)
        step = Step(
            model, objective, adam(model, device), num_samples=num_samples, precision=self.precision, fast=self.fast
        )
        return OurStep(step, *net.batch_of_data(device))

    def prediction(self, net: Net, num_samples: int, images: Tensor, rows: int | None = None) -> Callable[[], Tensor]:
        """``dubio.predict`` without keeping draws, whose draws are one function for all inputs; it sizes batches."""
        model = self._model(net, images.device)

        def predict() -> Tensor:
            found = dubio.predict(model, images, num_samples, keep_samples=False, precision=self.precision)
            return found.mean if net.regression else found.probs

        return predict

    def _model(self, net: Net, device: torch.device) -> nn.Module:
        torch.manual_seed(0)
        method = dubio.Bayes(estimator=self.estimator, beta=1.0, init_std=0.05)
        return method.convert(net.plain(), net.likelihood()).to(device)
