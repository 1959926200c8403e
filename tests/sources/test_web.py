"""Web providers: a snapshot of pages with a local search, and a SearXNG server, which is a stub here."""

import json
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import http_stub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpu_rag.errors import BadInput, RequestFailed
from gpu_rag.sources.web import is_server, open_web
from gpu_rag.sources.web import searxng as web_searxng
from gpu_rag.sources.web.searxng import SearxngProvider
from gpu_rag.sources.web.snapshot import SnapshotProvider, beginning, read_pages
from gpu_rag.sources.web.types import WebPage, WebResult

HTML = "<html><head><title>Tamsin</title></head><body><nav>menu</nav><p>Tamsin is a fishing port.</p></body></html>"


def test_a_folder_of_pages_is_searched_and_read(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(HTML)
    (tmp_path / "b.txt").write_text("The lighthouse was built in 1902.")
    (tmp_path / "c.html").write_bytes(b"\x00" * 9)
    pages, rejects = read_pages(tmp_path)
    assert pages == [
        WebPage("a.html", "Tamsin", "Tamsin is a fishing port."),
        WebPage("b.txt", "b", "The lighthouse was built in 1902."),
    ]
    assert len(rejects) == 1
    provider = open_web(str(tmp_path))
    assert provider.search(["fishing ports", "lighthouse 1902", "zzz"], 2) == [
        [WebResult("a.html", "Tamsin", "Tamsin is a fishing port.")],
        [WebResult("b.txt", "b", "The lighthouse was built in 1902.")],
        [],
    ]
    assert provider.read(["b.txt", "gone"]) == [pages[1], WebPage("gone", "", "", "not in the snapshot")]
    provider.close()


ROWS = [
    {"url": "http://x/1", "title": "One", "text": "first page", "html": None},
    {"url": "http://x/2", "title": None, "text": None, "html": HTML},
    {"url": "http://x/1", "title": "Again", "text": "same url", "html": None},
    {"url": None, "title": "no url", "text": "t", "html": None},
]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_rows_of_pages_with_text_or_html(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"pages.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        path.write_text("".join(json.dumps({k: v for k, v in row.items() if v is not None}) + "\n" for row in ROWS))
    pages, rejects = read_pages(path)
    assert [(p.url, p.title, p.text) for p in pages] == [
        ("http://x/1", "One", "first page"), ("http://x/2", "Tamsin", "Tamsin is a fishing port."),
    ]  # fmt: skip
    assert len(rejects) == 2


def test_a_snapshot_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path / "none.parquet", tmp_path / "pages.pdf"):
        with pytest.raises(BadInput):
            read_pages(path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput):
        read_pages(tmp_path / "empty")
    assert SnapshotProvider("none", []).search(["a"], 3) == [[]]
    assert not is_server("pages") and is_server("http://127.0.0.1:8888")


def test_a_snippet_is_the_beginning_of_a_page() -> None:
    text = "One sentence. " * 60
    assert beginning(text).endswith("One sentence.") and len(beginning(text)) <= 300
    assert beginning("short") == "short" and beginning("") == "" and len(beginning("x" * 999)) <= 300


class Stub(http_stub.JsonHandler):
    """Answers searches and a few pages; `asked` holds the paths."""

    asked: ClassVar[list[str]] = []
    elsewhere: ClassVar[str] = ""

    def do_GET(self) -> None:
        self.asked.append(self.path)
        parts = urlsplit(self.path)
        if parts.path == "/search":
            query = parse_qs(parts.query)
            assert query["format"] == ["json"]
            if query["q"] == ["moved"]:
                self._say(302, "text/plain", "", location=self.elsewhere)
            else:
                self._say(*self._results(query["q"][0]))
        elif parts.path == "/moved":
            self._say(302, "text/plain", "", location=self.elsewhere)
        elif parts.path == "/packed":
            self._say(200, "text/plain", "x", **{"content-encoding": "br"})
        else:
            pages: dict[str, tuple[int, str, str]] = {
                "/page.html": (200, "text/html; charset=utf-8", HTML),
                "/plain": (200, "text/plain", "plain text"),
                "/big": (200, "text/plain", "x" * 3000),
                "/image": (200, "image/png", "png"),
            }
            self._say(*pages.get(parts.path, (404, "text/plain", "gone")))

    def _results(self, query: str) -> tuple[int, str, str]:
        here = f"http://{self.headers['Host']}"
        rows: list[Any] = [
            {"url": f"{here}/page.html", "title": " T  1 ", "content": query}, {"title": "no url"},
            {"url": f"{here}/plain", "title": "T2", "content": None},
        ]  # fmt: skip
        if query == "broken":
            return 200, "application/json", "<html>"
        if query == "down":
            return 500, "text/plain", "no"
        return 200, "application/json", json.dumps({"results": rows})

    def _say(self, status: int, kind: str, text: str, **headers: str) -> None:
        self.send(status, text.encode(), {"content-type": kind, **headers})


@pytest.fixture
def server() -> Iterator[str]:
    stub = http_stub.Stub(Stub)
    yield stub.url
    stub.close()


def test_a_server_is_searched_and_its_pages_are_read(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_searxng, "MAX_PAGE_BYTES", 2000)
    Stub.asked.clear()
    provider = open_web(server + "/")
    assert Stub.asked == []  # nothing is asked before a search
    found = provider.search(["ports & towns", "other"], 2)
    first = WebResult(f"{server}/page.html", "T 1", "ports & towns")
    assert found[0] == [first, WebResult(f"{server}/plain", "T2", "")] and isinstance(found[1], list)
    assert found[1][0].snippet == "other"
    assert provider.search(["a"], 1) == [[WebResult(f"{server}/page.html", "T 1", "a")]]
    urls = [f"{server}/{name}" for name in ("page.html", "plain", "big", "image", "gone")] + ["file:///etc/hostname"]
    pages = provider.read(urls)
    assert pages[0] == WebPage(urls[0], "Tamsin", "Tamsin is a fishing port.") and pages[1].text == "plain text"
    assert [bool(page.problem) for page in pages] == [False, False, True, True, True, True]
    assert all(page.text == "" for page in pages[2:])
    provider.close()


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "10.1.2.3", "192.168.0.9", "169.254.169.254", "::1", "fd00::1", "::ffff:10.0.0.1", "localhost"],
)
def test_addresses_of_the_own_network_are_not_public(host: str) -> None:
    assert not web_searxng.is_public(host, 80)
    assert web_searxng.is_public("93.184.216.34", 80)


def test_results_and_redirects_do_not_lead_into_the_own_network(server: str) -> None:
    Stub.asked.clear()
    provider = SearxngProvider(server)
    other = ThreadingHTTPServer(("127.0.0.1", 0), Stub)  # asked by nobody: its address is not the server's
    inside = f"http://127.0.0.1:{other.server_address[1]}/plain"
    Stub.elsewhere = inside
    pages = provider.read([inside, f"{server}/moved", f"{server}/packed", f"{server}/plain"])
    assert [page.text for page in pages] == ["", "", "", "plain text"]
    assert "not public" in pages[0].problem and "not public" in pages[1].problem and "br" in pages[2].problem
    assert sorted(Stub.asked) == ["/moved", "/packed", "/plain"]
    assert isinstance(provider.search(["moved"], 3)[0], RequestFailed)  # nor is another server asked for results
    provider.close()
    other.server_close()


def test_a_page_that_never_ends_is_left(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_searxng, "PAGE_S", 0.0)
    provider = SearxngProvider(server)
    assert "seconds" in provider.read([f"{server}/plain"])[0].problem
    provider.close()


@pytest.mark.parametrize("address", ["http://", "http://x:y", "https:///search"])
def test_an_address_that_is_none_is_named(address: str) -> None:
    with pytest.raises(BadInput):
        open_web(address)


def test_a_server_that_fails_says_so(server: str) -> None:
    provider = SearxngProvider(server)
    found = provider.search(["down", "ports", "broken"], 3)
    assert [isinstance(one, RequestFailed) for one in found] == [True, False, True]
    provider.close()
    gone = SearxngProvider("http://127.0.0.1:9", timeout_s=2)
    assert isinstance(gone.search(["a"], 1)[0], RequestFailed)
    assert gone.read(["http://127.0.0.1:9/x"])[0].problem
    gone.close()
