"""What off-policy learning keeps: the replay buffer, goals in hindsight, twin critics."""
