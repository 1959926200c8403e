"""Durable writing: atomic files, a write lock, checksums, and disk errors that say what to do.

Each file of a stage has two checksums: sha256, which is in the digest, and XXH3 of each block, which is compared when a
command reads the stage. XXH3 takes 1 % of the time to open an index, sha256 5 %.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
import xxhash

from gpu_rag.errors import BadInput, GpuRagError, IndexCorrupt, IndexLocked, StorageError
from gpu_rag.models.fingerprint import file_sha256

T = TypeVar("T")
_FREE = "free space or choose another --out"
_REFUSALS = {
    errno.ENOSPC: ("the disk is full", _FREE),
    errno.EDQUOT: ("the disk quota is used up", _FREE),
    errno.EFBIG: ("a file may not grow this large here", "raise the limit (ulimit -f), or choose another --out"),
    errno.EROFS: ("the file system is read-only", _FREE),
    errno.EACCES: ("no permission to write here", _FREE),
    errno.EPERM: ("no permission to write here", _FREE),
}


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn refusals of the disk (full, read-only, no permission) into StorageError naming `path`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        what, do = _REFUSALS[error.errno]
        do = f"{do}, then run the same command again: it resumes"
        raise StorageError(what, given=str(error.filename or path), do=do) from error


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def sha256_text(text: str) -> str:
    """Hex sha256 of a text as UTF-8."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


CARRIED = "carried.z"  # in the folder of a stage: what its next run may take over; not in the digest


def stage_files(folder: Path) -> list[Path]:
    """Every file below the folder of a stage, but for CARRIED in any format, sorted."""
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.stem != "carried")


def checksums(folder: Path) -> dict[str, dict[str, Any]]:
    """{relative name: {"sha256", "bytes"}} of each of the `stage_files`."""
    files = stage_files(folder)
    return {p.relative_to(folder).as_posix(): {"sha256": file_sha256(p), "bytes": p.stat().st_size} for p in files}


BLOCK = 1 << 19  # bytes of a file per XXH3 checksum: fits in the processor's cache
_BLOCKS = 64  # blocks that one thread reads in sequence
_SMALL = 1 << 28  # bytes below which threads cost more than they save


def block_sums(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """{name: XXH3 of each block of BLOCK bytes, 16 hexadecimal digits each} of files in `folder`.

    O(bytes), by a few threads. Memory: one block per thread.
    """
    sizes = {name: (folder / name).stat().st_size for name in names}
    parts = [(name, offset) for name, size in sizes.items() for offset in range(0, size, BLOCK * _BLOCKS)]
    sums = dict.fromkeys(sizes, "")
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as threads:
        run = map if sum(sizes.values()) < _SMALL else threads.map  # unused threads are not started
        for (name, _), digits in zip(parts, run(lambda part: _sums_from(folder / part[0], part[1]), parts)):
            sums[name] += digits
    return sums


def _sums_from(path: Path, start: int) -> str:
    """Checksums of up to _BLOCKS blocks, computed block by block."""
    digits: list[str] = []
    with path.open("rb", buffering=0) as file:
        buffer = memoryview(bytearray(min(BLOCK, os.fstat(file.fileno()).st_size)))
        file.seek(start)
        while len(digits) < _BLOCKS and (n := file.readinto(buffer)):
            digits.append(xxhash.xxh3_64_hexdigest(buffer[:n]))
    return "".join(digits)


_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_NO_SYNC = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def sync(*paths: Path) -> None:
    """Make files, and renames inside folders, durable. Some network file systems cannot do it for folders."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in _NO_SYNC or not path.is_dir():
                raise
        finally:
            os.close(handle)


def locked(file: Path, path: Path, what: str) -> IO[str]:
    """An open file with the number of this process, locked against all other processes until it is closed.

    path, what: what the lock is for, and its name in messages. The operating system holds the lock, so a killed process
    never leaves it behind; a forked child shares it until both end. Raises IndexLocked, StorageError.
    """
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(file.open("a+", encoding="utf-8", errors="replace"))
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            opened.seek(0)
            given = f"{path} (process {opened.read().strip() or 'unknown'})"
            do = "wait for it to end, or choose another --out"
            raise IndexLocked(f"another process is writing {what}", given=given, do=do) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            raise StorageError(
                "the file system has no locks, so a second writer could not be kept out",
                given=f"{path}: {error.strerror}",
                do="write to a local disk, then copy the result; for NFS start its lock service",
            ) from error
        opened.truncate(0)
        opened.write(str(os.getpid()))
        opened.flush()
        stack.pop_all()
    return opened


EDITS = "edits"  # a folder of manual changes, one file for each method that allows them; --fresh keeps it
TUNED = "tuned.json"  # results of `gpu-rag tune`; not a stage, so not in the digest
SOURCES, SOURCES_COPY = "sources.json", "sources.copy.json"  # paths of the sources, and hashes of removed names
RECEIPTS = "receipts"  # a folder of receipts of removals
_OWN = (
    "manifest.json", "manifest.copy.json", "lock", "stages", "work", "run.json", "rejects.jsonl", "plan.json",
    EDITS, TUNED, SOURCES, SOURCES_COPY, RECEIPTS,
)  # fmt: skip
_REPLIES = "replies.sqlite"


def is_own(name: str) -> bool:
    """Whether a build gives this name to a file or folder of an index."""
    return name in _OWN or name.startswith(_REPLIES)


def refuse_links(folder: Path) -> None:
    """Raise IndexCorrupt if a path of the index in `folder` is a link, a pipe or a device.

    A build makes only files and folders. The target of a link does not belong to the index: an index of another user
    could make this program read, write or delete another file.
    """
    todo = [entry for entry in os.scandir(folder) if is_own(entry.name)] if folder.is_dir() else []
    while todo:
        entry = todo.pop()
        if entry.is_dir(follow_symlinks=False):
            with contextlib.suppress(FileNotFoundError):  # a build has just renamed or removed it
                todo += os.scandir(entry.path)
        elif not entry.is_file(follow_symlinks=False):
            what, expected = "the index holds what no build writes", "files and folders, no links"
            raise IndexCorrupt(what, given=entry.path, expected=expected, do="remove it, then run gpu-rag verify")


def write_atomic(path: Path, data: bytes) -> None:
    """Write to a temporary file and rename it: readers see the old bytes or the new ones, never a part."""
    with storage_errors(path), replacing(path) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A new file beside `path` that durably replaces it at the end of the block. An error removes it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    beside.unlink(missing_ok=True)
    try:
        with beside.open("xb") as file:  # never follows a link of this name
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync(path.parent)


def remove_leftovers(path: Path) -> None:
    """Remove temporary files that killed processes left beside `path`, and beside files whose names begin with its
    name. Only their one writer may call this."""
    for left in path.parent.glob(f".{glob.escape(path.name)}*.tmp"):
        left.unlink(missing_ok=True)


def sealed(document: Mapping[str, Any]) -> bytes:
    """A JSON document with its own checksum as the last key, `sha256`."""
    text = json.dumps(document, indent=1, allow_nan=False)
    return (json.dumps({**document, "sha256": sha256_text(text)}, indent=1) + "\n").encode()


def unsealed(path: Path, kind: type[T], do: str | None = None, refusal: type[GpuRagError] = IndexCorrupt) -> T:
    """The document that `sealed` made, as a value of `kind`. Raises `refusal`, with the advice `do`, for another or an
    altered file."""
    try:
        data = path.read_bytes()
        document = json.loads(data)
        value = msgspec.convert(document, kind)
        document.pop("sha256", None)
        if sealed(document) != data:
            raise ValueError("its checksum is another one")
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, msgspec.MsgspecError) as error:
        raise refusal("a file is damaged or altered", given=f"{path}: {error}", do=do) from error
    return value


def check_seal(path: Path, do: str) -> None:
    """Raise IndexCorrupt, with the advice `do`, if a document made by `sealed` is altered.

    A document without a checksum, from an earlier version, passes.
    """
    data = path.read_bytes()
    document = read_json(path)
    if isinstance(document, dict) and "sha256" in document:
        document.pop("sha256")
        if sealed(document) != data:
            raise IndexCorrupt("a file is altered, by its checksum", given=path, do=do)


def read_json(path: Path, do: str | None = None) -> Any:
    """JSON document in `path`. Raises BadInput, with the advice `do`, if it is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadInput("not a JSON file", given=f"{path}: {error}", expected="a JSON document", do=do) from error


_TRIES, _PAUSE_S = 100, 0.01


class Reading:
    """A mark that this process reads a folder of an index: a shared lock, held until the object or the process ends.

    While one of the folder `stages` exists, a build keeps replaced stages; the next build without readers removes them.
    One of a stage lets a removal wait until nobody reads the old texts. If the file system has no locks, nothing keeps
    the stages: a reader then reports that the index has changed.
    """

    def __init__(self, folder: Path):
        with contextlib.suppress(OSError):  # no folder, or no locks here
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            weakref.finalize(self, os.close, descriptor)  # unlike __del__, it runs before the interpreter ends
            for _ in range(_TRIES):  # a build looks for readers by an exclusive lock, for a moment
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(_PAUSE_S)


def has_readers(folder: Path) -> bool:
    """Whether a process reads the stages of the index in `folder`; see `Reading`."""
    return is_held(folder / "stages")


def is_held(folder: Path) -> bool:
    """Whether a process holds a folder, see `Reading`."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no locks here
        return False
    finally:
        os.close(descriptor)
    return False


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Hold the lock of the one writer of an index in `folder`, which is made. Raises IndexCorrupt if a path of the
    index is a link, and as `locked`."""
    refuse_links(folder)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = locked(folder / "lock", folder, "this index")
    with file:
        yield
