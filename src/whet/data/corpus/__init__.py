"""Corpora for language modelling: documents, text on disk, files of tokens, n-gram baselines, the task of a text."""
