"""Environments with numbers in place of texts: spaces, policies, distributions of actions, normalisation, fragments."""
