"""Prompt files of the layers, static part first."""
