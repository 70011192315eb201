"""Define the laws: properties that the functions of a contract must have in every framework. Each law is one module."""
