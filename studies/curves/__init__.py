"""Curves of healthy and of broken runs side by side: the pictures of docs/metrics.md."""
