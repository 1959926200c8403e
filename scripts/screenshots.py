"""Make the pictures of docs/screenshots: `gpu-rag ask` in a terminal (ask.svg), and its web page (page.png,
page-dark.png, phone.png).

usage: python scripts/screenshots.py INDEX "QUESTION" [--llm SPEC] [--method ppr]

Playwright draws the page in Chromium; without Chromium only the terminal is drawn. Replies are shown unchanged.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import socket
import tempfile
import threading
from pathlib import Path
from urllib.parse import urlencode

import uvicorn
from playwright.sync_api import sync_playwright
from rich.console import Console

from gpu_rag import Index
from gpu_rag.cli.trace_text import step_words, styled, trace_text
from gpu_rag.engine import Engine
from gpu_rag.jobs import row_of
from gpu_rag.serve.admission import Admission
from gpu_rag.serve.api import make_app
from gpu_rag.serve.live import EngineThread
from gpu_rag.settings import Settings, make_settings
from gpu_rag.types import Question

OUT = Path(__file__).resolve().parents[1] / "docs" / "screenshots"
PICTURES = {"page.png": (1180, 900, "light"), "page-dark.png": (1180, 900, "dark"), "phone.png": (390, 900, "light")}
FLAGS = ["--no-sandbox", "--disable-gpu"]
COLUMNS = 118


def draw_terminal(engine: Engine, method: str, question: str) -> None:
    """Write the output of `ask` as SVG."""
    (answer,) = engine.run(method, [Question("ask", question)], support=True).answers
    row = row_of(answer)
    with open("/dev/null", "w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, highlight=False, force_terminal=True)
        console.print(f'$ gpu-rag ask my-index "{question}"\n', markup=False)
        console.print(styled(trace_text(row, decisions=False, evidence=2), row))
        drawn = console.export_svg(title="gpu-rag ask")
    own = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)  # fonts of another site
    (OUT / "ask.svg").write_text(own, encoding="utf-8")


def draw_page(engine: Engine, settings: Settings, method: str, question: str, browser: str) -> None:
    """Write the page with the same question as PNG."""
    live = EngineThread(lambda: {"index": engine}, settings.serve, print)
    live.start()
    app = make_app(live, Admission(settings), step_words, "127.0.0.1")
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/#{urlencode({'q': question, 'method': method})}"
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        with sync_playwright() as playwright, playwright.chromium.launch(executable_path=browser, args=FLAGS) as opened:
            for name, (width, height, scheme) in PICTURES.items():
                page = opened.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                page.goto(url)
                page.locator("#answer[aria-busy=false]").wait_for(timeout=600_000)
                page.locator("#graph canvas").first.wait_for()
                page.wait_for_timeout(500)
                page.screenshot(path=OUT / name)
    finally:
        server.should_exit = True
        thread.join()
        live.stop()


def main() -> None:
    """Draws both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("question")
    parser.add_argument("--llm", default="smollm2")
    parser.add_argument("--method", default="ppr")
    options = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    settings = make_settings({"models": {"llm": options.llm}, "serve": {"warm": False}})
    with tempfile.TemporaryDirectory() as folder:  # page and terminal show the same reply
        engine = Index.open(options.index).engine(settings, replies=Path(folder) / "replies.sqlite")
        draw_terminal(engine, options.method, options.question)
        browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if browser is not None:
            draw_page(engine, settings, options.method, options.question, browser)


if __name__ == "__main__":
    main()
