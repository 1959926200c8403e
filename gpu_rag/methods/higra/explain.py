"""Wording of HiGraAgent's trace steps, by name; see `gpu_rag.cli.trace_text`."""

WORDS = {
    "seeds": "entities to start from, of {n}",
    "higra_rank": "passages high in the ranking by graph and similarity, of {n} entities and passages",
    "ask_librarian": "the Seeker asks the Librarian",
    "librarian": "the Librarian says",
    "librarian/reply": "the model speaks as the Librarian",
    "seeker/action": "what the Seeker does next",
    "seeker/final": "the Seeker's last word",
    "seeker/sent_back": "sent back to the Seeker: references without an answer in them",
    "seeker/answer": "the Seeker answers",
    "seeker/forced_answer": "no turn or question is left: the Seeker must answer",
}
