"""The engine of whet itself: CUDA graphs on a GPU, plain torch elsewhere."""
