"""The page of a server in Chromium: one server and one browser for all tests of this module."""

import importlib.util
import json
import math
import os
import re
import sys
import time
from urllib.parse import urlencode

import pytest
from browser import chromium

if importlib.util.find_spec("playwright") is None and not os.environ.get("CI"):
    pytest.skip("Playwright is in the extra `dev`", allow_module_level=True)

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright

pytestmark = pytest.mark.slow

HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'
QUESTION = "Who built the lighthouse of Quill?"
ANSWER = "Anna Stroud built the lighthouse of Quill"
MENTIONED = "Who was a pupil of somebody?"
SAID = {
    QUESTION: ANSWER,
    MENTIONED: "Anna Stroud of Kerling, by the port of Tamsin",
    "What is Zarn?": f"Zarn is {HOSTILE}",
}
PATIENCE_MS = 300_000  # a change of the index is a process of its own
KEYS = """
[reader]
key = "key-of-reader"
rights = ["read", "answer"]
[owner]
key = "key-of-owner"
rights = ["read", "answer", "change"]
"""
TEXTS = {
    "Quill": "The lighthouse of Quill was built by Anna Stroud. It stands on the rock of Hern. Ole Berg made its lamp.",
    "Anna Stroud": "Anna Stroud was born in Kerling. Anna Stroud was a pupil of Ole Berg. She built a bridge.",
    "Ole Berg": "Ole Berg was born in Vell. Ole Berg made the lamps of the port of Tamsin.",
    "Tamsin": "Tamsin is a port on the river Ves. The lighthouse of Tamsin was built by Piet Hond in 1911.",
    "Kerling": "Kerling is a town on the river Ves. Kerling has a bridge, which was built by Anna Stroud.",
    "Ostend": "Ostend is a port with a museum. Anna Stroud died in Ostend.",
    "Zarn": f"\U0001f309 Zarn is a town on the river Ves. {HOSTILE} Its \u202elast words.",
}


def say(prompt):
    return 200, next((answer for question, answer in SAID.items() if question in prompt), ANSWER)


@pytest.fixture(scope="module")
def model():
    """A model server whose words come one by one."""
    server = sys.modules["cli_shared"].ChatServer(say, pace=0.05)
    yield server
    server.close()


@pytest.fixture(scope="module")
def site(served_once, model, tmp_path_factory):
    """A server with keys over a small index that may change."""
    shared, folder = sys.modules["cli_shared"], tmp_path_factory.mktemp("page")
    rows = [{"id": f"d{i}", "title": t, "text": x, "year": 2000 + i} for i, (t, x) in enumerate(TEXTS.items())]
    rows[-1] |= {"id": HOSTILE, "title": f"Zarn {HOSTILE}", "year": 1999}
    corpus = shared.write_rows(folder / "corpus.jsonl", [*rows, {"id": "no text"}])
    assert shared.run_here("index", corpus, "--out", folder / "ix", "--for", "ppr,bm25", *shared.NO_LLM).status == 0
    (folder / "keys.toml").write_text(KEYS)
    settings = ("--set", f"models.llm={model.spec}", "--set", "serve.warm=false")
    return served_once(folder / "ix", "--api-key-file", folder / "keys.toml", *settings)


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture
def visit(browser, site):
    """visit(view="ask", key=..., width=..., scheme=..., **values): the page, opened by such a link. No error of its
    scripts and no breach of its policy may come."""
    contexts, errors = [], []

    def noted(message):
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            errors.append(message.text)

    def opened(view="ask", key="key-of-owner", width=1280, scheme="light", **values):
        contexts.append(browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme))
        if key:
            contexts[-1].add_init_script(f"sessionStorage.setItem('gpu-rag key', '{key}')")
        page = contexts[-1].new_page()
        page.set_default_timeout(30_000)
        page.on("console", noted)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{site.url}/#{urlencode({'view': view, **values})}")
        return page

    expect.set_options(timeout=30_000)
    yield opened
    for context in contexts:
        context.close()
    assert not errors


def answered(page, text=ANSWER):
    expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")
    expect(page.locator("#answer")).to_contain_text(text)
    expect(page.locator("#graph canvas").first).to_be_attached()
    return page


def faults(page):
    """The faults that axe finds serious or critical."""
    found = Axe().run(page).response["violations"]
    return [(f["id"], [n["html"] for n in f["nodes"]]) for f in found if f["impact"] in ("serious", "critical")]


STATES = """() => {
    const [shown, states] = [document.getElementById("answer"), (window.states = [])];
    const note = () => states.push([shown.className, shown.textContent, performance.now()]);
    new MutationObserver(note).observe(shown, { attributes: true, childList: true });
    document.getElementById("ask-form").addEventListener("submit", () => (window.began = performance.now()));
}"""


def test_an_answer_streams_with_its_citations_and_its_graph(visit, model):
    page = visit()
    page.get_by_label("Your question").fill(QUESTION)
    expect(page.locator("#method option").first).to_be_attached()
    page.get_by_label("Method", exact=True).select_option("ppr")
    page.evaluate(STATES)
    model.let_through(0)
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator("#answer.waiting")).to_have_text("Reading 5 passages …")
    expect(page.locator("#evidence .passage")).to_have_count(5)  # before the model has said a word
    expect(page.locator("#graph canvas").first).to_be_attached()
    model.let_through(math.inf)
    answered(page)
    streamed = [text for kind, text, _ in page.evaluate("window.states") if kind == "streaming"]
    assert len(set(streamed)) > 2 and all(ANSWER.startswith(text) for text in streamed)
    expect(page.locator("#grounding")).to_have_text(re.compile("^Supported"))
    expect(page.locator("#sentences li").first).to_contain_text("built by Anna Stroud")
    cite = page.locator("#answer .cite").first
    expect(cite).to_have_attribute("aria-label", re.compile("Quill"))
    text = page.locator("#evidence .passage", has_text="The lighthouse of Quill was built").locator(".text").first
    assert "folded" in text.get_attribute("class")
    cite.click()
    expect(text).not_to_have_class(re.compile("folded"))
    expect(text.locator("mark").first).to_be_in_viewport()
    kinds = page.locator("#graph").evaluate("holder => holder.picture.nodes().map(one => one.data('kind'))")
    assert {"seed", "answer", "passage"} <= set(kinds)
    place = page.locator("#graph").evaluate("""holder => {
        holder.scrollIntoView();
        const { left, top } = holder.getBoundingClientRect();
        const { x, y } = holder.picture.nodes("[kind = 'answer']").renderedPosition();
        return [left + x, top + y];
    }""")
    page.mouse.click(*place)
    expect(page.locator("#chosen")).to_contain_text("Anna Stroud")
    expect(page.locator("#chosen .facts li").first).to_be_visible()
    n_before = len(kinds)
    page.get_by_role("button", name="Show neighbours").click()
    assert page.locator("#graph").evaluate("holder => holder.picture.nodes().length") > n_before
    page.get_by_text("The picture in words").click()
    expect(page.locator("#facts li").first).to_be_visible()


def test_an_answer_that_is_only_mentioned_cites_the_sentence_with_its_words(visit):
    page = answered(visit(q=MENTIONED, method="ppr"), "Anna Stroud of Kerling")
    expect(page.locator("#grounding")).to_have_text(re.compile("^Mentioned"))
    first = page.locator("#sentences li").first
    expect(first).to_contain_text(re.compile("Anna Stroud|Kerling|Tamsin"))
    number = page.locator("#answer .cite").first.text_content()
    assert first.locator(".cite").text_content() == number
    page.locator("#answer .cite").first.click()
    expect(page.locator("#evidence .passage", has_text=number).locator("mark").first).to_be_in_viewport()


def test_the_first_words_are_shown_soon_after_the_server_sends_them(visit, site, model):
    """Within 1.5 times the time of the first piece over HTTP; one good run of a few is enough on a busy machine."""
    page, ratios = visit(), []
    expect(page.locator("#method option").first).to_be_attached()
    page.evaluate(STATES)
    model.seconds = 0.5
    try:
        for i in range(4):
            body = {"model": "ppr", "stream": True, "messages": [{"role": "user", "content": f"{QUESTION} {i}"}]}
            began = time.perf_counter()
            headers = {"authorization": "Bearer key-of-owner"}
            with site.client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
                next(response.iter_bytes())
                server_s = time.perf_counter() - began
            page.evaluate("window.states.length = 0")
            page.get_by_label("Your question").fill(f"{QUESTION} again {i}")
            page.get_by_label("Method", exact=True).select_option("ppr")
            page.get_by_role("button", name="Ask", exact=True).click()
            expect(page.locator("#answer")).to_have_attribute("aria-busy", "false")
            first = next(ms for kind, _, ms in page.evaluate("window.states") if kind == "streaming")
            ratios.append((first - page.evaluate("window.began")) / 1000 / server_s)
            if ratios[-1] <= 1.5:
                return
    finally:
        model.seconds = 0.0
    raise AssertionError(ratios)


def test_a_link_opens_the_same_question_and_the_history_has_it(visit):
    page = answered(visit(q=QUESTION, method="bm25", where="year < 2003"))
    page.get_by_label("Only documents where").focus()
    expect(page.locator("#where-help")).to_contain_text("Documents have: year")
    expect(page.get_by_label("Method", exact=True)).to_have_value("bm25")
    expect(page.locator("#evidence .passage").first).to_contain_text("year: 200")
    page.reload()
    answered(page)
    expect(page.locator("#cost")).to_contain_text("bm25")
    page.get_by_text("Earlier questions").click()
    link = page.locator("#history a").first
    expect(link).to_have_text(QUESTION)
    assert "where=year" in link.get_attribute("href")
    page.goto(page.url.replace("2003", "1000"))
    expect(page.locator("#evidence")).to_contain_text("No passage fits")
    page.goto(page.url.replace("year", "yaer%29"))
    expect(page.locator("#state.failed")).to_contain_text("yaer")


def test_the_page_finds_names_neighbours_paths_and_documents(visit):
    page = visit("explore")
    page.get_by_label("Find a name").fill("anna")
    page.locator("#names a", has_text="Anna Stroud").click()
    expect(page.locator("#entity h2")).to_have_text("Anna Stroud")
    expect(page.locator("#entity .facts li", has_text="Ole Berg").first).to_be_visible()
    expect(page.locator("#explore-graph canvas").first).to_be_attached()
    page.get_by_label("To").fill("Vell")
    page.get_by_role("button", name="Find paths").click()
    expect(page.locator("#entity ol > li").first).to_contain_text("Vell")
    page.get_by_label("To").fill("Nowhere at all")
    page.get_by_role("button", name="Find paths").click()
    expect(page.locator("#state.failed")).to_contain_text("no such name")
    page.locator("#find").fill("Anna Stroud")
    page.locator("#names a", has_text="Anna Stroud").first.click()
    page.locator("#entity .links a", has_text="Quill").click()
    expect(page.locator("#document h2")).to_have_text("Quill")
    page.get_by_role("button", name="Open the passage").click()
    expect(page.locator("#passage-text")).to_contain_text("rock of Hern")
    page.keyboard.press("Escape")
    expect(page.locator("#passage")).to_be_hidden()


def test_methods_side_by_side(visit):
    page = visit("compare", q=QUESTION, methods="bm25,ppr")
    for method in ("bm25", "ppr"):
        card = page.get_by_role("article", name=method)
        expect(card.locator(".pill")).to_have_text("Supported")
        expect(card.locator(".answer")).to_have_text(ANSWER)
    expect(page.locator(".shared").first).to_have_text("all")
    page.get_by_role("article", name="ppr").get_by_role("link", name="Open").click()
    answered(page)


def test_one_of_several_indexes_is_chosen(visit, site):
    page = visit(key=None)
    names = [{"name": "first", "base": "/"}, {"name": "other", "base": "/w/other/"}]
    page.route("**/v1/indexes", lambda route: route.fulfill(json={"indexes": names}))
    page.route("**/w/other/v1/**", lambda route: route.continue_(url=route.request.url.replace("/w/other", "")))
    page.evaluate("sessionStorage.setItem('gpu-rag key', 'key-of-reader')")
    page.reload()
    page.get_by_label("Index").select_option("other")
    expect(page.locator("[data-view=documents]")).to_have_attribute("href", re.compile("index=other"))
    with page.expect_request("**/w/other/v1/documents*"):
        page.get_by_role("link", name="Documents").click()
    expect(page.locator("#documents-count")).to_contain_text("of 7")
    page.reload()  # the address keeps it
    expect(page.get_by_label("Index")).to_have_value("/w/other")


def test_keys_and_errors_are_told_in_plain_words(visit, site):
    page = visit(key=None)
    expect(page.locator("#key-dialog")).to_be_visible()
    page.get_by_label("API key").fill("key-of-reader")
    page.keyboard.press("Enter")
    expect(page.locator("#about")).to_contain_text("7 documents")
    page.goto(f"{site.url}/#view=documents")
    page.get_by_text("Or paste a text").click()
    page.get_by_label("Text", exact=True).fill("The windmill of Ostrel.")
    page.get_by_role("button", name="Add to the index").click()
    expect(page.locator("#changes .failed")).to_contain_text("Your key may not do this")
    page.route("**/v1/**", lambda route: route.abort())
    page.goto(f"{site.url}/#{urlencode({'view': 'ask', 'q': QUESTION})}")
    expect(page.locator("#state.failed")).to_contain_text("Is it still running?")


def test_things_of_a_knowledge_base_are_listed_and_drawn(visit, site):
    def with_nodes(route):
        row = route.fetch().json()
        node = {"id": "a", "name": "Anna Stroud", "type": "person", "source": "kb", "score": 1.0}
        route.fulfill(json={**row, "evidence": [], "paths": [], "support": [], "nodes": [node] * 7})

    page = visit("documents")
    page.route("**/v1/retrieve", with_nodes)
    page.goto(f"{site.url}/#{urlencode({'q': QUESTION, 'method': 'bm25', 'only': 1})}")
    expect(page.locator("#nodes-title")).to_have_text("The best 5 of 7 things that fit")
    expect(page.locator("#nodes a").first).to_have_attribute("href", re.compile("name=Anna"))
    expect(page.locator("#graph canvas").first).to_be_attached()
    expect(page.locator("#grounding")).to_contain_text("Evidence only")


def test_hostile_texts_stay_texts(visit):
    page = answered(visit(q="What is Zarn?", method="bm25"), HOSTILE)
    title = page.locator("#evidence h3", has_text="Zarn").first
    expect(title).to_contain_text(HOSTILE)
    text = page.locator("#evidence .passage", has_text="Zarn is a town").locator(".text")
    expect(text).to_contain_text("Its \\u202elast words.")
    expect(text.locator("mark", has_text="\U0001f309 Zarn is a town on the river Ves.").first).to_be_attached()
    page.goto(page.url.partition("#")[0] + "#" + urlencode({"view": "documents", "id": HOSTILE}))
    expect(page.locator("#document h2")).to_contain_text(HOSTILE)
    page.goto(page.url.partition("#")[0] + "#" + urlencode({"view": "explore", "name": HOSTILE}))
    expect(page.locator("#state.failed")).to_contain_text("no such name")
    assert page.locator("img, main script").count() == 0 and page.title() not in ("1", "2")


def test_a_phone_shows_the_whole_result_within_2500_pixels(visit):
    page = answered(visit(q=QUESTION, method="ppr", width=390))
    height, width = page.evaluate("[document.documentElement.scrollHeight, document.documentElement.scrollWidth]")
    assert height <= 2500 and width <= 390
    assert page.locator("#answer .cite").count() >= 1
    assert page.locator("#sentences > li").count() == 3
    for view in ("explore", "documents", "compare"):
        page.goto(page.url.partition("#")[0] + f"#view={view}")
        expect(page.locator(f"#{view}")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_everything_is_reached_by_the_keyboard(visit):
    page = visit()
    expect(page.get_by_label("Your question")).to_be_focused()
    page.keyboard.type(QUESTION)
    page.keyboard.press("Enter")
    answered(page)
    names = []
    for _ in range(20):
        page.keyboard.press("Tab")
        names.append(
            page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent")
        )
        if re.fullmatch(r"Source \d+: .*", names[-1]):
            break
    else:
        raise AssertionError(names)
    page.keyboard.press("Enter")
    expect(page.locator("#evidence h3:focus")).to_have_count(1)
    page.keyboard.press("Tab")
    expect(page.locator("#evidence [aria-expanded]:focus")).to_have_text("Show less")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#passage")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#passage")).to_be_hidden()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("dark", 390)])
def test_axe_finds_no_serious_fault(visit, scheme, width):
    page = answered(visit(q=QUESTION, method="ppr", scheme=scheme, width=width))
    red, *_ = map(int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor")))
    assert (red < 60) == (scheme == "dark")
    page.wait_for_timeout(300)
    assert faults(page) == []
    for view, shown in (
        ("explore&name=Anna+Stroud", "#entity h2"),
        ("documents&id=d0", "#document h2"),
        ("compare&" + urlencode({"q": QUESTION, "methods": "bm25"}), ".columns .pill"),
    ):
        page.goto(page.url.partition("#")[0] + f"#view={view}")
        page.locator(shown).first.wait_for()
        assert faults(page) == [], view
    page.goto(page.url.partition("#")[0] + "#view=documents&id=d0")
    page.get_by_role("button", name="Open the passage").click()
    assert faults(page) == []


def test_routes_that_look_into_the_index_are_bounded(site):
    def get(path, **query):
        return site.client.get(path, params=query, headers={"authorization": "Bearer key-of-reader"})

    names = [row["name"] for row in get("/v1/entities", q="STROUD").json()["entities"]]
    assert names[0] == "Anna Stroud" and all("stroud" in name.lower() for name in names)
    top = get("/v1/entities", limit=3).json()
    counts = [row["n_facts"] for row in top["entities"]]
    assert len(counts) == 3 and counts == sorted(counts, reverse=True) and top["total"] > 3
    entity = get("/v1/entities/Anna Stroud", limit=1).json()
    assert len(entity["facts"]) == 1 < entity["n_facts"]
    stated = get("/v1/graph", passage=["d0", "nobody"]).json()["facts"]
    assert stated and {fact["source"] for fact in stated} == {"d0"}
    listed = get("/v1/documents", offset=2, limit=2).json()  # after HOSTILE and d0
    assert [row["id"] for row in listed["documents"]] == ["d1", "d2"] and listed["metadata"] == ["year"]
    assert get("/v1/documents", q="ANNA").json()["total"] == 1
    assert [row["passage_id"] for row in get("/v1/documents/d1").json()["passages"]] == ["d1"]
    assert json.loads(get("/v1/rejects").text)["total"] == 1
    for path, query in (
        ("/v1/entities", {"limit": 201}),
        ("/v1/documents", {"offset": "-1"}),
        ("/v1/entities", {"q": "x" * 401}),
    ):
        assert get(path, **query).status_code == 400
    assert get("/v1/entities/nobody at all").status_code == 404
    assert get("/v1/documents/nobody").status_code == 404


def test_documents_are_listed_added_and_removed(visit):
    page = visit("documents")
    expect(page.locator("#documents-count")).to_have_text("1–7 of 7")
    row = page.locator("#documents-table tr", has_text="Anna Stroud")
    expect(row).to_contain_text("in the graph")
    expect(row.locator("td").nth(2)).to_have_text("en")
    expect(page.locator("#rejects li")).to_have_count(1)
    new = {"name": "Ostrel.txt", "mimeType": "text/plain", "buffer": b"The windmill of Ostrel was built by Mara Lind."}
    page.locator("#files").set_input_files(new)
    page.get_by_role("button", name="Add to the index").click()
    expect(page.locator("#changes progress")).to_be_visible()
    expect(page.locator("#changes .done")).to_contain_text("1 added", timeout=PATIENCE_MS)
    expect(page.locator("#documents-count")).to_have_text("1–8 of 8")
    page.goto(page.url.replace("view=documents", "view=explore&name=Mara+Lind"))
    expect(page.locator("#entity")).to_contain_text("Ostrel")
    page.goto(page.url.replace("view=explore&name=Mara+Lind", "view=documents"))
    page.locator("#documents-find").fill("ostrel")
    page.get_by_role("button", name="Remove Ostrel").click()
    page.locator("#confirm").get_by_role("button", name="Remove").click()
    expect(page.locator("#changes .done", has_text="Remove")).to_contain_text("1 removed", timeout=PATIENCE_MS)
    expect(page.locator("#documents-count")).to_contain_text("No document")
