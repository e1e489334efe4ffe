"""Adapters: a frozen model with small trained matrices beside its own (LoRA), and their files in PEFT's layout."""
