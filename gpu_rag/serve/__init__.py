"""The HTTP server: some indexes, one thread that answers over all; the questions of all clients are batched together.

live.py runs the engines in that thread; admission.py passes questions to it and rows back; bodies.py reads requests;
api.py answers them, and explore.py those about names and documents; guard.py checks every request first; refusal.py
defines refusals; metrics.py counts; page/ holds the page at /; server.py is the process. uvicorn, starlette and
prometheus-client are in the extra `serve`.
"""
