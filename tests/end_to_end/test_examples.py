"""The examples in full: each gives what its first lines tell the reader to expect."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sklearn")

EXAMPLES = Path(__file__).parents[2] / "examples"


def output_of(name: str) -> str:
    """What an example prints."""
    environment = {key: value for key, value in os.environ.items() if key != "DUBIO_TINY"}
    finished = subprocess.run([sys.executable, EXAMPLES / name], env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def numbers(pattern: str, text: str) -> list[float]:
    """The numbers of the one place where a pattern stands; a # in it is a number."""
    found = re.findall(pattern.replace("#", r"(\d+\.\d+)"), text)
    assert len(found) == 1, (pattern, text)
    return [float(value) for value in (found[0] if isinstance(found[0], tuple) else found)]


@pytest.mark.slow
def test_a_first_posterior_doubts_noise_more_than_digits() -> None:
    printed = output_of("first_posterior.py")
    entropy, information = numbers(r"digits +entropy # +mutual information #", printed)
    noise_entropy, noise_information = numbers(r"noise +entropy # +mutual information #", printed)
    assert numbers("accuracy # after", printed)[0] > 0.93
    assert noise_entropy > 2.0 * entropy
    assert noise_information > 2.0 * information


@pytest.mark.slow
def test_a_loop_of_ones_own_learns_digits() -> None:
    printed = output_of("own_loop.py")
    assert numbers("epoch  1  nll #", printed)[0] > 1.5
    assert numbers("epoch 50  nll #", printed)[0] < 0.4
    assert numbers("accuracy #", printed)[0] > 0.93


@pytest.mark.slow
def test_a_lightning_module_learns_digits() -> None:
    pytest.importorskip("lightning")
    assert numbers("accuracy #", output_of("lightning_module.py"))[0] > 0.93


@pytest.mark.slow
def test_fine_tuning_adds_accuracy_and_doubt() -> None:
    printed = output_of("finetune_pretrained.py")
    before, _ = numbers("pretrained, mirrored +accuracy # +nll #", printed)
    plain, plain_nll = numbers("fine-tuned, plain +accuracy # +nll #", printed)
    after, nll = numbers("fine-tuned, Bayesian +accuracy # +nll #", printed)
    right, wrong = numbers(r"mutual information +# where right, # where wrong\s*\Z", printed)
    assert before < 0.5
    assert plain > 0.8
    assert after > 0.8
    assert nll < plain_nll
    assert wrong > 2.0 * right


@pytest.mark.slow
def test_an_embedding_in_the_plane_tells_digits_apart() -> None:
    pytest.importorskip("matplotlib")
    assert numbers("accuracy #", output_of("embedding_2d.py"))[0] > 0.9


@pytest.mark.slow
def test_a_network_of_the_plane_doubts_most_what_it_has_wrong() -> None:
    pytest.importorskip("matplotlib")
    printed = output_of("decision_regions.py")
    right, wrong = numbers("mutual information # where right, # where wrong", printed)
    assert numbers("accuracy #", printed)[0] > 0.9
    assert wrong > 2.0 * right
