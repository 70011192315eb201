"""Run a framework's code in separate, contained processes. Nothing outside this package imports it.

``client`` is the controller's end; the rest runs in the worker and needs the standard library, torch and numpy only.
"""
