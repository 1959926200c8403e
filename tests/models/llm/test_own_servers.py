"""Model servers of our own: started, waited for, restarted, stopped; requests that kill them are set aside."""

import logging
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from gpu_rag.errors import ModelError, RequestFailed
from gpu_rag.models.llm import http_servers, own_server
from gpu_rag.models.llm.http import HttpLLM
from gpu_rag.models.llm.own_server import OwnServer
from gpu_rag.types import Reply, Request

WAIT_S = 60.0
STAND_IN = Path(__file__).with_name("stand_in.py")
pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(http_servers, "RESTART_S", 0.0)
    monkeypatch.setattr(http_servers, "START_LOOK_S", 0.02)
    monkeypatch.setattr(http_servers, "ATTEND_S", 0.05)
    monkeypatch.setenv("STAND_IN_TRACE", str(tmp_path / "trace"))


@pytest.fixture
def start() -> Iterator[Callable[..., HttpLLM]]:
    opened: list[HttpLLM] = []

    def make(*words: str, n: int = 1, **options: Any) -> HttpLLM:
        command = [sys.executable, "-I", str(STAND_IN), "--served-model-name", "m", *words]
        own = [OwnServer(f"server {i}", command, {"CUDA_VISIBLE_DEVICES": str(i)}, "VLLM_API_KEY") for i in range(n)]
        opened.append(HttpLLM(own, "m", **{"retries": 2, "backoff_s": 0.01, **options}))
        return opened[-1]

    yield make
    for llm in opened:
        llm.close()


def owned(llm: HttpLLM) -> list[OwnServer]:
    return [server.own for server in llm._thread.servers.servers if server.own is not None]


def say(llm: HttpLLM, *prompts: str) -> list[str]:
    replies = llm.complete([Request("", prompt) for prompt in prompts])
    return [reply.text if isinstance(reply, Reply) else f"failed: {reply}" for reply in replies]


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_servers_start_answer_and_end_with_all_their_processes(start):
    llm = start(n=2)
    assert llm.context_tokens == 2048 - 64 and llm.model == "m"
    [own, other] = owned(llm)
    assert stat.S_IMODE(own.folder.stat().st_mode) == 0o700 and own.key != other.key
    assert set(say(llm, *["gpus"] * 20)) == {"0", "1"}
    pids = {int(pid) for word in ("pid", "child") for pid in say(llm, *[word] * 20)}
    assert len(pids) == 4 and all(map(alive, pids))
    llm.close()
    wait_until(lambda: not any(map(alive, pids)))
    assert not own.folder.exists() and not other.folder.exists()


def test_without_room_for_a_socket_the_loopback_address_serves(start, monkeypatch):
    monkeypatch.setattr(own_server, "MAX_SOCKET_BYTES", 3)
    llm = start()
    assert owned(llm)[0].url.startswith("http://127.0.0.1:") and say(llm, "a") == ["re: a"]


def test_a_server_that_does_not_start_says_why(start):
    with pytest.raises(ModelError) as caught:
        start("--fail", "no room for the cache", n=2)
    assert "did not start" in str(caught.value) and "ValueError: no room for the cache" in str(caught.value)


def test_a_server_that_never_answers_is_given_up(start, monkeypatch, tmp_path):
    monkeypatch.setattr(http_servers, "START_S", 0.3)
    silent = tmp_path / "silent.py"
    silent.write_text("import time; time.sleep(300)")
    own = OwnServer("s", [sys.executable, "-I", str(silent)], {}, "KEY")
    with pytest.raises(ModelError, match="did not start.*no answer"):
        HttpLLM([own], "m")
    assert own.ended() and not own.folder.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_servers_die_with_the_process_that_started_them(tmp_path, number):
    program = f"""
import sys, time
from gpu_rag.models.llm.http import HttpLLM
from gpu_rag.models.llm.own_server import OwnServer
from gpu_rag.types import Request
own = OwnServer("s", [sys.executable, "-I", {str(STAND_IN)!r}, "--served-model-name", "m"], {{}}, "VLLM_API_KEY")
llm = HttpLLM([own], "m")
print(*[reply.text for reply in llm.complete([Request("", "pid"), Request("", "child")])], own.pid, flush=True)
time.sleep(300)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 3 and all(map(alive, pids))
        process.send_signal(number)
    wait_until(lambda: not any(map(alive, pids)))


def test_a_killed_guard_leaves_nothing_behind(start):
    llm = start()
    pids = [int(pid) for pid in say(llm, "pid", "child")]
    os.kill(owned(llm)[0].pid, signal.SIGKILL)
    wait_until(lambda: not any(map(alive, pids)))
    assert say(llm, "a") == ["re: a"], "and it is started again"


def test_a_forked_process_speaks_to_its_parents_servers_and_leaves_them_alone(start):
    llm = start()
    [pid] = say(llm, "pid")
    child = os.fork()
    if not child:
        same = say(llm, "pid") == [pid]
        llm.close()
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert say(llm, "pid") == [pid]


def test_a_server_that_dies_is_started_again_and_nothing_is_lost(start, caplog):
    llm = start("--die-after", "30", max_connections=8)
    assert say(llm, *[f"p{i}" for i in range(100)]) == [f"re: p{i}" for i in range(100)]
    [account] = llm.accounts()
    assert account.failures >= 3 and account.requests == 100  # each life ends with its thirtieth request
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert any("it was asked to die" in line for line in lines)


def test_an_idle_server_that_was_killed_is_started_again_before_it_is_needed(start):
    llm = start()
    [pid] = say(llm, "pid")
    os.kill(int(pid), signal.SIGKILL)
    wait_until(lambda: not alive(int(pid)))
    wait_until(lambda: llm._thread.servers.servers[0].n_deaths == 1 and llm._thread.servers.servers[0].live)
    assert say(llm, "pid") != [pid]


def test_a_request_that_kills_servers_is_found_and_takes_no_others_with_it(start):
    llm = start(max_connections=64)
    prompts = [f"p{i}" for i in range(80)]
    prompts[11] = "please die"
    replies = llm.complete([Request("", prompt) for prompt in prompts])
    assert [i for i, reply in enumerate(replies) if isinstance(reply, RequestFailed)] == [11]
    assert "died" in str(replies[11]) and "asked to die" in str(replies[11])
    assert [reply.text for i, reply in enumerate(replies) if i != 11] == [f"re: p{i}" for i in range(80) if i != 11]
    assert say(llm, "a") == ["re: a"]


def test_suspects_are_tried_in_groups_with_nothing_beside_them(start):
    llm = start(max_connections=32)
    said = say(llm, "die", *["beside"] * 39)
    beside = [int(text) for text in said[1:]]
    assert said[0].startswith("failed") and len(beside) == 39
    # the 31 that ran when the server died were tried in pairs at most, the other 8 came later, all together
    assert sum(n <= 2 for n in beside) >= 31 and max(beside) > 4


def test_a_lone_request_that_kills_twice_is_given_up(start):
    llm = start()
    [said] = say(llm, "die")
    assert said.startswith("failed") and "2 times" in said and say(llm, "a") == ["re: a"]


def test_a_server_that_only_dies_ends_the_engine(start):
    llm = start("--die-after", "1")
    with pytest.raises(ModelError, match="the model server died.*asked to die.*run again"):
        llm.complete([Request("", f"p{i}") for i in range(20)])
    with pytest.raises(ModelError, match="the model server died"):
        llm.complete([Request("", "later")])


def test_another_server_goes_on_where_one_is_gone_for_good(start, monkeypatch):
    monkeypatch.setattr(http_servers, "RESTARTS", 0)
    llm = start(n=2, max_connections=4)
    [pid] = say(llm, "pid")
    for key in range(30):
        llm.submit(key, Request("", f"p{key}"))
    os.kill(int(pid), signal.SIGKILL)
    found: dict[int, Any] = {}
    while llm.n_open:
        found.update(llm.poll(WAIT_S))
    assert [found[key].text for key in range(30)] == [f"re: p{key}" for key in range(30)]
    assert sum(server.down is None for server in llm._thread.servers.servers) == 1


def test_an_error_of_a_server_that_lives_is_an_error_of_the_request(start):
    llm = start()
    [pid, failed, good] = say(llm, "pid", "500", "good")
    assert failed.startswith("failed") and "3 times" in failed and good == "re: good"
    assert say(llm, "pid") == [pid]


def test_a_server_whose_engine_is_dead_is_started_anew(start):
    llm = start()
    [pid] = say(llm, "pid")
    [sick] = say(llm, "sick")
    assert sick.startswith("failed") and "died" in sick
    assert say(llm, "pid") != [pid]


def test_abort_closes_the_connection(start, tmp_path):
    llm = start()
    llm.submit(1, Request("", "wait"))
    wait_until(lambda: bool(llm._thread.servers.servers[0].running))
    time.sleep(0.2)
    llm.abort(1)
    [(key, reply)] = llm.poll(WAIT_S)
    assert key == 1 and isinstance(reply, RequestFailed) and "aborted" in str(reply)
    wait_until(lambda: (tmp_path / "trace").exists())


def test_sleep_until_the_next_request_and_metrics(start):
    llm = start()
    assert say(llm, "asleep") == ["False"]
    posted: list[str] = []
    exchanger = llm._thread.servers.servers[0].exchanger
    post = exchanger.post

    async def noted(path: str, *given: Any) -> Any:
        posted.append(path)
        return await post(path, *given)

    exchanger.post = noted
    llm.sleep()
    llm.sleep()
    assert posted == ["../sleep?level=1"]
    assert say(llm, *["asleep"] * 5) == ["False"] * 5 and posted[1] == "../wake_up" and len(posted) == 7
    [account] = llm.accounts()
    assert (account.name, account.requests, account.preemptions) == ("server 0", 6, 6)
    assert account.queue_s >= 0.5 and account.cached_tokens == 16 * 6
