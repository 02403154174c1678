"""``where``: which layers become random."""

from typing import Any

import pytest
from torch import nn

import dubio
from dubio.convert.randomise import chooses
from dubio.nn.bayesian import BayesianLayer
from networks import Residual


def nested() -> nn.Module:
    return nn.ModuleDict(
        {
            "stem": nn.Conv1d(2, 3, 1),
            "blocks": nn.Sequential(
                nn.Sequential(nn.Conv1d(3, 3, 1), nn.Linear(4, 4)), nn.Sequential(nn.Conv1d(3, 3, 1), nn.Linear(4, 4))
            ),
            "head": nn.Linear(4, 2),
        }
    )


def random_layers(where: Any, net: nn.Module) -> set[str]:
    model = dubio.Bayes(where=where).convert(net)
    return {name for name, module in model.named_modules() if isinstance(module, BayesianLayer)}


EVERY = {"stem", "blocks.0.0", "blocks.0.1", "blocks.1.0", "blocks.1.1", "head"}


def label(value: Any) -> str | None:
    """A name that is the same in every process."""
    if isinstance(value, set):
        return None
    if isinstance(value, tuple):
        return f"({', '.join(label(part) or '' for part in value)})"
    return repr(value) if isinstance(value, str | None) else value.__name__.replace("<lambda>", "callable")


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (None, EVERY),
        ("head", {"head"}),
        ("blocks.*", {name for name in EVERY if name.startswith("blocks")}),
        ("blocks.?.1", {"blocks.0.1", "blocks.1.1"}),
        ("*.1", {"blocks.0.1", "blocks.1.1"}),
        ("[!b]*", {"stem", "head"}),
        (nn.Linear, {"blocks.0.1", "blocks.1.1", "head"}),
        (nn.modules.conv._ConvNd, {"stem", "blocks.0.0", "blocks.1.0"}),
        (lambda name, module: getattr(module, "out_features", 0) == 4, {"blocks.0.1", "blocks.1.1"}),
        (("stem", "head"), {"stem", "head"}),
        (("head", nn.Conv1d), {"stem", "blocks.0.0", "blocks.1.0", "head"}),
        (("stem", (lambda name, module: name == "head", "nothing")), {"stem", "head"}),
    ],
    ids=label,
)
def test_where_chooses(where: Any, expected: set[str]) -> None:
    assert random_layers(where, nested()) == expected


def test_where_by_name_does_not_reach_below_the_name() -> None:
    assert not chooses("blocks", "blocks.0.1", nn.Linear(1, 1))
    assert chooses("blocks.*", "blocks.0.1", nn.Linear(1, 1))
    assert not chooses("Head", "head", nn.Linear(1, 1))


def test_a_callable_sees_qualified_names_and_the_modules_of_the_source() -> None:
    seen: dict[str, type] = {}

    def only_the_head(name: str, module: nn.Module) -> bool:
        seen[name] = type(module)
        return name == "head"

    assert random_layers(only_the_head, Residual()) == {"head"}
    assert {"stem": nn.Conv2d, "branch": nn.Conv2d, "head": nn.Linear}.items() <= seen.items()


@pytest.mark.parametrize("where", ["nose", nn.ConvTranspose2d, lambda name, module: False, (), ("a", "b")], ids=label)
def test_a_where_that_chooses_nothing_is_refused(where: Any) -> None:
    with pytest.raises(
        ValueError, match=r"nothing to convert: where=.* chooses no layer of this network that has parameters"
    ):
        dubio.Bayes(where=where).convert(nested())
