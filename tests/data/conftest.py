"""The real datasets, unpacked once for all processes and all runs; tests skip where the packed copies are absent."""

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The same examples every time, and no clock: other tests run beside these.
settings.register_profile("dubio", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dubio")

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "mnist": "MNIST",
    "fashionmnist": "FashionMNIST",
    "kmnist": "KMNIST",
    "omniglot": "omniglot-py",
    "cifar10": "cifar-10-batches-py",
    "cifar100": "cifar-100-python",
}

Real = Callable[..., Path]


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local servers are asked directly, whatever proxies the machine has."""
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture(scope="session")
def real() -> Real:
    """Give the folder of all data, after unpacking the named datasets into it."""
    packed = Path(os.environ.get("DUBIO_SHARED_DATA", ROOT.parent / "shared" / "data"))

    def unpacked(*names: str) -> Path:
        if not (packed / "unpack.py").is_file():
            pytest.skip(f"the packed datasets are not in {packed}; DUBIO_SHARED_DATA names their folder")
        listed = sorted((path.name, path.stat().st_size) for path in packed.iterdir())
        key = hashlib.md5(repr((listed, os.getuid())).encode()).hexdigest()[:12]
        folder = Path(tempfile.gettempdir()) / f"dubio-data-{key}"
        folder.mkdir(exist_ok=True)
        for name in names:
            if not any(packed.glob(f"{name}-*")):
                pytest.skip(f"{name} is not in {packed}")
            _unpack_once(packed, folder, name)
        return folder

    return unpacked


def _unpack_once(packed: Path, folder: Path, name: str) -> None:
    """One process unpacks into another folder and renames; the others wait for it."""
    final = folder / FOLDERS[name]
    with (folder / f".lock-{name}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if final.is_dir():
            return
        with tempfile.TemporaryDirectory(dir=folder) as unfinished:
            command = [sys.executable, str(packed / "unpack.py"), unfinished, name]
            subprocess.run(command, check=True, capture_output=True, timeout=100)
            (Path(unfinished) / FOLDERS[name]).rename(final)
