"""Models on the workers of a Ray cluster, for corpora and question files that outgrow one machine.

The embedder and the language model run in processes on any node. They have the interfaces of the local models and stand
below the same caches: given the same replies, the index equals one built without workers. Graph ops, BM25 and programs
stay in the process that runs the command. Only this package imports ray.

worker.py: a model in a worker's process; task_queue.py: the tasks of each worker, and the handling of deaths; pool.py:
workers as Ray actors with their tasks; ray.py: starting or joining Ray; models.py: the embedder and the language model
over a pool; workers.py: the workers of a run.
"""

from gpu_rag.cluster.ray import look_at
from gpu_rag.cluster.workers import RayWorkers, check_scale

__all__ = ["RayWorkers", "check_scale", "look_at"]
