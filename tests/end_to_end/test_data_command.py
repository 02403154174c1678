"""``dubio data``: what is there, what is missing, where each goes, and what happens without a network."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dubio import data
from dubio.cli.commands import app
from dubio.data import registry
from dubio.data.image_sets import CIFAR10


def invoke(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)


def rows(result: Result) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.stdout.splitlines() if "│" in line]
    return {name: rest for name, *rest in cells}


@pytest.mark.feature("dubio data lists the datasets: what is there, what is missing, and where each goes")
def test_the_list_tells_what_is_there_and_where_the_rest_goes(tmp_path: Path) -> None:
    (tmp_path / "cifar-100-python.tar.gz").touch()
    (tmp_path / "KMNIST/raw").mkdir(parents=True)
    (tmp_path / "KMNIST/raw/t10k-labels-idx1-ubyte.gz").touch()
    shown = invoke("data", "--data-dir", tmp_path)
    assert shown.exit_code == 0
    assert tuple(rows(shown)) == data.NAMES
    states = {name: (state, place) for name, (_, state, place) in rows(shown).items()}
    assert states["mnist"] == ("missing", "MNIST/raw")
    assert states["kmnist"] == ("incomplete", "KMNIST/raw")
    assert states["cifar100"] == ("present", "cifar-100-python")
    assert states["digits"] == ("embedded", "-")
    assert f"in {tmp_path}:" in shown.stdout
    assert "kmnist lacks train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte" in shown.stdout
    assert "dubio data --download NAME" in shown.stdout


def test_the_folder_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cifar-10-python.tar.gz").touch()
    monkeypatch.setenv("DUBIO_DATA", str(tmp_path))
    assert rows(invoke("data"))["cifar10"][1] == "present"


def test_without_a_network_one_line_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offline = tuple(replace(remote, urls=("http://127.0.0.1:9/cifar.tar.gz",)) for remote in CIFAR10.remotes("train"))

    class Offline(type(CIFAR10)):  # type: ignore[misc]
        def remotes(self, part: str) -> tuple[object, ...]:
            return offline

    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setitem(registry.STORED, "cifar10", Offline(**vars(CIFAR10)))
    refused = invoke("data", "--data-dir", tmp_path, "--download", "cifar10")
    assert refused.exit_code == 2
    assert len(refused.stderr.splitlines()) == 1
    assert refused.stderr.startswith("error: cifar-10-python.tar.gz could not be downloaded (")
    assert (
        f"fetch http://127.0.0.1:9/cifar.tar.gz on a machine that has a network, and put it in {tmp_path}"
        in refused.stderr
    )
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_name_is_refused_with_the_nearest(tmp_path: Path) -> None:
    refused = invoke("data", "--data-dir", tmp_path, "--download", "cifar11")
    assert refused.exit_code == 2
    assert "did you mean 'cifar10'?" in refused.stderr
