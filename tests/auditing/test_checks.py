"""Every check can pass and can fail, on cases built for it."""

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import dubio
from audit_cases import TINY, session_for
from auditing.frauds import Blinded, Coin, HardQuantiser
from dubio.attacks.gradient import PGD
from dubio.auditing.audit import _status, _with_proof
from dubio.auditing.checks import CHECKS
from dubio.auditing.records import CheckRecord, Cost
from dubio.auditing.session import AttackRun, AuditSession, CheckResult

COUNT = 400
RUN = {check.id: check.run for check in CHECKS}
IMAGES = torch.full((COUNT, 1, 2, 2), 0.5)
LABELS = torch.zeros(COUNT, dtype=torch.long)


def attack_run(name: str, left: int, images: Tensor = IMAGES, attack: Any = None) -> AttackRun:
    """An attack that leaves the first so many images right."""
    right = torch.arange(len(images)) < left
    return AttackRun(name, attack or PGD(), images, (~right).float(), right, Cost(0, 0, 0.0))


class Told(AuditSession):
    """A session on which attacks leave what they are told to."""

    def tell(self, left: dict[str, int], clean: int = COUNT) -> "Told":
        self.left, self.clean = left, torch.arange(COUNT) < clean  # type: ignore[misc]
        return self

    def attempt(self, name: str, attack: Any, goals: Any = None, *, aside: bool = False) -> AttackRun | None:
        among = self.others if aside else self.attempts
        same = next((run for run in (*self.attempts.values(), *among.values()) if run.attack == attack), None)
        if same is not None:
            return same
        if name not in self.left:
            self.failures.setdefault(name, "the model's outputs must depend on its inputs")
            return None
        among[name] = attack_run(name, self.left[name], attack=attack)
        return among[name]


def told(left: dict[str, int], clean: int = COUNT, kind: str = "fixed", **options: Any) -> Told:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 10))
    budget = replace(TINY, num_images=COUNT, **options)
    session = session_for(net, (IMAGES, LABELS), budget=budget)
    made = Told(**{name: getattr(session, name) for name in AuditSession.__dataclass_fields__})
    made.__dict__.update(kind=kind, ordinary_twin=None)
    return made.tell(left, clean)


def all_left(names: list[str], count: int) -> dict[str, int]:
    return dict.fromkeys(names, count)


STEPS = {"pgd": 200, "pgd, 2 steps": 200}
EOT = {"pgd, K = 1": 210, "pgd, K = 2": 208, "pgd, K = 4": 206}
VARIANTS = ["pgd", "pgd, step x 0.5", "pgd, step x 2", "pgd, momentum 0.75", "pgd, start 2", "pgd, start 3"]
OBJECTIVES = [
    "pgd, predictive margin",
    "pgd, predictive cross entropy",
    "pgd, expected cross entropy",
    "pgd, mean logit margin",
    "pgd, aimed at class 1",
]
SWEEP = {"pgd at 0.025": 380, "pgd at 0.05": 300, "pgd at 0.1": 200, "pgd at 0.2": 100, "pgd at 1": 0}
OFF = "transfer from noise off"


@pytest.mark.parametrize(
    ("id", "left", "status", "summary"),
    [
        (
            "C3",
            EOT,
            "pass",
            "From 2 to 4 draws for each gradient the accuracy falls by 0.5 points (a fall of at most 1.3",
        ),
        ("C3", {**EOT, "pgd, K = 4": 190}, "fail", "More draws might still leave less."),
        ("C3", {**EOT, "pgd, K = 4": 197}, "fail", "cannot be excluded: more images would tell"),
        ("C3", {**EOT, "pgd, K = 1": 240}, "warn", "An attack by one draw would leave 8.5 points more than one by 4."),
        ("C3", {}, "fail", "no gradient to follow"),
        ("C5", {**STEPS, "pgd, 8 steps": 198}, "pass", "From 4 to 8 steps the accuracy falls by 0.5 points"),
        ("C5", {**STEPS, "pgd, 8 steps": 180}, "fail", "More steps might still leave less."),
        ("C5", {}, "fail", "no gradient to follow"),
        ("C6", {"pgd": 200, "fgsm": 220}, "pass", "One step leaves 55.0%, 4 steps leave 50.0%."),
        ("C6", {"pgd": 201, "fgsm": 200}, "pass", "One step leaves 50.0%"),
        ("C6", {"pgd": 220, "fgsm": 200}, "fail", "Iterating hurts the attack"),
        ("C7", {**all_left(VARIANTS, 200), "pgd, start 2": 190}, "pass", "the best of them, pgd, start 2, 47.5%"),
        ("C7", {**all_left(VARIANTS, 200), "pgd, start 2": 180}, "fail", "others may do better"),
        ("C8", {**all_left(OBJECTIVES, 200), OBJECTIVES[1]: 190}, "pass", "pgd, predictive cross entropy leaves 47.5%"),
        ("C8", all_left(OBJECTIVES[:2], 200), "fail", "no gradient to follow"),
        ("C9", {"pgd": 200, OFF: 210}, "pass", "transfer from noise off leaves 52.5%"),
        ("C9", {"pgd": 200, OFF: 197}, "pass", "transfer from noise off leaves 49.2%"),
        ("C9", {"pgd": 200, OFF: 180}, "fail", "with its noise off shows the way better"),
        ("C14", {"pgd": 200, "square": 250}, "pass", "square leaves 62.5%, attacks by the network's own gradients"),
        ("C14", {"pgd": 200, "square": 180}, "fail", "it is masked"),
        ("C15", {"pgd": 200, "random noise": 220}, "pass", "Random noise leaves 55.0%, the attack 50.0%."),
        ("C15", {"pgd": 200, "random noise": 219}, "fail", "less than 5.0 points apart"),
        ("C16", {"pgd at 1": 4}, "pass", "With epsilon 1, which allows any image, the attack leaves 1.0%."),
        ("C16", {"pgd at 1": 5}, "fail", "An attack that works leaves nothing."),
        ("C17", SWEEP, "pass", "The accuracy falls"),
        ("C17", {**SWEEP, "pgd at 0.2": 220}, "fail", "The accuracy rises as the attacker may go further"),
        ("C17", {**SWEEP, "pgd at 0.2": 198}, "fail", "From epsilon 0.1 to 0.2 the accuracy stays above chance"),
        ("C17", {**SWEEP, "pgd at 0.025": 398, "pgd at 0.05": 396}, "pass", "The accuracy falls"),
        ("C17", {**all_left(list(SWEEP), 30)}, "pass", "The accuracy falls"),
    ],
)
def test_checks_by_what_attacks_leave(id: str, left: dict[str, int], status: str, summary: str) -> None:
    direct = {"C9": ["pgd"], "C14": ["pgd"]}.get(id, [])
    session = told(left, kind="random" if id in ("C3", "C9") else "fixed", eot=(1, 2, 4), step_counts=(2, 4, 8))
    for name in direct:
        session.attempt(name, session.main())
    found = RUN[id](session)
    assert (found.status, summary in found.summary) == (status, True), found


def test_objectives_that_break_different_images_count_together_and_fail() -> None:
    session = told(all_left(OBJECTIVES, 200))
    attempt = session.attempt

    def half_elsewhere(name: str, attack: Any, goals: Any = None, *, aside: bool = False) -> AttackRun | None:
        run = attempt(name, attack, goals, aside=aside)
        assert run is not None
        if name == OBJECTIVES[0]:
            session.attempts[name] = replace(run, right=run.right.flip(0), values=run.values.flip(0))
        return session.attempts[name]

    session.attempt = half_elsewhere  # type: ignore[method-assign]
    found = RUN["C8"](session)
    assert found.status == "fail"
    assert "it is 0.0%" in found.summary


def test_an_ensemble_and_a_fixed_network_have_no_noise_to_average_or_to_hide_behind() -> None:
    for kind in ("fixed", "members"):
        session = told({}, kind=kind)
        assert {RUN[id](session).status for id in ("C2", "C3", "C4", "C9", "C11")} == {"pass"}


def test_noise_that_cannot_be_turned_off_is_not_cleared() -> None:
    session = told({"pgd": 200}, kind="random")
    session.failures[OFF] = "noise='off' needs a model whose noise dubio draws"
    found = RUN["C9"](session)
    assert found.status == "skipped"
    assert "may be a veil" in found.summary


def test_c1_compares_what_is_declared_with_what_is_measured(plain: nn.Module, digits: dubio.data.Examples) -> None:
    bayes = dubio.Bayes().convert(plain)
    found = RUN["C1"](session_for(bayes, digits))
    assert (found.status, "the network is random." in found.summary) == ("pass", True)
    with torch.no_grad():
        for name, parameter in bayes.named_parameters():
            if name.endswith("rho"):
                parameter.fill_(-1e4)
    found = RUN["C1"](session_for(bayes, digits))
    assert (found.status, "but it has random parts" in found.summary) == ("fail", True)
    hidden = dubio.Deterministic().convert(Blinded(plain, 3.0))
    found = RUN["C1"](session_for(hidden, digits))
    assert (found.status, "but it has no random parts" in found.summary) == ("fail", True)
    found = RUN["C1"](session_for(plain, digits))
    assert (found.status, "does not say whether it should be" in found.summary) == ("pass", True)


def test_c1_tells_a_draw_for_the_batch_from_one_for_each_image(plain: nn.Module, digits: dubio.data.Examples) -> None:
    shared, apart = (dubio.Bayes(estimator=kind).convert(plain) for kind in ("weight", "local"))
    assert "all images of a batch share a draw" in RUN["C1"](session_for(shared, digits)).summary
    assert "every image has its own noise" in RUN["C1"](session_for(apart, digits)).summary


def test_few_draws_are_told_by_twice_as_many_and_by_their_spread() -> None:
    session = session_for(Coin(0.51), (IMAGES, LABELS), budget=replace(TINY, num_images=COUNT, score_draws=51))
    session.attempts["pgd"] = attack_run("pgd", 0)
    assert RUN["C2"](session).status == "fail"
    assert RUN["C23"](session).status == "fail"
    sure = session_for(Coin(0.99), (IMAGES, LABELS), budget=session.budget)
    sure.attempts["pgd"] = attack_run("pgd", 0)
    assert (RUN["C2"](sure).status, RUN["C23"](sure).status) == ("pass", "pass")


def test_the_error_over_draws_is_that_of_scoring_again() -> None:
    """Images whose answers are right with known chances, so that the error of their accuracy is known too."""
    chances, draws = torch.linspace(0.3, 0.7, COUNT), 51

    def graded(inputs: Tensor) -> Tensor:
        heads = torch.rand(len(inputs)) < inputs.flatten(1)[:, 0]
        return torch.stack([heads, ~heads], dim=1).float() + 0.0 * inputs.flatten(1)[:, :1]

    images = chances.view(-1, 1, 1, 1).expand(COUNT, 1, 2, 2).contiguous()
    budget = replace(TINY, num_images=COUNT, score_draws=draws)
    session = session_for(graded, (images, LABELS), budget=budget, epsilon=1e-6)  # no attack moves a chance
    right = torch.from_numpy(stats.binom.sf(draws // 2, draws, chances.double().numpy()))
    expected = (right * (1.0 - right)).sum().sqrt().item() / COUNT
    found = RUN["C23"](session)
    assert found.value == pytest.approx(expected, rel=0.5)  # a spread over eight repeats is this unsure itself
    assert found.status == "fail"


@pytest.mark.parametrize(("std", "status"), [(0.05, "pass"), (4.0, "warn"), (1000.0, "fail")])
def test_c4_measures_how_far_two_gradients_agree(
    std: float, status: str, plain: nn.Module, digits: dubio.data.Examples
) -> None:
    session = session_for(Blinded(plain, std), digits, budget=replace(TINY, eot=(1, 20)))
    assert RUN["C4"](session).status == status


def test_c10_compares_the_mean_network_with_a_twin(plain: nn.Module, digits: dubio.data.Examples) -> None:
    labels = nn.functional.one_hot(digits.tensors[1], 10).float()

    def unbreakable(inputs: Tensor) -> Tensor:
        return labels[: len(inputs)] + 0.0 * inputs.flatten(1).sum(dim=1, keepdim=True)

    model = dubio.Bayes().convert(plain)
    found = RUN["C10"](session_for(model, digits, twin=unbreakable))
    assert (found.status, "the other 100.0%" in found.summary) == ("fail", True)
    assert RUN["C10"](session_for(model, digits, twin=plain)).status == "pass"
    assert RUN["C10"](session_for(model, digits)).status == "skipped"


def autoattack(monkeypatch: pytest.MonkeyPatch, shift: float) -> None:
    """A stand-in for the other library, which moves every pixel."""

    class AutoAttack:
        def __init__(self, model: Any, *, norm: str, eps: float, seed: int, device: Any) -> None:
            assert norm in ("Linf", "L2")
            self.model = model

        def run_standard_evaluation(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            assert self.model(inputs).shape == (len(inputs), 10)
            return inputs + shift, targets

    module = ModuleType("pyautoattack")
    module.AutoAttack = AutoAttack  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyautoattack", module)


def test_c12_counts_what_autoattack_finds(
    monkeypatch: pytest.MonkeyPatch, plain: nn.Module, digits: dubio.data.Examples
) -> None:
    session = session_for(plain, digits)
    session.attempts["nothing"] = session.attempt("pgd at 0", session.main(epsilon=0.0), aside=True)  # type: ignore[assignment]
    autoattack(monkeypatch, 0.0)
    assert RUN["C12"](session).status == "pass"
    strong = session_for(plain, digits)
    strong.attempts["nothing"] = session.attempts["nothing"]
    pgd = session.main()(plain, session.inputs, session.targets, progress=False).inputs
    autoattack(monkeypatch, 3.0 * (pgd - session.inputs))  # type: ignore[arg-type]
    found = RUN["C12"](strong)
    assert found.status == "fail"
    assert strong.attempts["AutoAttack"].accuracy < strong.attempts["nothing"].accuracy
    assert RUN["C18"](strong).status == "pass"  # put back into the ball


def test_c12_is_skipped_where_autoattack_is_not_or_cannot_be(
    monkeypatch: pytest.MonkeyPatch, plain: nn.Module, digits: dubio.data.Examples
) -> None:
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    assert "pip install pyautoattack" in RUN["C12"](session_for(plain, digits)).summary
    autoattack(monkeypatch, 0.0)
    two = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    found = RUN["C12"](session_for(two, (IMAGES, LABELS)))
    assert (found.status, "4 classes or more" in found.summary) == ("skipped", True)


def test_c18_holds_images_to_the_distance_the_bounds_and_finite_numbers() -> None:
    for images, summary in [(IMAGES + 0.2, "out of bounds"), (IMAGES.clone().fill_(1.01), "out of bounds")]:
        session = told({"pgd at 0": COUNT, "random noise at 0": COUNT})
        assert RUN["C18"](session).status == "pass"
        session.attempts["far"] = attack_run("far", 0, images)
        found = RUN["C18"](session)
        assert (found.status, summary in found.summary) == ("fail", True)
    session = told({"pgd at 0": COUNT, "random noise at 0": COUNT})
    session.failures["pgd"] = "the model must give finite logits, got NaN"
    assert RUN["C18"](session).status == "fail"


def test_c19_and_c20_tell_gradients_that_are_dead_or_lie(plain: nn.Module, digits: dubio.data.Examples) -> None:
    honest = session_for(plain, digits)
    assert (RUN["C19"](honest).status, RUN["C20"](honest).status) == ("pass", "pass")
    masked = session_for(HardQuantiser(plain), digits)
    assert (RUN["C19"](masked).status, RUN["C20"](masked).status) == ("fail", "fail")

    def lying(inputs: Tensor) -> Tensor:  # says the truth, and shows the opposite way
        logits: Tensor = plain(inputs)
        return logits.detach() - (logits - logits.detach())

    found = RUN["C20"](session_for(lying, digits))
    assert found.status == "fail"
    assert found.value is not None
    assert found.value < 0.2
    assert "largest at its end" in RUN["C19"](session_for(lying, digits)).summary


@pytest.mark.parametrize(("data", "epsilon", "status"), [("cifar10", 8 / 255, "fail"), ("digits", 8 / 255, "skipped")])
def test_c25_knows_what_is_published(data: str, epsilon: float, status: str) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 10))
    with torch.no_grad():
        net[1].weight.zero_()
        net[1].bias.copy_(torch.eye(10)[0])
    for distance, expected in ((epsilon, status), (2.0 * epsilon, status), (0.5 * epsilon, "skipped")):
        session = replace(session_for(net, (IMAGES, LABELS), epsilon=distance), data=data)
        session.attempts["pgd"] = attack_run("pgd", COUNT, session.inputs)
        found: CheckResult = RUN["C25"](session)
        assert found.status == expected


def test_the_attack_on_an_ordinary_network_is_required_where_autoattack_did_not_run() -> None:
    """Else an audit without either would be VALID with nothing to show that its attacks are strong."""
    good = CheckRecord("C1", "", True, "pass", "")
    outside, twin = (CheckRecord(id, "", False, "skipped", "") for id in ("C12", "C24"))
    assert _status(_with_proof([good, outside, twin])) == "UPPER BOUND ONLY"
    assert [record.id for record in _with_proof([good, outside, twin]) if record.holds_back] == ["C24"]
    for one, other in (("skipped", "pass"), ("pass", "skipped")):
        records = [good, replace(outside, status=one), replace(twin, status=other)]  # type: ignore[arg-type]
        assert _status(_with_proof(records)) == "VALID"


def test_a_figure_beyond_the_published_ones_is_extraordinary_unless_a_required_check_fails() -> None:
    good = CheckRecord("C1", "", True, "pass", "")
    beyond = CheckRecord("C25", "", False, "fail", "")
    assert _status([good]) == "VALID"
    assert _status([good, beyond]) == "EXTRAORDINARY"
    assert _status([replace(good, status="fail"), beyond]) == "UPPER BOUND ONLY"
