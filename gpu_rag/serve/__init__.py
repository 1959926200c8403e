"""The HTTP server: one index, one engine, the questions of all clients batched together.

live.py the engine in a thread of its own; admission.py takes questions to it and rows back; bodies.py reads what
clients send; api.py answers them; guard.py stands before all of it; refusal.py what is refused, and how;
metrics.py the counts; explorer/ the page at /; server.py the process.
uvicorn, starlette and prometheus-client are in the extra `serve`.
"""
