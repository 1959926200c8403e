"""Text of the pages of a PDF. Called only in the process of `parse_worker`: a hostile PDF may crash it."""

from __future__ import annotations

import re
from collections import Counter
from itertools import accumulate, islice
from typing import TYPE_CHECKING

from gpu_rag.sources.corpus import scan
from gpu_rag.sources.corpus.package import given, properties
from gpu_rag.sources.corpus.parser import Parsed
from gpu_rag.sources.rows import Limits, RowError, one_line

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument, PdfPage

# dots to the end of a line, or to a page number there (3, xii, A-3)
_LEADER = re.compile(
    r"[ \t]*(?:(?:\.[ \t]*){5,}|(?:[·…][ \t]*){3,})(?P<page>[A-Z]?-?[0-9]{1,5}|[ivxlcIVXLC]{1,8})?[ \t]*$"
)
_CONTENTS_LINES = 3
_TAIL = 1024  # bytes in which readers look for the end mark
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f]")  # come from fonts without a table of characters
_DIVIDED = re.compile("(\\w*)\ufffe(\\w*)")  # PDFium's mark of a word that a line end divides at its hyphen
_GLUED = re.compile("[A-Za-z]{26,}")  # words without spaces between them
_MAX_GLUED_SHARE = 0.05  # share of the characters of a text
_HYPHENATED = re.compile(r"\w+-\w+")
_WORD = re.compile(r"[^\W\d_]{2,}")
_MARKS, _PAGE = r"[ \t\-–—./()\[\]|·]*+", r"p|pp|pgs?|pages?|seite|blatt|sheet|pág|páginas?|pagina|strona|стр|sida"
PAGE_NUMBER = re.compile(  # "3", "- 3 -", "Page 3 of 9"; "-3" is a number of another kind
    rf"(?!-\d+$){_MARKS}(?P<word>(?:{_PAGE})\b{_MARKS})?(?P<page>\d{{1,4}})"
    rf"(?:[ \t]*(?:/|(?:of|von|de|di|van|z|из|av)\b)[ \t]*(?P<last>\d{{1,4}}))?{_MARKS}(?:pages?|seite)?{_MARKS}",
    re.IGNORECASE,
)
_FIRST_YEAR = 1500  # from here on a number may be a year
_YEAR = re.compile(r"\b[12]\d{3}\b")
_VALUE = re.compile(r"[:\d%$€£¥]|[.,;!?]$")  # a line with one, or that ends like a sentence, may be of the text
_PAGE_MARK = "\1"
_MIN_RUNNING, _EDGE_LINES, _MAX_EDGE = 3, 3, 200  # pages; lines at an edge of a page, and characters of one
_DATE = re.compile(r"D:(\d{4})(\d{2})(\d{2})")


def read_pdf(data: bytes, limits: Limits) -> Parsed:
    """Pages of a PDF in order, separated by line breaks; title, metadata (author, date) and headings: its own.

    A word that a line end divides is joined, with its hyphen if the PDF writes it so elsewhere. On a page of contents,
    leaders and the page numbers after them are removed; running heads are, see `_without_running`. Pages that are
    pictures are read by OCR if the extra `ocr` is installed. A page that cannot be read is empty and a problem; so are
    words without spaces between them. Raises RowError for a file that cannot be read at all: cut off, encrypted with a
    password, broken, too many pages, too much text, or no text on any page.
    """
    document = _opened(data, limits)
    texts, problems = _page_texts(document, limits)
    if not any(texts):
        raise RowError(f"no page of the PDF has text: {'; '.join(problems[:3]) or 'all are empty'}")
    hyphenated = {word for text in texts for word in _HYPHENATED.findall(text)}
    texts = [_DIVIDED.sub(lambda word: _rejoined(word[1], word[2], hyphenated), text) for text in texts]
    texts = _without_running(texts)
    starts = accumulate((len(text) + 1 for text in texts[:-1]), initial=0)
    about = (document.get_metadata_value(name) for name in ("Title", "Author", "CreationDate"))
    title, author, made = (" ".join(_CONTROL.sub("", value).split()) for value in about)
    day = _DATE.match(made)
    metadata = properties(author, "-".join(day.groups()) if day else "")
    share = sum(map(len, _GLUED.findall("\n".join(texts)))) / sum(map(len, texts))
    if share > _MAX_GLUED_SHARE:
        problems.append(
            f"{share:.0%} of the text are words of more than 25 letters: the PDF has no spaces between words"
        )
    pages = tuple(starts)
    headings = ((pages[page], words) for page, words in sorted(_bookmarks(document).items()))
    return Parsed(given(title), "\n".join(texts), pages, tuple(problems), dict(metadata), tuple(headings))


def _opened(data: bytes, limits: Limits) -> PdfDocument:
    """The document in a file. Raises RowError."""
    from pypdfium2 import PdfDocument, PdfiumError

    if b"%%EOF" not in data[-_TAIL:]:
        raise RowError(f"not a whole PDF: no %%EOF in the last {_TAIL} bytes")
    try:
        document = PdfDocument(data)
    except PdfiumError as error:
        if "password" in str(error):
            raise RowError("the PDF is encrypted with a password") from error
        raise RowError(one_line(f"the PDF cannot be read: {error}")) from error
    count = len(document)
    if count > limits.max_pages:
        raise RowError(f"the PDF has {count} pages, more than max_pages = {limits.max_pages}")
    return document


def _page_texts(document: PdfDocument, limits: Limits) -> tuple[list[str], list[str]]:
    """(the text of each page, problems). Raises RowError for too much text."""
    from pypdfium2 import PdfiumError

    texts: list[str] = []
    problems: list[str] = []
    size = n_pictures = 0
    reads_scans = scan.can_read()
    for number in range(len(document)):
        text = ""
        try:
            page = document[number]
            text = _page_text(page)
            if not text and _has_picture(page):
                text = scan.page_text(page) if reads_scans else ""
                n_pictures += not text
        except PdfiumError as error:
            problems.append(one_line(f"page {number + 1} cannot be read: {error}"))
        texts.append(text)
        size += len(text) + 1
        limits.check_chars(size)
    if n_pictures:
        why = "OCR finds no text in them" if reads_scans else scan.INSTALL
        problems.append(f"pages that are pictures: {n_pictures}; {why}")
    return texts, problems


def _bookmarks(document: PdfDocument) -> dict[int, str]:
    """First chapter or section that begins on each page, by the outline of the PDF."""
    bookmarks: dict[int, str] = {}
    for bookmark in islice(document.get_toc(max_depth=3), len(document)):
        target = bookmark.get_dest()
        page = target.get_index() if target is not None else None
        if page is not None and 0 <= page < len(document):
            bookmarks.setdefault(page, " ".join(_CONTROL.sub("", bookmark.get_title()).split()))
    return bookmarks


def _page_text(page: PdfPage) -> str:
    """Text of a page that tables can hold, without white space at its end."""
    text = page.get_textpage().get_text_range(errors="replace")
    return _with_headings_apart(_without_leaders(_CONTROL.sub("", text)).rstrip())


def _with_headings_apart(page: str) -> str:
    """Page text with an empty line after each heading: a short line without a mark at its end, before a capital letter.

    Short: under half of the upper quartile of the page's lines.
    """
    lines = page.split("\n")
    half = sorted(map(len, lines))[3 * len(lines) // 4] / 2
    after = [*(line.lstrip()[:1] for line in lines[1:]), ""]
    return "\n".join(
        f"{line}\n" if 0 < len(line) < half and line.rstrip()[-1:].isalnum() and first.isupper() else line
        for line, first in zip(lines, after)
    )


def _without_running(texts: list[str]) -> list[str]:
    """Pages without heads, feet and page numbers: lines at an edge that are equal, but for the number of the page, on
    _MIN_RUNNING pages and half of all. The first of each stays, unless it only numbers the page. A line that may be
    of the text stays, see `_form`."""
    pages, least = [text.split("\n") for text in texts], max(_MIN_RUNNING, len(texts) / 2)
    dropped: list[set[int]] = [set() for _ in pages]
    for step in (1, -1):
        edges = [[i for i, line in enumerate(lines) if line.strip()][::step][:_EDGE_LINES] for lines in pages]
        is_open = [True] * len(pages)
        for depth in range(_EDGE_LINES):
            forms = [
                _form(lines[edge[depth]].strip(), number, len(pages)) if is_on and depth < len(edge) else ""
                for number, (lines, edge, is_on) in enumerate(zip(pages, edges, is_open))
            ]
            counts, seen = Counter(forms), set[str]()
            for number, form in enumerate(forms):
                is_open[number] = bool(form) and counts[form] >= least
                if is_open[number] and (form in seen or form.startswith(_PAGE_MARK)):
                    dropped[number].add(edges[number][depth])
                seen.add(form)
    return [
        "\n".join(line for i, line in enumerate(lines) if i not in drop).strip("\n") if drop else text
        for text, lines, drop in zip(texts, pages, dropped)
    ]


def _form(line: str, page: int, n_pages: int) -> str:
    """A text that lines at the edges of pages share if they are heads; "" for a line that may be of the text.

    A page number: the line, with its distance from the page for the number; two numbers only behind a word, or if the
    second is n_pages. Another line: itself, if it has two words, and no figures but years.
    """
    if len(line) > _MAX_EDGE:
        return ""
    if found := PAGE_NUMBER.fullmatch(line):
        number, last = int(found["page"]), found["last"]
        if number >= _FIRST_YEAR or (last and not found["word"] and int(last) != n_pages):
            return ""
        return f"{_PAGE_MARK}{line[: found.start('page')]}\0{number - page}{line[found.end('page') :]}"
    return line if len(_WORD.findall(line)) > 1 and not _VALUE.search(_YEAR.sub("", line)) else ""


def _has_picture(page: PdfPage) -> bool:
    from pypdfium2.raw import FPDF_PAGEOBJ_IMAGE

    return any(True for _ in page.get_objects(filter=[FPDF_PAGEOBJ_IMAGE]))


def _rejoined(first: str, second: str, hyphenated: set[str]) -> str:
    word = f"{first}-{second}"
    return word if word in hyphenated else first + second


def _without_leaders(page: str) -> str:
    """Page text without rows of dots; if at least three end in a number, as in contents, also without those numbers."""
    lines = [(line, _LEADER.search(line)) for line in page.split("\n")]
    n_numbered = sum(1 for _, leader in lines if leader and leader["page"])
    if not any(leader for _, leader in lines):
        return page
    kept = []
    for line, leader in lines:
        if leader:
            number = leader["page"] or "" if n_numbered < _CONTENTS_LINES else ""
            line = " ".join(filter(None, (line[: leader.start()].rstrip(), number)))
        kept.append(line)
    return "\n".join(kept)
