"""Rows of .xlsx, .xls and .ods files. Runs only in the process of `parse_worker`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, time
from io import BytesIO
from itertools import accumulate, product
from unicodedata import category

from gpu_rag.sources.columns import with_names
from gpu_rag.sources.corpus.package import Package, beside
from gpu_rag.sources.corpus.parser import Parsed
from gpu_rag.sources.rows import Limits, RowError, one_line

_BOOK, _LINKS, _STYLES = "xl/workbook.xml", "xl/_rels/workbook.xml.rels", "xl/styles.xml"
_OPEN = "content.xml"  # of an .ods file
_MAX_REPEATED = 1000  # cells that one cell stands for
_CODE = re.compile(r"\b[A-Z]{3}\b")  # of a currency
_TOKEN = re.compile(  # of a number format; _x is a blank as wide as x, *x fills the cell
    r"""\[\$(?P<sign>[^]-]+)[^]]*\] | "(?P<quoted>[^"]*)" | \\(?P<escaped>.) | [_*]. | \[[^]]*\]
    | (?P<figures>General | [#0?](?:[#0?,.'\ ]*[#0?])?) | (?P<end>;) | (?P<bare>.)""",
    re.VERBOSE | re.DOTALL,
)


def read_sheet(data: bytes, limits: Limits) -> Parsed:
    """Read the sheets that are shown; each is a page: its name, then a line per row, see `with_names`. A sheet whose
    first row has all of `limits.columns` gets no names, because each of its rows becomes a document.

    Cells are values as stored: dates in ISO form, results of formulas; percents and currencies are as shown (.xlsx:
    with all figures; .xls: numbers). A sheet that cannot be read is empty and a problem. Raises RowError.
    """
    from python_calamine import CalamineError, CalamineWorkbook, PasswordError, SheetVisibleEnum

    try:
        book = CalamineWorkbook.from_filelike(BytesIO(data))
    except PasswordError as error:
        raise RowError("the file is encrypted with a password") from error
    except (CalamineError, OSError, ValueError) as error:
        raise RowError(one_line(f"the file cannot be read: {error}")) from error
    tables: list[tuple[str, list[list[str]]]] = []
    problems: list[str] = []
    size, has_rows = 0, False
    cells_shown, columns = _Shown(data, limits, problems), {column for _, column in limits.columns}
    for sheet in (sheet for sheet in book.sheets_metadata if sheet.visible == SheetVisibleEnum.Visible):
        rows: list[list[str]] = []
        try:
            table = book.get_sheet_by_name(sheet.name)
            _, left = table.start or (0, 0)
            shown = cells_shown.of(sheet.name)
            for number, cells in enumerate(table.iter_rows(), 1):  # from the first row, but from the first used column
                row = [*map(_shown, cells)]
                if columns and not rows and columns <= {*row}:
                    shown = {}  # its rows become documents, whose numbers filters compare
                for i, cell in enumerate(cells) if shown else ():
                    if isinstance(cell, float) and (form := shown.get(f"{_letters(left + i)}{number}")):
                        row[i] = form if isinstance(form, str) else form.shown(cell)
                while row and not row[-1]:
                    row.pop()
                rows += [row] if row else []
                size += sum(map(len, row)) + len(row)
                limits.check_chars(size)
        except (CalamineError, OSError, ValueError) as error:
            if isinstance(error, RowError):
                raise
            problems.append(one_line(f"the sheet {sheet.name} cannot be read: {error}"))
        has_rows |= bool(rows)
        size += len(sheet.name) + 2
        tables.append((sheet.name, rows))
    if not has_rows:
        raise RowError(one_line(f"no sheet of the file has a value {'; '.join(problems[:3])}".strip()))
    pages: list[str] = []
    room = float(limits.max_document_chars - size)
    for name, rows in tables:
        if rows and columns and columns <= {*rows[0]}:
            lines = ["\t".join(row) for row in rows]
        else:
            lines, room = with_names(rows, 0, room)
        pages.append("\n".join((name, *lines)))
    starts = accumulate((len(page) + 2 for page in pages[:-1]), initial=0)
    return Parsed("", "\n\n".join(pages), tuple(starts), tuple(problems))


class _Shown:
    """Cells of a workbook that are shown as percent or with a currency. What cannot be read is a problem, and its cells
    stay numbers; so do those of .xls."""

    def __init__(self, data: bytes, limits: Limits, problems: list[str]) -> None:
        self._styles, self._members, self._problems = dict[str, _Format](), dict[str, str](), problems
        self._texts: dict[str, dict[str, str]] = {}
        if not data.startswith(b"PK"):
            return
        try:
            self._package = package = Package(data, limits)
            if _OPEN in package:
                self._texts = _texts_of_open(package)
            elif all(name in package for name in (_BOOK, _LINKS, _STYLES)):
                self._styles = _styles(package)
                targets = {a.get("Id"): beside(_BOOK, a.get("Target", "")) for _, a, _ in package.elements(_LINKS)}
                sheets = (attributes for tag, attributes, _ in package.elements(_BOOK) if tag == "sheet")
                self._members = {a.get("name", ""): targets.get(a.get("id"), "") for a in sheets}
        except RowError as error:
            problems.append(one_line(f"percents and currencies are read as numbers: {error}"))

    def of(self, sheet: str) -> dict[str, str | _Format]:
        """Shown texts of these cells of a sheet, or their formats, by names such as "B2"."""
        cells: dict[str, str | _Format] = {**self._texts.get(sheet, {})}

        def start(tag: str, attributes: dict[str, str]) -> None:
            if tag == "c" and (style := self._styles.get(attributes.get("s", "0"))):
                cells[attributes.get("r", "")] = style

        if self._styles and sheet in self._members:
            try:
                self._package.walk(self._members[sheet], start, lambda _: None, lambda _: None)
            except RowError as error:
                self._problems.append(one_line(f"percents of the sheet {sheet} are read as numbers: {error}"))
                cells.clear()
        return cells


@dataclass(frozen=True)
class _Format:
    """A number format: what stands before and behind a number, and whether it is shown as percent."""

    before: str = ""
    behind: str = ""
    is_percent: bool = False

    def shown(self, number: float) -> str:
        """A number in this format, but with all its figures."""
        if self.is_percent:
            return f"{100 * number:.15g}%"
        return f"{'-' if number < 0 else ''}{self.before}{_shown(abs(number))}{self.behind}"


def _format(code: str) -> _Format | None:
    """The format of a code such as `#,##0.00 "CHF"`, by its first section; None if it shows neither percent nor a
    currency, which is a sign, a code of three capitals, or what stands in [$...]; or if it shows thousands or millions,
    by a comma behind the figures."""
    parts: list[list[str]] = [[], []]
    n_figures = 0
    is_currency = is_percent = False
    for token in _TOKEN.finditer(code):
        if token["end"]:
            break
        n_figures += bool(token["figures"])
        parts[n_figures > 0].append(token["sign"] or token["quoted"] or token["escaped"] or token["bare"] or "")
        is_percent |= token["bare"] == "%"
        is_currency |= bool(token["sign"])
    before, behind = ("".join(words) for words in parts)
    if is_percent:
        return _Format(is_percent=True)
    is_currency |= _CODE.search(f"{before} {behind}") is not None or any(category(c) == "Sc" for c in before + behind)
    is_scaled = behind.startswith(",")
    return _Format(before.lstrip(), behind.rstrip()) if is_currency and n_figures == 1 and not is_scaled else None


def _styles(package: Package) -> dict[str, _Format]:
    """Formats of the styles of cells that show percent or a currency, by their numbers."""
    formats: dict[str, _Format | None] = dict.fromkeys(("9", "10"), _Format(is_percent=True))  # that no file declares
    styles: list[_Format | None] = []
    is_of_cells = False
    for tag, attributes, _ in package.elements(_STYLES):
        if tag == "numFmt":
            formats[attributes.get("numFmtId", "")] = _format(attributes.get("formatCode", ""))
        elif tag in ("cellXfs", "cellStyles"):
            is_of_cells = tag == "cellXfs"
        elif tag == "xf" and is_of_cells:
            styles.append(formats.get(attributes.get("numFmtId", "")))
    return {str(number): style for number, style in enumerate(styles) if style}


def _texts_of_open(package: Package) -> dict[str, dict[str, str]]:
    """By sheet and name, what cells of an .ods file show that hold a percentage or a currency."""
    sheets: dict[str, dict[str, str]] = {}
    cells: dict[str, str] = {}
    row = column = n_rows = n_columns = 0
    words: list[str] | None = None  # of the open cell
    is_note = False

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal cells, row, column, n_rows, n_columns, words, is_note
        if tag == "table":
            cells, row = sheets.setdefault(attributes.get("name", ""), {}), 0
        elif tag == "table-row":
            row, column, n_rows = row + 1, 0, _repeated(attributes, "rows")
        elif tag in ("table-cell", "covered-table-cell"):
            n_columns = _repeated(attributes, "columns")
            words = [] if attributes.get("value-type") in ("percentage", "currency") else None
        elif tag == "annotation":
            is_note = True

    def end(tag: str) -> None:
        nonlocal row, column, words, is_note
        if tag == "table-row":
            row += n_rows - 1
        elif tag in ("table-cell", "covered-table-cell"):
            text = " ".join("".join(words or ()).split())
            if text and n_rows * n_columns <= _MAX_REPEATED:
                places = product(range(row, row + n_rows), range(column, column + n_columns))
                cells.update((f"{_letters(left)}{top}", text) for top, left in places)
            column, words = column + n_columns, None
        elif tag == "annotation":
            is_note = False

    def characters(text: str) -> None:
        if words is not None and not is_note:
            words.append(text)

    package.walk(_OPEN, start, end, characters)
    return sheets


def _repeated(attributes: dict[str, str], what: str) -> int:
    number = attributes.get(f"number-{what}-repeated", "")
    return int(number) if number.isdecimal() and len(number) < 9 else 1


def _letters(column: int) -> str:
    """Name of a column: A, ..., Z, AA, ..."""
    return (_letters(column // 26 - 1) if column > 25 else "") + chr(65 + column % 26)


def _shown(value: object) -> str:
    """Value of a cell on one line."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, datetime):
        return value.isoformat(" ") if value.time() != time() else value.date().isoformat()
    return " ".join(str(value).split())
