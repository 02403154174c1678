"""The images of an experiment: which, how many, and what the network has never seen."""

import torch

from dubio.data import CropAndFlip, Examples, Loader, Splits, load, ood_sets
from dubio_lab.protocols.trial import Trial

__all__ = ["batches_of", "load_images", "load_unseen"]


def load_images(trial: Trial) -> Splits:
    """Training, validation and test images on the trial's device.

    Settings: ``data``, ``num_validation`` (the last of the training set; 0 for none), and, where a run takes fewer,
    ``num_train`` and ``num_test``.
    """
    settings = trial.settings
    splits = load(settings["data"], validation=0)
    train, held_out = _without_last(splits.train, settings["num_validation"])
    return Splits(
        _first(train, settings.get("num_train"), trial.device),
        _first(held_out, None, trial.device),
        _first(splits.test, settings.get("num_test"), trial.device),
    )


def batches_of(trial: Trial, train: Examples) -> Examples | Loader:
    """What is trained on: the examples, or batches of them that are shifted and mirrored at random.

    Settings: ``augment``, ``"none"`` unless said or ``"crop-and-flip"``; ``batch_size``.
    """
    kind = trial.settings.get("augment", "none")
    if kind not in ("none", "crop-and-flip"):
        raise ValueError(f"augment must be 'none' or 'crop-and-flip', got {kind!r}")
    if kind == "none":
        return train
    return Loader(train, trial.settings["batch_size"], seed=trial.seed, augment=CropAndFlip())


def load_unseen(trial: Trial) -> dict[str, Examples]:
    """Images that a network trained on ``data`` has never seen, by name; for digits, which have no relatives, noise.

    Settings: ``data``; and ``num_unseen``, where a run takes fewer.
    """
    count = trial.settings.get("num_unseen")
    if trial.settings["data"] == "digits":
        test = load("digits").test
        assert test is not None
        generator = torch.Generator().manual_seed(0)
        noise = torch.rand(test.inputs.shape, generator=generator)
        sets = {"noise": Examples(noise, test.targets, test.classes, "noise")}
    else:
        sets = ood_sets(trial.settings["data"])
    subsets = {name: _first(examples, count, trial.device) for name, examples in sets.items()}
    return {name: examples for name, examples in subsets.items() if examples is not None}


def _without_last(examples: Examples | None, count: int) -> tuple[Examples | None, Examples | None]:
    """All but the last ``count``, and those."""
    if examples is None or count == 0:
        return examples, None
    return examples[:-count], examples[-count:]


def _first(examples: Examples | None, count: int | None, device: torch.device) -> Examples | None:
    return None if examples is None else examples[:count].to(device)
