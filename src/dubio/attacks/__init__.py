"""Attacks on networks, written over the sample axis: every gradient is that of an average over draws.

Each attack is a frozen value, ``Pgd(epsilon=8/255)(model, inputs, labels)``, with a short form that gives the inputs
alone, ``pgd(model, inputs, labels, epsilon=8/255)``. What an attack leaves of a network's accuracy is told by
``score``, on draws that had no part in it.
"""

from dubio.attacks.attack import Attack, Attacked
from dubio.attacks.gradient import Fgsm, Pgd, TargetedFgsm
from dubio.attacks.harness import TransferTable, transfer_table
from dubio.attacks.noise import RandomNoise
from dubio.attacks.scoring import Accuracy, Score, score, strongest
from dubio.attacks.short_forms import short_form
from dubio.attacks.transferring import Transfer

__all__ = [
    "Accuracy",
    "Attack",
    "Attacked",
    "Fgsm",
    "Pgd",
    "RandomNoise",
    "Score",
    "TargetedFgsm",
    "Transfer",
    "TransferTable",
    "fgsm",
    "pgd",
    "random_noise",
    "score",
    "strongest",
    "targeted_fgsm",
    "transfer",
    "transfer_table",
]

fgsm = short_form(Fgsm)
pgd = short_form(Pgd)
random_noise = short_form(RandomNoise)
targeted_fgsm = short_form(TargetedFgsm)
transfer = short_form(Transfer)
