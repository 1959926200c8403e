"""Packages installed in a folder of their own, as by pip, for a Python that has the folder on its path."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import gpu_rag

ROOT = Path(gpu_rag.__file__).resolve().parents[1]
GROUP = "gpu_rag.methods"


def install(site: Path, name: str, files: Mapping[str, str], entries: Mapping[str, str]) -> None:
    """Write the files, and the metadata of a distribution `name` with entry points of the group of methods."""
    info = site / f"{name}-0.1.dist-info"
    points = "".join(f"{entry} = {value}\n" for entry, value in entries.items())
    metadata = {"METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n"}
    metadata["entry_points.txt"] = f"[{GROUP}]\n{points}"
    for path, text in {**files, **{f"{info.name}/{file}": text for file, text in metadata.items()}}.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text, encoding="utf-8")


def python(code: str, *words: object, site: Path | None = None) -> str:
    """Output of a Python process that runs code with words as its arguments."""
    path = os.pathsep.join(map(str, [ROOT, ROOT / "kernels", *([site] if site else [])]))
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        cwd=site,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
