"""What is trained of a model and how it is kept: all weights or LoRA, fp32, bf16 or offloaded master weights."""
