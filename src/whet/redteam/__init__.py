"""Reward hacking and refusals: what a reward model pays for besides good answers, and what a policy refuses."""
