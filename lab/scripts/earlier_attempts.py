"""Write lab/results/earlier.json from the history of the repository: what earlier trainings of the same cells came to.

    python lab/scripts/earlier_attempts.py

A record is replaced when its cell is run again. This script reads the versions that were replaced from git and keeps
the numbers of those with the digest of the present record: the same settings and the same seed, trained again. The
differences show what training again moves, which decides statements on tables with one seed. Run it after records were
replaced and committed. What is already in the file stays, also where the history is shallow.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dubio_lab import Result, load_results, load_spec, read_earlier, spec_names
from dubio_lab.claims import EARLIER_FILE, Earlier

ROOT = Path(__file__).resolve().parent.parent
MENDED = {("bbb-ood", "unanimous_known")}  # on a GPU, votes did not add up to exactly one; no move of training


def main() -> int:
    """Write the file and return the exit status."""
    folder = ROOT / "results"
    present = {
        (one.spec, one.cell, one.seed): one for name in spec_names() for one in load_results(load_spec(name), folder)
    }
    kept = {_key(one): one for one in read_earlier(folder)} | {
        _key(one): one for content in replaced_records(folder) if (one := earlier_of(content, present)) is not None
    }
    digests = {key: one.digest for key, one in present.items()}
    records = [vars(kept[key]) for key in sorted(kept) if kept[key].digest == digests.get(key[:3])]
    lines = ",\n".join(json.dumps(record) for record in records)
    (folder / EARLIER_FILE).write_text(f'{{"records": [\n{lines}\n]}}\n', encoding="utf-8")
    print(f"lab/results/{EARLIER_FILE} has {len(records)} earlier trainings")
    return 0


def earlier_of(content: dict[str, Any], present: dict[tuple[str, str, int], Result]) -> Earlier | None:
    """An earlier version of a record with the digest of the present one; ``None`` for anything else."""
    now = present.get((content.get("spec", ""), content.get("cell", ""), content.get("seed", -1)))
    if now is None or content.get("variant") != "full" or content.get("digest") != now.digest:
        return None
    if (content["commit"], content["attempts"]) == (now.commit, now.attempts):
        return None
    metrics = {
        name: one["value"]
        for name, one in content["metrics"].items()
        if name in now.metrics and (now.spec, name) not in MENDED
    }
    return Earlier(
        *(now.spec, now.cell, now.seed, content["attempts"], now.digest, content["commit"], content["hardware"]),
        metrics,
    )


def replaced_records(folder: Path) -> Iterator[dict[str, Any]]:
    """All versions of JSON files in folders of records that the history holds, the oldest first."""
    log = _git(folder, "log", "--reverse", "--raw", "--no-abbrev", "--format=", "--", ":/*results/*/*.json")
    blobs = dict.fromkeys(line.split()[3] for line in log.splitlines() if line.startswith(":"))
    for blob in blobs:
        if set(blob) != {"0"}:
            content = json.loads(_git(folder, "cat-file", "blob", blob))
            if isinstance(content, dict):
                yield content


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8").stdout


def _key(one: Earlier) -> tuple[str, str, int, int, str]:
    return one.spec, one.cell, one.seed, one.attempt, one.commit


if __name__ == "__main__":
    sys.exit(main())
