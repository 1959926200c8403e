"""Prompt files of the methods, static part first."""
