"""The isolated side: everything that touches a target's code runs here, in processes of its own.

``client`` is the controller's end; the rest runs in the worker and needs the standard library, torch and numpy only.
"""
