"""Per-question programs, batched: bookkeeping only, no torch, no model, no event loop.

A method is a straight-line `async` function for ONE question. What it awaits is a `Call`, answered by an `Executor`
together with the same call of all other open questions:

    from gpu_rag.runtime import RANK_GRAPH, Call, Context, Executor, gather, run_rounds
    from gpu_rag.types import Draft, Question

    def search(text: str, k: int) -> Call:                        # a verb: k is static, the text is this call's own
        return Call("search", (k,), text)

    def answer_search(static: tuple, texts: list[str]) -> list:   # its executor: many calls in, as many results out
        (k,) = static
        return [[f"passage {i} for {text}" for i in range(k)] for text in texts]

    async def program(ctx: Context) -> Draft:                     # a method
        first = await search(ctx.question.text, k=2)
        ctx.note("search", len(first), (first[0],))
        more = await gather(*(search(passage, k=1) for passage in first))
        return Draft(more[-1][0])

    executors = {"search": Executor(answer_search, service="graph", rank=RANK_GRAPH)}
    outcomes = run_rounds([(Question("q1", "who?"), program)], executors)
    print(outcomes[0].draft, outcomes[0].trace, outcomes[0].usage)

call.py what a program awaits; trace.py what it is given; tasks.py its strands; accounts.py budgets and totals;
core.py what all drivers share; batches.py calls run together; rounds.py the deterministic driver; streaming.py the one
that keeps a slow service busy, handle.py a question submitted to it while it runs, turns.py those that wait,
service.py what it knows of the service; occupancy.py the LLM's queue over time.
"""

from gpu_rag.runtime.accounts import Budget, RunStats, VerbStats
from gpu_rag.runtime.call import (
    RANK_EMBED,
    RANK_GRAPH,
    RANK_LLM,
    RANK_TEXT,
    Call,
    Executor,
    Gather,
    Metered,
    gather,
)
from gpu_rag.runtime.handle import Handle
from gpu_rag.runtime.rounds import run_rounds
from gpu_rag.runtime.service import SlowService
from gpu_rag.runtime.streaming import StreamingDriver, run_streaming
from gpu_rag.runtime.tasks import Outcome
from gpu_rag.runtime.trace import Context, Slot, request_seed

__all__ = [
    "RANK_EMBED",
    "RANK_GRAPH",
    "RANK_LLM",
    "RANK_TEXT",
    "Budget",
    "Call",
    "Context",
    "Executor",
    "Gather",
    "Handle",
    "Metered",
    "Outcome",
    "RunStats",
    "Slot",
    "SlowService",
    "StreamingDriver",
    "VerbStats",
    "gather",
    "request_seed",
    "run_rounds",
    "run_streaming",
]
