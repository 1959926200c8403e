"""Bytes of an HTML file to text, by the charset that the file declares."""

from __future__ import annotations

import re

from gpu_rag.sources.rows import RowError

_MARKS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
_LOOKED_AT = 1024  # the HTML Standard wants the declaration within the first 1,024 bytes
_COMMENT = re.compile(rb"<!--.*?(?:-->|\Z)", re.DOTALL)
_META = re.compile(rb"<meta[\s/][^>]*?charset\s*=\s*[\"']?\s*([^\s\"'/>;]+)", re.IGNORECASE)
_XML = re.compile(rb"\A\s*<\?xml[^>]*?encoding\s*=\s*[\"']([^\"']+)")

# Labels as they are written in pages, by the codec that the WHATWG Encoding Standard gives them. A list, because some
# of Python's codecs do other things than decode text.
_LABELS = {
    "utf-8": "utf-8 utf8 unicode-1-1-utf-8 utf-16 utf-16le utf-16be unicode",  # UTF-16 cannot stand in an ASCII tag
    "cp1252": "windows-1252 cp1252 iso-8859-1 iso8859-1 iso_8859-1 latin1 l1 ascii us-ascii x-user-defined",
    "iso8859-2": "iso-8859-2 iso8859-2 latin2 l2",
    "iso8859-3": "iso-8859-3 iso8859-3 latin3",
    "iso8859-4": "iso-8859-4 iso8859-4 latin4",
    "iso8859-5": "iso-8859-5 iso8859-5 cyrillic",
    "iso8859-6": "iso-8859-6 iso8859-6 arabic",
    "iso8859-7": "iso-8859-7 iso8859-7 greek",
    "iso8859-8": "iso-8859-8 iso-8859-8-i iso8859-8 hebrew",
    "iso8859-10": "iso-8859-10 latin6",
    "iso8859-13": "iso-8859-13",
    "iso8859-14": "iso-8859-14",
    "iso8859-15": "iso-8859-15 iso8859-15 latin9",
    "iso8859-16": "iso-8859-16",
    "cp1250": "windows-1250 cp1250 x-cp1250",
    "cp1251": "windows-1251 cp1251 x-cp1251",
    "cp1253": "windows-1253 cp1253",
    "cp1254": "windows-1254 cp1254 iso-8859-9 iso8859-9 latin5",
    "cp1255": "windows-1255 cp1255",
    "cp1256": "windows-1256 cp1256",
    "cp1257": "windows-1257 cp1257",
    "cp1258": "windows-1258 cp1258",
    "cp874": "windows-874 tis-620 iso-8859-11",
    "cp866": "ibm866 cp866 866",
    "koi8-r": "koi8-r koi8 koi",
    "koi8-u": "koi8-u koi8-ru",
    "mac-roman": "macintosh mac x-mac-roman",
    "mac-cyrillic": "x-mac-cyrillic x-mac-ukrainian",
    "gb18030": "gb18030 gbk gb2312 gb_2312-80 x-gbk chinese",
    "big5hkscs": "big5 big5-hkscs x-x-big5 cn-big5",
    "euc-jp": "euc-jp x-euc-jp",
    "cp932": "shift_jis shift-jis sjis x-sjis windows-31j ms932",
    "iso2022_jp": "iso-2022-jp",
    "cp949": "euc-kr ks_c_5601-1987 korean windows-949",
}
_CODECS = {label: codec for codec, labels in _LABELS.items() for label in labels.split()}


def decode_html(raw: bytes) -> str:
    """The text of an HTML file: by its byte order mark, else by the charset of its meta tag (or XML declaration) within
    the first 1,024 bytes, else as UTF-8; a charset that is not known counts as none.

    Raises RowError naming the charset and the first bad byte: nothing is replaced.
    """
    codec, mark = _codec(raw)
    body = raw[len(mark) :]
    try:
        return body.decode(codec)
    except UnicodeDecodeError as error:
        bad = f"byte 0x{body[error.start]:02x} at offset {error.start + len(mark)}"
        raise RowError(f"not {codec.upper()}, the charset of the file: {bad}") from error


def _codec(raw: bytes) -> tuple[str, bytes]:
    """(Python's name of the charset, the byte order mark that the file begins with)."""
    for mark, codec in _MARKS:
        if raw.startswith(mark):
            return codec, mark
    head = _COMMENT.sub(b"", raw[:_LOOKED_AT])
    for declaration in (_META, _XML):
        if match := declaration.search(head):
            label = match[1].strip().lower().decode("ascii", "replace")
            if label in _CODECS:
                return _CODECS[label], b""
    return "utf-8", b""
