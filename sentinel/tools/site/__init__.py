"""Build a static website: a table of bugs, a page per bug, tables of laws, and bug histories.

    material                       reads evidence, recipes and histories
    matrix, story, lifetimes, law_table   the content of pages, as plain data
    grids                          values as tables
    rendering, bug_files, building   templates, the files of a bug, the files of the site

Jinja2 (the ``site`` extra) is imported only here.
"""
