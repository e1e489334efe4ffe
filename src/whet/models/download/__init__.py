"""Getting models: the hub, packages that carry weights, GGUF conversion, the directory of pulled models."""
