"""The laws: properties that every boundary of a contract must have, in every framework. One small module each."""
