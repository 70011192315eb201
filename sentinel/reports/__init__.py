"""Write and read the results of a run.

``evidence`` converts a decision to a document, ``store`` reads and writes documents, ``baseline`` compares them,
``summary`` and ``markdown`` format them, and ``escaping`` makes untrusted text safe to print. This file imports none
of these modules, so that a run without reports does not load them.
"""
