"""Losses of direct alignment and of reward models, as tables like that of the policy gradients."""
