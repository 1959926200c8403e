"""Rows of .xlsx, .xls and .ods files. Runs only in the process of `parse_worker`."""

from __future__ import annotations

from datetime import datetime, time
from io import BytesIO
from itertools import accumulate

from gpu_rag.sources.columns import with_names
from gpu_rag.sources.corpus.parser import Parsed
from gpu_rag.sources.rows import Limits, RowError, one_line


def read_sheet(data: bytes, limits: Limits) -> Parsed:
    """Read the sheets that are shown; each is a page: its name, then a line per row, see `with_names`. A sheet whose
    first row has all of `limits.columns` gets no names, because each of its rows becomes a document.

    Cells are values as stored: dates in ISO form, results of formulas. A sheet that cannot be read is empty and a
    problem. Raises RowError.
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
    for sheet in (sheet for sheet in book.sheets_metadata if sheet.visible == SheetVisibleEnum.Visible):
        rows: list[list[str]] = []
        try:
            for cells in book.get_sheet_by_name(sheet.name).iter_rows():
                row = [*map(_shown, cells)]
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


def _shown(value: object) -> str:
    """Value of a cell on one line."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, datetime):
        return value.isoformat(" ") if value.time() != time() else value.date().isoformat()
    return " ".join(str(value).split())
