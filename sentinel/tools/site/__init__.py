"""A static site of what is recorded: the matrix of verdicts, a page a bug, coverage, lifetimes, dialects.

    material   evidence, recipes and histories, read
    matrix, story, coverage, lifetimes, dialects   what a page says, as plain records
    grids        values as tables
    rendering, bug_files, building, folder   templates, the files of a bug and of a site, and where they go

Jinja2 (the ``site`` extra) is imported in here and nowhere else.
"""
