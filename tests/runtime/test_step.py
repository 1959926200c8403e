"""A batched step: one key however it is called, its tile, its answers, and what a type checker refuses."""

import pytest
from toy_steps import Toys, graph, llm, pairs, toy

from gpu_rag.errors import RequestFailed
from gpu_rag.runtime import RANK_GRAPH, Kind, Metered, RunStats, batched, gather, run_rounds

TOYS: Kind[Toys] = Kind("toys", "graph", 1)


@batched(TOYS)
def search(toys, queries, k=5, depth=3):
    """The k best."""
    toys.log.append(((k, depth), queries))
    return [(query, k) for query in queries]


def run(*programs, toys=None, **options):
    return run_rounds(pairs(programs), (toys or Toys()).resources, **options)


def calls():
    return [search(1), search(1, 5), search(1, k=5), search(1, 5, 3), search(1, depth=3), search(1, depth=3, k=5)]


def batches(made):
    toys = Toys()

    async def program(ctx):
        return await gather(*made)

    (outcome,) = run(program, toys=toys)
    assert outcome.error is None
    return toys.log


def test_a_default_a_position_and_a_name_are_one_batch():
    assert batches(calls()) == [((5, 3), [1] * 6)]
    assert {call.key for call in calls()} == {(5, 3)}
    assert batches([search(1), search(2, 4), search(3, depth=4)]) == [((5, 3), [1]), ((4, 3), [2]), ((5, 4), [3])]


def test_two_steps_of_one_name_and_key_share_no_batch():
    twin, toys = toy("graph"), Toys()

    async def program(ctx):
        return await gather(graph(1), twin(2), graph(3))

    assert run(program, toys=toys)[0].draft == [1, 2, 3]
    assert toys.log == [("graph", [1, 3]), ("graph", [2])]


@pytest.mark.parametrize("tile", [None, 1, 3, 7, 100])
def test_a_tile_cuts_what_the_function_sees_alone(tile):
    step, toys, stats = toy("step", max_batch=5, tile=tile), Toys(), RunStats()

    async def program(ctx):
        return await gather(*(step(int(ctx.question.id[1]) * 10 + i) for i in range(2)))

    outcomes = run(*[program] * 4, toys=toys, stats=stats)
    assert [o.draft for o in outcomes] == [[10 * q, 10 * q + 1] for q in range(4)]
    assert stats.steps["step"].batch_sizes == {5: 1, 3: 1}, "the driver's batches"
    size = tile or 5
    assert [len(seen) for _, seen in toys.log] == [min(size, n - at) for n in (5, 3) for at in range(0, n, size)]
    assert [query for _, seen in toys.log for query in seen] == [0, 1, 10, 11, 20, 21, 30, 31]


def test_a_step_runs_without_a_driver():
    step, toys = toy("step", tile=2), Toys()
    assert step.run(toys, (1, 2, 3), (4,)) == [1, 2, 3] and toys.log == [("step", [1, 2]), ("step", [3])]
    assert step.run(toys, []) == []


def test_a_tile_may_depend_on_the_resource():
    def largest(resource: int, queries: list[int]) -> list[int]:
        return [max(queries)] * len(queries)

    step = batched(Kind("number", "graph", RANK_GRAPH), tile=lambda resource: resource)(largest)
    assert step.run(2, [1, 2, 3]) == [2, 2, 3] and step.run(3, [1, 2, 3]) == [3, 3, 3]


def _asks(step, query=1):
    async def program(ctx):
        return await step(query)

    return program


def test_a_metered_answer_is_unwrapped_and_its_tokens_are_booked():
    def answers(queries, k):
        return [
            Metered(q, 7, 3, 2, malformed=1, llm_calls=2) if q else Metered(RequestFailed("no"), 5) for q in queries
        ]

    stats = RunStats()
    good, bad = run(_asks(llm, 1), _asks(llm, 0), toys=Toys({"llm": answers}), stats=stats)
    assert good.draft == 1 and type(bad.error) is RequestFailed
    usage = good.usage
    assert (usage.llm_calls, usage.prompt_tokens, usage.cached_tokens, usage.generated_tokens) == (2, 7, 3, 2)
    assert (usage.malformed, bad.usage.llm_calls, bad.usage.prompt_tokens) == (1, 1, 5), "a failed request has a cost"
