"""Keys of clients, with the rights and limits of each."""

from __future__ import annotations

import hashlib
import hmac
import math
import time
import tomllib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from gpu_rag.errors import BadInput, GpuRagError
from gpu_rag.serve.refusal import Refusal
from gpu_rag.settings.check import Declared, checked
from gpu_rag.settings.ranges import NATURAL

FORBIDDEN = "Forbidden"  # the kind of an error for a key that may not do something
RIGHTS = ("read", "answer", "metrics", "change")
USUAL = RIGHTS[:3]  # the rights of a key that names none
MINUTE_S = 60.0


@dataclass(frozen=True)
class Access:
    """The keys that may use a route. rights: one of them is enough; if empty, no key is needed. filtered: whether keys
    with a filter may use it, because it shows nothing of the documents that the filter excludes."""

    rights: tuple[str, ...] = ()
    filtered: bool = False


@dataclass(frozen=True)
class KeySettings(Declared):
    """A key in a file of keys: the key itself, or the environment variable that holds it."""

    key: Annotated[str, "8 to 1000 ASCII letters"] = ""
    variable: Annotated[str, "the environment variable that has it"] = ""
    rights: Annotated[
        tuple[str, ...], "read: passages, retrieval; answer: the language model; metrics; change: add, remove documents"
    ] = USUAL
    in_flight: Annotated[int, NATURAL, "requests open at once; 0: no limit"] = 0
    per_minute: Annotated[int, NATURAL, "requests of the last minute; 0: no limit"] = 0
    indexes: Annotated[tuple[str, ...], "names of indexes; none: all"] = ()
    where: Annotated[str, "a filter: no route shows this client anything of other documents"] = ""


class Client:
    """The owner of a key. name: for audit lines; n_open: its open requests."""

    def __init__(self, name: str, settings: KeySettings):
        self.name, self.n_open, self.settings = name, 0, settings
        self._begun: deque[float] = deque()  # requests of the last minute

    def may_use(self, index: str) -> bool:
        """Whether the client may use an index."""
        return not self.settings.indexes or index in self.settings.indexes

    def check(self, access: Access, index: str) -> None:
        """Raise Refusal (403) if the client may not use a route of an index, or of the server where `index` is ""."""
        if not set(access.rights) & set(self.settings.rights):
            expected = f"one with the right {' or '.join(sorted(access.rights))}"
        elif self.settings.where and not access.filtered:
            expected = "one without a filter of documents"
        elif index and not self.may_use(index):
            expected = "a key for this index; GET /v1/indexes lists the indexes of a key"
        else:
            return
        raise Refusal(403, "this key may not do that", kind=FORBIDDEN, given=self.name, expected=expected)

    def begin(self) -> None:
        """Count a new request, until `end`. Raises Refusal (429) beyond a limit."""
        limits = self.settings
        if limits.in_flight and self.n_open >= limits.in_flight:
            raise _too_many("open", limits.in_flight, 1.0)
        if limits.per_minute:
            now = time.monotonic()
            while self._begun and self._begun[0] <= now - MINUTE_S:
                self._begun.popleft()
            if len(self._begun) >= limits.per_minute:
                raise _too_many("in a minute", limits.per_minute, self._begun[0] + MINUTE_S - now)
            self._begun.append(now)
        self.n_open += 1

    def end(self) -> None:
        """Count the end of a request."""
        self.n_open -= 1


def _too_many(of_what: str, limit: int, wait_s: float) -> Refusal:
    later = {"Retry-After": str(max(1, math.ceil(wait_s)))}
    return Refusal(429, f"too many requests of this key {of_what}", expected=f"at most {limit}", headers=later)


class Keys:
    """The accepted keys. clients: by key. is_current: False if the last reading of their file failed."""

    def __init__(self, clients: Mapping[str, Client]):
        self._clients = [(_digest(key), client) for key, client in clients.items()]
        self.is_current = True

    def adopt(self, others: Keys) -> None:
        """Accept other keys instead. A client whose name is known keeps its requests so far."""
        known = {client.name: client for _, client in self._clients}
        for _, client in others._clients:
            if client.name in known:
                known[client.name].settings = client.settings
        self._clients = [(digest, known.get(client.name, client)) for digest, client in others._clients]

    def client(self, authorization: str) -> Client:
        """The client behind an Authorization header. Raises Refusal (401)."""
        scheme, _, given = authorization.partition(" ")
        digest, owner = _digest(given.strip()), None
        for known, client in self._clients:  # compare with all of them, so that the time reveals nothing
            if hmac.compare_digest(digest, known):
                owner = client
        if owner is None or scheme.lower() != "bearer":
            raise Refusal(
                401, "the API key is missing or wrong", kind="Unauthorized", expected="Authorization: Bearer KEY",
                headers={"WWW-Authenticate": "Bearer"},
            )  # fmt: skip
        return owner


class KeyFile(Keys):
    """The keys of a file, which is read again after changes. If it cannot be read then, the old keys stay.

    environment, check: as for `read_keys`. say(line): called for each reading but the first. Raises as `read_keys`.
    """

    def __init__(
        self, file: Path, environment: Mapping[str, str], check: Callable[[Client], None], say: Callable[[str], None]
    ):
        super().__init__({})
        self._read, self._file, self._say = partial(read_keys, file, environment, check), file, say
        self._seen = file_status(file)
        self.adopt(self._read())

    def look(self) -> None:
        """Read the file again if it has changed."""
        if file_status(self._file) != self._seen:
            self.reload()

    def reload(self) -> None:
        """Read the file again."""
        self._seen = file_status(self._file)
        try:
            self.adopt(self._read())
            self.is_current = True
            self._say("the keys were read again")
        except (GpuRagError, OSError) as error:
            self.is_current = False
            self._say(f"the old keys stay: {error}")


def file_status(file: Path) -> tuple[int, ...]:
    """Numbers that change with a file; () if there is none."""
    try:
        status = file.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size


def read_keys(file: Path, environment: Mapping[str, str], check: Callable[[Client], None] | None = None) -> Keys:
    """The keys of a file. FILE.toml has a section per client, see `KeySettings`; any other file holds one key with the
    usual rights. environment: has keys that a section names by variable. check(client): raises BadInput for a client
    whose indexes or filter do not fit. Raises BadInput, UsageError."""
    try:
        text = file.read_text(encoding="utf-8")
        sections = tomllib.loads(text) if file.suffix == ".toml" else {"key": {"key": text.strip()}}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadInput("the API key cannot be read", given=f"{file}: {error}") from error
    clients: dict[str, Client] = {}
    for name, section in sections.items():
        settings = _settings_of(name, section, file)
        key = settings.key or environment.get(settings.variable, "").strip()
        if not key.isascii() or not key.isprintable() or not 8 <= len(key) <= 1000 or " " in key:
            source = f"{file}, {len(key)} characters" if settings.key else f"{settings.variable}, for {name} in {file}"
            raise BadInput("not an API key", given=source, expected="8 to 1000 ASCII letters")
        if key in clients:
            raise BadInput("two clients have one key", given=f"{clients[key].name} and {name} in {file}")
        clients[key] = Client(name, settings)
        if check is not None:
            check(clients[key])
    if not clients:
        raise BadInput("no keys", given=file, expected='[alice] and key = "...", or variable = "NAME"')
    return Keys(clients)


def _settings_of(name: str, section: Any, file: Path) -> KeySettings:
    """The settings of a client from its section of a file. Raises BadInput, UsageError."""
    if not isinstance(section, dict):
        raise BadInput("not a section of a key", given=f"{name} in {file}", expected=f"[{name}] and lines below it")
    settings = checked(KeySettings, section, f"keys.{name}")
    if not settings.rights or set(settings.rights) - set(RIGHTS):
        given = f"{', '.join(settings.rights) or 'none'} of {name} in {file}"
        raise BadInput("no such rights", given=given, expected=", ".join(RIGHTS))
    if empty := [option for option in ("indexes", "where") if option in section and not section[option]]:
        do = "leave it out for all of them"
        raise BadInput("an empty limit of a key", given=f"{empty[0]} of {name} in {file}", do=do)
    if settings.where and "change" in settings.rights:
        given = f"where and the right change of {name} in {file}"
        raise BadInput("a client that sees some documents may change none", given=given)
    if bool(settings.key) == bool(settings.variable):
        raise BadInput("a key, or the variable that has it", given=f"both or none for {name} in {file}")
    return settings


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
