"""Open information extraction by patterns"""
from __future__ import annotations

import os

from gpu_rag.text.normalise import normalise_name
from gpu_rag.text.patterns_aliases import *
from gpu_rag.text.patterns_entities import find_mentions_in, passage_words
from gpu_rag.text.patterns_relations import sentence_triples
from gpu_rag.text.patterns_tokens import tokenise
from gpu_rag.text.sentences import split_sentences
from gpu_rag.types import Extraction

AL=os.environ.get("AL","1")

def extract_patterns(title: str, text: str) -> Extraction:
    name = title_name(title, text)
    sentences = [tokenise(text, *span) for span in split_sentences(text)]
    tt = tokenise(name, 0, len(name))
    words = passage_words(name, tt, sentences)
    ms = [find_mentions_in(text, s, words) for s in sentences]
    full=[]
    if AL=="1": full = resolve_aliases(name, ms)
    ents = {normalise_name(name): name}
    tr = {}
    for f in full:
        ents[normalise_name(f)] = f
        tr[normalise_name(name),"also called",normalise_name(f)]=name,"also called",f
    for s, m in zip(sentences, ms):
        for x in m:
            ents.setdefault(normalise_name(x.name), x.name)
        ts = sentence_triples(text, s, m, name)
        for t in ts:
            tr.setdefault((normalise_name(t[0]), t[1], normalise_name(t[2])), t)
    return Extraction(tuple(ents.values()), tuple(tr.values()))
