"""Pieces without weights of their own: attention, rotary positions, packing, precision, the shape of a decoder."""
