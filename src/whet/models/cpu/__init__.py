"""The layout in which a CPU decodes fastest."""
