"""Keys of clients, with the rights and limits of each."""

from __future__ import annotations

import hashlib
import hmac
import math
import time
import tomllib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from gpu_rag.errors import BadInput
from gpu_rag.serve.refusal import Refusal
from gpu_rag.settings.check import Declared, checked
from gpu_rag.settings.ranges import NATURAL

RIGHTS = ("read", "answer", "metrics", "change")
USUAL = RIGHTS[:3]  # of a key whose rights are not given
MINUTE_S = 60.0


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


class Client:
    """The owner of a key. name: for audit lines; n_open: its open requests."""

    def __init__(self, name: str, settings: KeySettings):
        self.name, self.n_open, self._settings = name, 0, settings
        self._begun: deque[float] = deque()  # requests of the last minute

    def begin(self, method: str, path: str) -> None:
        """Count a new request, until `end`. Raises Refusal: 403 without the needed right, 429 beyond a limit."""
        rights, limits = rights_for(method, path), self._settings
        if not rights & set(limits.rights):
            expected = f"one with the right {' or '.join(sorted(rights))}"
            raise Refusal(403, "this key may not do that", kind="Forbidden", given=self.name, expected=expected)
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


def rights_for(method: str, path: str) -> set[str]:
    """The rights that allow a request; one of them is enough."""
    if path == "/metrics":
        return {"metrics"}
    if path.startswith("/v1/changes") or (path.startswith("/v1/documents") and method != "GET"):
        return {"change"}
    if method == "POST":
        return {"read" if path == "/v1/retrieve" else "answer"}
    return {"read", "answer"} if path.startswith(("/v1/models", "/v1/methods")) else {"read"}


class Keys:
    """The accepted keys. clients: by key."""

    def __init__(self, clients: Mapping[str, Client]):
        self._clients = [(_digest(key), client) for key, client in clients.items()]

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


def read_keys(file: Path, environment: Mapping[str, str]) -> Keys:
    """The keys of a file. FILE.toml has a section per client, see `KeySettings`; any other file holds one key with all
    rights. Raises BadInput, UsageError."""
    try:
        text = file.read_text(encoding="utf-8")
        sections = tomllib.loads(text) if file.suffix == ".toml" else {"key": {"key": text.strip()}}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadInput("the API key cannot be read", given=f"{file}: {error}") from error
    clients: dict[str, Client] = {}
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise BadInput("not a section of a key", given=f"{name} in {file}", expected=f"[{name}] and lines below it")
        settings = checked(KeySettings, section, f"keys.{name}")
        if not settings.rights or set(settings.rights) - set(RIGHTS):
            given = f"{', '.join(settings.rights) or 'none'} of {name} in {file}"
            raise BadInput("no such rights", given=given, expected=", ".join(RIGHTS))
        if bool(settings.key) == bool(settings.variable):
            raise BadInput("a key, or the variable that has it", given=f"both or none for {name} in {file}")
        key = settings.key or environment.get(settings.variable, "").strip()
        if not key.isascii() or not key.isprintable() or not 8 <= len(key) <= 1000 or " " in key:
            source = f"{file}, {len(key)} characters" if settings.key else f"{settings.variable}, for {name} in {file}"
            raise BadInput("not an API key", given=source, expected="8 to 1000 ASCII letters")
        if key in clients:
            raise BadInput("two clients have one key", given=f"{clients[key].name} and {name} in {file}")
        clients[key] = Client(name, settings)
    if not clients:
        raise BadInput("no keys", given=file, expected='[alice] and key = "...", or variable = "NAME"')
    return Keys(clients)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
