"""The mathematics: pure functions of tensors. Imports torch and nothing of ours.

What a cell needs is what its arguments are named: a surrogate that takes `logprobs_ref` makes the loop supply a
reference. Keyword-only arguments are options that a recipe may set.
"""
