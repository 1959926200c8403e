"""Text of .eml and .msg files. Runs only in the process of `parse_worker`."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage, MIMEPart
from io import BytesIO
from itertools import count
from typing import TYPE_CHECKING

from gpu_rag.sources.charset import decode_text
from gpu_rag.sources.corpus.html import read_html
from gpu_rag.sources.corpus.package import properties
from gpu_rag.sources.corpus.parser import Parsed
from gpu_rag.sources.rows import Limits, RowError, one_line

if TYPE_CHECKING:
    from olefile import OleFileIO

# Errors of the standard library and of olefile for a broken mail: both trust the types that they find there.
_BROKEN = (ValueError, LookupError, TypeError, AttributeError, RecursionError, ArithmeticError, OSError, struct.error)
_HEADERS = ("From", "To", "Cc", "Date")
_SUBJECT, _PLAIN, _HTML, _SENT, _FILE_NAMES = "0037", "1000", "1013", 0x00390040, ("3707", "3704")
_NAMES = {"From": ("0C1A", "5D01"), "To": ("0E04",), "Cc": ("0E03",)}  # properties of Outlook
_MARK = r"(?:(?!>>> )>(?=[\s>]|$) ?)"  # a mark of a quotation; not a prompt of Python or ">5"
_EPOCH = datetime(1601, 1, 1, tzinfo=UTC)


def read_eml(data: bytes, limits: Limits) -> Parsed:
    """Read a mail: its headers From, To, Cc and Date, then its plain text, or its HTML where that
    has more than twice the words. Mails quoted below the text lose their marks.

    title: the subject. metadata: author, date. Attachments are a problem: they are not read. Raises RowError.
    """
    try:
        mail = message_from_bytes(data, _class=EmailMessage, policy=policy.default)
        if not mail.keys():
            raise RowError("not a mail: it has no header")
        headers = {name: " ".join(str(mail.get(name, "")).split()) for name in _HEADERS}
        subject, date = str(mail.get("Subject", "")), getattr(mail.get("Date"), "datetime", None)
        plain, html = (_body(mail.get_body((kind,)), limits) for kind in ("plain", "html"))
        body = plain if 2 * len(plain.split()) >= len(html.split()) else html  # "Your program shows no HTML."
        attached = [part.get_filename() or part.get_content_type() for part in mail.iter_attachments()]
    except RowError:
        raise
    except _BROKEN as error:
        raise RowError(one_line(f"the mail cannot be read: {type(error).__name__}: {error}")) from error
    return _parsed(subject, headers, date, body, attached)


def _body(part: MIMEPart | None, limits: Limits) -> str:
    if part is None:
        return ""
    content = part.get_payload(decode=True)
    raw = content if isinstance(content, bytes) else b""
    try:
        text = raw.decode(part.get_content_charset("utf-8"))
    except (LookupError, UnicodeDecodeError):
        text = decode_text(raw)  # undeclared, or another charset than declared
    return _text_of_html(text, limits) if part.get_content_subtype() == "html" else text


def _text_of_html(markup: str, limits: Limits) -> str:
    return read_html(b"\xef\xbb\xbf" + markup.encode("utf-8", "replace"), limits).text


def read_msg(data: bytes, limits: Limits) -> Parsed:
    """Read a mail that Outlook saved, as `read_eml` does. Raises RowError."""
    import olefile

    try:
        with olefile.OleFileIO(BytesIO(data)) as file:
            names = {name: " ".join(filter(None, (_property(file, id) for id in ids))) for name, ids in _NAMES.items()}
            sent = _sent(file)
            headers = {**names, "Date": sent.isoformat(" ", "seconds") if sent else ""}
            subject, body = _property(file, _SUBJECT), _property(file, _PLAIN)
            if not body.strip() and file.exists(f"__substg1.0_{_HTML}0102"):
                body = read_html(file.openstream(f"__substg1.0_{_HTML}0102").read(), limits).text
            folders = dict.fromkeys(path[0] for path in file.listdir() if path[0].startswith("__attach"))
            attached = [
                next(filter(None, (_property(file, id, f"{folder}/") for id in _FILE_NAMES)), "a file")
                for folder in folders
            ]
    except RowError:
        raise
    except _BROKEN as error:
        raise RowError(one_line(f"the mail cannot be read: {type(error).__name__}: {error}")) from error
    return _parsed(subject, headers, sent, body, attached)


def _property(file: OleFileIO, id: str, folder: str = "") -> str:
    """Text of a property, or ""."""
    for kind in ("001F", "001E"):  # UTF-16, or the charset of the sender
        if file.exists(name := f"{folder}__substg1.0_{id}{kind}"):
            raw = file.openstream(name).read()
            return (raw.decode("utf-16-le") if kind == "001F" else decode_text(raw)).rstrip("\x00")
    return ""


def _sent(file: OleFileIO) -> datetime | None:
    name = "__properties_version1.0"
    raw = file.openstream(name).read() if file.exists(name) else b""
    for tag, _, ticks in struct.iter_unpack("<IIQ", raw[32 : len(raw) // 16 * 16]):
        if tag == _SENT:
            return _EPOCH + timedelta(microseconds=ticks // 10)
    return None


def _unquoted(text: str) -> str:
    """The text, where the older mails quoted below it are paragraphs without marks. Answers between quotations keep the
    marks, which tell them apart. Marks deeper than a quotation of a quotation can be are words of the mail."""
    written = text.split("\n")
    n_own = len(written)
    while n_own and (written[n_own - 1].startswith(">") or not written[n_own - 1].strip()):
        n_own -= 1
    lines, quoted, depth = written[:n_own], written[n_own:], 0
    depths = {marks[0].count(">") for line in quoted if (marks := re.match(f"{_MARK}++", line))}
    deepest = next(n for n in count() if n + 1 not in depths)
    for line in quoted:
        words = re.sub(rf"\A{_MARK}{{0,{deepest}}}+", "", line, count=1)
        n_marks = line[: len(line) - len(words)].count(">")
        lines += ([""] if n_marks not in (0, depth) else []) + [words]
        depth = n_marks or depth
    return "\n".join(lines).strip()


def _parsed(subject: str, headers: dict[str, str], date: datetime | None, body: str, attached: Sequence[str]) -> Parsed:
    text = _unquoted(body.replace("\r\n", "\n").strip())
    if not text:
        raise RowError("the mail has no text")
    head = "\n".join(f"{name}: {value}" for name in _HEADERS if (value := headers[name]))
    problems = (one_line(f"its attachments are not read: {', '.join(attached)}"),) if attached else ()
    metadata = properties(headers["From"], date.date().isoformat() if date else "")
    return Parsed(" ".join(subject.split()), f"{head}\n\n{text}".lstrip(), (), problems, dict(metadata))
