"""A tiny reinforcement-learning framework."""
