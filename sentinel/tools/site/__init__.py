"""Build a static website: a table of bugs, a page per bug, tables of laws, and bug histories.

    material                                          reads evidence, recipes and histories
    matrix, story, lifetimes, law_table, leaderboard  compute the content of pages as plain data
    grids                                             converts values to tables
    rendering, bug_files, building                    render templates, the page of a bug, the files of the site

Jinja2 (the ``site`` extra) is imported only here.
"""
