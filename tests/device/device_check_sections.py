"""Runs sections of scripts/device_check.py on the stand-in device: python device_check_sections.py OUT.json

In Triton's place stand the kernels' references, and a clock that calls once: what is run is all code around them. Sizes
are tiny. Prints nothing; the JSON has the result of each section.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE.parents[1] / "scripts"
sys.path[:0] = [str(HERE), str(SCRIPTS)]
CONSTANTS = ("ROWS", "COLUMNS", "LANES", "NODES", "ENTRIES", "CANDIDATES", "DIMS", "DEPTH", "WARPS")


def module(name: str, **held: Any) -> None:
    made = ModuleType(name)
    made.__spec__ = ModuleSpec(name, None)
    made.__dict__.update(held)
    sys.modules[name] = made


def do_bench(run: Any, return_mode: str) -> float:
    assert return_mode == "median"
    run()
    return 0.5


def references_for_triton() -> None:
    """`triton` can be found, and the kernels' modules for it are their references."""
    module("triton")
    module("triton.testing", do_bench=do_bench)
    module("triton.errors", TritonError=type("TritonError", (Exception,), {}))
    from gpu_rag_kernels.dispatch import LOOPS

    for folder in LOOPS.values():
        held = importlib.import_module(f"gpu_rag_kernels.{folder}.reference")
        named = {k: v for k, v in vars(held).items() if not k.startswith("__")}
        module(f"gpu_rag_kernels.{folder}.triton", **named, **dict.fromkeys(CONSTANTS, 1))


def main() -> None:
    import torch
    import torch._inductor.config  # looks for triton when it is loaded: before there is something in its place

    references_for_triton()
    import device_check
    import device_sections
    from device_case import Plan
    from stand_in import stand_in

    results: dict[str, Any] = {}
    with stand_in():
        until, plan = time.time() + 3600, Plan(torch.device("cuda"), small=True)
        for name in device_check.SECTIONS:
            # other processes, other sizes, other libraries, and a model that only loads on a GPU
            if name in ("tests", "sanitizer", "ops_large", "cugraph", "profile_embedding"):
                continue
            ceiling = results.get("ceilings", {})
            results[name] = device_check.section(name, plan, ceiling, until, lambda found: json.dumps(found))
        graph = device_sections.made.rmat(300, 900, 7, torch.device("cuda"))
        results["cugraph"] = device_sections.compared(graph, 2, until, ("torch",))
    Path(sys.argv[1]).write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
