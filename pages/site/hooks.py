"""Called by MkDocs: anchors as on GitHub, so that links work in both places."""

from typing import Any


def on_config(config: Any) -> Any:
    """Sets what a YAML file cannot name without tags."""
    from pages.site.slugs import slug

    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config
