"""Completions from an OpenAI-compatible server, none of whose bytes are trusted."""
