"""Runs sections of scripts/device_check.py on the stand-in device: python device_check_sections.py OUT.json

In Triton's place stand the kernels' references, and a clock that calls once: what is run is all code around them. Sizes
are tiny. Prints nothing; the JSON has the result of each section.
"""

import importlib
import json
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE.parents[1] / "scripts"
sys.path[:0] = [str(HERE), str(SCRIPTS)]


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
        module(f"gpu_rag_kernels.{folder}.triton", **named)


def main() -> None:
    import torch
    import torch._inductor.config  # looks for triton when it is loaded: before there is something in its place

    references_for_triton()
    import device_check
    from stand_in import stand_in

    results: dict[str, Any] = {}
    with stand_in():
        plan = device_check.Plan(torch.device("cuda"), small=True)
        for name in device_check.SECTIONS:
            # other programs, a model that only loads on a GPU, and whole methods, which other tests run on the stand-in
            if name in (*device_check.OTHER_PROGRAMS, "embedding", "smoke", "methods"):
                continue
            results[name] = device_check.section(name, replace(plan, ceilings=results.get("ceilings", {})))
            json.dumps(results[name])
    Path(sys.argv[1]).write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
