"""Language from random weights: cross-entropy, reinforcement and denoising on the same model and text."""
