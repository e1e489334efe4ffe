"""vLLM as an engine, in this process or behind a server, with a proof that it samples from our weights."""
