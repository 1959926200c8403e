"""Several nodes, simulated by Ray on this machine: parts of GPUs that must fit together, and a node that goes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ray

# A head without GPUs and two nodes that claim one each. An answer to "hold" waits until its node is gone.
SCRIPT = """
import json, sys, time
from pathlib import Path

from ray.cluster_utils import Cluster

cluster = Cluster()
memory = 80 * 2**20
cluster.add_node(num_cpus=4, num_gpus=0, object_store_memory=memory, include_dashboard=False)
nodes = [cluster.add_node(num_cpus=4, num_gpus=1, object_store_memory=memory) for _ in range(2)]
cluster.wait_for_nodes()

from gpu_rag.models.embed.hashing import HashEmbedder
from gpu_rag.models.llm.scripted import ScriptedLLM
from gpu_rag.cluster.actors import Plan
from gpu_rag.cluster.models import RayLLM
from gpu_rag.cluster.pool import Pool
from gpu_rag.cluster.worker import EmbedWorker, LLMWorker, Loaded
from gpu_rag.settings.sections import ScaleSettings
from gpu_rag.types import Request

marks = Path(sys.argv[1])

def build():
    import ray
    node = ray.get_runtime_context().get_node_id()
    def answer(request):
        if request.prompt == "hold":
            (marks / "writing").write_text(node)
            (marks / "writing").rename(marks / "held")
            while not (marks / "go").exists():
                time.sleep(0.01)
        return f"said {len(request.prompt)}"
    return Loaded(ScriptedLLM(answer), 4)

settings = ScaleSettings(address=cluster.address)
pools = [
    Pool(settings, Plan("embedder", EmbedWorker, HashEmbedder, 2, 1.0, 0.25, streams=False)),
    Pool(settings, Plan("llm", LLMWorker, build, 2, 1.0, 0.75, streams=True)),
]
while any(len(pool.actors.ready()) < 2 for pool in pools):
    for pool in pools:
        pool.pump(0.2)
llm = RayLLM(pools[1])
prompts = ["hold", *("x" * (3_000_000 + i) for i in range(40))]  # together more than a node's store holds
for key, prompt in enumerate(prompts):
    llm.submit(key, Request("", prompt))
found = {}
while not (marks / "held").exists():
    found.update(llm.poll(0.1))
gone = (marks / "held").read_text()
(node,) = (node for node in nodes if node.node_id == gone)
cluster.remove_node(node, allow_graceful=False)
(marks / "go").touch()
while llm.n_open:
    found.update(llm.poll(0.5))
assert [found[key].text for key in range(41)] == [f"said {len(prompt)}" for prompt in prompts]
told = pools[1].describe()
for pool in pools:
    pool.close()
print(json.dumps(told), flush=True)
"""


def test_parts_of_gpus_fit_together_and_the_work_of_a_lost_node_is_done(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert '"workers": 2, "joined": 2' in done.stdout and '"deaths": 1' in done.stdout
