"""The Markdown page of a run of scripts/device_check.py, from its JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Result = dict[str, Any]


def page(done: dict[str, Result]) -> str:
    """What was run, on what, and the figures: a table for each kind of section."""
    of = done.get("machine", {})
    made_on = f"torch {of.get('torch')}, CUDA {of.get('cuda')}, {of.get('memory_gb')} GB."
    lines = [f"# {of.get('device', 'no GPU')}, {of.get('date', 'no date')}", ""]
    lines += [f"{made_on} Made by `scripts/device_check.py`.", ""]
    lines += table(("section", "", "seconds"), [(n, verdict(r), r.get("took_s", "")) for n, r in done.items()])
    ceilings = done.get("ceilings", {})
    if "copy_gb_s" in ceilings:
        copy, product = ceilings["copy_gb_s"], ceilings["product_tflop_s"]
        lines += [f"Ceilings: copy {number(copy)} GB/s, bf16 product {number(product)} TFLOP/s.", ""]
    lines += table(("kernel", "size", "ms", "of the ceiling", "bits run to run", "others, ms"), kernels(done))
    lines += table(("step", "ms", "GPU busy", "waits", "kernels", "to the GPU, kB", "to the host, kB"), steps(done))
    rates = [(k, number(v)) for k, v in done.get("profile_embedding", {}).items() if k.startswith("passages_per_s")]
    lines += table(("embedding", "passages/s"), rates)
    solved = [
        (row["n"], row["m"], row["batch"], *(number(row.get(k)) for k in ("ms", "goal_ms", "error")))
        for row in done.get("solve", {}).get("solves", ())
        if "n" in row
    ]
    lines += table(("PageRank: nodes", "entries", "B", "ms", "goal, ms", "L1 error"), solved)
    lines += table(("B", "launched, ms", "one graph, ms"), launches(done))
    forms = done.get("products", {}).get("forms", {}).items()
    lines += table(
        ("product", "TFLOP/s", "error"), [(n, number(f.get("tflop_s")), number(f.get("error"))) for n, f in forms]
    )
    calls = done.get("memory", {}).get("calls", {}).items()
    lines += table(("little memory", "", "peak, GB"), [(n, verdict(c), number(c.get("peak_gb"))) for n, c in calls])
    lines += table(("op", "B", "ms"), ops(done))
    return "\n".join(lines)


def table(head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> list[str]:
    """Lines of a table; none without rows."""
    found = [f"| {' | '.join(map(str, row))} |" for row in rows]
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *found, ""] if found else []


def verdict(result: Result) -> str:
    if result.get("ok") is None:
        return f"absent: {result.get('absent', '')}"
    said = str(result.get("error", result.get("refused", ""))).strip().splitlines()
    return " ".join(["ok" if result["ok"] else "FAILED", *said[-1:]]).replace("|", "/")[:120]


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def kernels(done: dict[str, Result]) -> Iterable[tuple[Any, ...]]:
    for name, result in done.items():
        for case in result.get("cases", ()):
            ms = dict(case.get("ms", {}))
            first = next(iter(ms), "")
            share, mine = case.get("share_of_ceiling", {}).get(first), ms.pop(first, None)
            size = ", ".join(f"{k} {v}" for k, v in case.get("size", {}).items())
            others = ", ".join(f"{k} {number(v)}" for k, v in ms.items())
            yield name, size, number(mine), number(share), case.get("run_to_run_equal", verdict(case)), others


def steps(done: dict[str, Result]) -> Iterable[tuple[Any, ...]]:
    for result in done.values():
        for name, step in result.get("steps", {}).items():
            crossed = (number(step[k] / 1e3) if k in step else "" for k in ("bytes_to_gpu", "bytes_to_host"))
            yield (
                name,
                number(step["ms"]),
                number(step.get("gpu_busy")),
                *(step.get(k, "") for k in ("waits", "kernels")),
                *crossed,
            )


def launches(done: dict[str, Result]) -> Iterable[tuple[Any, ...]]:
    for row in done.get("launches", {}).get("batches", ()):
        if "launched" in row:
            yield row["batch"], *(number(row[k]["host_ms"]) for k in ("launched", "replayed"))


def ops(done: dict[str, Result]) -> Iterable[tuple[Any, ...]]:
    for name in ("ops_small", "ops_large"):
        for op, result in done.get(name, {}).get("ops", {}).items():
            for row in result.get("rows", ()):
                yield op, row.get("B"), number(row.get("ms"))
