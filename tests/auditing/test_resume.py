"""An interrupted audit goes on from what it had finished, and ends in the same record."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from audit_cases import EPSILON, TINY
from dubio.auditing.audit import _fingerprint
from dubio.auditing.records import Audit, Cost
from dubio.auditing.session import PartialResults


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The attacks that are run, one after another."""
    ran: list[str] = []
    call = dubio.attacks.Attack.__call__

    def note(attack: Any, *args: Any, **options: Any) -> Any:
        ran.append(repr(attack))
        return call(attack, *args, **options)

    monkeypatch.setattr(dubio.attacks.Attack, "__call__", note)
    return ran


def audited(model: Any, digits: dubio.data.Examples, **options: Any) -> Audit:
    return dubio.audit(model, digits, epsilon=EPSILON, budget=TINY, progress=False, **options)


def timeless(found: Audit) -> Audit:
    """The record without what no second run repeats: its seconds."""
    return replace(
        found,
        checks=tuple(replace(check, seconds=0.0) for check in found.checks),
        attacks=tuple(replace(attack, seconds=0.0) for attack in found.attacks),
        cost=replace(found.cost, seconds=0.0),
    )


@pytest.mark.feature("An interrupted audit keeps its finished attacks and goes on from there")
@pytest.mark.slow
def test_an_interrupted_audit_goes_on_and_gives_the_same_record(
    plain: nn.Module, digits: dubio.data.Examples, tmp_path: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = dubio.Bayes().convert(plain)
    whole = audited(model, digits)
    expected = list(calls)
    calls.clear()
    with monkeypatch.context() as patched:

        def interrupt(*args: Any, **options: Any) -> None:
            raise KeyboardInterrupt

        patched.setattr(dubio.attacks.Transfer, "__call__", interrupt)
        with pytest.raises(KeyboardInterrupt):
            audited(model, digits, folder=tmp_path)
    before = list(calls)
    assert 10 < len(before) < len(expected)
    assert list((tmp_path / "audit-parts").iterdir())
    calls.clear()
    resumed = audited(model, digits, folder=tmp_path)
    assert calls[1:] == [attack for attack in expected if attack not in before]  # the first tries whether it can be
    assert timeless(resumed) == timeless(whole)
    assert not (tmp_path / "audit-parts").exists()


def kept_before_interruption(model: nn.Module, digits: dubio.data.Examples, **options: Any) -> list[str]:
    """Run an audit until it wants to keep its third attack; the names of those three."""
    names: list[str] = []
    keep = PartialResults.keep

    def keep_two(keeper: PartialResults, name: str, images: Tensor, cost: Cost) -> None:
        names.append(name)
        if len(names) == 3:
            raise KeyboardInterrupt
        keep(keeper, name, images, cost)

    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(PartialResults, "keep", keep_two)
        dubio.audit(model, digits, budget=TINY, progress=False, **options)
    return names


@pytest.mark.parametrize("changed", ["nothing", "seed", "weights", "epsilon"])
def test_parts_of_another_audit_are_not_taken(
    changed: str, plain: nn.Module, digits: dubio.data.Examples, tmp_path: Path
) -> None:
    model, options = dubio.Deterministic().convert(plain), {"seed": 0, "epsilon": EPSILON, "folder": tmp_path}
    first = kept_before_interruption(model, digits, **options)
    if changed == "weights":
        with torch.no_grad():
            next(model.parameters()).add_(0.01)
    else:
        options |= {"seed": {"seed": 1}, "epsilon": {"epsilon": 0.2}, "nothing": {}}[changed]
    second = kept_before_interruption(model, digits, **options)
    assert (first == second) == (changed != "nothing")


def test_a_function_is_known_by_what_it_says(digits: dubio.data.Examples, tmp_path: Path) -> None:
    weight = torch.randn(64, 10, generator=torch.Generator().manual_seed(0))

    def one(inputs: Tensor) -> Tensor:
        return inputs.flatten(1) @ weight

    def other(inputs: Tensor) -> Tensor:
        return 2.0 * inputs.flatten(1) @ weight

    few = digits.tensors[0][:8]
    assert _fingerprint(one, few) == _fingerprint(one, few)
    assert _fingerprint(one, few) != _fingerprint(other, few)


def test_a_damaged_part_is_made_again(tmp_path: Path) -> None:
    keeper = PartialResults(tmp_path, {"seed": 0})
    images, cost = torch.rand(2, 3), Cost(5, 4, 1.5)
    keeper.keep("pgd", images, cost)
    found = keeper.find("pgd")
    assert found is not None
    assert torch.equal(found[0], images)
    assert found[1] == cost
    file = next((tmp_path / "audit-parts").glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-3])
    assert keeper.find("pgd") is None
    assert PartialResults(tmp_path, {"seed": 0}).find("other") is None
