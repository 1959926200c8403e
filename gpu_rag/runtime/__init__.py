"""Per-question programs, batched: bookkeeping only, no torch, no model, no event loop.

A method is a straight-line `async` function for ONE question. It awaits calls of `Step`s, which are answered together
with the calls of all other open questions:

    from gpu_rag.runtime import RANK_GRAPH, Context, Kind, batched, gather, run_rounds
    from gpu_rag.types import Draft, Question

    GRAPH: Kind[list[str]] = Kind("passages", service="graph", rank=RANK_GRAPH)

    @batched(GRAPH)
    def search(passages: list[str], texts: list[str], k: int) -> list[list[str]]:  # many queries, as many answers
        return [[f"{passage} for {text}" for passage in passages[:k]] for text in texts]

    async def program(ctx: Context) -> Draft:                                        # a method
        first = await search(ctx.question.text, k=2)
        ctx.note("search", len(first), (first[0],))
        more = await gather(*(search(passage, k=1) for passage in first))
        return Draft(more[-1][0])

    outcomes = run_rounds([(Question("q1", "who?"), program)], {"passages": ["one", "two"]})
    print(outcomes[0].draft, outcomes[0].trace, outcomes[0].usage)

step.py: steps, gather.py: siblings; trace.py: the context of a program; tasks.py: its strands; accounts.py: budgets and
totals; core.py: the part that all drivers share; batches.py: calls run together; rounds.py: the deterministic driver;
streaming.py: the driver that keeps a slow service busy, handle.py: questions submitted to it while it runs, service.py:
its calls at the service; occupancy.py: the LLM's queue over time.
"""

from gpu_rag.runtime.accounts import Budget, RunStats
from gpu_rag.runtime.gather import gather
from gpu_rag.runtime.rounds import run_rounds
from gpu_rag.runtime.step import RANK_EMBED, RANK_GRAPH, RANK_LLM, RANK_TEXT, Kind, Metered, Step, batched
from gpu_rag.runtime.streaming import StreamingDriver, run_streaming
from gpu_rag.runtime.tasks import Outcome
from gpu_rag.runtime.trace import Context, request_seed

__all__ = [
    "RANK_EMBED",
    "RANK_GRAPH",
    "RANK_LLM",
    "RANK_TEXT",
    "Budget",
    "Context",
    "Kind",
    "Metered",
    "Outcome",
    "RunStats",
    "Step",
    "StreamingDriver",
    "batched",
    "gather",
    "request_seed",
    "run_rounds",
    "run_streaming",
]
