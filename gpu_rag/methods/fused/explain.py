"""Steps of a trace of `fused` in words, by name; see `gpu_rag.cli.trace_text`."""

WORDS = {"fused": "passages weighed by the rankings of several methods, of {n}"}
