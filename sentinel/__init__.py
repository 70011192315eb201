"""Sentinel: the conformance suite for LLM reinforcement-learning frameworks."""

__version__ = "0.1.0"
