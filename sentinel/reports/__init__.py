"""What a run leaves behind, made from :class:`~sentinel.deciding.outcomes.Decision` and nothing else.

``escaping`` makes foreign text safe, ``evidence`` turns a decision into a document, ``store`` keeps documents on disk,
``baseline`` sets two of them side by side; ``summary`` and ``markdown`` are for readers. Nothing is imported
here: a run that was not asked for a report does not pay for one.
"""
