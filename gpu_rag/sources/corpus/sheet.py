"""Rows of .xlsx, .xls and .ods files. Runs only in the process of `parse_worker`."""

from __future__ import annotations

import re
from datetime import datetime, time
from io import BytesIO
from itertools import accumulate

from gpu_rag.sources.columns import with_names
from gpu_rag.sources.corpus.package import Package, beside
from gpu_rag.sources.corpus.parser import Parsed
from gpu_rag.sources.rows import Limits, RowError, one_line

_BOOK, _LINKS, _STYLES = "xl/workbook.xml", "xl/_rels/workbook.xml.rels", "xl/styles.xml"
_QUOTED = re.compile(r'"[^"]*"|[\\_*].')  # in a number format: characters that are shown as they are, or as blanks


def read_sheet(data: bytes, limits: Limits) -> Parsed:
    """Read the sheets that are shown; each is a page: its name, then a line per row, see `with_names`. A sheet whose
    first row has all of `limits.columns` gets no names, because each of its rows becomes a document.

    Cells are values as stored: dates in ISO form, results of formulas; what an .xlsx file shows as percent is percent.
    A sheet that cannot be read is empty and a problem. Raises RowError.
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
    percents = _Percents(data, limits, problems)
    for sheet in (sheet for sheet in book.sheets_metadata if sheet.visible == SheetVisibleEnum.Visible):
        rows: list[list[str]] = []
        try:
            table = book.get_sheet_by_name(sheet.name)
            _, left = table.start or (0, 0)
            shown = percents.of(sheet.name)
            for number, cells in enumerate(table.iter_rows(), 1):  # from the first row, but from the first used column
                row = [*map(_shown, cells)]
                for i, cell in enumerate(cells) if shown else ():
                    if isinstance(cell, float) and f"{_letters(left + i)}{number}" in shown:
                        row[i] = f"{100 * cell:.15g}%"
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
    room, columns = float(limits.max_document_chars - size), {column for _, column in limits.columns}
    for name, rows in tables:
        if rows and columns and columns <= {*rows[0]}:
            lines = ["\t".join(row) for row in rows]
        else:
            lines, room = with_names(rows, 0, room)
        pages.append("\n".join((name, *lines)))
    starts = accumulate((len(page) + 2 for page in pages[:-1]), initial=0)
    return Parsed("", "\n\n".join(pages), tuple(starts), tuple(problems))


class _Percents:
    """Cells of a workbook that are shown as percent. Rows that become documents keep their numbers, for filters. What
    cannot be read is a problem, and its percents stay numbers."""

    def __init__(self, data: bytes, limits: Limits, problems: list[str]) -> None:
        self._styles, self._members, self._problems = set[str](), dict[str, str](), problems
        if not data.startswith(b"PK") or limits.columns:
            return
        try:
            self._package = package = Package(data, limits)
            if all(name in package for name in (_BOOK, _LINKS, _STYLES)):
                self._styles = _percent_styles(package)
                targets = {a.get("Id"): beside(_BOOK, a.get("Target", "")) for _, a, _ in package.elements(_LINKS)}
                sheets = (attributes for tag, attributes, _ in package.elements(_BOOK) if tag == "sheet")
                self._members = {a.get("name", ""): targets.get(a.get("id"), "") for a in sheets}
        except RowError as error:
            problems.append(one_line(f"percents are read as numbers: {error}"))

    def of(self, sheet: str) -> set[str]:
        """Names of these cells of a sheet, such as "B2"."""
        cells = set[str]()

        def start(tag: str, attributes: dict[str, str]) -> None:
            if tag == "c" and attributes.get("s", "0") in self._styles:
                cells.add(attributes.get("r", ""))

        if self._styles and sheet in self._members:
            try:
                self._package.walk(self._members[sheet], start, lambda _: None, lambda _: None)
            except RowError as error:
                self._problems.append(one_line(f"percents of the sheet {sheet} are read as numbers: {error}"))
                cells.clear()
        return cells


def _percent_styles(package: Package) -> set[str]:
    """Numbers of the styles of cells whose number format has a % that is not quoted."""
    formats, is_of_cells, n = {"9", "10"}, False, 0  # the two formats of percent that no file declares
    styles = set[str]()
    for tag, attributes, _ in package.elements(_STYLES):
        if tag == "numFmt" and "%" in _QUOTED.sub("", attributes.get("formatCode", "")):
            formats.add(attributes.get("numFmtId", ""))
        elif tag in ("cellXfs", "cellStyles"):
            is_of_cells = tag == "cellXfs"
        elif tag == "xf" and is_of_cells:
            styles |= {str(n)} if attributes.get("numFmtId") in formats else set()
            n += 1
    return styles


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
