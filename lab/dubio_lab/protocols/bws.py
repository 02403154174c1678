"""Robustness by weight sampling (methods, section 5): what images made on some networks do to others.

Accuracies are in percent, as published. Those of Bayesian networks are of ensembles of ``ensemble`` draws (E-28), one
draw by default, where one set of weights serves all images; from ``draws`` draws are cut as many ensembles as there
are, and the mean over them is told with its standard error: over draws, not over images or trainings. Draw number i is
the same for all images, so that an average over sets has a standard error of its own. A deterministic network is one
draw.

Reference: Improving Neural Network Robustness with Bayesian Weight Sampling, tables 1 to 4.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dubio import functional
from dubio.convert import spec
from dubio.data import Examples, Splits
from dubio.methods import Deterministic
from dubio.pruning import prune
from dubio_lab.protocols.bws_networks import (
    evaluated_network,
    find_source,
    perturbed_images,
    source_names,
    trained_network,
)
from dubio_lab.protocols.images import load_images
from dubio_lab.protocols.judging import judge
from dubio_lab.protocols.measuring import mean_of, predict_classes, share
from dubio_lab.protocols.trial import Trial
from dubio_lab.results import Findings, Measured

__all__ = ["bws_clean", "bws_honest", "bws_pruning", "bws_sources", "bws_transfer", "over_ensembles"]


def bws_clean(trial: Trial) -> Findings:
    """Accuracy of a network on validation and test images as they are: of single draws, and of all together."""
    splits, model = _evaluated(trial)
    metrics = {}
    for name, examples in _clean(splits).items():
        draws = _draws(trial, model, examples)
        metrics[name] = over_ensembles(draws, examples.targets, 1)
        metrics[f"{name}_ensemble"] = over_ensembles(draws, examples.targets, len(draws))
    return Findings(_measured(metrics))


def bws_transfer(trial: Trial) -> Findings:
    """Accuracy of a network on the images of every source, their average, and how far single ensembles lie apart."""
    splits, model = _evaluated(trial)
    sets = {}
    for name, examples in _perturbed(trial, splits).items():
        draws = _draws(trial, model, examples)
        sets[name] = over_ensembles(draws, examples.targets, min(trial.settings["ensemble"], len(draws)))
    average = torch.stack([*sets.values()]).mean(dim=0)
    spread = average.std().item() if len(average) > 1 else 0.0
    return Findings({**_measured({**sets, "average": average}), "std": Measured(spread, n=len(average))})


def bws_pruning(trial: Trial) -> Findings:
    """Accuracy of a pruned network on clean and perturbed images, of all draws together and of single draws (D-9)."""
    splits, model = _evaluated(trial)
    removed = prune(model, trial.settings["fraction"], by=trial.settings["by"])
    metrics: dict[str, Measured] = {}
    looked_at = {**_clean(splits), **_perturbed(trial, splits)}
    drawn = {name: _draws(trial, model, examples) for name, examples in looked_at.items()}
    for suffix, size in (("", None), ("_one", 1)):
        scores = {
            name: over_ensembles(draws, looked_at[name].targets, size or len(draws)) for name, draws in drawn.items()
        }
        scores["average"] = torch.stack([scores[name] for name in source_names(trial.settings)]).mean(dim=0)
        metrics |= {f"{name}{suffix}": value for name, value in _measured(scores).items()}
    metrics["removed"] = Measured(100.0 * removed.num_removed / removed.num_weights, n=removed.num_weights)
    return Findings(metrics)


def bws_sources(trial: Trial) -> Findings:
    """What a source is like, and how far its images had to be moved (E-27): on pixels in [0, 2], and in [0, 1]."""
    splits = load_images(trial)
    assert splits.test is not None
    source = find_source(trial.settings, trial.settings["source"])
    model = trained_network(trial, splits, source.network)
    made = perturbed_images(trial, splits, source)
    inputs, targets = splits.test.tensors
    moved = Examples(made["inputs"], targets)
    before, after = (_draws(trial, model, images)[0].argmax(dim=-1) == targets for images in (splits.test, moved))
    distortion = functional.adversarial.distortion(moved.inputs - inputs).item()
    return Findings(
        {
            "test": share(before),
            "success": share(made["fooled"]),
            "failures": Measured(float((~made["fooled"]).sum()), n=len(targets)),
            "left": share(after),
            "distortion": Measured(2.0 * distortion, n=len(targets)),
            "distortion_unit": Measured(distortion, n=len(targets)),
        }
    )


def bws_honest(trial: Trial) -> Findings:
    """What was not asked of an evaluated network: calibration, unseen images, attacks on itself, an audit."""
    splits, model = _evaluated(trial)
    return judge(trial, model, splits)


def over_ensembles(
    log_probs: Float[Tensor, "sample batch class"], targets: Tensor, size: int
) -> Float[Tensor, " repeat"]:
    """Accuracy in percent of each ensemble of ``size`` draws."""
    return 100.0 * functional.uncertainty.ensemble_accuracies(log_probs, targets, size).double().cpu()


def _evaluated(trial: Trial) -> tuple[Splits, nn.Module]:
    """The images, and the network of the cell, trained."""
    splits = load_images(trial)
    return splits, trained_network(trial, splits, evaluated_network(trial.settings))


def _draws(trial: Trial, model: nn.Module, examples: Examples) -> Float[Tensor, "sample batch class"]:
    """Log-probabilities of many draws, each one function for all images; of a deterministic network, of one."""
    num_draws = 1 if isinstance(spec(model).method, Deterministic) else trial.settings["draws"]
    pred = predict_classes(trial, model, examples.tensors[0], num_draws, keep=True)
    assert pred.samples is not None
    return pred.samples


def _clean(splits: Splits) -> dict[str, Examples]:
    assert splits.validation is not None
    assert splits.test is not None
    return {"validation": splits.validation, "test": splits.test}


def _perturbed(trial: Trial, splits: Splits) -> dict[str, Examples]:
    """The test images as each source made them, by its name."""
    assert splits.test is not None
    sources = {}
    for name in source_names(trial.settings):
        made = perturbed_images(trial, splits, find_source(trial.settings, name))
        sources[name] = Examples(made["inputs"], splits.test.targets, splits.test.classes, name)
        trial.tell(f"images of {name}")
    return sources


def _measured(accuracies: dict[str, Float[Tensor, " repeat"]]) -> dict[str, Measured]:
    """Means over ensembles, with their standard errors where there are several."""
    return {name: mean_of(own) for name, own in accuracies.items()}
