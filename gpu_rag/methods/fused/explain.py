"""Wording of the trace steps of `fused`, by name; see `gpu_rag.cli.trace_text`."""

WORDS = {"fused": "passages weighed by the rankings of several methods, of {n}"}
