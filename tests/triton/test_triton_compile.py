"""The Triton kernels compiled for an H100 / H200 (sm_90) without one: they compile, and without atomics."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from gpu_rag_kernels import choice

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(find_spec("triton") is None or choice.interpreted(), reason="needs triton, not interpreted"),
]

WORDS, NUMBERS = "*i64", "*i32"


def compiled(op: str, kernel: str, arguments: dict[str, str], **constants: int | bool) -> str:
    """The PTX of a kernel. arguments: their types by name; constants: constexpr arguments."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function: Any = getattr(importlib.import_module(f"gpu_rag_kernels.{op}.triton"), kernel)
    names = function.arg_names
    assert set(names) == {*arguments, *constants}
    signature = {name: arguments.get(name, "constexpr") for name in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    made = triton.compile(
        ASTSource(fn=function, signature=signature, constexprs=values), target=GPUTarget("cuda", 90, 32)
    )
    assert len(made.asm["cubin"]) > 0
    return str(made.asm["ptx"])


def spmm(state: str, weighted: bool, **more: str) -> dict[str, str]:
    held = {"indices": NUMBERS, "weight": state if weighted else NUMBERS, "x": state, "width": "i32"}
    return {**held, **more}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("state", ["*fp32", "*fp64"])
def test_ppr_spmm(state: str, weighted: bool) -> None:
    both = {"source": state, "scale": state, "y": state}
    rows = spmm(state, weighted, indptr=WORDS, listed=WORDS, n_listed="i32", **both)
    chunks = spmm(state, weighted, partial=state, starts=WORDS, ends=WORDS, n_chunks="i32")
    hubs = {"partial": state, "hubs": WORDS, "bounds": WORDS, "width": "i32", **both}
    tile = {"n_rows": 8, "n_columns": 32}
    for ptx in (
        compiled("ppr_spmm", "_rows", rows, weighted=weighted, **tile),
        compiled("ppr_spmm", "_chunks", chunks, weighted=weighted, **tile),
        compiled("ppr_spmm", "_hubs", hubs, n_columns=32),
    ):
        check_no_atomics(ptx)


def test_msbfs_or() -> None:
    words = dict.fromkeys(("indptr", "front", "seen", "fresh", "after"), WORDS)
    arguments = {**words, "indices": NUMBERS, "n": "i32", "width": "i32"}
    check_no_atomics(compiled("msbfs_or", "_pull", arguments, n_nodes=16, n_words=4))


@pytest.mark.parametrize("vectors", ["*fp32", "*fp16"])
def test_ragged_gather_dot_topk(vectors: str) -> None:
    words = dict.fromkeys(("owners", "offsets", "keys"), WORDS)
    arguments = {**words, "queries": "*fp32", "vectors": vectors, "values": NUMBERS, "total": "i32", "dims": "i32"}
    check_no_atomics(compiled("ragged_gather_dot_topk", "_keys", arguments, n_candidates=32, n_dims=64))
    select = {**dict.fromkeys(("keys", "offsets", "chosen"), WORDS), "k": "i32"}
    check_no_atomics(compiled("ragged_gather_dot_topk", "_select", select, least=-(2**63), n_places=128))


def check_no_atomics(ptx: str) -> None:
    """An order of additions that depends on the run would need them."""
    assert ".visible .entry" in ptx
    assert "atom." not in ptx and "red.global" not in ptx
