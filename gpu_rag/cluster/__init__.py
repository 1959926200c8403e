"""Models on the workers of a Ray cluster: for corpora and question files that outgrow one machine.

An embedder and a language model whose work is done by processes on any node, behind the interfaces of the local ones
and below the same caches: an index built so is, given the same replies, the index built without. Graph ops, BM25 and
programs stay in the process that runs the command. This package alone imports ray.

worker.py what runs on a worker; build.py how it loads a model; ledger.py who holds what, and what a death means;
crew.py workers as Ray actors; pool.py the tasks that they do; cluster.py the Ray that is started or
joined; embedder.py and llm.py the two faces; workers.py the workers of a run.
"""

from gpu_rag.cluster.ray import look_at
from gpu_rag.cluster.workers import RayWorkers, check_scale, open_workers

__all__ = ["RayWorkers", "check_scale", "look_at", "open_workers"]
