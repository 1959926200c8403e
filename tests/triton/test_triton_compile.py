"""The Triton kernels compiled for an H100 / H200 (sm_90) without one: they compile, and without atomics."""

from __future__ import annotations

import importlib
import re
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


@pytest.mark.parametrize("last", [True, False])
def test_ppr_spmm_of_f16_states(last: bool) -> None:
    both = {"source": "*fp32", "scale": "*fp32", "y": "*fp32" if last else "*fp16", "x": "*fp16", "weight": "*fp32"}
    rows = {**both, "indptr": WORDS, "indices": NUMBERS, "listed": WORDS, "n_listed": "i32", "width": "i32"}
    check_no_atomics(compiled("ppr_spmm", "_rows", rows, weighted=True, n_rows=8, n_columns=32))
    hubs = {name: both[name] for name in ("source", "scale", "y")} | {"partial": "*fp32", "hubs": WORDS}
    check_no_atomics(compiled("ppr_spmm", "_hubs", {**hubs, "bounds": WORDS, "width": "i32"}, n_columns=32))
    chunks = {"partial": "*fp32", "starts": WORDS, "ends": WORDS, "n_chunks": "i32", "x": "*fp16", "weight": "*fp32"}
    chunks |= {"indices": NUMBERS, "width": "i32"}
    check_no_atomics(compiled("ppr_spmm", "_chunks", chunks, weighted=True, n_rows=8, n_columns=32))


@pytest.mark.parametrize("n_groups", [1, 4, 16])
def test_minplus_relax(n_groups: int) -> None:
    words = dict.fromkeys(("indptr", "cost", "state", "relaxed"), WORDS)
    arguments = {**words, "indices": NUMBERS, "flags": NUMBERS, "n": "i32", "width": "i32"}
    tile = {"n_nodes": 8, "n_entries": 8, "n_groups": n_groups}
    ptx = compiled("minplus_relax", "_round", arguments, unreached=2**63 - 1, **tile)
    assert atomics(ptx) and all(".max.s32" in line for line in atomics(ptx)), "for the flag, nothing else"


@pytest.mark.parametrize(("vectors", "grouped"), [("*fp16", True), ("*fp16", False), ("*fp32", True)])
def test_join_top1(vectors: str, grouped: bool) -> None:
    floats = {"left": vectors, "right": vectors, "best": "*fp32", "second": "*fp32"}
    heads = dict.fromkeys(("left_head", "right_head"), "*fp16")
    numbers = dict.fromkeys(("left_size", "right_size", "index"), NUMBERS)
    groups = dict.fromkeys(("left_group", "right_group"), WORDS if grouped else NUMBERS)
    counts = dict.fromkeys(("n_left", "n_right", "dims", "n_head", "n_strips", "strip"), "i32")
    tile = {"n_rows": 64, "n_columns": 64, "n_depth": 32}
    ptx = compiled(
        "join_top1", "_strip", {**floats, **heads, **numbers, **groups, **counts},
        grouped=grouped, whole=vectors == "*fp16", **tile,
    )  # fmt: skip
    check_no_atomics(ptx)
    assert "mma" in ptx and "tf32" not in ptx


def check_no_atomics(ptx: str) -> None:
    """An order of additions that depends on the run would need them."""
    assert ".visible .entry" in ptx
    assert not atomics(ptx)


def atomics(ptx: str) -> list[str]:
    return [line for line in ptx.splitlines() if re.search(r"\b(atom|red)\.", line)]
