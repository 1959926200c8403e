"""The Triton kernels compiled for an H100 / H200 (sm_90) without one: they compile, without atomics, without registers
that are spilled, and with offsets of 64 bits."""

import importlib
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import Any, NamedTuple

import pytest
from gpu_rag_kernels import dispatch

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(find_spec("triton") is None or dispatch.interpreted(), reason="needs triton, not interpreted"),
]

WORDS, NUMBERS = "*i64", "*i32"
LEAST_WARPS = 16  # of a multiprocessor's 64: what reads memory needs many


def compiled(op: str, kernel: str, arguments: dict[str, str], *, warps: int = 4, **constants: int | bool) -> str:
    """The PTX of a kernel. arguments: their types by name; constants: constexpr arguments."""
    return str(built(op, kernel, arguments, constants, warps=warps).asm["ptx"])


def built(
    op: str, kernel: str, arguments: dict[str, str], constants: dict[str, int | bool],
    aligned: Iterable[str] = (), ones: Iterable[str] = (), warps: int = 4, fused: bool = False,
) -> Any:  # fmt: skip
    """A compiled kernel. aligned: pointers and numbers that 16 divides; ones: numbers that are 1, which Triton makes
    constants; warps: of a program; fused: products with sums."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function: Any = getattr(importlib.import_module(f"gpu_rag_kernels.{dispatch.LOOPS[op]}.triton"), kernel)
    names = function.arg_names
    assert set(names) == {*arguments, *constants}
    values = {(names.index(name),): value for name, value in {**constants, **dict.fromkeys(ones, 1)}.items()}
    signature = {n: "constexpr" if (i,) in values else arguments[n] for i, n in enumerate(names)}
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(fn=function, signature=signature, constexprs=values, attrs=attributes)
    made = triton.compile(
        source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps, "enable_fp_fusion": fused}
    )
    needs = needs_of(made)
    # of one column the compiler keeps a register in memory, to hold more programs: no caller has so narrow a tile
    assert needs.stack <= (8 if ones else 0), f"registers of {kernel} are spilled"
    assert needs.shared <= MAX_SHARED and needs.warps >= LEAST_WARPS, (kernel, needs)
    assert not narrow_products(made.asm["ttir"]), f"offsets of {kernel} may not fit 32 bits"
    return made


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One cache for all tests, which ask for some kernels again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


SUMS = {"n_parts": 16, "n_columns": 64}


def tile(sums: str) -> dict[str, int]:
    return {"n_rows": 2 if sums == "*fp64" else 4, "n_columns": 64}


STATES = [("*fp16", "*fp16", "*fp32"), ("*fp32", "*fp32", "*fp32"), ("*fp32", "*fp32", "*fp64"), ("*fp64",) * 3]


def entries(x: str, weighted: bool) -> dict[str, str]:
    return {"indices": NUMBERS, "weight": "*fp32" if weighted else NUMBERS, "x": x, "width": "i32"}


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize(("x", "y", "sums"), STATES)
def test_ppr_step(x: str, y: str, sums: str, weighted: bool) -> None:
    more = dict.fromkeys(("factors", "inverse", "degree", "omega", "change"), sums)
    more |= {"y": y, "source": "*fp64" if x == "*fp64" else "*fp32", "at": NUMBERS}
    rows = {**entries(x, weighted), **more, "indptr": WORDS, "listed": WORDS, "n_listed": "i32"}
    chunks = {**entries(x, weighted), "partial": sums, "starts": WORDS, "ends": WORDS, "n_chunks": "i32"}
    hubs = {**more, "x": x, "partial": sums, "hubs": WORDS, "bounds": WORDS, "n_slots": "i32", "width": "i32"}
    for measured in (True, False):
        check_no_atomics(
            compiled("ppr_step", "_step_rows", rows, weighted=weighted, measured=measured, warps=1, **tile(sums))
        )
        check_no_atomics(compiled("ppr_step", "_step_hubs", hubs, measured=measured, **SUMS))
    check_no_atomics(compiled("ppr_step", "_chunks", chunks, weighted=weighted, warps=1, **tile(sums)))


def pointers(arguments: dict[str, str]) -> list[str]:
    return [name for name, kind in arguments.items() if kind.startswith("*")]


def specialised(arguments: dict[str, str]) -> list[tuple[list[str], list[str]]]:
    """(aligned, ones) of what Triton compiles anew at a call: arrays with an offset, columns by 16, one column."""
    arrays = pointers(arguments)
    return [([], []), (arrays, []), ([*arrays, "width"], []), (arrays, ["width"])]


@pytest.mark.parametrize(("x", "y", "sums"), STATES)
def test_each_product_of_a_row_is_rounded(x: str, y: str, sums: str) -> None:
    """The compiler fuses products and sums by what it knows of the number of columns, which would change bits."""
    more = {**dict.fromkeys(("factors", "inverse", "degree", "omega", "change"), sums), "y": y, "at": NUMBERS}
    rows = {**entries(x, True), **more, "source": sums, "indptr": WORDS, "listed": WORDS, "n_listed": "i32"}
    constants = {"weighted": True, "measured": True, **tile(sums)}
    made = [built("ppr_step", "_step_rows", rows, constants, *kinds, warps=1) for kinds in specialised(rows)]
    assert not any("fma" in kernel.asm["ptx"] for kernel in made)
    assert "fma" in built("ppr_step", "_step_rows", rows, constants, warps=1, fused=True).asm["ptx"]


@pytest.mark.parametrize("sums", ["*fp32", "*fp64"])
def test_hubs_are_summed_in_one_order(sums: str) -> None:
    """The threads that hold a tile say in which order it is summed: the same ones whatever the arrays' alignment."""
    arguments = {**dict.fromkeys(("x", "y", "source", "partial", "factors", "inverse"), sums), "at": NUMBERS}
    arguments |= {**dict.fromkeys(("degree", "omega", "change"), sums), "hubs": WORDS, "bounds": WORDS}
    arguments |= {"n_slots": "i32", "width": "i32"}
    arrays, constants = pointers(arguments), {"measured": True, **SUMS}
    layouts = {
        tuple(summed_layouts(built("ppr_step", "_step_hubs", arguments, constants, aligned)))
        for aligned in ([], arrays, [name for name in arrays if name != "omega"])
    }
    assert len(layouts) == 1 and next(iter(layouts))
    function: Any = importlib.import_module("gpu_rag_kernels.pagerank.triton")
    params = function._step_hubs.params
    assert "width" in [p.name for p in params if p.do_not_specialize], "which would choose other threads"


def test_the_check_of_orders_sees_other_threads() -> None:
    """Sums over the rows of a tile whose columns are known to be aligned are another order: those of `change`."""
    arguments = {**entries("*fp32", False), **dict.fromkeys(("factors", "inverse", "degree", "omega"), "*fp32")}
    arguments |= {**dict.fromkeys(("y", "source", "change"), "*fp32"), "at": NUMBERS, "n_listed": "i32"}
    arguments |= {"indptr": WORDS, "listed": WORDS}
    constants = {"weighted": False, "measured": True, **tile("*fp32")}
    plain, aligned = (
        summed_layouts(built("ppr_step", "_step_rows", arguments, constants, *kinds, warps=1))
        for kinds in (([], []), ([*pointers(arguments), "width"], []))
    )
    assert plain != aligned


def summed_layouts(kernel: Any) -> list[str]:
    """The layout of each tile that a kernel sums over its rows, of the compiler's own form of it."""
    text = kernel.asm["ttgir"]
    named = dict(re.findall(r"^(#\w+) = (.*)$", text, re.M))
    sums = re.findall(r"\}\) : \(tensor<\d+x\d+xf\d+, (#\w+)>\) ->", text)
    return [named[name] for name in sums]


def test_the_checks_see_spilled_registers_and_narrow_offsets() -> None:
    with pytest.raises(AssertionError, match="spilled"):
        built("minplus_relax", "_round", *relaxed(16, n_nodes=256))
    pid, eight = "%pid = tt.get_program_id x : i32", "%c8_i32 = arith.constant 8 : i32"
    for narrow in ("%row = arith.muli %pid, %c8_i32 : i32", "%at = arith.muli %row, %width : tensor<8x1xi32>"):
        assert narrow_products("\n".join([pid, eight, narrow]))
    column, wide = "%column = arith.muli %pid, %c8_i32 : i32", "%at = arith.muli %row, %width : tensor<8x1xi64>"
    assert not narrow_products("\n".join([pid.replace(" x ", " y "), eight, column, wide]))


@pytest.mark.parametrize("n_words", [1, 2, 4])
def test_msbfs_or(n_words: int) -> None:
    words = dict.fromkeys(("front", "seen", "fresh", "after", "partial"), WORDS)
    plan = {**dict.fromkeys(("indptr", "listed", "starts", "ends", "hubs", "bounds"), WORDS), "indices": NUMBERS}
    counts = dict.fromkeys(("n_listed", "n_chunks", "width"), "i32")
    for name, tile in (
        ("_pull", {"n_nodes": 128 // n_words, "n_words": n_words}),
        ("_chunks", {"n_nodes": 128 // n_words, "n_words": n_words}),
        ("_hubs", {"n_parts": 32, "n_words": n_words}),
    ):  # fmt: skip
        function = getattr(importlib.import_module("gpu_rag_kernels.ego.triton"), name)
        arguments = {k: v for k, v in {**words, **plan, **counts}.items() if k in function.arg_names}
        check_no_atomics(compiled("msbfs_or", name, arguments, **tile))


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("vectors", ["*fp32", "*fp16"])
def test_ragged_gather_dot_topk(vectors: str, biased: bool) -> None:
    arguments = {"owners": WORDS, "queries": "*fp32", "vectors": vectors, "values": NUMBERS, "bias": "*fp64"}
    arguments |= {"out": "*fp32" if biased else "*fp64", "total": "i32", "dims": "i32"}
    tile = {"n_candidates": 16, "n_dims": 64}
    ptx = compiled("ragged_gather_dot_topk", "_scores", arguments, biased=biased, **tile)
    check_no_atomics(ptx)
    assert "mad.wide.s32" in ptx, "components are multiplied in 32 bits and added in 64 by one instruction"
    select = {"scores": "*fp32", "offsets": WORDS, "places": NUMBERS, "best": "*fp32", "k": "i32"}
    chosen = built("ragged_gather_dot_topk", "_select", select, {"n_places": 128}, warps=1)
    check_no_atomics(str(chosen.asm["ptx"]))


@pytest.mark.parametrize("n_groups", [1, 4, 16])
def test_minplus_relax(n_groups: int) -> None:
    ptx = str(built("minplus_relax", "_round", *relaxed(n_groups)).asm["ptx"])
    assert atomics(ptx) and all(".max.s32" in line for line in atomics(ptx)), "for the flag, nothing else"


def relaxed(n_groups: int, n_nodes: int = 8) -> tuple[dict[str, str], dict[str, int | bool]]:
    """Arguments and constants of the kernel of `minplus_relax`."""
    words = dict.fromkeys(("indptr", "cost", "state", "relaxed"), WORDS)
    tile: dict[str, int | bool] = {"n_nodes": n_nodes, "n_entries": 8, "n_groups": n_groups}
    arguments = {**words, "indices": NUMBERS, "flags": NUMBERS, "n": "i32", "width": "i32"}
    return arguments, {**tile, "unreached": 2**63 - 1}


def check_no_atomics(ptx: str) -> None:
    """An order of additions that depends on the run would need them."""
    assert ".visible .entry" in ptx
    assert not atomics(ptx)


def atomics(ptx: str) -> list[str]:
    return [line for line in ptx.splitlines() if re.search(r"\b(atom|red)\.", line)]


MAX_SHARED = 227 << 10  # bytes that a program may take there
REGISTERS = 65536  # of a multiprocessor
WARPS = 64  # that it holds at most


class Needs(NamedTuple):
    """registers: of a thread; stack: bytes of a thread in the device's memory, where registers are spilled to; shared:
    bytes of a program; warps: how many of this kernel a multiprocessor holds at a time, by its registers."""

    registers: int
    stack: int
    shared: int
    warps: int


def needs_of(kernel: Any) -> Needs:
    """By the `cuobjdump` that Triton brings along."""
    from triton import knobs

    tool = knobs.nvidia.cuobjdump.path
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        told = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack = (int(re.findall(rf"\b{name}:(\d+)", told)[0]) for name in ("REG", "STACK"))
    program = kernel.metadata.num_warps
    held = REGISTERS // (-(-registers // 8) * 8 * 32 * program) * program  # they are given out by 8 a thread
    return Needs(registers, stack, int(kernel.metadata.shared), min(held, WARPS))


def narrow_products(ttir: str) -> list[str]:
    """The products of 32 bits in a kernel that may be too large for them: all but those of a constant and the number of
    a program on the second axis of the grid, which ends at 65,535."""
    programs = set(re.findall(r"(%\w+) = tt\.get_program_id y : i32", ttir))
    constants = set(re.findall(r"(%\w+) = arith\.constant \d+ : i32", ttir))
    found = re.findall(r"arith\.muli (%[\w#]+), (%[\w#]+)[^:\n]*: (?:tensor<[^>\n]*x)?i32\b", ttir)
    return [f"{a} * {b}" for a, b in found if not (a in programs and b in constants)]
