"""Files that are one document each, and folders of them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from html import unescape
from itertools import islice
from pathlib import Path
from typing import Any

from gpu_rag.errors import BadInput, MissingBackend
from gpu_rag.sources.charset import decode_text
from gpu_rag.sources.corpus.marked import fence_after, with_named_tables
from gpu_rag.sources.corpus.parser import PARSED_SUFFIXES, Parsed, Parser, is_parsed, require_reader
from gpu_rag.sources.csv_rows import typed
from gpu_rag.sources.formats import leads_out
from gpu_rag.sources.json_rows import read_object
from gpu_rag.sources.lines import read_whole
from gpu_rag.sources.rows import (
    MAX_TITLE_CHARS,
    Limits,
    RowError,
    document_text,
    id_text,
    kind,
    metadata_of,
    one_line,
    shown,
)
from gpu_rag.text.sentences import front_matter
from gpu_rag.types import Document, Reject, Scalar

TEXT_SUFFIXES = (".txt", ".md", ".rst", ".tex", ".log", ".srt", ".vtt")  # their lines are lines of the document
DOCUMENT_SUFFIXES = (*TEXT_SUFFIXES, ".ipynb", *PARSED_SUFFIXES)
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*")
_UNDERLINED = re.compile(r"^(\S.*)\n([^\w\s])\2{2,}[ \t]*$", re.MULTILINE)
_LATEX_HEADING = re.compile(
    r"^[ \t]*\\(?:title|part|chapter|(?:sub){0,2}section)\*?(?:\[[^\]\n]*+\])?\{((?:[^{}\n]++|\{[^{}\n]*+\})++)\}",
    re.MULTILINE,
)
# Subtitles: the number and the time of a cue; its marks; in .vtt the blocks that are not spoken.
_CUE = re.compile(r"^(?:\d+[ \t]*\n)?(?:(\d+:\d\d:\d\d)|(\d\d:\d\d))[.,]\d{3}[ \t]+-->[^\n]*\n", re.MULTILINE)
_CUE_MARK = re.compile(
    r"<v(?:\.[^\s<>]{0,100})? ([^<>\n]{1,100})>|</?(?:[cibuv]|ruby|rt)(?:\.[^\s<>]{0,100})?>"
    r"|</?(?:lang|font)\b[^<>\n]{0,100}>|<(?:\d{1,9}:)?\d\d:\d\d\.\d{3}>|\{\\an\d\}",
    re.IGNORECASE,
)
_UNSPOKEN = re.compile(r"(?:\AWEBVTT|(?<=\n\n)(?:NOTE|STYLE|REGION))(?!\S)[^\n]*(?:\n(?![^\n]*-->)[^\n]+)*")
_REFERENCE = re.compile(r"&#?\w{1,32};")  # of a character
_COLOUR = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")  # and other marks for a terminal
_TICKS = re.compile("`{3,}")
HIDDEN = "hidden files and folders are not read, unless their own path (not in a .zip) is given as a corpus"
# A field of YAML on one line, without the comment behind it.
_FIELD = re.compile(
    r"""^([\w-]+):[ \t]++((?:"[^"\n]*"|'[^'\n]*')(?=[ \t\r]*+(?:\#.*)?$)|[^\s\[{|>&*!#](?:(?!\s\#).)*)""", re.MULTILINE
)
_MAX_FIELDS = 100


def list_files(folder: Path) -> list[bytes]:
    """Relative paths of all files below `folder`, with "/" between parts, sorted as bytes.

    Indexes, hidden folders, links to folders, and folders that cannot be listed, are in the list like files:
    `unreadable` gives the reason. Paths are bytes, because a name decoded by the locale would differ between
    machines. Raises BadInput if `folder` itself cannot be listed.
    """
    root = os.fsencode(folder)
    paths: list[bytes] = []

    def keep(error: OSError) -> None:
        paths.append(error.filename)

    for base, folders, files in os.walk(root, onerror=keep):
        below = {name: os.path.join(base, name) for name in folders}
        closed = [name for name, path in below.items() if is_hidden(name) or os.path.islink(path) or is_index(path)]
        folders[:] = [name for name in folders if name not in closed]
        paths += (os.path.join(base, name) for name in files + closed)
    if root in paths:
        raise BadInput("the folder cannot be read", given=f"{folder}: {unreadable(folder, folder)}")
    return sorted(os.path.relpath(path, root) for path in paths)


def is_hidden(name: bytes) -> bool:
    """Whether the last part of a path begins with "."."""
    return os.path.basename(name).startswith(b".")


def is_index(path: str | bytes | Path) -> bool:
    """Whether a folder is an index of gpu-rag, finished or begun."""
    folder = os.fsencode(path)
    names = (b"manifest.json", b"lock")
    return os.path.isdir(folder + b"/stages") and any(os.path.isfile(folder + b"/" + name) for name in names)


def unreadable(path: Path, folder: Path) -> str:
    """Reason why an entry of `folder`, of any type, cannot be read; "" if it can be opened.

    It is opened, because permissions are not enough: the disk of a file may fail.
    """
    try:
        if path != folder and is_hidden(os.fsencode(path)):
            return HIDDEN
        if path != folder and path.name.startswith("~$"):
            return "a lock file, which an office program writes beside an open document"
        if leads_out(path, folder):
            return "a link that leads out of the folder is not followed"
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            os.scandir(path).close()
            if is_index(path) and not path.is_symlink():
                return "an index is not a corpus"
            return "a link to a folder is not followed"
        if not stat.S_ISREG(mode):
            return "not a regular file"
        path.open("rb").close()
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return ""


def has_ending(name: bytes, suffixes: tuple[str, ...]) -> bool:
    """Whether the name of a file ends in one of `suffixes`, in any case."""
    return name.lower().endswith(tuple(suffix.encode() for suffix in suffixes))


def read_file(path: Path, name: bytes, limits: Limits, parser: Parser) -> Iterator[Document | Reject]:
    """Document of one file, or a Reject. After a document comes a Reject for each part of it that could not be read.

    `name` becomes the id. The text of .txt, .md, .rst, .tex and .log is the file's, in any charset (see `charset`),
    unchanged but for tables, see `marked`; in .srt and .vtt each cue begins with its time; an .ipynb is read as .md,
    see `_notebook`; for other files see the module of their kind. Title: the file's own (for .md the `title` of its
    front matter, whose other fields are metadata, or the first heading "# ...", outside code fences, for .rst the first
    underlined line, for .tex the first title or section), or else the heading with which its text begins; if there is
    none, or it is longer than 1,000 characters, the file name without its ending.
    """
    file = shown(path)
    try:
        id = _id_of(name)
        parsed = _parsed(path, parser) if is_parsed(id) else _as_written(path, name, limits, parser)
    except RowError as error:
        yield Reject(file, 0, str(error))
        return
    except OSError as error:
        yield Reject(file, 0, f"the file cannot be read: {error.strerror}")
        return
    begins = [words for _, words in parsed.headings[:1] if parsed.text.startswith(words)]
    titles = (title for title in (parsed.title, *begins) if len(title) <= MAX_TITLE_CHARS)  # longer: a paragraph
    title = next(filter(None, titles), Path(id).stem)
    yield Document(id, title, parsed.text, file, 0, parsed.pages, parsed.metadata, parsed.headings)
    yield from (Reject(file, 0, f"{problem}; the rest of the file is read", id) for problem in parsed.problems)


def _parsed(path: Path, parser: Parser) -> Parsed:
    try:
        require_reader(path.name)
    except MissingBackend as error:
        raise RowError(str(error)) from error
    return parser.parse(path)


def _as_written(path: Path, name: bytes, limits: Limits, parser: Parser) -> Parsed:
    problems: dict[str, None] = {}
    if has_ending(name, (".ipynb",)):
        text = _notebook(path, limits, parser, problems)
    else:  # a character has at most 4 bytes in any charset, and so has a byte order mark
        limit = 4 * limits.max_document_chars + 4
        text = read_whole(path, limit, "4 * max_document_chars + 4", decode_text)
    text = document_text(text, limits)
    headings: list[tuple[int, str]] = []
    front: dict[str, Scalar | None] = {}
    if has_ending(name, (".srt", ".vtt")):
        text = document_text(_with_times(text, has_ending(name, (".vtt",))), limits)
    is_rst, is_markdown = has_ending(name, (".rst",)), has_ending(name, (".md", ".ipynb"))
    if is_rst or is_markdown:
        text = with_named_tables(text, is_rst, limits.max_document_chars)
    if is_markdown:
        headings = list(_headings(text))
        fields = islice(_FIELD.finditer(front_matter(text)), _MAX_FIELDS)
        front = {field[1]: _front(field[1], field[2].strip()) for field in fields}
    elif is_rst or has_ending(name, (".tex",)):
        heading = _UNDERLINED if is_rst else _LATEX_HEADING
        headings = [(match.start(), match[1].strip()) for match in heading.finditer(text)]
    title = str(front.pop("title", "")) or (headings[0][1] if headings else "")
    return Parsed(title, text, problems=tuple(problems), metadata=metadata_of(front, ()), headings=tuple(headings))


def _front(name: str, value: str) -> Scalar | None:
    """The value of a field of front matter: typed as a cell of a table, unless it is quoted or the title."""
    bare = value.strip("\"'")
    return bare if name == "title" or value[0] in "\"'" else typed(bare)


def _notebook(path: Path, limits: Limits, parser: Parser, problems: dict[str, None]) -> str:
    """The cells of a Jupyter notebook as Markdown, with code and what it printed in fences; pictures are left out.
    Adds to problems. Raises RowError."""
    cells = read_object(path, limits, "a notebook with cells").get("cells")
    if not isinstance(cells, list):
        raise RowError(f"the cells of the notebook are {kind(cells)}; expected a list (nbformat 4)")
    parts = []
    for cell in (cell for cell in cells if isinstance(cell, dict)):
        is_code, outputs = cell.get("cell_type") == "code", cell.get("outputs")
        words = _joined(cell.get("source"))
        parts.append(_fenced(words) if is_code else words)
        for output in outputs if isinstance(outputs, list) else ():
            parts.append(_printed(output, parser, problems) if isinstance(output, dict) else "")
    return "\n\n".join(filter(None, parts))


def _printed(output: dict[str, Any], parser: Parser, problems: dict[str, None]) -> str:
    """An output of a cell: an error, what it printed, or Markdown, plain text or HTML that it shows. Of an object
    ("<HTML object>") only its HTML says something."""
    if output.get("output_type") == "error":
        return _fenced(": ".join(filter(None, (_joined(output.get("ename")), _joined(output.get("evalue"))))))
    data = output.get("data")
    if not isinstance(data, dict):
        return _fenced(_joined(output.get("text")))
    markdown, plain, html = (_joined(data.get(f"text/{name}")) for name in ("markdown", "plain", "html"))
    if markdown or any(name.startswith("image/") for name in data):
        return markdown
    if not html or (plain and not (plain.startswith("<") and plain.endswith(">"))):
        return _fenced(plain)
    try:
        require_reader(".html")
        return _fenced(parser.parse_html(b"\xef\xbb\xbf" + html.encode("utf-8", "replace")).text)
    except (MissingBackend, RowError) as error:
        problems[one_line(f"an output in HTML cannot be read: {error}")] = None
        return ""


def _fenced(words: str) -> str:
    """Words in a code fence longer than any in them, without marks for a terminal."""
    words = _COLOUR.sub("", words)
    fence = "`" * max(3, 1 + max(map(len, _TICKS.findall(words)), default=0))
    return f"{fence}\n{words}\n{fence}" if words else ""


def _joined(lines: Any) -> str:
    text = "".join(line for line in lines if isinstance(line, str)) if isinstance(lines, list) else lines
    return text.strip("\n") if isinstance(text, str) else ""


def _with_times(text: str, is_vtt: bool) -> str:
    """Subtitles with "[00:12:31]" on the line above the words of a cue, and the speaker where a mark names one. Lines
    keep their numbers."""

    def time(cue: re.Match[str]) -> str:
        return "\n" * cue[0].count("\n", 0, -1) + f"[{cue[1] or cue[2]}]\n"

    text = text.replace("\r\n", "\n")
    if is_vtt:
        text = _UNSPOKEN.sub(lambda block: "\n" * block[0].count("\n"), text)
    text = _CUE_MARK.sub(lambda mark: f"{mark[1]}: " if mark[1] else "", _CUE.sub(time, text))
    return _REFERENCE.sub(lambda name: " ".join(unescape(name[0]).splitlines()), text) if is_vtt else text


def _id_of(name: bytes) -> str:
    try:
        return id_text(name.decode("utf-8"), "the path")
    except UnicodeDecodeError as error:
        raise RowError("the name of the file is not UTF-8") from error


def _headings(text: str) -> Iterator[tuple[int, str]]:
    """(offset, words) of each markdown heading outside code fences."""
    fence, end = "", 0
    for written in text.splitlines(keepends=True):
        start, end, line = end, end + len(written), written.rstrip()
        fence = fence_after(line, fence)
        if not fence and (heading := _HEADING.fullmatch(line)) and heading[1].strip():
            yield start, heading[1].strip()
