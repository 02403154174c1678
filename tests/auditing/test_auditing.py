"""What can be audited, what is refused, and how an audit chooses and judges."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

import dubio
from audit_cases import EPSILON, TINY, session_for, verdicts
from dubio.auditing.checks import CHECKS
from dubio.auditing.records import BUDGETS
from dubio.auditing.session import ordinary_twin

REQUIRED = {"C1", "C3", "C5", "C6", "C8", "C9", "C15", "C16", "C18", "C19", "C23", "C24"}
DOCS = Path(__file__).parents[2] / "docs"


def audited(model: Any, data: Any, **options: Any) -> dubio.Audit:
    chosen = {"epsilon": EPSILON, "budget": TINY, "progress": False, **options}
    return dubio.audit(model, data, **chosen)


def test_the_required_checks_are_those_of_the_specification() -> None:
    assert {check.id for check in CHECKS if check.required} == REQUIRED
    assert [check.id for check in CHECKS if check.may_be_skipped] == ["C24"]
    assert len({check.id for check in CHECKS}) == len(CHECKS) == 22


def test_the_guide_explains_every_check_in_the_words_of_the_table() -> None:
    lines = (DOCS / "audit.md").read_text(encoding="utf-8").splitlines()
    for check in CHECKS:
        name = f"{check.id}{'*' if check.required else ''} {check.name}"
        assert f"| {name} | {check.question} | {check.passes_when} |" in lines


@pytest.mark.slow
def test_an_audit_repeats_itself_and_leaves_the_generator_alone(plain: nn.Module, digits: dubio.data.Examples) -> None:
    model = dubio.Dropout().convert(plain)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = audited(model, digits)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(6)
    again = audited(model, digits)
    assert again.headline == first.headline
    assert (again.r_1, again.r_retry, again.r_frozen) == (first.r_1, first.r_retry, first.r_frozen)
    assert [check.summary for check in again.checks] == [check.summary for check in first.checks]


def test_the_worst_attack_counts_for_each_image_and_other_draws_score_it() -> None:
    """Selection draws see the first half fooled by one attack and the second by another; scoring draws see both."""
    images = torch.rand(100, 4)
    labels = torch.zeros(100, dtype=torch.long)
    net = nn.Sequential(nn.Linear(4, 3))
    session = session_for(net, (images, labels), budget=replace(TINY, num_images=100))
    for name, epsilon in {"weak": 0.01, "strong": 0.3}.items():
        assert session.attempt(name, replace(session.main(), epsilon=epsilon)) is not None
    chosen, shares = session.worst()
    values = torch.stack([attempt.values for attempt in session.attempts.values()])
    assert shares.get("strong", 0.0) == pytest.approx((values[1] > values[0]).double().mean().item())
    for row in range(100):
        own = session.attempts["strong" if values[1, row] > values[0, row] else "weak"].images[row]
        assert torch.equal(chosen[row], own)
    assert session.seed_for("selection") != session.seed_for("scoring")


def test_the_same_attack_is_run_once_under_its_first_name(plain: nn.Module, digits: dubio.data.Examples) -> None:
    session = session_for(plain, digits)
    first = session.attempt("pgd", session.main())
    assert session.attempt("pgd once more", session.main()) is first
    assert session.attempt("pgd at its own distance", session.main(epsilon=EPSILON), aside=True) is first
    assert list(session.attempts) == ["pgd"]


def test_attacks_aim_at_the_likeliest_other_classes(plain: nn.Module, digits: dubio.data.Examples) -> None:
    session = session_for(plain, digits)
    logits = plain(session.inputs).detach()
    assert session.other_classes.shape == (9, len(session.inputs))
    assert not (session.other_classes == session.targets).any()
    ranked = logits.gather(1, session.other_classes.T)
    assert (ranked[:, 1:] <= ranked[:, :-1]).all()


def test_two_classes_flat_inputs_and_l2_can_be_audited() -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(120, 3, generator=generator)
    labels = (points.sum(dim=1) > 1.5).long()
    net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
    dubio.fit(net, (points, labels), epochs=30, lr=1e-2, progress=False)
    budget = replace(TINY, num_images=120, objectives=BUDGETS["full"].objectives, num_goals=9)
    found = audited(net, (points, labels), norm="l2", epsilon=0.2, budget=budget)
    names = {attack.name for attack in found.attacks}
    assert "pgd, predictive margin" in names
    assert not any("dlr" in name for name in names)
    assert "square" in names
    assert [name for name in names if "aimed" in name] == ["pgd, aimed at class 1"]
    assert verdicts(found)["C18"] == "pass"
    assert found.headline.accuracy < found.clean.value


def test_other_bounds_scale_what_is_reached(plain: nn.Module, digits: dubio.data.Examples) -> None:
    images, labels = digits.tensors

    def centred(inputs: Tensor) -> Tensor:
        logits: Tensor = plain((inputs + 1.0) / 2.0)
        return logits

    found = audited(centred, (2.0 * images - 1.0, labels), epsilon=2 * EPSILON, bounds=(-1.0, 1.0))
    assert "With epsilon 2, which allows any image" in {check.id: check.summary for check in found.checks}["C16"]
    assert verdicts(found)["C18"] == verdicts(found)["C20"] == "pass"
    assert verdicts(found)["C24"] == "skipped"
    assert "C24" in {check.id for check in found.failed}  # AutoAttack is not there to stand in for it


def test_an_ensemble_is_audited_by_its_members(plain: nn.Module, digits: dubio.data.Examples) -> None:
    other = dubio.models.build("fc:100-100", inputs=digits.shape, num_classes=10)
    found = audited(dubio.Ensemble().convert([plain, other]), digits)
    assert found.r_frozen is None
    assert not any(attack.name.startswith("pgd, K") for attack in found.attacks)
    assert verdicts(found)["C9"] == "pass"


def test_a_twin_is_ordinary_learns_the_images_and_leaves_the_network_alone(
    plain: nn.Module, digits: dubio.data.Examples
) -> None:
    images, labels = (part[:100] for part in digits.tensors)
    model = dubio.Bayes().convert(plain)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    twin = ordinary_twin(model, images, labels, seed=0)
    assert twin is not None
    assert (twin(images).argmax(dim=1) == labels).float().mean() > 0.9
    assert torch.equal(twin(images), twin(images))
    assert not torch.equal(next(twin.parameters()), next(plain.parameters()))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert ordinary_twin(lambda inputs: plain(inputs), images, labels, seed=0) is None


def test_a_twin_is_trained_without_a_warning_that_nothing_is_random(
    plain: nn.Module, digits: dubio.data.Examples
) -> None:
    images, labels = (part[:40] for part in digits.tensors)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ordinary_twin(dubio.Bayes().convert(plain), images, labels, seed=0)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"epsilon": 8.0}, "epsilon must be in \\[0, 1\\] for inputs in \\[0, 1\\], got 8.0; did you mean 8/255"),
        ({"epsilon": 0.0}, "epsilon must be positive for an audit, got 0.0"),
        ({"num_images": 0}, "num_images must be a whole number of at least 1, got 0"),
        ({"budget": "huge"}, "budget must be 'quick' or 'full' or 'tiny', got 'huge'"),
        ({"bounds": (0.2, 0.8)}, "inputs must lie in bounds \\[0.2, 0.8\\]"),
    ],
)
def test_what_cannot_be_audited_is_refused_before_any_work(
    options: dict[str, Any], told: str, plain: nn.Module, digits: dubio.data.Examples, tmp_path: Path
) -> None:
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises(ValueError, match=told):
            audited(plain, digits, folder=tmp_path, **options)
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
    assert not list(tmp_path.iterdir())


def test_regression_and_several_inputs_are_refused(digits: dubio.data.Examples) -> None:
    line = dubio.Bayes().convert(nn.Linear(1, 1), likelihood=dubio.Gaussian(0.1))
    with pytest.raises(TypeError, match="attacks need a classifier"):
        audited(line, (torch.rand(9, 1), torch.zeros(9, dtype=torch.long)))
    images, labels = (part[:9] for part in digits.tensors)
    with pytest.raises(TypeError, match="data must have one tensor of inputs to be attacked, got dict"):
        audited(nn.Linear(1, 2), ({"left": images, "right": images}, labels))


def test_a_budget_must_have_something_to_compare() -> None:
    with pytest.raises(ValueError, match=r"eot must have two counts or more, to compare the last, got \(1,\)"):
        replace(TINY, eot=(1,))
    with pytest.raises(ValueError, match="score_draws must be at least 2, to tell how draws differ, got 1"):
        replace(TINY, score_draws=1)
