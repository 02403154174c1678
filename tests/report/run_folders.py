"""Run folders with numbers as a real run would have them, made without training: draws of logits from a fixed seed."""

import base64
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as to_bytes

from dubio.attacks.score import Accuracy
from dubio.auditing.records import Audit, CheckRecord, Cost, CurvePoint, Headline, ThreatModel
from dubio.evaluation.comparison import class_values, detection_values, real_values
from dubio.evaluation.records import (
    Bins,
    ClassRow,
    CorruptionPoint,
    Curve,
    DataRecord,
    DetectionScore,
    Estimate,
    Evaluation,
    Histogram,
    IntervalRow,
    NotableExample,
    Thumbnail,
    Uncertainty,
    UnseenSet,
)
from dubio.functional.uncertainty import auroc

NUM_EXAMPLES, NUM_CLASSES, NUM_DRAWS = 300, 10, 20
CLASSES = tuple(str(digit) for digit in range(NUM_CLASSES))
SCORES = ("entropy", "mutual_information", "lack_of_confidence", "top_std", "variation_ratio", "energy")


def around(value: float, width: float = 0.02) -> Estimate:
    """A number with an interval."""
    return Estimate(float(value), float(value) - width, float(value) + width, width / 10, float(value))


def image(seed: int) -> Thumbnail:
    """A blurred stroke of 8 x 8 pixels."""
    rows, columns = np.mgrid[0:8, 0:8]
    shade = 255 * np.exp(-(((columns - 3.5 - np.sin(rows + seed)) / 1.4) ** 2))
    return Thumbnail((1, 8, 8), base64.b64encode(shade.astype(np.uint8).tobytes()).decode())


def _doubts(logits: np.ndarray) -> dict[str, np.ndarray]:
    """Probabilities, entropy and its parts from logits (sample, batch, class)."""
    probs = np.exp(logits - logits.max(-1, keepdims=True))
    probs /= probs.sum(-1, keepdims=True)
    mean = probs.mean(0)
    entropy = -(mean * np.log(mean + 1e-12)).sum(-1)
    expected = -(probs * np.log(probs + 1e-12)).sum(-1).mean(0)
    return {"probs": mean, "entropy": entropy, "expected": expected, "mutual": np.maximum(entropy - expected, 0.0)}


def _histogram(groups: dict[str, np.ndarray], edges: np.ndarray) -> Histogram:
    counts = {name: tuple(np.histogram(values, edges)[0].tolist()) for name, values in groups.items()}
    return Histogram(tuple(edges.tolist()), counts)


def _detection(name: str, known: np.ndarray, strange: np.ndarray) -> DetectionScore:
    area = float(auroc(torch.tensor(known), torch.tensor(strange)))
    edges = np.linspace(0.0, max(known.max(), strange.max()) + 1e-6, 21)
    low, high = max(area - 0.02, 0.0), min(area + 0.02, 1.0)
    result = Estimate(area, low, high)
    counts = _histogram({"known": known, "unseen": strange}, edges)
    placements = detection_values(name, torch.tensor(known), torch.tensor(strange))
    return DetectionScore(result, result, around(1.0 - area), counts, placements)


def classification(noise: float = 0.8, sharpness: float = 9.0, seed: int = 0, **changed: Any) -> Evaluation:
    """An evaluation of a network that classifies; ``noise`` 0 is one without draws."""
    random = np.random.default_rng(seed)
    targets = np.random.default_rng(99).integers(0, NUM_CLASSES, NUM_EXAMPLES)
    base = random.normal(size=(NUM_EXAMPLES, NUM_CLASSES))
    base[np.arange(NUM_EXAMPLES), targets] += random.exponential(sharpness, NUM_EXAMPLES)
    base *= 2.0
    logits = base + noise * random.normal(size=(NUM_DRAWS, NUM_EXAMPLES, NUM_CLASSES))
    strange = (1.0 + noise) * random.normal(size=(NUM_DRAWS, 200, NUM_CLASSES)) * (noise > 0)
    strange = strange + random.normal(size=(200, NUM_CLASSES)) * 1.5
    known, unknown = _doubts(logits), _doubts(strange)
    label, sure = known["probs"].argmax(-1), known["probs"].max(-1)
    right = label == targets
    places = np.minimum((sure * 15).astype(int), 14)
    order = np.argsort(-sure)
    filled = [np.flatnonzero(places == place) for place in range(15)]
    scores = {name: _detection(name, *_scored(name, known, unknown)) for name in SCORES}
    groups = {"all": right | True, "right": right, "wrong": ~right}
    values: dict[str, Any] = {
        "kind": "classification",
        "data": DataRecord("digits", NUM_EXAMPLES, "ce6b718981e6de57f0b14abb9fc33652", CLASSES, "order"),
        "num_samples": 100,
        "seed": 0,
        "seconds": 0.4,
        "metrics": _metrics(known, targets, right, sure, filled),
        "reliability": Bins(
            tuple(len(rows) / NUM_EXAMPLES for rows in filled),
            tuple(float(sure[rows].mean()) if len(rows) else None for rows in filled),
            tuple(float(right[rows].mean()) if len(rows) else None for rows in filled),
        ),
        "confidence": _histogram({"right": sure[right], "wrong": sure[~right]}, np.linspace(0.0, 1.0, 21)),
        "risk_coverage": Curve(
            tuple(((np.arange(NUM_EXAMPLES) + 1) / NUM_EXAMPLES).tolist()),
            tuple((np.cumsum(~right[order]) / (np.arange(NUM_EXAMPLES) + 1)).tolist()),
        ),
        "uncertainty": {name: _doubt(known, rows) for name, rows in groups.items()}
        | {"noise": _doubt(unknown, np.ones(200, dtype=bool))},
        "classes": tuple(_class(name, targets == place, label == place) for place, name in enumerate(CLASSES)),
        "unseen": {"noise": UnseenSet(200, "0123456789abcdef", scores, "order of noise")},
        "corruptions": {kind: _corrupted(noise) for kind in ("blur", "noise")},
        "notable": {
            "most uncertain": tuple(
                _example(row, known, targets) for row in np.argsort(-known["entropy"])[:6].tolist()
            ),
            "most confidently wrong": tuple(
                _example(row, known, targets) for row in np.flatnonzero(~right)[np.argsort(-sure[~right])][:6].tolist()
            ),
        },
        "per_example": class_values(
            torch.tensor(right),
            -torch.tensor(known["probs"][np.arange(NUM_EXAMPLES), targets]).log(),
            torch.tensor(sure),
        ),
        "made_by": {"dubio": "0.1.0", "torch": "2.13.0", "command": "dubio evaluate it"},
    }
    return Evaluation(**{**values, **changed})


def _scored(name: str, *result: dict[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    kinds = {"entropy": "entropy", "mutual_information": "mutual", "energy": "expected"}
    return tuple(part[kinds[name]] if name in kinds else 1.0 - part["probs"].max(-1) for part in result)


def _metrics(
    known: dict[str, np.ndarray], targets: np.ndarray, right: np.ndarray, sure: np.ndarray, filled: list[np.ndarray]
) -> dict[str, Estimate]:
    ece = sum(abs(sure[rows].sum() - right[rows].sum()) for rows in filled) / NUM_EXAMPLES
    truth = known["probs"][np.arange(NUM_EXAMPLES), targets]
    return {
        "accuracy": around(right.mean()),
        "nll": around(-np.log(truth).mean()),
        "ece": around(ece, 0.01),
        "confidence": around(sure.mean()),
        "entropy": around(known["entropy"].mean()),
        "mutual_information": around(known["mutual"].mean()),
    }


def _doubt(result: dict[str, np.ndarray], rows: np.ndarray) -> Uncertainty:
    expected, mutual = float(result["expected"][rows].mean()), float(result["mutual"][rows].mean())
    return Uncertainty(int(rows.sum()), expected + mutual, expected, mutual)


def _class(name: str, own: np.ndarray, named: np.ndarray) -> ClassRow:
    both = float((own & named).sum())
    return ClassRow(name, int(own.sum()), both / own.sum(), both / max(named.sum(), 1), 0.9, 0.2, "3")


def _corrupted(noise: float) -> tuple[CorruptionPoint, ...]:
    return tuple(
        CorruptionPoint(
            strength, 0.95 - 0.1 * strength, 0.2 * strength, 0.04 * strength / (1 + noise), 0.3, 0.1 * noise
        )
        for strength in range(1, 6)
    )


def _example(row: int, known: dict[str, np.ndarray], targets: np.ndarray) -> NotableExample:
    probs = known["probs"][row]
    top = {CLASSES[place]: float(probs[place]) for place in np.argsort(-probs)[:3].tolist()}
    return NotableExample(
        row,
        CLASSES[targets[row]],
        CLASSES[int(probs.argmax())],
        float(probs.max()),
        float(known["entropy"][row]),
        float(known["mutual"][row]),
        top,
        image(row),
    )


def regression(**changed: Any) -> Evaluation:
    """An evaluation of a network that predicts numbers."""
    levels = (0.5, 0.8, 0.9, 0.95)
    values: dict[str, Any] = {
        "kind": "regression",
        "data": DataRecord("curve", 200, "feedbeef", order="order"),
        "num_samples": 100,
        "seed": 0,
        "seconds": 0.2,
        "metrics": {
            name: around(value)
            for name, value in {
                "rmse": 0.31,
                "mae": 0.22,
                "nll": 0.4,
                "crps": 0.17,
                "std": 0.3,
                "aleatoric_std": 0.2,
                "epistemic_std": 0.1,
            }.items()
        },
        "per_example": real_values(
            {name: value + 0.02 * torch.randn(200) for name, value in (("square", 0.1), ("mae", 0.22), ("nll", 0.4))}
            | {"crps": torch.full((200,), 0.17)}
        ),
        "intervals": tuple(IntervalRow(level, around(level - 0.03), around(2.0 * level)) for level in levels),
    }
    return Evaluation(**{**values, **changed})


def attack_record(
    left: float, epsilons: tuple[str, ...] = ("0.05", "0.1"), num_images: int = 40, norm: str = "linf"
) -> dict[str, Any]:
    """``attack.json`` as ``dubio attack`` writes it, but for the hash of the images."""

    def scored(value: float) -> dict[str, Any]:
        right = [int(place < value * num_images) for place in range(num_images)]
        share = {"value": value, "low": max(value - 0.1, 0.0), "high": min(value + 0.1, 1.0)}
        return dict.fromkeys(("predictive", "single", "retry"), share) | {"predictive_per_example": right}

    rows = []
    for place, epsilon in enumerate(epsilons):
        above, _, below = epsilon.partition("/")
        fields = {
            "kind": "PGD",
            "epsilon": float(above) / float(below or 1),
            "norm": norm,
            "num_samples": 10,
            "objective": "predictive",
            "loss": "cross_entropy",
            "noise": "fresh",
            "steps": 10,
            "restarts": 1,
        }
        share = 0.95 - (0.95 - left) * (place + 1) / len(epsilons)
        rows.append({"attack": "pgd", "epsilon": epsilon, "fields": fields, "forwards": 10, **scored(share)})
    return {
        "format": "dubio-attack-1",
        "model": "it",
        "data": "digits",
        "fingerprint": "ce6b718981e6de57f0b14abb9fc33652",
        "indices": list(range(3, 3 + num_images)),
        "seeds": {"attack": 6, "selection": 7, "scoring": 8},
        "num_draws": 20,
        "num_tries": 10,
        "versions": {"dubio": "0.1.0", "torch": "2.13.0"},
        "when": "2026-01-01T00:00:00Z",
        "clean": scored(0.95),
        "rows": rows,
    }


def write_attack(
    folder: Path, left: float = 0.4, size: tuple[int, ...] = (1, 8, 8), file_name: str = "attack", **options: Any
) -> None:
    """Both files of an attack; by default under the name that earlier versions gave them."""
    record = attack_record(left, **options)
    generator = torch.Generator().manual_seed(0)
    clean = 0.5 * torch.rand(len(record["indices"]), *size, generator=generator) + 0.25
    tensors = {"clean": clean, "targets": torch.zeros(len(clean), dtype=torch.long)}
    for row in record["rows"]:
        signs = torch.randint(0, 2, clean.shape, generator=generator) * 2.0 - 1.0
        tensors[f"{row['attack']}@{row['epsilon']}"] = clean + row["fields"]["epsilon"] * signs
    content = to_bytes(tensors)
    (folder / f"{file_name}.safetensors").write_bytes(content)
    write_json(folder / f"{file_name}.json", record | {"sha256_of_images": hashlib.sha256(content).hexdigest()})


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


PRUNING = {
    "format": "dubio-pruning-1",
    "by": "snr",
    "what": "weights",
    "fraction": 0.75,
    "num_weights": 17400,
    "num_removed": 13050,
    "per_layer": {"1.weight": {"num_weights": 17400, "num_removed": 13050}},
    "bytes_before": 142464,
    "bytes_after": 40000,
    "step_seconds_before": 0.002,
    "step_seconds_after": 0.0019,
    "density": {
        "edges": [-30.0 + 3.0 * place for place in range(17)],
        "counts": [round(900 * math.exp(-(((place - 7) / 4) ** 2))) for place in range(16)],
        "threshold_db": 2.4,
    },
    "curve": [
        {"by": by, "fraction": fraction, "accuracy": 0.96 - drop * fraction**6, "nll": 0.16 + 2 * drop * fraction**6}
        for by, drop in (("snr", 0.3), ("magnitude", 0.5))
        for fraction in (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98)
    ],
}


def audit(status: str = "UPPER BOUND ONLY") -> Audit:
    """An audit of 128 images, in which one required check failed."""
    points = (CurvePoint(1.0, 0.5), CurvePoint(10.0, 0.43), CurvePoint(20.0, 0.42))
    checks = (
        CheckRecord(
            "C3", "Enough draws per step?", True, "pass", "Twice as many draws take 1.0 points.", 0.01, 0.03, points
        ),
        CheckRecord("C16", "Nothing left at any distance?", True, "fail", "Five images were still right.", 0.04, 0.01),
    )
    return Audit(
        status=status,  # type: ignore[arg-type]
        headline=Headline(0.41, 0.33, 0.5, 128, 200, {"pgd": 1.0}),
        threat=ThreatModel("linf", 0.1, (0.0, 1.0), 10, 20, 2, "quick", 0.03, 0),
        clean=Accuracy(0.97, 0.95, 0.98),
        r_pred=Accuracy(0.41, 0.33, 0.5),
        r_1=Accuracy(0.38, 0.3, 0.46),
        r_retry=Accuracy(0.1, 0.06, 0.15),
        r_frozen=0.39,
        checks=checks,
        attacks=(),
        data="digits",
        fingerprint="abc-449",
        cost=Cost(1000, 500, 12.0),
    )


def write_run(
    folder: Path, method: str = "bayes", seed: int = 0, likelihood: str = "Categorical", **order: Any
) -> Path:
    """The files that training leaves, without checkpoints."""
    folder.mkdir(parents=True)
    shapes = {"1.weight": [100, 64], "1.bias": [100]}
    config = {"method": f"{method.title()}()", "likelihood": f"{likelihood}()", "epochs": 30, "seed": seed}
    write_json(folder / "config.json", config | {"parameters": shapes})
    asked = {"data": "digits", "data_dir": None, "augment": False, "model": "fc:100-100", "method": method}
    write_json(folder / "command.json", asked | {"fields": {}, "epochs": None, "lr": None, "seed": seed, **order})
    lines = []
    for epoch in range(1, 31):
        fall = math.exp(-epoch / (6.0 + seed))
        nll = {"nll": 0.1 + 2.0 * fall, "val_nll": 0.15 + 2.0 * fall + 0.002 * epoch}
        lines.append(json.dumps({"epoch": epoch, "loss": 20 * nll["nll"], "val_accuracy": 0.96 - 0.8 * fall, **nll}))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "model.safetensors").write_bytes(b"0" * 71272)
    return folder


def write_full_run(folder: Path, method: str = "bayes", seed: int = 0, noise: float = 0.8) -> Path:
    """A run that was trained, evaluated, attacked, pruned and audited."""
    write_run(folder, method, seed)
    classification(noise=noise, seed=seed).save(folder / "evaluation.json")
    write_attack(folder, left=0.6 if noise else 0.3)
    write_json(folder / "pruning.json", PRUNING)
    audit().save(folder / "audit.json")
    return folder
