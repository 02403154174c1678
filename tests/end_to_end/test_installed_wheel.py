"""dubio as a user installs it: the wheel, without extras, in an environment that has nothing else."""

import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTRAS = ("matplotlib", "PIL", "pyarrow", "onnx", "timm", "torchvision", "pytest")


def run(*command: object, folder: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command outside the repository, and without what leads into it."""
    inside = ("PYTHON", "DUBIO", "VIRTUAL")
    outside = {name: value for name, value in os.environ.items() if not name.startswith(inside)}
    environment = {**outside, "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, env=environment)
    assert finished.returncode == code, f"{command}:\n{finished.stdout[-3000:]}\n{finished.stderr[-3000:]}"
    return finished


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of python and dubio of a bare environment with the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, folder=folder)
    [wheel] = folder.glob("dubio-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = [name for name in archive.namelist() if ".dist-info/" not in name]
    suffixes = {Path(name).suffix for name in files} - {".c", ".so"}  # the kernels, where there is a compiler
    assert suffixes == {".py", ".typed", ".jinja"}  # no spec and no record
    assert {Path(name).parts[0] for name in files} == {"dubio"}
    venv.create(folder / "bare", with_pip=True)
    found = folder / "bare" / ("Scripts" if sys.platform == "win32" else "bin")
    constraints = ROOT / "constraints.txt"
    run(found / "python", "-m", "pip", "install", "--quiet", "--constraint", constraints, wheel, folder=folder)
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.feature("The wheel, installed without extras, runs dubio demo to its report and the lines of the README")
def test_the_first_commands_of_the_readme_run_in_a_bare_environment(binaries: Path, tmp_path: Path) -> None:
    listed = run(binaries / "python", "-m", "pip", "list", "--format", "freeze", folder=tmp_path).stdout
    assert not [name for name in EXTRAS if re.search(f"^{name}==", listed, re.IGNORECASE | re.MULTILINE)]
    where = run(binaries / "python", "-c", "import dubio; print(dubio.__file__)", folder=tmp_path).stdout
    assert str(binaries.parent) in where

    shown = run(binaries / "dubio", "demo", "--tiny", folder=tmp_path).stdout
    assert "no report" not in shown
    assert "The report, with figures" in shown
    assert (tmp_path / "runs" / "demo-report.html").is_file()
    assert "test accuracy" in run(binaries / "dubio", "train", "first", "--epochs", 2, folder=tmp_path).stdout
    assert "confidence" in run(binaries / "dubio", "predict", "first", folder=tmp_path).stdout
    assert "pip install ./lab" in run(binaries / "dubio", "reproduce", folder=tmp_path, code=2).stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_python_of_the_readme_runs_in_a_bare_environment(binaries: Path, tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", readme, flags=re.DOTALL | re.MULTILINE)
    assert blocks
    (tmp_path / "readme.py").write_text("\n".join(blocks), encoding="utf-8")
    printed = run(binaries / "python", "readme.py", folder=tmp_path).stdout
    assert "accuracy 0.9" in printed
    assert (tmp_path / "model.safetensors").is_file()
