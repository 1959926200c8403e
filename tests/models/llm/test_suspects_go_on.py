"""Requests set apart after a death of our own server: none waits for ever."""

import asyncio
from collections import deque
from typing import Any

from gpu_rag.errors import ModelError
from gpu_rag.models.llm.http_servers import Address, Job, Patience, Servers

PATIENCE = Patience(1.0, 1.0, 1, 0.01)


class Own:
    def __init__(self, name: str):
        self.name = name

    def close(self) -> None:
        pass


class Answers:
    async def ask(self, body: bytes, timeout_s: float, on_text: Any = None) -> dict[str, Any]:
        return {"choices": [{"message": {"content": "x"}}]}


async def opened(n: int) -> Servers:
    own = [Address(f"http://s{i}/v1", own=Own(str(i))) for i in range(n)]
    servers = Servers(own, "m", "", 8, PATIENCE)
    for server in servers.servers:
        await server.exchanger.close()
        server.exchanger = Answers()  # type: ignore[assignment]
    return servers


def job(servers: Servers, ended: list[Any]) -> Job:
    made = Job(lambda _: b"", lambda _, outcome: ended.append(outcome))
    servers._open[made] = None
    return made


def test_a_group_whose_requests_were_given_up_meanwhile_holds_up_no_other() -> None:
    async def run() -> int:
        servers, ended = await opened(1), list[Any]()
        first, second = job(servers, ended), job(servers, ended)
        server = servers.servers[0]
        server.live, server.suspects = False, deque([[first], [second]])
        servers.abort([first])  # its question is cancelled while the server starts again
        server.live = True
        servers.dispatch()
        await asyncio.sleep(0.2)
        return len(ended)

    assert asyncio.run(run()) == 2


def test_an_idle_heir_runs_the_suspects_of_a_server_that_stays_dead() -> None:
    async def run() -> int:
        servers, ended = await opened(2), list[Any]()
        dead = servers.servers[0]
        dead.live, dead.suspects = False, deque([[job(servers, ended)]])
        servers.put_down(dead, ModelError("it did not start again"))
        await asyncio.sleep(0.2)
        return len(ended)

    assert asyncio.run(run()) == 1
