"""The values that a version's code accepts for an option are read from its source."""

import textwrap

import pytest

from sentinel.tools.audit.accepted import accepted_values

CHAIN = """
if self.loss_type == "grpo":
    loss = 1
elif self.loss_type in ["dapo", "bnpo"] or self.loss_type == "cispo":
    loss = 2
else:
    raise ValueError(f"Unknown loss type: {self.loss_type}")
"""


@pytest.mark.parametrize(
    ("code", "values"),
    [
        (CHAIN, ("grpo", "dapo", "bnpo", "cispo")),
        ('if config["loss_type"] not in ("grpo", "dapo"):\n    raise ValueError', ("grpo", "dapo")),
        ('KNOWN = {"grpo": 1, "dapo": 2}\nif args.loss_type not in KNOWN:\n    raise KeyError', ("grpo", "dapo")),
        ('assert cfg.get("loss_type").lower() in {"grpo"}', ("grpo",)),
        (
            'class Kind(str, Enum):\n    A = "grpo"\n    B = "gae"\n'
            "if loss_type == Kind.A:\n    x = 1\nelif loss_type == Kind.B:\n    x = 2\nelse:\n    raise ValueError",
            ("grpo", "gae"),
        ),
        (CHAIN.replace('"grpo"', '"other"'), ()),  # it rejects the default: it is about another variable
        (CHAIN.replace("    raise ValueError", "    print"), ()),  # other values are accepted
        (CHAIN.replace("elif self.loss_type in", "elif self.other in"), ()),
        ('if loss_type == "grpo":\n    raise ValueError', ()),
        ("if loss_type == computed():\n    x = 1\nelse:\n    raise ValueError", ()),
    ],
)
def test_the_values_of_a_check(tmp_path, code, values):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "trainer.py").write_text(
        "def f(self):\n" + textwrap.indent(code, "    ") if "self" in code else code
    )
    found = accepted_values([tmp_path], {"actor.loss_type": "grpo"})
    assert found == ({"actor.loss_type": values} if values else {})


def test_several_checks_accept_all_their_values(tmp_path):
    (tmp_path / "one.py").write_text('assert loss_type in ("grpo", "dapo")')
    (tmp_path / "two.py").write_text('assert loss_type in ("grpo", "cispo")')
    (tmp_path / "broken.py").write_text("assert loss_type in (")
    assert accepted_values([tmp_path], {"loss_type": "grpo"}) == {"loss_type": ("grpo", "dapo", "cispo")}
