"""Run a framework's code in separate, contained processes. Code outside this package never imports a framework.

``client`` runs in pytest's process, the controller. The other modules run in worker processes, and need only the
standard library, torch and numpy.
"""
