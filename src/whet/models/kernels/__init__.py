"""Fused training paths with their gradients written out: Triton on CUDA, plain torch to test them by."""
