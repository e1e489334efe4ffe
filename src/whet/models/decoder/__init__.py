"""The decoder, its KV cache, and the table of Hugging Face families that it covers."""
