"""As in vLLM."""


def cleanup_dist_env_and_memory() -> None:
    """There is nothing to clean up."""
