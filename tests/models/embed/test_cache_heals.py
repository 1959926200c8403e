"""A damaged vector in the cache file is replaced once, and a closed set of models has no open cache file."""

import os
from pathlib import Path

import numpy as np
import pytest

from gpu_rag.models import set as model_set
from gpu_rag.models.embed.cache import VectorFile
from gpu_rag.models.embed.hashing import HashEmbedder
from gpu_rag.settings import make_settings

KEYS = np.array([[5, 6], [7, 8]], "<u8")
VECTORS = np.eye(2, 4, dtype=np.float32)


def test_a_damaged_vector_is_computed_anew_only_once(tmp_path: Path) -> None:
    path = tmp_path / "v" / "x.vectors"
    file = VectorFile(path, 4)
    file.append(KEYS, VECTORS, 1 << 20)
    file.close()
    data = bytearray(path.read_bytes())
    data[-1] ^= 0x10
    path.write_bytes(data)
    n_missing = []
    for _ in range(3):
        file = VectorFile(path, 4)
        known = file.read(KEYS)[1]
        n_missing.append(int((~known).sum()))
        file.append(KEYS[~known], VECTORS[~known], 1 << 20)
        file.close()
    assert n_missing == [1, 0, 0]


def test_a_closed_set_of_models_has_no_open_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_set, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(model_set, "load_embedder", lambda *_, **served: HashEmbedder())
    models = model_set.ModelSet(make_settings({"models": {"llm": "none", "vector_cache_gib": 1.0}}, {}).models)
    models.embedder().embed(["a"])
    models.close()
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    opened = [os.readlink(link) for link in links if os.path.islink(link)]
    assert not [name for name in opened if name.startswith(str(tmp_path))]
