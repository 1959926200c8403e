"""Reader of a corpus in any accepted format. Every row becomes a Document or a Reject."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from gpu_rag.errors import BadInput, MissingBackend, UsageError
from gpu_rag.sources.columns import (
    NUMBER,
    Columns,
    applicable,
    composed,
    is_composable,
    renamed,
    row_title,
    title_column,
)
from gpu_rag.sources.corpus.folder import DOCUMENT_SUFFIXES, has_ending, is_hidden, list_files, read_file, unreadable
from gpu_rag.sources.corpus.mailbox import MAILBOX_SUFFIXES, each_mail
from gpu_rag.sources.corpus.multihop import contexts_of, is_multihop
from gpu_rag.sources.corpus.package import Package
from gpu_rag.sources.corpus.pages import brings_pages, pages_of
from gpu_rag.sources.corpus.parser import (
    PARSED_SUFFIXES,
    SHEET_SUFFIXES,
    Parser,
    is_parsed,
    missing_reader,
    require_reader,
    versions_for,
)
from gpu_rag.sources.corpus.wikipedia import DUMP_SUFFIXES, read_dump
from gpu_rag.sources.csv_rows import read_csv
from gpu_rag.sources.formats import (
    ARRAY_SUFFIXES,
    CSV_SUFFIXES,
    LINES_SUFFIXES,
    TABLE_SUFFIXES,
    TSV_SUFFIXES,
    has_suffix,
    reader_of,
    refuse_leading_out,
)
from gpu_rag.sources.json_rows import Row, joined_parts, message_of, read_rows
from gpu_rag.sources.parquet import DOCUMENTS, read_parquet
from gpu_rag.sources.rows import (
    LIMITS,
    MAX_TITLE_CHARS,
    REASON_CHARS,
    Limits,
    RowError,
    SeenIds,
    document_text,
    metadata_of,
    optional_string,
    passage_id,
    row_id,
    shown,
)
from gpu_rag.types import Document, Reject

ACCEPTED = (
    f"{', '.join(DOCUMENT_SUFFIXES)}, .csv, .tsv, .jsonl (each also .gz), .parquet, "
    "a dump of Wikipedia (.xml, .xml.bz2), .json / .json.gz of HotpotQA, 2Wiki, MuSiQue, CRAG or HippoRAG, "
    "a folder or .zip of such files, or a folder with corpus.jsonl and queries.jsonl (BEIR)"
)


_HEAD_ROWS = 100  # of a table, in which each column has a value


class Outcome(NamedTuple):
    """A document or reject. repeatable: other rows may repeat the document (contexts of questions) without being
    duplicates. other_id: the id that it gets if another file of its folder uses its id for another text. was_taken: it
    was rejected in an earlier reading because its id stood for another text; the reason is written again, because the
    place of that text may have changed."""

    row: Document | Reject
    repeatable: bool = False
    other_id: str = ""
    was_taken: bool = False


_Reader = Callable[[Limits, Parser], Iterator[Outcome]]
LeftOut = Callable[[str], bool]


def none_left_out(file: str) -> bool:
    """The `left_out` of a corpus without missing files."""
    return False


def read_corpus(
    paths: Sequence[Path],
    limits: Limits = LIMITS,
    left_out: LeftOut = none_left_out,
    held: Mapping[Path, Callable[[], Iterator[Outcome]]] | None = None,
) -> Iterator[Document | Reject]:
    """Documents of all `paths`, sorted by path, and a Reject for each row that cannot be used.

    left_out(file): whether a file, named as in its documents, counts as missing. held: {path: reader} of paths that
    are not opened; the reader gives their documents.

    Formats and ids:
    - folder: every file below it is read by its ending. A file of DOCUMENT_SUFFIXES is a document, id = relative path;
      files of rows are read as below, and a row whose id another file of the folder uses for another text gets the id
      "FILE:ID". Files of other types, and hidden files and folders, are Rejects. In a folder with corpus.jsonl or
      corpus.jsonl.gz, and questions beside it (BEIR), only that file is read. Files that need a library are parsed
      in a separate process, see `parser`; it ends with the iterator.
    - .mbox: each mail in it is a document, id = relative path + "/" + number + ".eml".
    - .zip: the files in it, as in a folder; their names begin with its own name. A zip file in it is a Reject.
    - rows {id or _id, title, text}: .jsonl, .jsonl.gz, .csv, .tsv (see `csv_rows`), .parquet, a JSON array (HippoRAG's
      corpus files). title may be missing; a missing id becomes "p_" + sha1(title + newline + text)[:12]; other keys are
      metadata. `limits.columns` names other columns for these; .xlsx, .xls and .ods are rows if their sheet has these.
      Without a column text, the text of a row of .csv, .tsv and .parquet is a line for each of its columns.
    - .xml, also .bz2 and .gz: a dump of Wikipedia, one document per article, see `wikipedia`.
    - HotpotQA, 2Wiki, MuSiQue (array or lines): the contexts of all questions, each passage once, ids as above; for
      CRAG and other questions with web pages, see `pages`: these pages, each with its address as metadata.
    Of rows with the same id the first is kept, across all paths; the others are Rejects that name its place. The
    order of paths, files and ids does not depend on the locale. `Document.text` is the source's text, unchanged (for
    parsed files, see the module of their kind).

    Rows and files above the limits are Rejects.
    Raises at once BadInput for a missing path or an unknown type, and MissingBackend for a file that needs the extra
    `documents` if that is not installed (in a folder it is a Reject, unless all files are such files); any fault inside
    a file is a Reject.
    Memory: one row (one file for .json and .zip), and about 150 bytes for each id seen.
    """
    if not paths:
        raise BadInput("there is no corpus to read", given="no path", expected=ACCEPTED)
    ready = held or {}

    def reader(path: Path) -> _Reader:
        return (lambda *_: ready[path]()) if path in ready else _reader(path, left_out)

    readers = [reader(path) for path in sorted_paths(map(Path, paths))]
    return _unique(readers, limits, left_out)


def sorted_paths(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Paths by their absolute form, so that the order does not depend on how they are written."""
    return tuple(sorted(paths, key=lambda path: os.fsencode(path.absolute())))


def reader_versions(paths: Sequence[Path], left_out: LeftOut = none_left_out) -> dict[str, str]:
    """{library: version or "absent"} for each library that parses files of this corpus: the documents depend on it."""
    names: list[str] = []
    for path in paths:
        if not path.is_dir():
            names.append(path.name)
        elif not _corpora(path):
            below = (os.fsdecode(name) for name in list_files(path))
            names += (name for name in below if not left_out(shown(path / name)))
    if any(name.lower().endswith(_ZIP_SUFFIXES) for name in names):
        names += PARSED_SUFFIXES  # its members are not known yet
    if any(name.lower().endswith(".ipynb") for name in names):
        names.append(".html")  # outputs in it
    return versions_for(names)


def unread(paths: Sequence[Path]) -> list[str]:
    """One line for each folder with files that become Rejects because of their type: numbers by ending, and
    reasons."""
    lines = []
    for folder in filter(is_read_by_file, paths):
        counts = _unread_endings(list_files(folder))
        numbers = (f"{n:,} {ending} ({why})" for ending, (n, why) in counts.items())
        lines += [f"not read in {shown(folder)}: {', '.join(numbers)}"] if counts else []
    return lines


def _unread_endings(names: list[bytes]) -> dict[str, tuple[int, str]]:
    """{ending: (number of these files, reason why none is read)}, by descending number."""
    read = (name for name in names if not is_hidden(name))
    counts = Counter(next((e for e in _ENDINGS if has_ending(name, (e,))), _suffix_of(name)) for name in read)
    reasons = {ending: missing_reader(ending) if ending in _ENDINGS else "no reader" for ending in counts}
    return {ending: (n, reasons[ending]) for ending, n in counts.most_common() if reasons[ending]}


def guessed(paths: Sequence[Path], limits: Limits) -> list[str]:
    """One line for each table, or file of rows, whose first row has no column `text`, or no title but other columns."""
    tables = ((file, next(_row_reader(file)(file, limits), None)) for file in _tables(paths))
    return [
        line for file, row in tables if isinstance(row, Row) for line in _remarks(shown(file), row, not limits.columns)
    ]


def _remarks(file: str, row: Row, is_guess: bool) -> Iterator[str]:
    """Lines about a table by its first row: all columns are its text, or some are not searched. is_guess: whether the
    user named no columns."""
    names = [name for name in row.value if name not in ("title", "text")]
    if row.is_composed:
        start = f"{file} has no column text, so all columns are the text of a row"
        yield f"{start}: {', '.join(names)[:REASON_CHARS]}; --columns title=NAME,text=NAME chooses"
    elif is_guess and "text" in row.value and not row.value.get("title") and not message_of(row.value):
        others = metadata_of(row.value, ("id", "_id", "title", "text"))
        words = [name for name, value in others.items() if isinstance(value, str) and not NUMBER.fullmatch(value)]
        if words:
            title = title_column(words)
            option = f"--columns {quote(f'title={title},text=text')} searches {title} too"
            yield f"{file} has columns that are not searched: {', '.join(others)[:REASON_CHARS]}; {option}"


def check_named(paths: Sequence[Path], columns: Columns) -> None:
    """Raise UsageError if no table of a corpus has the columns in its first rows, see `applicable`. Sheets and zip
    files, which are not opened, may have them."""
    names: dict[str, None] = {}
    for file in _tables(paths):
        for row in islice(_row_reader(file)(file, LIMITS), _HEAD_ROWS):
            if isinstance(row, Row):
                names |= dict.fromkeys(name for name in row.value if name != "text" or not row.is_composed)
        if applicable(columns, names):
            return
    unopened = (*SHEET_SUFFIXES, *_ZIP_SUFFIXES)
    if not any(file and has_suffix(file, unopened) for path in paths for _, file in files_to_read(path)):
        known = ", ".join(name for name in names if name != "title")[:REASON_CHARS]  # composed rows have a title too
        given, expected = ",".join(map("=".join, columns)), known or "a corpus with a table"
        raise UsageError("no table has the columns", given=given, expected=expected)


def _tables(paths: Sequence[Path]) -> list[Path]:
    suffixes = LINES_SUFFIXES + ARRAY_SUFFIXES + CSV_SUFFIXES + TSV_SUFFIXES + TABLE_SUFFIXES
    return [file for path in paths for _, file in files_to_read(path) if file and has_suffix(file, suffixes)]


def _kind(name: bytes) -> str:
    ending = _suffix_of(name)
    return f"of the type {ending}" if ending.startswith(".") else ending


def _suffix_of(name: bytes) -> str:
    return os.path.splitext(name)[1].decode("utf-8", "backslashreplace").lower() or "without an ending"


def _unique(readers: list[_Reader], limits: Limits, left_out: LeftOut) -> Iterator[Document | Reject]:
    seen = SeenIds()
    with closing(Parser(limits)) as parser:
        items = (item for reader in readers for item in reader(limits, parser))
        for outcome, repeatable, other_id, was_taken in items:
            if left_out(outcome.file):
                continue
            if isinstance(outcome, Document) and len(outcome.title) > MAX_TITLE_CHARS:
                reason = f"title has {len(outcome.title)} characters; expected at most {MAX_TITLE_CHARS}"
                outcome = Reject(outcome.file, outcome.line, reason, outcome.id)
            if isinstance(outcome, Reject):
                same, reason = False, seen.taken(outcome.id) if was_taken else ""
            else:
                same, reason = seen.claim_document(outcome)
            if other_id and not same and isinstance(outcome, Document):
                outcome = replace(outcome, id=other_id)
                same, reason = seen.claim_document(outcome)
            if not reason:
                yield outcome
            elif not (same and repeatable):
                yield Reject(outcome.file, outcome.line, reason, outcome.id)


def _reader(path: Path, left_out: LeftOut) -> _Reader:
    """Reader of `path`. Raises BadInput if there is none, MissingBackend if its library is not installed."""
    if path.is_dir():
        return _folder_reader(path, left_out)
    read = reader_of(path, FORMATS, "the corpus", ACCEPTED)
    if is_parsed(path.name):
        require_reader(path.name)
    return partial(read, path)


def _documents(path: Path, limits: Limits, parser: Parser, name: bytes = b"") -> Iterator[Outcome]:
    """The documents of `read_file`. A sheet whose first line names all of `limits.columns` gives a document a row.

    name: begins the ids; by default the name of the file.
    """
    name = name or os.fsencode(path.name)
    for outcome in read_file(path, name, limits, parser) if limits.has(path.name) else ():
        is_table = limits.columns and has_suffix(path, SHEET_SUFFIXES) and isinstance(outcome, Document)
        rows = list(_sheet_rows(outcome, limits.columns)) if is_table and isinstance(outcome, Document) else []
        for document in (_document(path, row, limits) for row in rows):
            yield Outcome(document, other_id=f"{name.decode('utf-8', 'backslashreplace')}:{document.id}")
        if not rows:
            yield Outcome(outcome)


def _sheet_rows(sheets: Document, columns: Columns) -> Iterator[Row]:
    """Rows of the sheets of a file whose first line holds all named columns; see `sheet` for the text. Row numbers
    leave empty rows out."""
    for start, end in pairwise((*sheets.pages, len(sheets.text))):
        _, *lines = sheets.text[start:end].strip("\n").split("\n")
        names = lines[0].split("\t") if lines else []
        for number, line in enumerate(lines[1:] if {column for _, column in columns} <= set(names) else (), 2):
            cells = {name: cell for name, cell in zip(names, line.split("\t")) if cell}
            yield Row(number, renamed(cells, columns))


def _mails(path: Path, limits: Limits, parser: Parser, name: bytes = b"") -> Iterator[Outcome]:
    """Mails of a mailbox, see `each_mail`. `name` begins their ids, see `_documents`."""
    whole, name = replace(limits, part=(0, 1)), name or os.fsencode(path.name)
    with TemporaryDirectory(prefix="gpu-rag-mbox-") as temporary:
        target = Path(temporary) / "mail.eml"
        try:
            if not path.is_file():
                raise RowError("not a regular file")
            with path.open("rb") as mailbox:
                for number in each_mail(mailbox, target, limits.max_file_bytes):
                    mail = read_file(target, b"%s/%d.eml" % (name, number), whole, parser)
                    for outcome in mail if limits.has(path.name, number) else ():
                        yield Outcome(replace(outcome, file=shown(path), line=number))
        except RowError as error:
            yield Outcome(Reject(shown(path), 0, str(error)))
        except OSError as error:
            yield Outcome(Reject(shown(path), 0, f"the file cannot be read: {error.strerror}"))


def _zipped(path: Path, limits: Limits, parser: Parser, name: bytes = b"") -> Iterator[Outcome]:
    """Files of a zip file, unpacked into a temporary folder. `name` begins their ids, see `_documents`."""
    if not limits.has(path.name):
        return
    archive, place = (name or os.fsencode(path.name)).decode("utf-8", "backslashreplace"), shown(path)
    limits = replace(limits, part=(0, 1))
    with TemporaryDirectory(prefix="gpu-rag-zip-") as temporary:
        folder = Path(temporary)
        try:
            if (size := path.stat().st_size) > limits.max_file_bytes:
                raise RowError(f"the file has {size} bytes, more than max_file_bytes = {limits.max_file_bytes}")
            package = Package(path.read_bytes(), limits)
            for member, reason in package.unpack(folder, lambda member: member.lower().endswith(_ENDINGS)):
                yield Outcome(Reject(shown(Path(place, member)), 0, reason))
            read = _folder_reader(folder)
        except (RowError, BadInput, MissingBackend) as error:
            yield Outcome(Reject(place, 0, str(error).replace(temporary, place)))
            return
        for outcome, repeatable, other_id, _ in read(limits, parser):
            file = outcome.file.replace(shown(folder), place, 1)
            if outcome.line:
                other_id = f"{archive}/{other_id}" if other_id else f"{archive}:{outcome.id}"
                yield Outcome(replace(outcome, file=file), repeatable, other_id)
            else:
                yield Outcome(replace(outcome, file=file, id=f"{archive}/{outcome.id}" if outcome.id else ""))


def _row_reader(path: Path) -> Callable[[Path, Limits], Iterator[Row | Reject]]:
    return next(read for suffixes, read in _ROWS.items() if has_suffix(path, suffixes))


def _rows(path: Path, limits: Limits, parser: Parser) -> Iterator[Outcome]:
    for row in _row_reader(path)(path, limits):
        if isinstance(row, Reject):
            yield Outcome(row)
        elif is_multihop(row.value) or brings_pages(row.value):
            several = _contexts(path, row, limits) if is_multihop(row.value) else _pages(path, row, limits, parser)
            yield from (Outcome(item, repeatable=True) for item in several if limits.has(item.id))
        elif limits.has(path.name, row.line):
            yield Outcome(_document(path, row, limits))


def _json_rows(path: Path, limits: Limits) -> Iterator[Row | Reject]:
    """Rows of a file. If its first object has no text, and no column of text was named, rows without text are
    composed."""
    composes = None
    for row in read_rows(path, limits, with_rest=True):
        if isinstance(row, Reject):
            yield row
            continue
        value = renamed(row.value, limits.columns)
        if composes is None:
            roles = [role for role, _ in applicable(limits.columns, row.value)]
            composes = "text" not in roles and not brings_pages(value)
            composes &= is_composable([name for name in value if name not in ("id", "_id")])
        yield _composed_row(row.line, value, limits) if composes else Row(row.line, value)


def _parquet_rows(path: Path, limits: Limits) -> Iterator[Row | Reject]:
    named = tuple((column,) for role, column in limits.columns if role == "text")
    for row in read_parquet(path, replace(DOCUMENTS, required=DOCUMENTS.required + named)):
        yield row if isinstance(row, Reject) else _composed_row(row.line, renamed(row.value, limits.columns), limits)


def _composed_row(line: int, value: dict[str, Any], limits: Limits) -> Row:
    """The row, whose title and text are made of its other columns if it has no text."""
    if not is_composable([*value]):
        return Row(line, value)
    title = value[column := title_column([*value])]
    title = "" if isinstance(title, list | dict | None) else str(title)
    title = row_title(column, title, str(value.get("id") or value.get("_id") or ""))
    text = composed(value.items(), limits.max_document_chars)
    return Row(line, {**value, "title": title, "text": text}, True)


_ROWS: dict[tuple[str, ...], Callable[[Path, Limits], Iterator[Row | Reject]]] = {
    LINES_SUFFIXES + ARRAY_SUFFIXES: _json_rows,
    CSV_SUFFIXES + TSV_SUFFIXES: read_csv,
    TABLE_SUFFIXES: _parquet_rows,
    DUMP_SUFFIXES: read_dump,
}
_ZIP_SUFFIXES = (".zip",)
FORMATS = {
    MAILBOX_SUFFIXES: _mails, DOCUMENT_SUFFIXES: _documents, _ZIP_SUFFIXES: _zipped, **dict.fromkeys(_ROWS, _rows),
}  # fmt: skip
_ENDINGS = tuple(suffix for suffixes in FORMATS for suffix in suffixes)


def _folder_reader(folder: Path, left_out: LeftOut = none_left_out) -> _Reader:
    corpora = _corpora(folder)
    refuse_leading_out(corpora, folder)
    if len(corpora) == 1:
        return _reader(corpora[0], left_out)
    if corpora:
        raise BadInput("the folder has two corpora", given=" and ".join(map(str, corpora)), do="give one of the files")
    names = list_files(folder)
    known = [name for name in names if has_ending(name, _ENDINGS) and not is_hidden(name)]
    if not known:
        raise BadInput("the folder has no document", given=folder, expected=ACCEPTED)
    if sum(n for n, _ in _unread_endings(known).values()) == len(known):
        require_reader(os.fsdecode(known[0]))
    return partial(_folder, folder, [name for name in names if not left_out(shown(_path_in(folder, name)))])


def _folder(folder: Path, names: list[bytes], limits: Limits, parser: Parser) -> Iterator[Outcome]:
    for name in names:
        path = _path_in(folder, name)
        if problem := unreadable(path, folder):
            yield Outcome(Reject(shown(path), 0, problem))
        elif has_ending(name, MAILBOX_SUFFIXES):
            yield from _mails(path, limits, parser, name)
        elif has_ending(name, DOCUMENT_SUFFIXES):
            yield from _documents(path, limits, parser, name)
        elif has_ending(name, _ZIP_SUFFIXES):
            yield from _zipped(path, limits, parser, name)
        elif has_ending(name, _ENDINGS):
            for item in _rows(path, limits, parser):
                yield item._replace(other_id=f"{name.decode('utf-8', 'backslashreplace')}:{item.row.id}")
        else:
            yield Outcome(Reject(shown(path), 0, f"files {_kind(name)} are not read"))


def _path_in(folder: Path, name: bytes) -> Path:
    return Path(os.fsdecode(os.path.join(os.fsencode(folder), name)))


def is_read_by_file(path: Path) -> bool:
    """Whether a path is a folder whose files are read one by one, unlike a folder that holds a ready corpus."""
    return path.is_dir() and not _corpora(path)


def files_to_read(path: Path, left_out: LeftOut = none_left_out) -> Iterator[tuple[str, Path | None]]:
    """(relative name, path) of each file of a corpus, sorted; the path is None for a file whose content is not read."""
    corpora = _corpora(path) if path.is_dir() else [path]
    for file in corpora:
        if not left_out(shown(file)):
            yield file.name, file
    for name in [] if corpora else list_files(path):
        file = _path_in(path, name)
        if not left_out(shown(file)):
            is_read = has_ending(name, _ENDINGS) and not unreadable(file, path)
            yield os.fsdecode(name), file if is_read else None


# If a folder has one of these and a corpus.jsonl, its other files are no documents.
_QUESTIONS = ("qrels", *(f"{name}{suffix}" for name in ("queries", "questions") for suffix in LINES_SUFFIXES))


def _corpora(folder: Path) -> list[Path]:
    """Corpus files of a BEIR folder, the only ones read from it; [] for another folder. More than one is an error."""
    corpora = [path for suffix in LINES_SUFFIXES if (path := folder / f"corpus{suffix}").exists()]
    return corpora if len(corpora) > 1 or any((folder / name).exists() for name in _QUESTIONS) else []


def _document(path: Path, row: Row, limits: Limits) -> Document | Reject:
    id = None
    try:
        id = row_id(row.value, "id", "_id")
        title = optional_string(row.value, "title")
        if "text" not in row.value:
            raise RowError("text is missing or null; if another column holds it: --columns text=NAME")
        text = document_text(joined_parts(row.value["text"]), limits)
    except RowError as error:
        return Reject(shown(path), row.line, str(error), id or "")
    id = id or passage_id(f"{title}\n{text}")
    if message := message_of(row.value):
        title = f"{message[1]}, {message[0]}"
    metadata = metadata_of(row.value, ("id", "_id", "title", "text"))
    return Document(id, title, text, shown(path), row.line, metadata=metadata)


def _pages(path: Path, row: Row, limits: Limits, parser: Parser) -> Iterator[Document | Reject]:
    for page in pages_of(row.value, limits, parser):
        if isinstance(page, RowError):
            yield Reject(shown(path), row.line, str(page))
        else:
            id, address = passage_id(f"{page.title}\n{page.text}"), metadata_of({"url": page.url}, ())
            yield Document(id, page.title, page.text, shown(path), row.line, metadata=address)


def _contexts(path: Path, row: Row, limits: Limits) -> Iterator[Document | Reject]:
    contexts = contexts_of(row.value, limits)
    if not contexts:
        yield Reject(shown(path), row.line, "the row has no context")
    for context in contexts:
        if context.problem:
            yield Reject(shown(path), row.line, context.problem)
        else:
            yield Document(context.id, context.title, context.text, shown(path), row.line)
