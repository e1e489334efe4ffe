"""Model directories on disk: safetensors, checksums, and limits on what files may claim."""
