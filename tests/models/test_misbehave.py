"""The misbehaving server: faults that depend on seed, body and attempt alone, and replies that fit when it behaves."""

import json
import urllib.request
from collections import Counter
from collections.abc import Callable
from http.client import HTTPException
from typing import Any

import pytest

from gpu_rag.errors import RequestFailed, StorageError
from gpu_rag.models.llm.http import find_style, kept_style
from gpu_rag.models.llm.http_wire import Style, body, read_answer, read_completion, thought
from gpu_rag.models.misbehave import CONTENT, FAULTS, MODEL, Manners, MisbehavingServer
from gpu_rag.text.lenient import EXACT, Read, read_reply
from gpu_rag.text.replies import canonical_schema, object_of
from gpu_rag.types import Choice, JsonSchema, Rank, Request

NAMES = canonical_schema(
    object_of(
        {
            "names": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3},
            "sure": {"type": "boolean"},
            "kind": {"enum": ["town", "river"]},
        }
    )
)
ASKED = Request("You read.", "Halden Bridge spans the Ves.", JsonSchema(NAMES), 256)
CONSTRAINTS = [None, JsonSchema(NAMES), Choice(("yes", "no")), Rank(("a", "b", "c"))]
Open = Callable[..., MisbehavingServer]


def post(url: str) -> Callable[[dict[str, Any]], Any]:
    """The chat completion of the server for a body; RequestFailed for any trouble."""

    def send(content: dict[str, Any]) -> Any:
        request = urllib.request.Request(f"{url}/chat/completions", json.dumps(content).encode())
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                text = answer.read()
        except (OSError, HTTPException) as error:
            raise RequestFailed("no reply", given=error) from error
        answer = read_completion(text)
        if not isinstance(answer, dict):
            raise RequestFailed("no reply", given=answer)
        return answer

    return send


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_without_faults_every_constraint_is_kept(misbehaving: Open, constraint: Any) -> None:
    request = Request("You read.", "Halden Bridge spans the Ves.", constraint, 64)
    answer = post(misbehaving(share=0.0).url)(body(MODEL, request, Style()))
    found = read_reply(read_answer(request, answer), constraint)
    assert isinstance(found, Read) and found.how == EXACT


def test_faults_depend_on_seed_body_and_attempt_alone() -> None:
    bodies = [b"%d" % i for i in range(400)]
    manners = Manners(seed=3, share=0.3)
    drawn = {(text, attempt): manners.fault(text, attempt) for attempt in (0, 1) for text in bodies}
    again = {key: Manners(seed=3, share=0.3).fault(*key) for key in reversed(drawn)}
    assert again == drawn
    found = Counter(drawn.values())
    assert 0.6 < found[""] / len(drawn) < 0.8 and set(found) == {"", *FAULTS}
    assert {Manners(seed=4, share=0.3).fault(*key) == fault for key, fault in drawn.items()} == {True, False}
    assert not any(Manners(share=0.0).fault(text, 0) for text in bodies)
    assert all(Manners(share=1.0, faults=("empty",)).fault(text, 0) == "empty" for text in bodies)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_shows(misbehaving: Open, fault: str) -> None:
    """Every fault but a slow reply and an unharmful dress is trouble for who expects the exact form."""
    server = misbehaving(share=1.0, faults=(fault,))
    try:
        answer = post(server.url)(body(MODEL, ASKED, Style()))
    except RequestFailed:
        assert fault in (
            "429",
            "500",
            "reset",
            "half_closed",
            "not_json",
            "no_choices",
            "error_200",
        ) and server.done == {fault: 1}
        return
    reply = read_answer(ASKED, answer)
    found = read_reply(reply, ASKED.constraint)
    assert (isinstance(found, Read) and found.how == EXACT) == (fault == "slow"), (fault, reply.text[:80])
    assert server.done == {fault: 1}
    if fault in ("fenced", "chatty"):
        assert isinstance(found, Read)
    elif fault in CONTENT and fault not in ("cut", "cut_silently"):
        assert not isinstance(found, Read)


def test_a_thought_takes_the_room_of_the_answer_or_is_switched_off(misbehaving: Open) -> None:
    send = post(misbehaving(share=0.0, thinks=True).url)
    starved = send(body(MODEL, ASKED, Style()) | {"max_tokens": 64})
    assert thought(starved) and read_answer(ASKED, starved).text == ""
    assert read_answer(ASKED, starved).finish_reason == "length"
    for style in (Style(thinks=True, quiet=True), Style(thinks=True)):
        answer = send(body(MODEL, ASKED, style, think_tokens=1024))
        assert isinstance(read_reply(read_answer(ASKED, answer), ASKED.constraint), Read)
        assert bool(thought(answer)) == (not style.quiet)


def server_that(send: Callable[[dict[str, Any]], Any], *, knows: tuple[str, ...], ranks: bool = True) -> Any:
    """A server that knows some forms, ignores json_object, and refuses one that it was told to."""

    def answer(content: dict[str, Any]) -> Any:
        content = dict(content)
        form = content.get("response_format", {}).get("type")
        if "structured_outputs" in content and "structured_outputs" not in knows:
            raise RequestFailed("HTTP 400: extra fields not permitted")
        if form and form not in knows:
            del content["response_format"]
        if not ranks:
            content.pop("logprobs", None)
        return send(content)

    return answer


@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize(
    ("knows", "objects", "choices"),
    [
        (("json_schema", "structured_outputs"), "json_schema", "structured_outputs"),
        (("structured_outputs",), "structured_outputs", "structured_outputs"),
        (("json_schema",), "json_schema", "json_schema"),
        ((), "prompt", "prompt"),
    ],
)
def test_the_style_is_found_by_trying(
    misbehaving: Open, share: float, knows: tuple[str, ...], objects: str, choices: str
) -> None:
    send = post(misbehaving(share=share, seed=6, faults=("fenced", "empty", "500")).url)
    for ranks in (True, False):
        style = find_style(MODEL, server_that(send, knows=knows, ranks=ranks), 1024)
        assert (style.objects, style.choices, style.ranks, style.thinks) == (objects, choices, ranks, False)


def test_a_thinking_server_is_found_out(misbehaving: Open) -> None:
    send = post(misbehaving(share=0.0, thinks=True).url)
    assert find_style(MODEL, send, 1024) == Style(thinks=True, quiet=True)
    deaf = find_style(MODEL, lambda content: send({**content, "chat_template_kwargs": {}}), 1024)
    assert (deaf.thinks, deaf.quiet, deaf.objects) == (True, False, "json_schema")


def test_a_server_that_answers_nothing_is_asked_once(tmp_path: Any) -> None:
    sent: list[dict[str, Any]] = []

    def refuse(content: dict[str, Any]) -> Any:
        sent.append(content)
        raise RequestFailed("HTTP 500")

    assert kept_style(tmp_path, "http://a/v1", MODEL, lambda: find_style(MODEL, refuse, 0)) == Style()
    assert len(sent) == 1 and not list(tmp_path.glob("servers/*"))


def test_a_style_is_kept_by_address_and_model(tmp_path: Any) -> None:
    styles = iter([Style(), Style(ranks=False), Style(objects="prompt")])

    def found(url: str, fresh: bool = False) -> Style:
        return kept_style(tmp_path, url, MODEL, lambda: next(styles), fresh)

    assert found("http://a/v1") == found("http://a/v1") == Style()
    assert found("http://b/v1").ranks is False
    assert found("http://a/v1", fresh=True) == found("http://a/v1") == Style(objects="prompt")
    (next(tmp_path.glob("servers/*.json"))).write_text("{")
    with pytest.raises(StopIteration):
        [found(url) for url in ("http://a/v1", "http://b/v1")]
    assert not list(tmp_path.glob("servers/*.tmp*"))


def test_an_unwritable_cache_folder_is_said_clearly(tmp_path: Any) -> None:
    (tmp_path / "servers").write_text("")
    with pytest.raises(StorageError, match="cache folder cannot be written.*servers.*GPU_RAG_CACHE"):
        kept_style(tmp_path, "http://a/v1", MODEL, Style)
