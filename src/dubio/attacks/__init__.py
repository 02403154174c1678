"""Attacks on networks, written over the sample axis: every gradient is that of an average over draws.

Each attack is a frozen value, ``PGD(epsilon=8/255)(model, inputs, labels)``, with a short form that gives the inputs
alone, ``pgd(model, inputs, labels, epsilon=8/255)``. The accuracy of a network under an attack is given by
``score``, on draws that had no part in it.
"""

from dubio.attacks.attack import Attack, AttackResult, Progress as Progress, short_form
from dubio.attacks.black_box import RandomNoise, Square, Transfer
from dubio.attacks.gradient import APGD, FGSM, PGD, Evade, TargetedFGSM
from dubio.attacks.minimum_norm import DDN, FMN, MinimumNorm
from dubio.attacks.score import Accuracy, Score, TransferTable, score, strongest, transfer_table
from dubio.attacks.target import AttackTarget as AttackTarget, Model as Model

__all__ = [
    "APGD",
    "Accuracy",
    "Attack",
    "AttackResult",
    "DDN",
    "Evade",
    "FGSM",
    "FMN",
    "MinimumNorm",
    "PGD",
    "RandomNoise",
    "Score",
    "Square",
    "TargetedFGSM",
    "Transfer",
    "TransferTable",
    "apgd",
    "ddn",
    "evade",
    "fgsm",
    "fmn",
    "minimum_norm",
    "pgd",
    "random_noise",
    "score",
    "square",
    "strongest",
    "targeted_fgsm",
    "transfer",
    "transfer_table",
]

apgd, ddn, evade, fgsm, fmn, pgd = map(short_form, (APGD, DDN, Evade, FGSM, FMN, PGD))
minimum_norm, random_noise, square = map(short_form, (MinimumNorm, RandomNoise, Square))
targeted_fgsm, transfer = map(short_form, (TargetedFGSM, Transfer))
