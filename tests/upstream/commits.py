"""The commits at which bindings are tested: one per target in every run, older ones in nightly runs."""

import pytest
from shipped import PINS

#: The oldest of the corpus, and one of each shape that frameworks had in between.
OLD = [
    ("verl", "99d2c19b0e8d7c6763e45759058d76d8cda0ae51"),
    ("verl", "2bce16954db132be1bf80f6e4f29e5b7c4ce3955"),
    ("roll", "70800b83f416fc98728654f12258425a359a033a"),
    ("roll", "c7e897d41cff9449088e8f8403d44cbc24fcf4ca"),
    ("areal", "a327a9fc2068257f7b4a7bb5327edefcfb641c3d"),
    ("slime", "e7a11871133761a55d60b36bfc44c7a7c4c29c24"),
    ("slime", "37d0f789417c68e8e958e07cc679104585e6b366"),
    ("skyrl", "2b0c390261494914f2616d0d020ce767bba51c06"),
    ("skyrl", "6ecf87862b8b0694d4c2475a17c1a2ec7a9cc4f5"),
]
EVERY = sorted({(job.recipe.target, str(job.ref.name)) for job in PINS if job.ref.kind == "git"} | set(OLD))
COMMITS = [
    pytest.param(commit, id=f"{commit[0]}-{commit[1][:7]}", marks=() if commit == OLD[2] else pytest.mark.nightly)
    for commit in EVERY
]
