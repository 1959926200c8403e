"""Who was in flight when a process died, and what the next runs do with them."""

import random

import pytest

from gpu_rag.errors import BadInput, ModelError
from gpu_rag.jobs import TRIES, Journal
from gpu_rag.types import Question


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.jsonl.inflight"


def die(path, begun, rows=()):
    """A run that begins some questions and dies; rows: what had a row before it."""
    journal = Journal(path)
    journal.open(set(rows))
    for id in begun:
        journal.begin(Question(id, "?"))
    return journal


def reopened(path, rows=()):
    journal = Journal(path)
    journal.open(set(rows))
    return journal


def test_what_had_begun_and_has_no_row_was_in_flight(path):
    die(path, "abcd")
    assert reopened(path, "bd").deaths == {"a": 1, "c": 1}
    assert reopened(path, "bd").deaths == {"a": 1, "c": 1}, "a run that begins nothing adds nothing"
    assert reopened(path, "abd").deaths == {"c": 1}, "who has a row in the end is no suspect any more"


def test_a_clean_end_makes_no_suspects_and_leaves_no_file(path):
    journal = die(path, "ab")
    journal.close()
    journal.close()
    assert not path.exists()
    die(path, "ab")
    journal = reopened(path, "b")
    journal.begin(Question("x", "?"))
    journal.close()  # Ctrl-C, say, with x and a in flight
    assert reopened(path, "b").deaths == {"a": 1}


def test_suspects_come_last_and_fewer_at_a_time(path):
    die(path, "abc")
    die(path, "b", rows="a")
    journal = reopened(path, "a")
    assert journal.deaths == {"b": 2, "c": 1}
    waves = journal.waves([Question(id, "?") for id in "bcde"], 100)
    assert [(width, [q.id for q in group]) for width, group in waves] == [(100, ["d", "e"]), (10, ["c"]), (1, ["b"])]
    assert reopened(path.with_name("none")).waves([], 5) == []


def test_three_deaths_alone(path):
    for n in range(1, TRIES + 1):
        die(path, "a")
        journal = reopened(path)
        assert (journal.deaths, journal.is_set_aside("a")) == ({"a": n}, n == TRIES)
    for _ in range(5):
        die(path, "xy")
    die(path, "x", rows="y")
    journal = reopened(path)
    assert journal.deaths["x"] == 6 and not journal.is_set_aside("x"), "of its deaths one alone counts"
    journal.close()
    assert reopened(path, "a").is_set_aside("a"), "its row is a failed one, and it stays set aside"


def test_who_died_alone_is_asked_after_those_who_did_not(path):
    for begun in ("abc", "abc", "a", "b", "b"):
        die(path, begun)
    [(width, group)] = reopened(path).waves([Question(id, "?") for id in "bac"], 100)
    assert (width, [question.id for question in group]) == (1, ["c", "a", "b"])


def test_who_is_set_aside_can_be_asked_again_alone(path):
    journal = die(path, "ab")
    journal.blame("b")
    journal.retry()
    journal.close()
    journal = reopened(path)
    assert not journal.is_set_aside("b") and journal.waves([Question("b", "?")], 50)[0][0] == 1
    for _ in range(TRIES):
        die(path, "b", rows="a")
    assert reopened(path, "a").is_set_aside("b"), "it is no free pass"


def test_who_is_named_by_the_engine_is_set_aside_at_once(path):
    journal = die(path, "abc")
    error = ModelError("the engine died over a request")
    error.question = "b"
    journal.blame(error.question)
    journal.close()
    journal = reopened(path)
    assert [journal.is_set_aside(id) for id in "abc"] == [False, True, False] and journal.deaths == {"b": TRIES}


def test_a_torn_line_had_not_begun_and_other_damage_is_refused(path):
    die(path, ["a", "b\nc é"])
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])  # without its newline: the write was cut
    assert reopened(path).deaths == {"a": 1}
    for damage in (b"", b"[]\n", b"not json\n", whole.replace(b'"a"', b"a")):
        path.write_bytes(damage)
        with pytest.raises(BadInput, match="not a journal of questions"):
            reopened(path)
    with pytest.raises(BadInput, match="not open"):
        Journal(path).begin(Question("a", "?"))


def simulate(path, n, max_live, n_bad):
    """A job that is run until it ends: the process dies as a killer is answered, with all that were open then."""
    moods = random.Random(n)
    killers = {f"q{i}" for i in moods.sample(range(n), n_bad)}
    rows, deaths = set(), 0

    def run():
        journal = Journal(path)
        journal.open(set(rows))
        todo = [Question(f"q{i}", "?") for i in range(n) if f"q{i}" not in rows]
        aside = {q.id for q in todo if journal.is_set_aside(q.id)}
        for width, wave in journal.waves([q for q in todo if q.id not in aside], max_live):
            waiting, live = list(wave), []
            while waiting or live:
                while waiting and len(live) < width:
                    live.append(waiting.pop(0).id)
                    journal.begin(Question(live[-1], "?"))
                done = live.pop(moods.randrange(len(live)))
                if done in killers:
                    return None
                rows.add(done)
        journal.close()
        return aside

    while (aside := run()) is None:
        deaths += 1
        assert deaths < 40
    assert aside == killers and len(rows) == n - n_bad
    assert deaths <= 5 * n_bad + 2


@pytest.mark.parametrize(("n", "max_live", "n_bad"), [(50, 16, 1), (50, 1, 1), (300, 64, 2), (40, 1024, 1)])
def test_a_job_with_killers_ends_and_sets_aside_them_alone(path, n, max_live, n_bad):
    simulate(path, n, max_live, n_bad)


@pytest.mark.parametrize("max_live", [1, 16])
def test_kills_from_outside_condemn_nobody(path, max_live):
    """Jobs whose process is killed again and again: before it begins a question, or after it ended some."""
    moods, kills = random.Random(9), 0
    while kills < 80:
        path.unlink(missing_ok=True)
        rows, ended = set(), False
        while not ended:
            journal = Journal(path)
            journal.open(rows)
            todo = [Question(f"q{i}", "?") for i in range(24) if f"q{i}" not in rows]
            assert not any(journal.is_set_aside(question.id) for question in todo)
            if todo and moods.random() < 0.3:
                kills += 1
                continue
            left = moods.randint(1, 8)  # questions that this run may end
            for width, wave in journal.waves(todo, max_live):
                waiting, live = list(wave), []
                while left and (waiting or live):
                    while waiting and len(live) < width:
                        live.append(waiting.pop(0).id)
                        journal.begin(Question(live[-1], "?"))
                    rows.add(live.pop(moods.randrange(len(live))))
                    left -= 1
                for question in waiting[: width - len(live)]:
                    journal.begin(question)
                if waiting or live:  # killed here, with those in flight
                    break
            else:
                ended = True
            kills += not ended
