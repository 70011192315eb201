"""The laws: what every boundary of a contract must obey, whatever the framework. One small module each."""
