"""PDF files written by hand: of numbered objects, and of pages of lines."""

import zlib
from collections.abc import Mapping, Sequence


def pdf_of(*objects: bytes, trailer: bytes = b"") -> bytes:
    """A PDF of numbered objects, the first its catalogue."""
    out, starts = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, start=1):
        starts.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % start for start in starts)
    size = len(objects) + 1
    tail = b"trailer\n<< /Size %d /Root 1 0 R %s>>\nstartxref\n%d\n%%%%EOF\n" % (size, trailer, len(out))
    return b"%sxref\n0 %d\n0000000000 65535 f \n%s%s" % (out, size, table, tail)


def pdf(pages: Sequence[str], title: str = "", packed: bool = False, outline: Mapping[str, int] | None = None) -> bytes:
    """A PDF of pages of lines; outline: the page, from 0, of each bookmark."""
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for i, page in enumerate(pages):
        shown = "".join(f"({line}) Tj T*\n" for line in page.split("\n"))
        body = f"BT /F1 12 Tf 72 720 Td 14 TL\n{shown}ET".encode("latin-1")
        body, how = (zlib.compress(body), b" /Filter /FlateDecode") if packed else (body, b"")
        head = "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources << /Font << /F1 3 0 R >> >>"
        objects.append(f"{head} /Contents {5 + 2 * i} 0 R >>".encode())
        objects.append(b"<< /Length %d%s >>\nstream\n%s\nendstream" % (len(body), how, body))
    if outline:
        root, last = len(objects) + 1, len(objects) + 1 + len(outline)
        objects[0] = b"<< /Type /Catalog /Pages 2 0 R /Outlines %d 0 R >>" % root
        objects.append(b"<< /Type /Outlines /First %d 0 R /Last %d 0 R >>" % (root + 1, last))
        for number, (words, page) in enumerate(outline.items(), root + 1):
            more = f"/Next {number + 1} 0 R" if number < last else ""
            item = f"<< /Title ({words}) /Parent {root} 0 R /Dest [{4 + 2 * page} 0 R /Fit] {more} >>"
            objects.append(item.encode())
    return pdf_of(*objects, f"<< /Title ({title}) >>".encode(), trailer=b"/Info %d 0 R " % (len(objects) + 1))
