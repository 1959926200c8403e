"""Prompt files of the evaluation, static part first."""
