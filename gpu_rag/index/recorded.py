"""The sources of an index as its folder remembers them, in `sources.json` and a copy, which are not in the digest.

Its paths count only if a key of this user's machine signed them: an index of another user names no file to read. The
hashes of removed documents count in any index.
"""

from __future__ import annotations

import fcntl
import hmac
import logging
import os
import secrets
from contextlib import suppress
from pathlib import Path

import msgspec

from gpu_rag.errors import IndexCorrupt
from gpu_rag.index.folder import EDITS, SOURCES, SOURCES_COPY, canonical_json, sealed, unsealed, write_atomic
from gpu_rag.index.work import NamedSource, Sources
from gpu_rag.models.packaged import cache_dir

_KEY_BYTES = 32
_DO = "remove it and its copy, name the sources: gpu-rag update DIR SOURCE..., and remove again what was removed"
_log = logging.getLogger(__name__)


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `sources.json`: absolute paths, (name, kind, path) of named sources, `Sources.removed`.

    signature: signature of the paths; "" where the key could not be stored.
    """

    corpus: tuple[str, ...] = ()
    openie: tuple[str, ...] = ()
    named: tuple[tuple[str, str, str], ...] = ()
    removed: tuple[str, ...] = ()
    signature: str = ""
    sha256: str = ""

    def signed(self) -> str:
        """The signature of the paths by this machine's key; "" if the key cannot be stored."""
        key = _key()
        paths = canonical_json([self.corpus, self.openie, self.named])
        return hmac.new(key, paths.encode("utf-8", "surrogatepass"), "sha256").hexdigest() if key else ""


def record_of(sources: Sources) -> Record:
    """The record of these sources, not signed."""
    return Record(
        tuple(str(path.absolute()) for path in sources.corpus),
        tuple(str(path.absolute()) for path in sources.openie),
        tuple((source.name, source.kind, str(source.path.absolute())) for source in sources.named),
        tuple(sorted(sources.removed)),
    )


def recorded_sources(record: Record, edits: Path | None) -> Sources:
    """The sources of a record that may be trusted."""
    named = tuple(NamedSource(name, kind, Path(path)) for name, kind, path in record.named)
    corpus, openie = (tuple(map(Path, paths)) for paths in (record.corpus, record.openie))
    return Sources(corpus, openie, False, edits, named, frozenset(record.removed))


def write_sources(out: Path, sources: Sources) -> None:
    """Remember the sources of an index. A record with held sources is not signed, because their paths come from another
    machine. Raises StorageError."""
    record = record_of(sources)
    document = msgspec.to_builtins(msgspec.structs.replace(record, signature="" if sources.held else record.signed()))
    del document["sha256"]
    for name in (SOURCES, SOURCES_COPY):
        write_atomic(out / name, sealed(document))


def read_record(out: Path) -> Record:
    """The remembered sources of an index, if need be from the copy; an empty record if it has none.

    Raises IndexCorrupt if both files are damaged.
    """
    damaged: IndexCorrupt | None = None
    for path in (out / SOURCES, out / SOURCES_COPY):
        try:
            if path.is_file():
                return unsealed(path, Record, _DO)
        except IndexCorrupt as error:
            _log.warning("gpu-rag: %s", error)
            damaged = error
    if damaged is not None:
        raise damaged
    return Record()


def removed_from(out: Path) -> frozenset[str]:
    """Hashes of removed documents and files that stay out of an index, see `Sources.removed`."""
    return frozenset(read_record(out).removed)


def remembered(out: Path) -> Sources | None:
    """The sources of an index; None if this user's machine did not record them. Raises IndexCorrupt."""
    record = read_record(out)
    signature = record.signed()
    if not signature or not hmac.compare_digest(signature, record.signature):
        return None
    return recorded_sources(record, out / EDITS)


def _key() -> bytes:
    """The key of this user's machine, made on first use; b"" if it cannot be stored."""
    path = cache_dir() / "sources.key"
    try:
        key = path.read_bytes() if path.is_file() else b""
        if len(key) != _KEY_BYTES:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
                with suppress(OSError):  # some file systems have no locks
                    fcntl.flock(file, fcntl.LOCK_EX)  # if processes start together, the first makes the key
                key = file.read()
                if len(key) != _KEY_BYTES:
                    key = secrets.token_bytes(_KEY_BYTES)
                    file.truncate(0)
                    file.seek(0)
                    file.write(key)
    except OSError:
        return b""
    return key
