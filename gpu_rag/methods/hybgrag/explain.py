"""HybGRAG's steps of a trace in words, by name; see `gpu_rag.cli.trace_text`."""

WORDS = {
    "hybgrag_route": "the model routes: entities and relations",
    "hybgrag_module": "which module",
    "hybgrag_shown": "what the model is shown of {n} types and relations",
    "hybgrag_router/rules": "the rules route in place of the model",
    "hybgrag_candidates": "entities that the question may mean",
    "hybgrag_action_*": "iteration {0}: the router's action, {n} nodes",
    "hybgrag_unsure": "not sure of the relations: graph and documents together; it may ask for",
    "hybgrag_validator": "the validator on which of the first nodes answers the question",
    "hybgrag_commentor": "the commentor: faults, of {n}",
    "hybgrag_feedback_*": "iteration {0} is rejected",
    "hybgrag_nodes": "passages of the ranked nodes",
}
