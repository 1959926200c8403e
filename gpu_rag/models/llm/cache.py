"""Cache of replies in one SQLite file: no request is computed twice; a killed run loses at most its last batch."""

from __future__ import annotations

import glob
import json
import logging
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import xxhash

from gpu_rag.errors import GpuRagError, IndexCorrupt, IndexMismatch, RequestFailed, StorageError
from gpu_rag.models.fingerprint import text_hash
from gpu_rag.models.llm.interface import (
    LLM,
    OnReply,
    StreamingLLM,
    aborted,
    check_key,
    complete_each,
    reply_from_record,
    reply_key,
    reply_record,
)
from gpu_rag.models.llm.service import as_streaming
from gpu_rag.text.lenient import read_reply
from gpu_rag.types import Malformed, Reply, Request

FORMAT = 1
BUSY_S = 60.0  # longest wait for another reader or writer
KEYS_A_QUERY = 500  # below SQLite's limit of variables in any version
_log = logging.getLogger(__name__)


class ReplyFile:
    """Replies by key, for several threads and processes.

    A write is one commit (synchronous=FULL, rollback journal: one plain file without shared memory, so it also works on
    network disks and can be copied). After a kill at any time, the file holds all replies written before and opens as
    usual. Readers and writers wait up to 60 s for each other. Each reply has a checksum: a damaged one is named in a
    warning and counts as missing, so that it is asked again. If pages of the file are damaged, the readable replies
    move to a new file; the damaged file stays beside it.
    """

    def __init__(self, path: Path):
        """Open or create `path`. Raises IndexCorrupt (not such a file), IndexMismatch (newer), StorageError."""
        self.path = Path(path)
        self._lock = threading.Lock()  # the connection may serve the caller's thread and a driver's
        self._file = _Database(self.path, "move it away: replies are asked again")
        self._damaged: set[str] = set()  # keys of rows that the next write replaces
        self.used: set[str] | None = None  # if a set: gets the keys that are read and written
        try:
            self.db = self._file.open()
        except IndexCorrupt as error:
            self._mend(error)

    def read(self, keys: Sequence[str]) -> dict[str, Reply]:
        """Kept replies of these keys, with from_cache=True."""
        with self._lock:
            try:
                return self._read(keys)
            except IndexCorrupt as error:
                self._mend(error)
                return self._read(keys)

    def _read(self, keys: Sequence[str]) -> dict[str, Reply]:
        replies: dict[str, Reply] = {}
        with self._file.errors():
            for key, text in _rows_of_keys(self.db, keys):
                try:
                    replies[key] = _reply(key, text)
                except _DAMAGED:
                    if key not in self._damaged:
                        _log.warning("gpu-rag: a kept reply is damaged and is asked again: %s, key %s", self.path, key)
                    self._damaged.add(key)
        if self.used is not None:
            self.used.update(replies)
        return replies

    def write(self, replies: Sequence[tuple[str, Reply]]) -> None:
        """Add replies durably. A key that exists keeps its reply, unless that is damaged or marked by `replace`."""
        if not replies:
            return
        rows = [(key, _record(key, reply)) for key, reply in replies]
        with self._lock:
            try:
                self._write(rows)
            except IndexCorrupt as error:
                self._mend(error)
                self._write(rows)

    def _write(self, rows: Sequence[tuple[str, str]]) -> None:
        with self._file.errors(), self.db:
            self.db.executemany(
                "DELETE FROM replies WHERE key = ?", [(key,) for key, _ in rows if key in self._damaged]
            )
            self.db.executemany("INSERT OR IGNORE INTO replies (key, reply) VALUES (?, ?)", rows)
        if self.used is not None:
            self.used.update(key for key, _ in rows)
        self._damaged.difference_update(key for key, _ in rows)

    def join(self, rows: Sequence[tuple[str, str]]) -> None:
        """Add sound rows of another file; of two replies to one key the smaller stays."""
        more = "ON CONFLICT (key) DO UPDATE SET reply = min(reply, excluded.reply)"
        with self._lock, self._file.errors(), self.db:
            self.db.executemany(f"INSERT INTO replies (key, reply) VALUES (?, ?) {more}", rows)

    def replace(self, keys: Collection[str]) -> None:
        """Mark keys whose reply the next write replaces."""
        self._damaged.update(keys)

    def mend(self) -> None:
        """Check the whole file and take out damaged replies, with a warning for each. O(bytes)."""
        with self._lock, self._file.errors():
            faults = _quick_check(self.db)
            damaged = [] if faults else list(_damaged_rows(self.db))
            for key in damaged:
                _log.warning("gpu-rag: a kept reply is damaged and is asked again when it is needed: %s", key)
            if faults or damaged:
                self._mend(IndexCorrupt(f"{self.path} is damaged", given=(faults or damaged)[0]))

    def _mend(self, error: IndexCorrupt) -> None:
        """Move the sound replies of a damaged file to a new one in its place; raises `error` if there is none."""
        new, copy, damaged = (self.path.with_name(f"{self.path.name}.{end}") for end in ("mended", "copy", "damaged"))
        for path in (new, copy, damaged):
            path.unlink(missing_ok=True)
        with closing(_Database(new).open()) as kept:
            first_page = new.read_bytes()[:_PAGE]
            for page in (b"", first_page):  # unchanged, then with a sound first page
                _copy(self.path, copy, page)
                for order in ("ASC", "DESC"):  # up to the damage, from both ends
                    with kept:
                        kept.executemany("INSERT OR IGNORE INTO replies VALUES (?, ?)", _readable(copy, order))
            n = kept.execute("SELECT count(*) FROM replies").fetchone()[0]
        copy.unlink()
        if hasattr(self, "db"):
            self.db.close()
        elif not n:
            new.unlink()
            raise error
        try:
            os.link(self.path, damaged)
        except OSError:  # no hard links here
            shutil.copyfile(self.path, damaged)
        os.replace(new, self.path)
        message = "gpu-rag: %s; %d replies are kept, others are asked again; as it was: %s"
        _log.warning(message, error.what, n, damaged)
        self.db = self._file.open()

    def __len__(self) -> int:
        """Number of replies."""
        with self._lock, self._file.errors():
            return int(self.db.execute("SELECT count(*) FROM replies").fetchone()[0])

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self.db.close()


_DAMAGED = (ValueError, KeyError, TypeError, RecursionError)


_SUM = ', "sum": "'  # after the record; it cannot occur inside JSON text


def _record(key: str, reply: Reply) -> str:
    """Reply as JSON, with a checksum of its key and of the text before it."""
    body = json.dumps(reply_record(reply), ensure_ascii=True)[:-1]
    return f'{body}{_SUM}{_sum(key, body)}"}}'


def _sum(key: str, body: str) -> str:
    return xxhash.xxh3_64_hexdigest((key + body).encode())


def _body(key: str, text: str) -> str:
    """Record of a row. Raises ValueError for a wrong checksum; a row without one, from an earlier version, passes."""
    body, mark, end = text.rpartition(_SUM)
    if mark and end != _sum(key, body) + '"}':
        raise ValueError("another checksum")
    return body + "}" if mark else text


def _reply(key: str, text: str) -> Reply:
    """Reply of a row. Raises one of _DAMAGED."""
    record = json.loads(_body(key, text))
    reply = reply_from_record(record, from_cache=True)
    if record.keys() != reply_record(reply).keys():
        raise ValueError("not a reply as it is written")
    return reply


def _damaged_rows(db: sqlite3.Connection) -> Iterator[str]:
    for key, text in db.execute("SELECT key, reply FROM replies"):
        try:
            if _SUM in text:
                _body(key, text)
            else:
                _reply(key, text)
        except _DAMAGED:
            yield key


def _quick_check(db: sqlite3.Connection) -> list[str]:
    """Faults that SQLite itself finds."""
    return [" ".join(line.split()) for (line,) in db.execute("PRAGMA quick_check") if line != "ok"]


def faults_of(path: Path) -> list[str]:
    """Faults of a reply file, one line each. Changes nothing."""
    file = _Database(path, "run gpu-rag index again: what can be read is kept")
    try:
        with closing(file.open()) as db, file.errors():
            fate = "is damaged; gpu-rag index takes it out, and it is asked again when it is needed"
            return _quick_check(db) or [f"the reply {key} {fate}" for key in _damaged_rows(db)]
    except (IndexCorrupt, IndexMismatch, StorageError) as error:
        return [str(error)]


def reply_texts(path: Path, hashes: Collection[str]) -> dict[str, str]:
    """{hash: text} of the readable replies of a file that have one of these hashes (`Reply.hash`). Changes nothing."""
    texts: dict[str, str] = {}
    file = _Database(path, "move it away")
    with closing(file.open()) as db, file.errors():
        for key, text in db.execute("SELECT key, reply FROM replies"):
            with suppress(*_DAMAGED):
                reply = _reply(key, text)
                if reply.hash in hashes:
                    texts[reply.hash] = reply.text
    return texts


def mend_replies(path: Path) -> None:
    """Take damaged replies out of a reply file, if there is one. Raises as ReplyFile."""
    if path.is_file():
        with closing(ReplyFile(path)) as file:
            file.mend()


def keep_replies(path: Path, keys: Collection[str]) -> None:
    """Rewrite a reply file with the replies of these keys alone, and remove it, and all copies of it, if there are
    none. No other process may use it."""
    new = path.with_name(f"{path.name}.kept")
    new.unlink(missing_ok=True)
    if path.is_file() and keys:
        with closing(_Database(path).open()) as old:
            rows = sorted(_rows_of_keys(old, list(keys)))
        with closing(_Database(new).open()) as kept, kept:
            kept.executemany("INSERT INTO replies VALUES (?, ?)", rows)
        os.replace(new, path)
    for other in path.parent.glob(f"{glob.escape(path.name)}*"):
        if other != path or not keys:
            other.unlink()


_AT_ONCE = 8192  # rows in memory


def add_replies(path: Path, others: Sequence[Path]) -> None:
    """Add the sound replies of other files to a reply file. Of two replies to one request, the
    smaller record stays, so that the order of the files does not matter. Raises as ReplyFile."""
    with closing(ReplyFile(path)) as file:
        for other in others:
            source = _Database(other, "run gpu-rag index on it again")
            with closing(source.open()) as db, source.errors():
                damaged = set(_damaged_rows(db))
                cursor = db.execute("SELECT key, reply FROM replies")
                while rows := cursor.fetchmany(_AT_ONCE):
                    file.join([row for row in rows if row[0] not in damaged])
            if damaged:
                _log.warning("gpu-rag: %d kept replies are damaged and are asked again: %s", len(damaged), other)


_PAGE = 4096  # page size of every reply file
_MAGIC, _FRACTIONS = b"SQLite format 3\0\x10\0", b"\0\x40\x20\x20"  # in each header; format and encoding follow


def _has_odd_head(path: Path) -> bool:
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        head = file.read(60)
    sound = head.startswith(_MAGIC) and head.startswith(_FRACTIONS, 20) and max(head[18:20]) <= 2
    return not sound or int.from_bytes(head[44:48], "big") > 4 or int.from_bytes(head[56:60], "big") > 1


def _copy(path: Path, copy: Path, first_page: bytes) -> None:
    """Copy a reply file, optionally with another first page (header and place of the table, equal in all files)."""
    shutil.copyfile(path, copy)
    if first_page:
        n_pages = copy.stat().st_size // _PAGE
        with copy.open("r+b") as file:
            file.write(first_page[:28] + n_pages.to_bytes(4, "big") + first_page[32:])


def _readable(path: Path, order: str) -> Iterator[tuple[Any, Any]]:
    with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(path)) as db:
        db.text_factory = _text
        for key, text in db.execute(f"SELECT key, reply FROM replies ORDER BY key {order}"):
            with suppress(*_DAMAGED):
                _reply(key, text)
                yield key, text


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")  # the checksum finds bytes that are not text


def _rows_of_keys(db: sqlite3.Connection, keys: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(key, reply) of the rows with these keys, in no order."""
    for start in range(0, len(keys), KEYS_A_QUERY):
        part = keys[start : start + KEYS_A_QUERY]
        yield from db.execute(f"SELECT key, reply FROM replies WHERE key IN ({','.join('?' * len(part))})", part)


@dataclass(frozen=True)
class _Database:
    """A reply file as an SQLite database. remedy: advice for a damaged one."""

    path: Path
    remedy: str = ""

    def open(self) -> sqlite3.Connection:
        """Open or create the file, for any thread that holds the owner's lock. Raises IndexCorrupt (not such a file),
        IndexMismatch (newer), StorageError."""
        if _has_odd_head(self.path) and not self.path.with_name(f"{self.path.name}-journal").exists():
            raise IndexCorrupt("not a reply cache, or a damaged one", given=self.path, do=self.remedy)
        with self.errors():
            db = sqlite3.connect(self.path, timeout=BUSY_S, check_same_thread=False)
            db.text_factory = _text
            try:
                _prepare(db, self.path)
            except BaseException:
                db.close()
                raise
            return db

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn SQLite's errors into StorageError (the disk, or another process) and IndexCorrupt (the file)."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StorageError("the reply cache cannot be used", given=f"{self.path}: {error}") from error
        except sqlite3.DatabaseError as error:
            given = f"{self.path}: {error}"
            raise IndexCorrupt("not a reply cache, or a damaged one", given=given, do=self.remedy) from error


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    """Set the options of a connection, and make the table of a new file. Raises IndexMismatch for a newer file."""
    db.execute("PRAGMA trusted_schema = OFF")  # the file may come from another user
    db.execute("PRAGMA cell_size_check = ON")  # a damaged page is found before use
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > FORMAT:
        raise IndexMismatch("a newer reply cache", given=f"{path}: format {version}", expected=f"<= {FORMAT}")
    db.execute("PRAGMA synchronous = FULL")
    if version < FORMAT:
        with db:
            db.execute("CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, reply TEXT) WITHOUT ROWID")
            db.execute(f"PRAGMA user_version = {FORMAT}")


COMMIT_EVERY = 32
COMMIT_S = 0.01
JOIN_S = 5.0


class CachedLLM:
    """An engine with a cache: `complete` and `submit` compute only replies that `path` does not have yet.

    Keys are `reply_key`: another model, or another attempt, is another key. The key of an unreadable reply also has the
    style of the server, so that another server at the same address is asked; with `retry_unread`, an unreadable reply
    is asked again once per run. Equal requests within a batch, or open at the same time, are computed once. A reply
    from the file has from_cache=True, and so has the second and later reply of equal requests. Failures are not kept. A
    reply is committed within 10 ms, with the replies that came meanwhile (in `complete`, at most 32), even while the
    engine is busy. If nobody calls `poll`, a thread commits. `poll` returns committed replies only.
    """

    def __init__(self, llm: LLM, path: Path, retry_unread: bool = False):
        """Open or create `path`. Raises IndexCorrupt (not such a file), IndexMismatch (newer), StorageError."""
        self.llm, self.path = llm, Path(path)
        self._retry_unread, self._tried = retry_unread, set[str]()  # keys asked in this run
        self.name, self.content_hash = llm.name, llm.content_hash
        self.context_tokens, self.capable = llm.context_tokens, llm.capable
        self.file = ReplyFile(self.path)
        self._stream: StreamingLLM | None = None
        self._ready: dict[int, Reply | RequestFailed] = {}  # for the next `poll`
        self._waits: dict[int, _Sent] = {}  # by the caller's key, until `poll` returns it
        self._sent: dict[str, _Sent] = {}  # by reply key: equal requests join these
        self._n_sent = 0
        self._turn = threading.Lock()  # guards the engine's streaming interface and the fields below
        self._running: dict[int, _Sent] = {}  # by the engine's number
        self._arrived: list[tuple[_Sent, Reply | RequestFailed]] = []  # finished, not yet in the file
        self._kept: list[tuple[_Sent, Reply | RequestFailed]] = []  # for the next `poll`
        self._busy, self._closed = threading.Event(), False
        self._keeper: threading.Thread | None = None

    def count_tokens(self, text: str) -> int:
        """Tokens of `text`, by the engine's count."""
        return self.llm.count_tokens(text)

    def complete(self, requests: Sequence[Request], on_reply: OnReply | None = None) -> list[Reply | RequestFailed]:
        """One reply per request, in order; from the file where it has them."""
        places: dict[str, list[int]] = {}  # of equal requests, by reply key
        for i, request in enumerate(requests):
            places.setdefault(reply_key(self.llm, request), []).append(i)
        asked = {key: requests[equal[0]] for key, equal in places.items()}
        replies: dict[int, Reply | RequestFailed] = {}

        def give(key: str, reply: Reply | RequestFailed) -> None:
            for i in places[key]:
                replies[i] = reply
                if on_reply is not None:
                    on_reply(i, reply)
                reply = _again(reply)

        known = self._known(asked)
        for key in asked:
            if key in known:
                give(key, known[key])
        self._ask({key: request for key, request in asked.items() if key not in known}, give)
        return [replies[i] for i in range(len(requests))]

    # --- the streaming face ---

    @property
    def n_open(self) -> int:
        """Number of keys that were submitted and not yet returned by `poll`."""
        return len(self._waits) + len(self._ready)

    def submit(self, key: int, request: Request) -> None:
        """Hand over a request; a kept reply is returned by the next `poll`. Raises UsageError for an open key."""
        check_key(key, self._waits, self._ready)
        name = reply_key(self.llm, request)
        known = self._known({name: request})
        if known:
            self._ready[key] = known[name]
            return
        sent = self._sent.get(name)
        if sent is None:
            self._n_sent += 1
            sent = _Sent(name, self._n_sent, [], request)
            with self._turn:
                self._streaming().submit(sent.number, request)
                self._sent[name] = self._running[sent.number] = sent
            self._busy.set()
        sent.keys.append(key)
        self._waits[key] = sent

    def poll(self, timeout_s: float) -> list[tuple[int, Reply | RequestFailed]]:
        """Finished requests; see `StreamingLLM.poll`. Replies are in the file before they are returned."""
        finished, self._ready = list(self._ready.items()), {}
        with self._turn:
            try:
                self._collect(0.0 if finished or self._kept else timeout_s)
            except GpuRagError:
                if not finished and not self._kept:
                    raise  # otherwise the next poll raises it again
            done, self._kept = self._kept, []
        for sent, reply in done:
            if self._sent.get(sent.name) is sent:
                del self._sent[sent.name]
            for i, key in enumerate(sent.keys):
                finished.append((key, _again(reply) if i else reply))
                del self._waits[key]
        return finished

    def abort(self, key: int) -> None:
        """Give up a request. The engine is told if no equal request waits for the same reply."""
        sent = self._waits.get(key)
        if sent is None:
            return
        if len(sent.keys) > 1:
            sent.keys.remove(key)
            del self._waits[key]
            self._ready[key] = aborted()
            return
        if self._sent.get(sent.name) is sent:  # equal requests from now on are computed again
            del self._sent[sent.name]
        with self._turn:
            self._streaming().abort(sent.number)

    def close(self) -> None:
        """Close the file and the engine."""
        with self._turn:
            self._closed = True
            self._busy.set()
        if self._keeper is not None:
            self._keeper.join(JOIN_S)
        self.file.close()
        (self._stream or self.llm).close()

    def __len__(self) -> int:
        """Number of replies in the file."""
        return len(self.file)

    def _known(self, requests: Mapping[str, Request]) -> dict[str, Reply]:
        replies = self.file.read(list(requests))
        lost = {key for key, reply in replies.items() if self._is_lost(key, reply, requests[key])}
        replies = {key: reply for key, reply in replies.items() if key not in lost}
        unread = {self._unread_name(key): key for key in requests if key not in replies}
        if not self._retry_unread or not self._tried.isdisjoint(unread.values()):
            for name, reply in self.file.read(list(unread)).items():
                if name != unread[name] and not self._is_lost(unread[name], reply, requests[unread[name]]):
                    replies[unread[name]] = reply
        if self._retry_unread:
            lost |= {self._unread_name(key) for key in requests if key not in replies}
        self.file.replace(lost)
        return replies

    def _is_lost(self, key: str, reply: Reply, request: Request) -> bool:
        """Whether a kept reply does not count: malformed by an earlier version, or unreadable and due for a retry."""
        if reply.finish_reason == "malformed":
            return True
        return self._retry_unread and key not in self._tried and _is_unread(reply, request)

    def _kept_as(self, key: str, request: Request, reply: Reply) -> str:
        """Key under which the file keeps a new reply."""
        if self._retry_unread:
            self._tried.add(key)
        return self._unread_name(key) if _is_unread(reply, request) else key

    def _unread_name(self, key: str) -> str:
        style = getattr(self.llm, "style", None)
        return key if style is None else text_hash("unread", key, repr(style))

    def _streaming(self) -> StreamingLLM:
        if self._stream is None:
            self._stream = as_streaming(self.llm)
            self._start_keeper()
        return self._stream

    def _start_keeper(self) -> None:
        if self._keeper is None:
            self._keeper = threading.Thread(target=self._keep, name="replies", daemon=True)
            self._keeper.start()

    def _collect(self, timeout_s: float) -> None:
        """Take the engine's finished replies, waiting up to timeout_s for the first, and commit them."""
        if self._running and not self._arrived:
            finished = self._streaming().poll(timeout_s)
            self._arrived = [(self._running.pop(number), reply) for number, reply in finished]
        self._commit()

    def _commit(self) -> None:
        """Write what has arrived to the file, and keep it for `poll` if that waits for it."""
        replies = [(sent, reply) for sent, reply in self._arrived if isinstance(reply, Reply)]
        self.file.write([(self._kept_as(sent.name, sent.request, reply), reply) for sent, reply in replies])
        self._kept += [(sent, reply) for sent, reply in self._arrived if sent.keys]
        self._arrived = []

    def _keep(self) -> None:
        """Commit replies that arrive while nobody polls. An error is raised again by the next `poll`."""
        while self._busy.wait() and not self._closed:
            time.sleep(COMMIT_S)
            if self._turn.acquire(blocking=False):
                with suppress(GpuRagError):
                    self._collect(0.0)
                if not (self._running or self._arrived or self._closed):
                    self._busy.clear()
                self._turn.release()

    def _ask(self, requests: dict[str, Request], give: Callable[[str, Reply | RequestFailed], None]) -> None:
        """Let the engine complete requests, by reply key, and keep and `give` each reply."""
        sent = [_Sent(key, 0, [], request) for key, request in requests.items()]

        def keep(i: int, reply: Reply | RequestFailed) -> None:
            with self._turn:
                self._arrived.append((sent[i], reply))
                if len(self._arrived) >= COMMIT_EVERY:
                    self._commit()
            self._busy.set()
            give(sent[i].name, reply)

        if not sent:
            return
        self._start_keeper()
        try:
            complete_each(self.llm, list(requests.values()), keep)
        finally:  # replies that came before the engine failed
            with self._turn:
                self._commit()


def _is_unread(reply: Reply, request: Request) -> bool:
    return isinstance(read_reply(reply, request.constraint), Malformed)


@dataclass(eq=False)
class _Sent:
    """A request at the engine. name: its reply key; number: the engine's key; keys: the keys of `submit` that wait."""

    name: str
    number: int
    keys: list[int]
    request: Request


def _again(reply: Reply | RequestFailed) -> Reply | RequestFailed:
    """The same reply for a second equal request."""
    return replace(reply, from_cache=True) if isinstance(reply, Reply) else reply
