"""Decide recipes and laws: call the framework's function in a worker process, check the answer, and compare the
values.
"""
