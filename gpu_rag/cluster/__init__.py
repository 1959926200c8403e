"""Models on the workers of a Ray cluster: for corpora and question files that outgrow one machine.

An embedder and a language model whose work is done by processes on any node, behind the interfaces of the local ones
and below the same caches: an index built so is, given the same replies, the index built without. Graph ops, BM25 and
programs stay in the process that runs the command. This package alone imports ray.

worker.py a model in a worker's process; task_queue.py the tasks that each worker has, and what follows from a death;
pool.py workers as Ray actors, at their tasks; ray.py the Ray that is started or joined; models.py the embedder and the
language model over a pool; workers.py the workers of a run.
"""

from gpu_rag.cluster.ray import look_at
from gpu_rag.cluster.workers import RayWorkers, check_scale

__all__ = ["RayWorkers", "check_scale", "look_at"]
