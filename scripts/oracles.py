"""Compare dubio's attacks with those of foolbox and AutoAttack, on networks without noise, and its noise with Philox.

The other libraries live in an environment of their own, ``.venv-oracles``, which borrows torch from the one that runs
this script. At no radius may an attack of ours be weaker than its counterpart by more than a point of success. An
undefended and an adversarially trained network are audited, too, and AutoAttack as a whole (C12) may not leave less
than all our attacks together by more than a point, within the paired interval. The kernel that draws noise on a GPU is
interpreted by Triton on the CPU, and tested there.

Exit status: 0 all is well, or the environment could not be made (one line says so); else some attack is weaker, or the
kernel is wrong.
"""

import importlib
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from environments import ROOT, make_environment, reason

ENVIRONMENT = ROOT / ".venv-oracles"
PACKAGES = (
    *("foolbox", "eagerpy", "GitPython", "gitdb", "smmap"),
    *("requests", "urllib3", "certifi", "idna", "charset-normalizer"),
    *("pyautoattack", "triton"),
)
KERNEL = "tests/engine/test_noise_kernel.py"
INSIDE = "DUBIO_INSIDE_ORACLES"
TOLERANCE = 0.01
AUDIT_RADIUS, AUDIT_IMAGES = 0.1, 300
RADII = {"linf": (0.02, 0.05, 0.1, 0.15, 0.2), "l2": (0.2, 0.4, 0.6, 0.8, 1.0)}

Rates = Sequence[float]


def main() -> int:
    """Make the environment where there is none, and compare inside it."""
    if os.environ.get(INSIDE):
        return max(compare(), compare_audits())
    try:
        python = make_environment(ENVIRONMENT, PACKAGES, "torch, foolbox, pyautoattack, triton")
    except (OSError, subprocess.SubprocessError) as error:
        print(f"oracles: skipped, since their environment could not be made: {reason(error)}")
        return 0
    settings = os.environ | {INSIDE: "1", "PYTHONPATH": str(ROOT / "src")}
    attacks = subprocess.run([str(python), str(Path(__file__).resolve())], env=settings).returncode
    pytest = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", KERNEL]
    kernel = subprocess.run(pytest, env=settings | {"TRITON_INTERPRET": "1"}, cwd=ROOT).returncode
    return attacks or kernel


def compare() -> int:
    """Print success rates side by side; 1 where one of ours is too low."""
    warnings.simplefilter("ignore")  # theirs, of points without a gradient
    num_weaker, norm = 0, ""
    for row in _rows(_AttackSetup()):
        if row.norm != norm:
            norm = row.norm
            print(f"{'% fooled, ours / theirs, at radius':40}" + "".join(f"{radius:>14}" for radius in RADII[norm]))
        began = time.perf_counter()
        pairs = list(zip(row.ours(), row.theirs(), strict=True))
        weaker = [own < other - TOLERANCE for own, other in pairs]
        cells = (f"{own:.1%}/{other:.1%}{'!' * low}" for (own, other), low in zip(pairs, weaker, strict=True))
        print(f"{row.name:40}" + "".join(f"{cell:>14}" for cell in cells) + f"{time.perf_counter() - began:>6.1f} s")
        num_weaker += sum(weaker)
    print(f"oracles: {num_weaker} of our success rates are too low by more than a point")
    return 1 if num_weaker else 0


def compare_audits() -> int:
    """Print what AutoAttack leaves beside what an audit leaves; 1 where AutoAttack is stronger by more than a point."""
    from dubio.auditing.audit import audit

    failed = 0
    for name, setup in {
        "undefended": _AttackSetup(),
        "trained against PGD": _AttackSetup(against=AUDIT_RADIUS),
    }.items():
        began = time.perf_counter()
        data = (setup.inputs, setup.labels)
        report = audit(setup.net, data, epsilon=AUDIT_RADIUS, num_images=AUDIT_IMAGES, progress=False)
        check = next(check for check in report.checks if check.id == "C12")
        print(
            f"audit, {name}: {report.status}, C12 {check.status}. {check.summary} {time.perf_counter() - began:.1f} s"
        )
        failed += check.status != "pass" or report.status != "VALID"
    return 1 if failed else 0


@dataclass(frozen=True)
class _Row:
    """An attack of ours and its counterpart: shares of images that they fool, for every radius."""

    name: str
    norm: str
    ours: Callable[[], Rates]
    theirs: Callable[[], Rates]


class _AttackSetup:
    """A trained network for digits, images it was not trained on, and how success is counted.

    With ``against`` it is trained on images that PGD has moved so far.
    """

    def __init__(self, against: float = 0.0) -> None:
        import torch
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]

        from dubio.attacks.gradient import PGD
        from dubio.models.networks import mlp

        torch.manual_seed(0)
        torch.set_num_threads(1)
        images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
        inputs = (images / 16.0).float().view(-1, 1, 8, 8)
        self.net = mlp(64, 100, 100, 10)
        optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        for _ in range(500):
            rows = torch.randint(1347, (128,))
            seen = inputs[rows]
            if against:
                seen = PGD(epsilon=against, steps=5)(self.net, seen, labels[rows], progress=False).inputs
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(self.net(seen), labels[rows]).backward()
            optimizer.step()
        self.net.eval().requires_grad_(False)
        self.inputs, self.labels = inputs[1347:], labels[1347:]

    def fooled(self, adversarial: Any, norm: str, radius: float) -> float:
        """Share of images that are misclassified and no further away than the radius."""
        from dubio import functional

        sizes = functional.adversarial.perturbation_norm(adversarial - self.inputs, norm)  # type: ignore[arg-type]
        wrong = self.net(adversarial).argmax(dim=1) != self.labels
        return float((wrong & (sizes <= radius * (1.0 + 1e-5))).float().mean())

    def in_balls(self, attack: Callable[[float], Any], norm: str) -> Callable[[], Rates]:
        """Of an attack that is given a radius."""
        return lambda: [self.fooled(attack(radius), norm, radius) for radius in RADII[norm]]

    def nearest(self, attack: Callable[[], Any], norm: str) -> Callable[[], Rates]:
        """Of an attack that finds the distance itself."""

        def rates() -> Rates:
            adversarial = attack()
            return [self.fooled(adversarial, norm, radius) for radius in RADII[norm]]

        return rates


def _rows(setup: _AttackSetup) -> list[_Row]:
    """The table of all that is compared."""
    from dubio import attacks

    def row(name: str, attack: attacks.Attack, theirs: Callable[[], Rates]) -> _Row:
        def inputs(radius: float | None = None) -> Any:
            chosen = attack if radius is None else replace(attack, epsilon=radius)
            return chosen(setup.net, setup.inputs, setup.labels, progress=False).inputs

        ours = setup.nearest(inputs, attack.norm) if attack.epsilon is None else setup.in_balls(inputs, attack.norm)
        return _Row(f"{type(attack).__name__}, {attack.norm}{name}", attack.norm, ours, theirs)

    rows = []
    for norm, short in (("linf", "Linf"), ("l2", "L2")):
        fields: dict[str, Any] = {"norm": norm, "seed": 0}
        pgd = _foolbox(setup, f"{short}ProjectedGradientDescentAttack", norm, steps=40, rel_stepsize=2.5 / 40)
        fmn = _foolbox_nearest(setup, {"linf": "LInfFMNAttack", "l2": "L2FMNAttack"}[norm], norm)
        square = _auto_attack(setup, "square.SquareAttack", norm, n_queries=500)
        ce, dlr = (_auto_attack(setup, "autopgd_base.APGDAttack", norm, loss=loss) for loss in ("ce", "dlr"))
        rows += [
            row(": foolbox", attacks.FGSM(**fields), _foolbox(setup, f"{short}FastGradientAttack", norm)),
            row(", 40 steps: foolbox", attacks.PGD(steps=40, **fields), pgd),
            row(": AutoAttack", attacks.APGD(**fields), ce),
            row(", dlr: AutoAttack", attacks.APGD(loss="dlr", **fields), dlr),
            row(", 500 steps: AutoAttack", attacks.Square(steps=500, **fields), square),
            row(": foolbox", attacks.FMN(**fields), fmn),
        ]
    carlini = _foolbox_nearest(setup, "L2CarliniWagnerAttack", "l2", steps=300)
    penalised = attacks.MinimumNorm(mode="untargeted", loss="margin", seed=0)
    return [
        *rows,
        row(": foolbox", attacks.DDN(seed=0), _foolbox_nearest(setup, "DDNAttack", "l2")),
        row(": foolbox, Carlini", penalised, carlini),
    ]


def _foolbox(setup: _AttackSetup, name: str, norm: str, **options: Any) -> Callable[[], Rates]:
    import foolbox  # type: ignore[import-not-found]

    model = foolbox.PyTorchModel(setup.net, bounds=(0, 1), device="cpu")
    attack = getattr(foolbox.attacks, name)(**options)
    return setup.in_balls(lambda radius: attack(model, setup.inputs, setup.labels, epsilons=radius)[1], norm)


def _foolbox_nearest(setup: _AttackSetup, name: str, norm: str, **options: Any) -> Callable[[], Rates]:
    import foolbox

    model = foolbox.PyTorchModel(setup.net, bounds=(0, 1), device="cpu")
    attack = getattr(foolbox.attacks, name)(**options)
    return setup.nearest(lambda: attack.run(model, setup.inputs, setup.labels), norm)


def _auto_attack(setup: _AttackSetup, name: str, norm: str, **options: Any) -> Callable[[], Rates]:

    module, kind = name.split(".")
    attack = getattr(importlib.import_module(f"pyautoattack.{module}"), kind)
    name_of_norm = {"linf": "Linf", "l2": "L2"}[norm]

    def perturbed(radius: float) -> Any:
        made = attack(setup.net, norm=name_of_norm, eps=radius, n_restarts=1, seed=0, device="cpu", **options)
        return made.perturb(setup.inputs, setup.labels)

    return setup.in_balls(perturbed, norm)


if __name__ == "__main__":
    sys.exit(main())
