"""Test the promises under planted faults: kills, full disks, flipped bits, two writers, clocks, memory limits, storms,
errors that a server sends as replies, rebuilds under a reader, file systems without locks, and broken inputs.

usage: python scripts/campaign.py FOLDER [--seed N] [--share S] [--only KIND,...] [--seconds S]

Each case runs real commands in a child process, harms it or its files, runs the command again and compares: the digest
of the index, the rows of the answers, the requests that came to the model server. FOLDER keeps a row for each finished
case (cases.jsonl). A stopped campaign continues from these rows, and runs failed cases again. It needs Linux and a C
compiler (campaign.c is loaded before libc and counts the calls that make files durable). A folder in memory (/dev/shm)
avoids waiting for disks. --share: share of the cases; CI runs a slice.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "kernels"), str(HERE.parent / "tests/shared"), str(HERE)]
LOG, KILL, FULL, CLOCK, BARE = 1, 2, 3, 4, 5  # as in campaign.c
LIMIT_S = 900.0  # per command: only a bug takes so long
JOBS = ("index", "rounds", "streaming", "merges")
N_RANDOM_KILLS, N_FLIPS, N_REPLY_FLIPS, N_OTHERS, N_FUZZ_A_READER = 520, 1000, 200, 40, 1_000
N_BAD_200 = 1000  # replies
BAD_200 = ("error_200", "not_json", "no_choices")
INPUTS_A_CASE = 50
MAX_MIB = 500  # more memory than a good input takes
TEXTS = [
    "Marta Orlo designed the Halden Bridge. It crosses the Ves in Kerling.",
    "Kerling lies on the Ves. Bo Brandt was mayor of Kerling from 1902.",
    "Bo Brandt met Marta Orlo in Tamsin. Tamsin is a port.",
    "The University of Tamsin was founded by Ada Stroud in 1871.",
    "Ada Stroud was born in Kerling. Anna Stroud was her sister.",
    "The Halden Bridge was opened in 1911 by Anna Stroud.",
]
QUESTIONS = [f"Who met {name} in {place}?" for name in ("Bo Brandt", "Marta Orlo", "Ada Stroud", "Anna Stroud")
             for place in ("Kerling", "Tamsin", "Halden")]  # fmt: skip


class Fault(Exception):
    """A promise that was not kept."""


def check(kept: bool, reason: object) -> None:
    if not kept:
        raise Fault(str(reason))


@dataclass(frozen=True)
class Ended:
    """A command that has ended. status: -SIGNAL where it was killed."""

    status: int
    out: str
    err: str


class Campaign:
    """The folders, the server, and the undisturbed runs with which cases are compared."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.seed = folder, seed
        self.shim = ctypes.CDLL(os.environ["LD_PRELOAD"].split(":")[0])
        self.work, self.asked_file = folder / "work", folder / "asked"
        self.bad_file, self.bad_log = folder / "bad", folder / "bad-sent"
        self.server, self.llm = self._serve(0.0)
        self.port = int(self.llm[3].split("#")[0].split(":")[-1].split("/")[0])
        self.calm: dict[str, Any] = {}
        self.calls: dict[str, Counter[str]] = {}

    def _serve(self, share: float, seed: int = 0) -> tuple[int, list[str]]:
        """Start a model server in its own process. It writes a line into `asked` for each reply that it begins."""
        ready, tell = os.pipe()
        pid, bad_file = os.fork(), self.bad_file
        if pid == 0:
            from gpu_rag.models.misbehave import FAULTS, Manners, MisbehavingServer

            log, bad_log = (
                os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for path in (self.asked_file, self.bad_log)
            )

            class Counting(MisbehavingServer):
                def reply_to(self, body: dict[str, Any], raw: bytes) -> dict[str, Any]:
                    os.write(log, blake2b(raw, digest_size=16).hexdigest().encode() + b"\n")
                    return super().reply_to(body, raw)

                def next_fault(self, body: bytes) -> str:
                    if not bad_file.exists():
                        return super().next_fault(body)
                    seed = int(bad_file.read_text())
                    fault = Manners(seed, 0.35, BAD_200).fault(body, random.getrandbits(16))
                    if fault:
                        os.write(bad_log, b"x")
                    return fault

            faults = tuple(fault for fault in FAULTS if fault != "megabyte")
            os.write(tell, Counting(Manners(seed, share, faults)).url.encode())
            os.close(tell)
            while os.getppid() != 1:
                time.sleep(0.5)
            os._exit(0)
        os.close(tell)
        url = os.read(ready, 200).decode()
        return pid, ["--set", "models.embedder=hash", "--set", f"models.llm={url}#misbehaving-7B", "--set",
                     "models.capable=true", "--set", "models.connections=4"]  # fmt: skip

    def asked(self) -> list[str]:
        return self.asked_file.read_text().split() if self.asked_file.exists() else []

    def forget(self) -> None:
        """Clear the record of requests, once the server has read all that a killed command had sent."""
        until = time.monotonic() + 10.0
        while _connected(self.port) and time.monotonic() < until:
            time.sleep(0.002)
        self.asked_file.write_text("")

    def run(self, argv: list[str], *, kill_after_s: float | None = None, **harm: Any) -> Ended:
        """Run a command in a child, harmed as by `start`, and wait for it."""
        return self.wait(self.start(argv, **harm), kill_after_s)

    def start(
        self,
        argv: list[str],
        *,
        arm: tuple[int, int] | None = None,
        log: str = "",
        setup: Callable[[], Any] | None = None,
    ) -> tuple[int, Path]:
        """Start a command in a child. Returns (process, path of its output). arm: (mode, call) of campaign.c."""
        streams = self.folder / f"streams-{random.getrandbits(48):x}"
        pid = os.fork()
        if pid:
            return pid, streams
        status = 70
        try:
            for number, end in ((1, ".out"), (2, ".err")):
                os.dup2(os.open(f"{streams}{end}", os.O_WRONLY | os.O_CREAT), number)
            from gpu_rag.cli.main import main

            if setup is not None:
                setup()
            if arm is not None:
                self.shim.arm(arm[0], ctypes.c_long(arm[1]), str(self.work).encode(), log.encode())
            status = main(argv)
            if arm is not None and arm[0] == LOG:
                (self.folder / "modules").write_text("\n".join(sys.modules))
            sys.stdout.flush()
            sys.stderr.flush()
        except SystemExit as error:
            status = int(error.code or 0)
        except BaseException as error:  # noqa: BLE001  (what `gpu-rag` reports as an internal error)
            with contextlib.suppress(BaseException):
                os.write(2, f"internal error: {type(error).__name__}: {error}\n".encode("utf-8", "replace"))
        os._exit(status)

    def wait(self, started: tuple[int, Path], kill_after_s: float | None = None, limit_s: float = LIMIT_S) -> Ended:
        pid, streams = started
        until = time.monotonic() + (kill_after_s if kill_after_s is not None else limit_s)
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            if time.monotonic() > until:
                os.kill(pid, signal.SIGKILL)
                ended = os.waitpid(pid, 0)
                check(kill_after_s is not None, f"no end within {limit_s} s")
                break
            time.sleep(0.002)
        out, err = (Path(f"{streams}{end}") for end in (".out", ".err"))
        texts = [path.read_text(errors="replace") if path.exists() else "" for path in (out, err)]
        for path in (out, err):
            path.unlink(missing_ok=True)
        result = Ended(os.waitstatus_to_exitcode(ended[1]), *texts)
        check("internal error" not in result.err and "Traceback" not in result.err, f"{result.err[-600:]}")
        check(result.status in (0, 1, 2, 3, -signal.SIGKILL), f"ended by {result.status}: {result.err[-300:]}")
        return result

    # --- jobs ---

    @property
    def index(self) -> Path:
        return self.work / "ix"

    def argv(self, job: str) -> list[str]:
        if job in ("index", "merges"):
            more = ["--set", "index.extractor=llm", "--for", "ppr,higra-retriever", "--max-failures", "100"]
            return ["index", str(self.folder / "corpus.jsonl"), "--out", str(self.index), *more, *self.llm]
        out, questions = str(self.work / "answers.jsonl"), str(self.folder / "questions.jsonl")
        more = ["--method", "ppr", "--driver", job, "--set", "runtime.max_live=4", "--max-failures", "100"]
        return ["answer", str(self.folder / "template"), questions, "--out", out, *more, *self.llm]

    def fresh(self, job: str) -> None:
        """Restore the state before a job."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        if job == "merges":
            shutil.copytree(self.folder / "template", self.index)
        self.forget()

    def steps(self, job: str) -> list[list[str]]:
        """The commands of a job, one after the other."""
        made = (self.index / "edits" / "merges.jsonl").exists()
        edit = [["merges", str(self.index), "--force", *self.pair]] if job == "merges" and not made else []
        return [*edit, self.argv(job)]

    def result(self, job: str) -> Any:
        """The result that must be equal: the digest of a sound index, or the rows."""
        if job in ("index", "merges"):
            verified = self.run(["verify", str(self.index), "--digest"])
            check(verified.status == 0, f"verify: {verified.err[-600:]}")
            return verified.out.strip()
        rows = [json.loads(line) for line in (self.work / "answers.jsonl").read_text().splitlines()]
        check(len(rows) == len({row["id"] for row in rows}) == len(QUESTIONS), f"{len(rows)} rows")
        check(all((row["error"] or {}).get("type") != "SetAside" for row in rows), "an innocent question is set aside")
        return {row["id"]: [row["status"], row["answer"], [e["passage_id"] for e in row["evidence"]]] for row in rows}

    def kept(self, job: str) -> int:
        """The number of replies in the store."""
        path = self.work / ("ix/replies.sqlite" if job in ("index", "merges") else "answers.jsonl.replies.sqlite")
        if not path.exists():
            return 0
        with contextlib.closing(sqlite3.connect(path)) as db:
            made = db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'replies'").fetchone()[0]
            return int(db.execute("SELECT count(*) FROM replies").fetchone()[0]) if made else 0

    def prepare(self) -> None:
        """Make the template and the undisturbed runs, and count the calls of each job."""
        self.folder.mkdir(parents=True, exist_ok=True)
        rows = [{"id": f"d{i}", "title": "", "text": text} for i, text in enumerate(TEXTS)]
        asks = [{"id": f"q{i}", "question": text} for i, text in enumerate(QUESTIONS)]
        for name, some in (("corpus", rows), ("questions", asks)):
            (self.folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
        self.fresh("index")
        self.must(self.run([*self.argv("index"), "--json"]))
        shutil.rmtree(self.folder / "template", ignore_errors=True)
        shutil.copytree(self.index, self.folder / "template")
        import pyarrow.parquet as pq

        names = pq.read_table(next(iter((self.index / "stages").glob("higra_merge-*/higra_entities.parquet"))))["id"]
        self.pair = names.to_pylist()[:2]
        for job in JOBS:
            for log in ("", str(self.folder / f"calls-{job}")):  # the first run loads code for later ones
                self.fresh(job)
                Path(log or os.devnull).write_text("")
                for argv in self.steps(job):
                    self.must(self.run(argv, arm=(LOG, 0) if log else None, log=log))
            self.calm[job] = self.result(job), len(set(self.asked())), self.kept(job)
            self.calls[job] = Counter(Path(log).read_text().split())
            for name in (self.folder / "modules").read_text().split():  # so that children start with them
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
        self._warm()
        template = self.run(["verify", str(self.folder / "template"), "--digest"])
        self.calm["template"] = template.out.strip()

    def _warm(self) -> None:
        """Run the jobs once in this process, so that children start with compiled and loaded code."""
        import tqdm

        from gpu_rag.cli.main import main

        tqdm.tqdm.monitor_interval = 0  # a thread of its own
        for job in ("index", "rounds"):
            self.fresh(job)
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                main(self.argv(job))
        verified = ["verify", str(self.folder / "template"), "--digest"]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            main(verified)
        sys.excepthook = sys.__excepthook__
        check(threading.active_count() == 1, f"threads before a fork: {threading.enumerate()}")

    @staticmethod
    def must(ended: Ended) -> None:
        check(ended.status == 0, f"status {ended.status}: {ended.err[-500:]}")

    # --- kinds of cases ---

    def resumed(self, job: str) -> None:
        """Run the job again, unharmed: the result must be the same, and no stored reply may be asked for again."""
        kept = self.kept(job)
        self.forget()
        for argv in self.steps(job):
            self.must(self.run(argv))
        result, _, n_replies = self.calm[job]
        check(self.result(job) == result, "another result than that of a calm run")
        asked = self.asked()
        check(len(asked) == len(set(asked)) == n_replies - kept, f"{len(asked)} asked, {n_replies} needed, {kept} kept")

    def kill(self, job: str, call: int) -> None:
        """Kill the job just before a numbered one of the calls that make files durable."""
        self.fresh(job)
        harmed = [self.run(argv, arm=(KILL, call)).status for argv in self.steps(job)]
        few = self.n_points(job) - 30  # the number of commits depends on the timing of replies
        check(-signal.SIGKILL in harmed or call > few, f"call {call} of {self.calls[job]} was not reached: {harmed}")
        self.resumed(job)

    def n_points(self, job: str) -> int:
        return sum(n for name, n in self.calls[job].items() if name != "write")

    def kill_at_random(self, job: str, number: int) -> None:
        """Kill the job up to three times, at random moments."""
        chance = random.Random(f"{self.seed}/{job}/{number}")
        self.fresh(job)
        for _ in range(chance.choice((1, 1, 2, 3))):
            for argv in self.steps(job):
                self.run(argv, kill_after_s=chance.uniform(0.0, 1.5))
        self.resumed(job)

    def full(self, job: str, call: int) -> None:
        """Fill the disk: it refuses all writes from a numbered one on."""
        self.fresh(job)
        for argv in self.steps(job):
            ended = self.run(argv, arm=(FULL, call))
            if ended.status:
                check(ended.status in (1, 3) and ended.err.count("gpu-rag: error: ") == 1, ended.err[-400:])
                check("full" in ended.err or "space" in ended.err, ended.err[-400:])
                break
        self.resumed(job)

    def flip(self, number: int) -> None:
        """Flip a bit of a derived file: a read or verify must notice it, and it must be mended without a request."""
        chance = random.Random(f"{self.seed}/flip/{number}")
        self.fresh("merges")
        names = ("lock", "merges.jsonl", "carried.z")  # the last is checked by the build that would take it over
        files = sorted(p for p in self.index.rglob("*") if p.is_file() and p.stat().st_size and p.name not in names)
        files = [path for path in files if not path.name.startswith("replies.sqlite")]
        path = chance.choice(files)
        _flip(path, chance)
        ask = ["ask", str(self.index), QUESTIONS[number % len(QUESTIONS)], "--method", "ppr", *self.llm[:2]]
        asked = self.run([*ask, "--set", "models.llm=none", "--json"])
        check(asked.status in (0, 1), asked.err[-300:])
        if asked.status == 0:
            check(self.run(["verify", str(self.index)]).status == 1, f"{path.name}: verify does not notice")
        else:
            output = asked.err + asked.out  # a question that failed is a row
            check(path.parent.name in output or path.name in output, f"{path} is not named: {output[-300:]}")
        self.forget()
        ended = self.run(self.argv("index"))
        check(ended.status == 0, f"{path.name}: {ended.err[-300:]}")
        check(self.result("index") == self.calm["template"], f"{path.name}: another digest")
        check(not self.asked(), f"{path.name}: {len(self.asked())} requests")

    def reply_flip(self, number: int) -> None:
        """Flip a bit of the reply store: the index must be the same, and repeated requests must be reported."""
        chance = random.Random(f"{self.seed}/reply/{number}")
        self.fresh("merges")
        path = self.index / "replies.sqlite"
        _flip(path, chance)
        ended = self.run([*self.argv("index"), "--fresh"])
        if ended.status == 0:
            check(self.result("index") == self.calm["template"], "another digest")
            check(not self.asked() or "repl" in ended.err, f"{len(self.asked())} asked again, and nobody says so")
            check(len(self.asked()) <= 8, f"{len(self.asked())} asked again")
        else:
            check("replies.sqlite" in ended.err, ended.err[-300:])

    def edit_flip(self, number: int) -> None:
        """Flip a bit of the user's edits: the line must be refused, or mean the same."""
        chance = random.Random(f"{self.seed}/edit/{number}")
        self.fresh("merges")
        self.must(self.run(self.steps("merges")[0]))
        _flip(self.index / "edits" / "merges.jsonl", chance)
        ended = self.run(self.argv("merges"))
        if ended.status == 0:
            check(self.result("merges") == self.calm["merges"][0], "an altered edit was applied")
        else:
            check("merges.jsonl:1" in ended.err, ended.err[-300:])

    def writers(self, job: str, number: int) -> None:
        """Run two writers at once: one must be refused, or start after the other has ended."""
        self.fresh(job)
        argv = self.steps(job)[-1]
        both = [self.start(argv), self.start(argv)]
        ended = [self.wait(child) for child in both]
        check(0 in [child.status for child in ended], [child.err[-200:] for child in ended])
        for child in ended:
            check(child.status == 0 or "another process is writing" in child.err, child.err[-300:])
        if job != "merges":
            check(self.result(job) == self.calm[job][0], "another result")
            check(len(self.asked()) == len(set(self.asked())), "a request was sent twice")

    def clock(self, job: str, number: int) -> None:
        """Move the time of day by up to a day, back or forth, at each reading."""
        self.fresh(job)
        for argv in self.steps(job):
            self.must(self.run(argv, arm=(CLOCK, number)))
        check(self.result(job) == self.calm[job][0], "another result")

    def memory(self, job: str, number: int) -> None:
        """Leave little address space: the job must end with one line, and continue without the limit."""
        self.fresh(job)
        left = random.Random(f"{self.seed}/memory/{number}").randrange(1 << 20, 400 << 20)

        def limited() -> None:
            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + left, size + left))

        for argv in self.steps(job):
            ended = self.run(argv, setup=limited)
            check(ended.status in (0, 1, 3), f"{ended.status}: {ended.err[-300:]}")
        shutil.rmtree(self.work / "answers.jsonl.inflight", ignore_errors=True)
        for argv in self.steps(job):
            self.must(self.run(argv))
        if job not in ("rounds", "streaming"):
            check(self.result(job) == self.calm[job][0], "another result")

    def storm(self, job: str, number: int) -> None:
        """Use a server that spoils 30 % of its replies and connections: the job must end with all rows."""
        pid, llm = self._serve(0.3, number)
        try:
            self.fresh(job)
            for argv in self.steps(job):
                stormy = [*argv[: len(argv) - len(self.llm)], *llm] if argv[0] != "merges" else argv
                ended = self.run(stormy + (["--set", "models.connections=2"] if argv[0] != "merges" else []))
                refused = "another model" in ended.err or "made with other settings" in ended.err
                check(ended.status in (0, 3) or refused, f"{ended.status}: {ended.err[-300:]}")
            self.result(job)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def bad200(self, job: str, number: int) -> None:
        """Use a server that sends 35 % errors with status 200, then a sound one: the undisturbed result must follow."""
        self.fresh(job)
        self.bad_file.write_text(str(number))
        try:
            for argv in self.steps(job):
                ended = self.run(argv, setup=_impatient)
                too_few = ended.status == 1 and "too few passages" in ended.err  # of 6, four may fail by chance
                check(ended.status in (0, 3) or too_few, f"{ended.status}: {ended.err[-300:]}")
        finally:
            self.bad_file.unlink()
        for argv in self.steps(job):
            self.must(self.run(argv))
        check(self.result(job) == self.calm[job][0], "another result than that of a calm run")

    def n_bad(self) -> int:
        """Number of errors sent with status 200 so far."""
        return self.bad_log.stat().st_size if self.bad_log.exists() else 0

    def rebuilt(self, job: str, number: int) -> None:
        """Rebuild the index with other settings while questions are answered from it: no row may fail."""
        chance = random.Random(f"{self.seed}/rebuilt/{job}/{number}")
        self.fresh("merges")
        answers = [str(self.index) if part == str(self.folder / "template") else part for part in self.argv(job)]
        started = self.start(answers)
        time.sleep(chance.uniform(0.0, 1.0))
        self.must(self.run([*self.argv("index"), "--set", "index.synonym_threshold=0.77"]))
        ended = self.wait(started)
        changed = "changed" in ended.err
        check(ended.status == 0 or changed, f"{ended.status}: {ended.err[-300:]}")
        if changed:  # it had not opened the index yet
            shutil.rmtree(self.work / "answers.jsonl.inflight", ignore_errors=True)
        else:
            check(self.result(job).keys() == self.calm[job][0].keys(), "rows are missing")

    def bare(self, job: str, number: int) -> None:
        """Use a file system without hard links and fsync of folders; in every second case also without locks."""
        self.fresh(job)
        without_locks = number % 2
        for argv in self.steps(job):
            ended = self.run(argv, arm=(BARE, without_locks))
            refused = without_locks and ended.status == 1 and "no locks" in ended.err
            check(ended.status == 0 or refused, f"{ended.status}: {ended.err[-300:]}")
        self.resumed(job)

    def fuzz(self, target: str, number: int) -> None:
        """Give broken inputs to a reader, in a child with limits."""
        import campaign_inputs

        chance = f"{self.seed}/{target}/{number}"
        self.fresh("index")
        started = self.start_call(lambda: campaign_inputs.run(target, chance, INPUTS_A_CASE, self.work, MAX_MIB))
        ended = self.wait(started, limit_s=LIMIT_S)
        check(ended.status == 0, ended.err[-1500:])

    def start_call(self, call: Callable[[], None]) -> tuple[int, Path]:
        streams = self.folder / f"streams-{random.getrandbits(48):x}"
        pid = os.fork()
        if pid:
            return pid, streams
        os.dup2(os.open(f"{streams}.err", os.O_WRONLY | os.O_CREAT), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        status = 1
        try:
            call()
            status = 0
        except BaseException as error:  # noqa: BLE001  (the parent reports it)
            report = f"{type(error).__name__}: {error} {getattr(error, '__notes__', '')}"
            os.write(2, report.encode("utf-8", "replace"))
        os._exit(status)

    # --- the whole ---

    def cases(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """(name, case) of all kinds."""
        import campaign_inputs

        for job in JOBS:
            for call in range(1, self.n_points(job) + 1):
                yield f"kill/{job}/{call}", lambda job=job, call=call: self.kill(job, call)
            for call in range(1, self.calls[job]["write"] + 1):
                yield f"full/{job}/{call}", lambda job=job, call=call: self.full(job, call)
            for n in range(N_RANDOM_KILLS // len(JOBS)):
                yield f"random/{job}/{n}", lambda job=job, n=n: self.kill_at_random(job, n)
            for kind in ("writers", "clock", "memory", "storm", "bare"):
                for n in range(N_OTHERS // len(JOBS)):
                    yield f"{kind}/{job}/{n}", lambda kind=kind, job=job, n=n: getattr(self, kind)(job, n)
            for n in range(N_BAD_200 // len(JOBS)):
                yield (
                    f"bad200/{job}/{n}",
                    lambda job=job, n=n: self.bad200(job, n) if self.n_bad() < N_BAD_200 else None,
                )
        for job in ("rounds", "streaming"):
            for n in range(N_OTHERS // 2):
                yield f"rebuilt/{job}/{n}", lambda job=job, n=n: self.rebuilt(job, n)
        for n in range(N_FLIPS):
            yield f"flip/index/{n}", lambda n=n: self.flip(n)
        for n in range(N_REPLY_FLIPS):
            yield f"reply/index/{n}", lambda n=n: self.reply_flip(n)
        for n in range(N_REPLY_FLIPS):
            yield f"edit/index/{n}", lambda n=n: self.edit_flip(n)
        for target in campaign_inputs.TARGETS:
            for n in range(N_FUZZ_A_READER // INPUTS_A_CASE):
                yield f"fuzz/{target}/{n}", lambda target=target, n=n: self.fuzz(target, n)


def _connected(port: int) -> bool:
    """Whether the server at `port` of this machine has an open connection, even one not accepted yet."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(int(row[1].split(":")[1], 16) == port and row[3] in ("01", "08") for row in rows)


def _impatient() -> None:
    """Allow one retry, without a pause, so that some requests of this process fail for good."""
    from gpu_rag.models.llm.http import HttpLLM

    HttpLLM.__init__.__kwdefaults__.update(retries=1, backoff_s=0.01)


def _flip(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def finished(journal: Path, seed: int) -> list[dict[str, Any]]:
    """The last row of each case of a seed that kept its promise, and need not run again."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    last = {row["case"]: row for row in map(json.loads, lines) if row["seed"] == seed}
    return [row for row in last.values() if not row["fault"]]


def summary(rows: list[dict[str, Any]]) -> str:
    """A table: cases and faults by kind and job."""
    kinds = Counter(row["case"].rpartition("/")[0] for row in rows)
    faults = Counter(row["case"].rpartition("/")[0] for row in rows if row["fault"])
    lines = [f"| {kind} | {n} | {faults[kind]} |" for kind, n in sorted(kinds.items())]
    return "\n".join(["| kind | cases | promises not kept |", "|---|---|---|", *lines])


def main(arguments: list[str] | None = None) -> int:
    """Run or continue a campaign. Returns status 1 if a promise was not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share", type=float, default=1.0, help="share of the cases, drawn by the seed")
    parser.add_argument("--only", default="", metavar="KIND,...", help="kill, full, flip ... or fuzz/.rtf")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of cases; run again to continue")
    options = parser.parse_args(arguments)
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if "campaign.so" not in os.environ.get("LD_PRELOAD", ""):
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O1", "-o", folder / "campaign.so", HERE / "campaign.c", "-ldl"], check=True
        )
        quiet = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONSAFEPATH": "1", "NUMBA_NUM_THREADS": "1"}
        own = {"LD_PRELOAD": str(folder / "campaign.so"), "GPU_RAG_CACHE": str(folder / "cache")}
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **quiet, **own})
    import gpu_rag.api.indexes
    import gpu_rag.cli.main  # noqa: F401  (children start with it)

    campaign = Campaign(folder, options.seed)
    journal = folder / "cases.jsonl"
    rows = finished(journal, options.seed)
    done, only = {row["case"] for row in rows}, tuple(filter(None, options.only.split(",")))
    try:
        campaign.prepare()
        print({job: dict(calls) for job, calls in campaign.calls.items()}, flush=True)
        cases = [case for case in campaign.cases() if case[0] not in done]
        random.Random(options.seed).shuffle(cases)
        drawn = [c for c in cases if not only or c[0].startswith(only)]
        until = time.monotonic() + options.seconds
        for name, case in drawn[: max(1, round(len(drawn) * options.share))]:
            if time.monotonic() > until:
                break
            begun, fault = time.monotonic(), None
            try:
                case()
            except Exception as error:  # noqa: BLE001  (a case that fails is a row)
                fault = f"{type(error).__name__}: {error}"
                print(f"{name}: {fault}", flush=True)
            rows.append({"case": name, "seed": options.seed, "fault": fault, "s": round(time.monotonic() - begun, 2)})
            with journal.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    finally:
        os.kill(campaign.server, signal.SIGKILL)
    print(summary(rows))
    print(f"errors sent as replies: {campaign.n_bad()}")
    return int(any(row["fault"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
