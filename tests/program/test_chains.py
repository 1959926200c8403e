"""Chains of relations that a question asks for: polarity, direction, hops, types, and when they are sure."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
from kb_in_memory import knowledge_base
from msgspec import structs

from gpu_rag.graph.reach import IN
from gpu_rag.index.index import Index
from gpu_rag.index.knowledge_base import KbSource, KnowledgeBase
from gpu_rag.program.knowledge_base import chain_reader
from gpu_rag.program.knowledge_base.chains import Asked, AskedChain, Read, asked_chains, reader_of
from gpu_rag.program.knowledge_base.query import Query, Topic, values_of
from gpu_rag.program.knowledge_base.reading import Reading, words_without_cue
from gpu_rag.program.knowledge_base.relations import relations_of
from gpu_rag.program.knowledge_base.spoken import Barred, Named, Spoken, _conditions, stands_as_name
from gpu_rag.text.rules.relations import spoken_of, stem_of, units_of
from gpu_rag.text.rules.relations.direction import AGENT, PATIENT, side_of_topic
from gpu_rag.text.rules.relations.hops import n_relations, relation_words
from gpu_rag.text.rules.relations.operators import operators_of


class Memory:
    """An index of one knowledge base."""

    threads, device = 1, "cpu"

    def __init__(self, kb: KnowledgeBase):
        self.known: dict[str, Any] = {"kb": kb}

    def loaded(self, name: str, load: Any) -> Any:
        return self.known.setdefault(name, None) or self.known.__setitem__(name, load(self)) or self.known[name]


def in_words(chain: AskedChain, kb: KnowledgeBase) -> str:
    return chain.topic("#", "", kb).text().split(" along ")[1]


@cache
def medicine() -> Memory:
    drugs = [(f"d{i}", f"Drug {i}", "drug") for i in range(6)]
    nodes = [*drugs, ("g", "glaucoma", "disease"), ("a", "asthma", "disease")]
    edges = [("d0", "indication", "g"), ("g", "indication", "d1"), ("a", "indication", "d2"), ("d2", "indication", "g")]
    edges += [("d3", "contraindication", "g"), ("d4", "contraindication", "g"), ("d5", "off-label use", "g")]
    return Memory(knowledge_base(nodes, edges))


@cache
def films() -> Memory:
    nodes = [(id, id, "film") for id in ("F1", "F2", "F3")] + [(id, id, "person") for id in ("Ann", "Bob", "Cid")]
    edges = [("F1", "directed_by", "Ann"), ("F2", "directed_by", "Ann"), ("F3", "directed_by", "Bob")]
    edges += [("F1", "starred_actors", "Bob"), ("F2", "starred_actors", "Cid"), ("F3", "starred_actors", "Cid")]
    edges += [("F1", "written_by", "Cid"), ("F2", "written_by", "Bob"), ("F3", "written_by", "Ann")]
    return Memory(knowledge_base(nodes, edges))


@cache
def family() -> Memory:
    people = [(id, id, "entity") for id in ("Ann", "Bob", "Cid", "Dora")]
    edges = [("Bob", "parents", "Ann"), ("Cid", "parents", "Bob"), ("Ann", "spouse", "Dora")]
    return Memory(knowledge_base(people, edges))


def of_two_sources(kinds: tuple[str, str]) -> Memory:
    """A film with its director, of the first source, and one whom a text calls so, of the second."""
    nodes = [("F", "F", "film"), ("Ann", "Ann", "person"), ("Bob", "Bob", "person")]
    kb = knowledge_base(nodes, [("F", "directed by", "Ann"), ("F", "was directed by", "Bob")])
    source = np.array([kb.relation_names[row] != "directed by" for row in kb.relation], np.int32)
    return Memory(replace(kb, sources=tuple(KbSource(kind, kind) for kind in kinds), source=source))


def read(memory: Memory, question: str, topic: str) -> Read:
    kb = memory.known["kb"]
    common = relation_words(kb.relation_texts)
    asked = Asked(question.replace(topic, "#"), tuple(kb.named(topic)), n_relations(question, [topic], common))
    return asked_chains.function(cast(Index, memory), [asked], 3, 4)[0]


def best(memory: Memory, question: str, topic: str) -> str:
    return in_words(read(memory, question, topic).chains[0], memory.known["kb"])


@pytest.mark.parametrize(
    ("question", "relation"),
    [
        ("Which drugs treat glaucoma?", "indication"),
        ("What is prescribed for glaucoma?", "indication"),
        ("Which drugs should not be given to someone with glaucoma?", "contraindication"),
        ("What must patients with glaucoma avoid?", "contraindication"),
        ("Which drugs are used off-label for glaucoma?", "off-label use"),
        ("Name unapproved treatments of glaucoma", "off-label use"),
    ],
)
def test_polarity_is_read_and_not_the_nearest_word(question: str, relation: str) -> None:
    found = read(medicine(), question, "glaucoma").chains
    assert [medicine().known["kb"].relation_names[r] for r in found[0].relations] == [relation] and found[0].sure


def test_edges_that_lead_both_ways_have_no_direction() -> None:
    kb = medicine().known["kb"]
    ends = read(medicine(), "Which drugs treat glaucoma?", "glaucoma").chains[0].ends
    assert {kb.node_names[end] for end in ends} == {"Drug 0", "Drug 1", "Drug 2"}


@pytest.mark.parametrize(
    ("question", "topic", "chain"),
    [
        ("who directed F1", "F1", "directed_by"),
        ("which films did Ann direct", "Ann", "directed_by backwards"),
        ("who acted in the films directed by Ann", "Ann", "directed_by backwards, starred_actors"),
        ("who starred in films by the director of F1", "F1", "directed_by, directed_by backwards, starred_actors"),
        ("which films share an actor with F2", "F2", "starred_actors, starred_actors backwards"),
        ("the film F1 starred which actors", "F1", "starred_actors"),
        ("who is the director that directed F1", "F1", "directed_by"),
    ],
)
def test_hops_follow_the_words_outward_from_the_topic(question: str, topic: str, chain: str) -> None:
    assert best(films(), question, topic) == chain


@cache
def firms() -> Memory:
    names = [(id, id, "entity") for id in ("Norvex", "Orbis", "Telva", "Oslo", "Norway", "Ann")]
    edges = [("Norvex", "acquired", "Orbis"), ("Orbis", "acquired", "Telva"), ("Norway", "capital", "Oslo")]
    edges += [("Ann", "works for", "Orbis"), ("Telva", "owned by", "Orbis"), ("Orbis", "owned by", "Norvex")]
    edges += [("Orbis", "lent money to", "Telva"), ("Norvex", "lent money to", "Orbis")]
    both = ("was assistant to", "ghostwrote for", "influenced by", "feeder firm of")
    edges += [pair for name in both for pair in (("Orbis", name, "Telva"), ("Norvex", name, "Orbis"))]
    return Memory(knowledge_base(names, edges))


@pytest.mark.parametrize(
    ("question", "topic", "chain"),
    [
        ("Which company acquired Orbis?", "Orbis", "acquired backwards"),
        ("What did Orbis acquire?", "Orbis", "acquired"),
        ("Which company was acquired by Orbis?", "Orbis", "acquired"),
        ("By whom was Orbis acquired?", "Orbis", "acquired backwards"),
        ("Who owns Orbis?", "Orbis", "owned by"),
        ("What does Orbis own?", "Orbis", "owned by backwards"),
        ("Who works for Orbis?", "Orbis", "works for backwards"),
        ("What is the capital of Norway?", "Norway", "capital"),
        ("What is Oslo the capital of?", "Oslo", "capital backwards"),
        ("Who borrowed from Orbis?", "Orbis", "lent money to"),
        ("Who did Orbis borrow from?", "Orbis", "lent money to backwards"),
        ("Who swallowed Orbis?", "Orbis", "acquired backwards"),
        ("Who were the assistants of Orbis?", "Orbis", "was assistant to backwards"),
        ("For whom did Orbis ghostwrite?", "Orbis", "ghostwrote for"),
        ("Whom did Orbis influence?", "Orbis", "influenced by backwards"),
        ("Which firm is a feeder firm of Orbis?", "Orbis", "feeder firm of backwards"),
    ],
)
def test_direction_is_read_in_a_graph_without_types(question: str, topic: str, chain: str) -> None:
    found = read(firms(), question, topic)
    assert found.chains[0].sure and in_words(found.chains[0], firms().known["kb"]) == chain


def test_a_fact_that_the_topic_lacks_is_told() -> None:
    found, kb = read(firms(), "Who acquired Norvex?", "Norvex"), firms().known["kb"]
    assert not any(chain.sure for chain in found.chains)
    assert [(kb.relation_names[row], way) for row, way in found.lacking] == [("acquired", IN)]
    assert best(family(), "who is the father of Bob", "Bob") == "parents"
    assert best(family(), "who is the wife of the mother of Bob", "Bob") == "parents, spouse"


def test_a_question_that_says_no_relation_or_much_else_is_not_sure() -> None:
    vague = read(medicine(), "What about the glaucoma thing?", "glaucoma")
    assert vague.chains and not any(chain.sure for chain in vague.chains)
    long = "Which drugs treat glaucoma, cross the retinal barrier quickly, colour urine orange and taste of liquorice?"
    found = read(medicine(), long, "glaucoma")
    assert not found.plain and not found.chains[0].sure
    relations = [medicine().known["kb"].relation_names[row] for row in found.fitting]
    assert relations == ["indication"]  # of all that lead to drugs, what does not mean the contrary


def test_phrases_are_read_before_their_words() -> None:
    (unit,) = [unit for unit in units_of("Which drugs are not approved?") if unit.marked]
    assert unit.groups == {"unapproved"} and spoken_of([unit]) == {"indicated"}
    assert [unit.stem for unit in units_of("off-label use")] == ["off label use"]


def test_a_server_keeps_a_bounded_part_of_a_graph() -> None:
    questions = ["Who wrote films that starred #?", "Which films were directed by #?", "Who acted in films # wrote?"]
    kb, reads = films().known["kb"], []
    for most in (4096, 1):
        with mock.patch.multiple(chain_reader, MAX_FOLLOWS=most, MAX_TYPES=most):
            reader = chain_reader.ChainReader(kb)
        memory = Memory(kb)
        memory.known["chains"] = reader
        reads.append([read(memory, question.replace("#", "Cid"), "Cid") for question in questions])
        sizes = [cache.cache_info().currsize for cache in (reader.follows, reader.types_behind)]
    assert reads[0] == reads[1] and sizes == [1, 1]
    for number in range(3):  # words of a question or of a model that name no relation
        values_of(cast(Index, memory), f"unknown {number}")
    assert len([name for name in memory.known if name.startswith("values")]) == 1
    assert stem_of.cache_info().maxsize is not None


def test_a_hub_of_many_relations_takes_few_steps() -> None:
    n = 500  # an extracted graph has nearly as many relations as facts, and this one all of them at one node
    nodes = [(f"n{i}", f"N{i}", "entity") for i in range(n + 1)]
    memory = Memory(knowledge_base(nodes, [("n0", f"links {'as' * (i % 2)} word{i}", f"n{i + 1}") for i in range(n)]))
    tried: list[int] = []
    step = Reading.step
    with mock.patch.object(Reading, "step", lambda self, way: (tried.append(way), step(self, way))[1]):
        found = read(memory, "which word7 links with N0", "N0")
    assert [in_words(chain, memory.known["kb"]) for chain in found.chains][:1] == ["links as word7"]
    assert len(tried) < 10_000  # of 2 * 60 * 500


@pytest.mark.parametrize(
    ("kinds", "sure"),
    [(("kg", "extraction"), True), (("skb", "web"), True), (("kg", "skb"), False), (("documents", "web"), False)],
)
def test_a_curated_relation_comes_before_one_that_only_texts_state(kinds: tuple[str, str], sure: bool) -> None:
    memory = of_two_sources(kinds)
    first, other = read(memory, "Who directed F?", "F").chains[:2]
    assert first.sure == sure and round(first.score - other.score, 3) == (0.2 if sure else 0)
    if sure:
        assert in_words(first, memory.known["kb"]) == "directed by"


@pytest.mark.parametrize(
    ("question", "types"),
    [
        ("Which drugs may be given when there is asthma?", ["drug"]),  # "there" is no verb, so it does not ask
        ("Name a drug that works when combined with Drug 1", ["drug"]),
        ("when is a drug given", []),
        ("the drug was first given when", []),
    ],
)
def test_when_is_a_question_only_where_it_asks(question: str, types: list[str]) -> None:
    memory = medicine()
    found = reader_of(cast(Index, memory)).asked_types(question)
    assert [memory.known["kb"].type_names[row] for row in found] == types


def test_relations_that_turn_a_question_round_are_opposed_unless_it_says_so() -> None:
    memory = medicine()
    names = memory.known["kb"].relation_names

    def opposed(question: str) -> set[str]:
        return set(said(question))

    def said(question: str) -> dict[str, bool]:
        return {names[row]: by_words for row, by_words in reader_of(cast(Index, memory)).opposed(question).items()}

    assert (
        said("Which drugs treat glaucoma?")["contraindication"] and said("Which drugs should be avoided?")["indication"]
    )
    assert not said("Which drugs make glaucoma worse?")["contraindication"]  # a model may read it so
    assert opposed("Which drugs treat glaucoma?") == {"contraindication", "off-label use"}
    assert opposed("Which drugs should be avoided in glaucoma?") == {"indication", "off-label use"}
    assert opposed("Which drugs are used off-label for glaucoma?") == {"contraindication", "indication"}


@pytest.mark.parametrize(
    ("question", "conditions"),
    [
        ("I have asthma. Which drugs for glaucoma may I take?", ["asthma"]),
        ("Which drugs for glaucoma can be taken by somebody who has asthma?", ["asthma"]),
        ("Which asthma drugs may be given despite glaucoma?", ["glaucoma"]),
        ("What would you prescribe to a person with asthma who needs something for glaucoma?", ["asthma"]),
        ("Which drugs treat glaucoma and asthma?", []),
        ("Which drugs for glaucoma are not contraindicated in asthma?", []),  # a negated clause says it
        ("A patient has asthma and glaucoma. Which drugs remain?", []),  # nothing says which one is treated
        ("Which drugs for glaucoma act on Drug 1?", []),  # of another type
    ],
)
def test_a_disease_that_nothing_is_asked_for_is_a_condition(question: str, conditions: list[str]) -> None:
    index = cast(Index, medicine())
    kb, reader = medicine().known["kb"], reader_of(index)
    places = [(m.start(), m.end()) for m in re.finditer("asthma|glaucoma|Drug 1", question)]
    named = [Named(question[a:b], tuple(kb.named(question[a:b])), a, b) for a, b in places]
    clauses = operators_of(question, places, reader.groups).clauses
    assert [named[place].name for place in sorted(_conditions(index, clauses, named))] == conditions


@pytest.mark.parametrize("sure", [True, False])
@pytest.mark.parametrize("said", [True, False])
@pytest.mark.parametrize("relation", ["indication", "contraindication"])
def test_only_a_sure_query_asks_for_what_the_question_leaves_open(sure: bool, said: bool, relation: str) -> None:
    spoken = Spoken(barred={3: [Barred("contraindication of glaucoma", said)]})
    topic = Topic("glaucoma", "disease", (relation,), ("in",))
    allowed = sure and not said and relation == "contraindication"
    assert spoken.ruled_out(Query((topic,), sure)) == ({} if allowed else {3: "contraindication of glaucoma"})
    assert spoken.ruled_out(Query((structs.replace(topic, negated=True),), sure))


def test_a_plain_word_is_a_topic_only_where_a_name_stands() -> None:
    def stands(text: str, word: str, memory: Memory) -> bool:
        return stands_as_name(cast(Index, memory), text, text.index(word), text.index(word) + len(word))

    for text in ("Which drugs are safe in asthma?", "Which asthma drugs are there?", "Which asthma or glaucoma drugs?"):
        assert stands(text, "asthma", medicine())
    assert stands("Which drugs are safe when asthma is present?", "asthma", medicine())
    assert not stands("Which drugs, asthma apart, are safe?", "asthma", medicine())
    assert not stands("Who works for orbis?", "orbis", firms())  # the graph writes it with a capital


@pytest.mark.parametrize(
    ("question", "side"),
    [
        ("who had an influence on #", PATIENT),
        ("on whom did # have an influence", AGENT),
        ("whose influence can be heard in #", PATIENT),
        ("from whom does # have an influence", PATIENT),
    ],
)
def test_a_noun_for_an_act_has_the_sides_of_its_verb(question: str, side: int) -> None:
    words = question.split()
    assert side_of_topic(words, words.index("influence"), 1).side == side


def test_topics_before_excluded_are_left_out() -> None:
    text = "Which men had the rank of Major, Ann and Bob excluded?"
    spans = [(text.index(name), text.index(name) + len(name)) for name in ("Major", "Ann", "Bob")]
    assert [clause.left_out for clause in operators_of(text, spans).clauses] == [False, True, True]


def test_words_are_read_by_meaning_only_if_nearer_to_a_relation_than_relations_are_to_each_other() -> None:
    planted = {"directed by": (1.0, 0.0, 0.0), "written by": (0.6, 0.8, 0.0), "genre": (0.0, 0.6, 0.8)}

    def unit(word: str, cosine: float) -> tuple[str, np.ndarray]:
        return word, np.array([cosine, 0.0, -((1 - cosine**2) ** 0.5)], np.float32)

    def embed(texts: Sequence[str]) -> np.ndarray:
        return np.array([planted.get(text, (0.0, 0.0, 1.0)) for text in texts], np.float32)

    nodes = [("F", "F", "film"), ("Ann", "Ann", "person"), ("g", "drama", "genre")]
    edges = [("F", "directed by", "Ann"), ("Ann", "written by", "g"), ("F", "genre", "g")]
    memory = Memory(knowledge_base(nodes, edges, embed=embed))
    index = cast(Index, memory)
    assert relations_of(index).apart == pytest.approx(0.6, abs=1e-3)  # the median of .6, .6 and .48

    def unread(text: str, *words: tuple[str, np.ndarray]) -> tuple[str, ...]:
        asked = Asked(text, (memory.known["kb"].named("F")[0],), 1, words=words)
        return asked_chains.function(index, [asked], 3, 4)[0].unread

    far, near = unit("isbn", 0.55), unit("filmed", 0.65)
    other = "scripted", np.array([0.54, 0.8, 0.0], np.float32)
    assert unread("what is the isbn of #", far) == ("isbn",) and not unread("who filmed #", near)
    assert not unread("who filmed # in isbn", far, near)  # one word is enough
    assert unread("who scripted #", other) == ("scripted",)  # it means "written by", which F does not have
    assert not unread("who directed the isbn of #", far)  # other words say the relation
    assert not unread("which person is the isbn of #", far)  # only one relation leads to persons

    reader = reader_of(index)
    assert words_without_cue(reader, "what is the isbn of #") == ["isbn"]
    assert words_without_cue(reader, "who directed #") == words_without_cue(reader, "who is #") == []
