"""The code that a boundary reaches according to its syntax tree."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

from sentinel.comparing.reached import Code, Reached
from sentinel.sources.gittrees import TREE, Folder
from sentinel.sources.trees import FILE
from sentinel.targets import Binding, PackageRoot, Target

TARGET = Target("toy", "https://example.invalid/toy.git", (PackageRoot("toy"),))


@dataclass(frozen=True)
class Written:
    """Files of a tree, given as text."""

    files: Mapping[str, str]

    def at(self, tree: str, path: str) -> tuple[str, str] | None:
        return (FILE, path) if path in self.files else None

    def folder(self, tree: str) -> Folder:
        below = {path.removeprefix(f"{tree}/" if tree else "") for path in self.files if path.startswith(tree)}
        return {name.partition("/")[0]: (TREE if "/" in name else FILE, name) for name in below}

    def blob(self, name: str) -> bytes:
        return self.files[name].encode()


FILES = {
    "toy/__init__.py": "",
    "toy/losses.py": """
from toy import tools
from toy.tools import scale as rescaled
from toy.shapes import Batch, Config

EPSILON = 1e-6
FAMILY = {}

def register(name):
    def put(function):
        FAMILY[name] = function
        return function
    return put

@register("one")
def one(x):
    return x + EPSILON

@register("two")
def two(x):
    return rescaled(x)

def chosen(name, x):
    return FAMILY[name](x)

def over_rows(batch: Batch):
    return tools.total(batch.rows)

def weighted(x, config: Config):
    return x * config.weight + getattr(config, "floor", 0)

def alone(x):
    # nothing but itself
    return x * 2
""",
    "toy/tools.py": """
def total(rows):
    return _summed(rows)

def _summed(rows):
    return sum(rows)

def scale(x):
    return x * 3

def unused(x):
    return x
""",
    "toy/shapes.py": """
class Base:
    def __len__(self):
        return 1

class Batch(Base):
    @property
    def rows(self):
        return self._rows()

    def _rows(self):
        return []

    def saved(self):
        return None

@dataclass
class Config:
    weight: float = 1
    floor: float = 0
    verbose: bool = False
""",
}

Reaching = Callable[[str, Mapping[str, str]], Reached]


@pytest.fixture
def reaching() -> Reaching:
    def made(boundary: str, files: Mapping[str, str] = FILES) -> Reached:
        found = Code(TARGET, Written(files)).reached("", Binding(boundary, "call"))
        assert found is not None
        return found

    return made


def names(reached: Reached) -> set[str]:
    return {name for _, name in reached.units if name}


@pytest.mark.parametrize(
    ("boundary", "reached"),
    [
        ("alone", {"alone"}),
        ("one", {"one", "EPSILON", "register"}),
        ("two", {"two", "scale", "register"}),
        ("chosen", {"chosen", "FAMILY", "register", "one", "two", "EPSILON", "scale"}),
        ("over_rows", {"over_rows", "total", "_summed", "Batch", "Batch.rows", "Batch._rows", "Base", "Base.__len__"}),
    ],
)
def test_a_boundary_reaches_only_the_definitions_that_it_names(reaching, boundary, reached):
    assert names(reaching(f"toy.losses.{boundary}", FILES)) == reached


@pytest.mark.parametrize(
    ("file", "old", "new", "boundaries"),
    [
        ("toy/losses.py", "EPSILON = 1e-6", "EPSILON = 1e-5", {"one", "chosen"}),
        ("toy/tools.py", "x * 3", "x * 4", {"two", "chosen"}),
        ("toy/tools.py", "return sum(rows)", "return max(rows)", {"over_rows"}),
        ("toy/shapes.py", "return []", "return [1]", {"over_rows"}),
        ("toy/shapes.py", "return None", "return 1", set()),
        ("toy/tools.py", "    return x\n", "    return -x\n", set()),
        ("toy/losses.py", "# nothing but itself", "# it alone", set()),
        ("toy/losses.py", "return x * 2", "return (x  *  2)  # twice", set()),
        ("toy/losses.py", "def alone(x):", "def alone(x: float) -> float:\n    'Twice.'", set()),
        ("toy/shapes.py", "verbose: bool = False", "verbose: bool = True", set()),
        ("toy/shapes.py", "verbose: bool = False", "verbose: bool = False\n    more: int = 1", set()),
        ("toy/shapes.py", "weight: float = 1", "weight: float = 2", {"weighted"}),
        ("toy/shapes.py", "floor: float = 0", "floor: float = 1", {"weighted"}),
        ("toy/losses.py", "def alone", "\n\n\ndef alone", set()),
        ("toy/losses.py", "return x * 2", "return 2 * x", {"alone"}),
    ],
)
def test_a_change_affects_its_callers_and_comments_affect_none(reaching, file, old, new, boundaries):
    assert old in FILES[file]
    other = {**FILES, file: FILES[file].replace(old, new)}
    every = ("alone", "one", "two", "chosen", "over_rows", "weighted")
    changed = {
        name for name in every if reaching(f"toy.losses.{name}", FILES).changed(reaching(f"toy.losses.{name}", other))
    }
    assert changed == boundaries


def test_a_method_that_cannot_be_dedented_is_compared_without_its_comments(reaching):
    text = "class Loss:\n    def value(self):  # {}\n        return '''a\nb'''\n"
    one, other = ({**FILES, "toy/more.py": text.format(said)} for said in ("this", "that"))
    assert reaching("toy.more.Loss.value", one).changed(reaching("toy.more.Loss.value", other)) == []


@pytest.mark.parametrize(
    "text",
    ["def total(rows) = 1\n", f"X = {'-' * 900}1\n", f"X = {'1 + ' * 3000}1\n", f"X = {'[' * 150}{']' * 150}\n", "\0"],
)
def test_an_unparsable_file_counts_as_changed_when_its_text_differs(reaching, text):
    files = {**FILES, "toy/tools.py": text}
    found = reaching("toy.losses.over_rows", FILES).changed(reaching("toy.losses.over_rows", files))
    assert ("toy/tools.py", "total") in {place for place, _, _ in found}


@pytest.mark.parametrize(
    ("file", "old", "new", "ran", "apart"),
    [
        ("toy/tools.py", "return sum(rows)", "return max(rows)", {"over_rows", "total"}, True),
        ("toy/tools.py", "return sum(rows)", "return max(rows)", {"over_rows", "total", "_summed"}, False),
        ("toy/tools.py", "return sum(rows)", "return more(rows)\n\ndef more(rows):\n    return 1", {"total"}, True),
        ("toy/tools.py", "def total", "@hooked\ndef total", {"over_rows"}, False),
        (
            "toy/shapes.py",
            "def _rows",
            "def __getattr__(self, name):\n        return 1\n\n    def _rows",
            {"rows"},
            False,
        ),
        ("toy/shapes.py", "return 1", "return 2", {"rows"}, True),
        ("toy/shapes.py", "Batch(Base)", "Batch(Base, Other)", {"rows"}, False),
        (
            "toy/shapes.py",
            "def _rows(self):\n",
            "def _rows(self):\n        return Other().rows\n\nclass Other:\n    rows = 1\n\n    def total(self):\n",
            {"rows", "total"},
            True,
        ),
    ],
)
def test_changes_in_code_that_does_not_run_are_ignored(reaching, file, old, new, ran, apart):
    assert old in FILES[file]
    other = reaching("toy.losses.over_rows", {**FILES, file: FILES[file].replace(old, new)})
    one = reaching("toy.losses.over_rows")
    assert one.changed(other)
    assert one.apart_from(other, ran) is apart


def test_a_field_counts_when_a_function_that_ran_names_it(reaching):
    changed = {**FILES, "toy/shapes.py": FILES["toy/shapes.py"].replace("weight: float = 1", "weight: float = 2")}
    one, other = (reaching("toy.losses.weighted", each) for each in (FILES, changed))
    assert not one.apart_from(other, {"weighted"})
    assert one.apart_from(other, {"something"})
    said = {**FILES, "toy/shapes.py": FILES["toy/shapes.py"].replace("= 1\n", "= field(default=1, metadata={})\n")}
    more = {**FILES, "toy/shapes.py": said["toy/shapes.py"].replace("{}", "{'help': 'more'}")}
    assert reaching("toy.losses.weighted", said).changed(reaching("toy.losses.weighted", more)) == []


def test_the_use_of_a_module_level_value_cannot_be_observed(reaching):
    more = "\nTABLE = _summed([1])\n\ndef looked(x):\n    return TABLE + x\n"
    files = {**FILES, "toy/tools.py": FILES["toy/tools.py"] + more}
    changed = {**files, "toy/tools.py": files["toy/tools.py"].replace("sum(rows)", "max(rows)")}
    one, other = (reaching("toy.tools.looked", each) for each in (files, changed))
    assert not one.apart_from(other, {"looked"})


def test_reached_definitions_have_a_fixed_order(reaching):
    """Options are tried in this order. The order of a set would differ between processes."""
    reached = reaching("toy.losses.chosen")
    assert list(reached.units) == sorted(reached.units)


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("toy/losses.py", "import toy.nothing\n"),
        ("toy/losses.py", "from toy.tools import nothing\n"),
        ("toy/losses.py", "from . import nothing\n"),
        ("toy/__init__.py", "print('at every import')\n"),
    ],
)
def test_an_import_that_may_fail_counts_as_a_change(reaching, file, code):
    after = {**FILES, file: FILES[file] + code}
    assert reaching("toy.losses.alone").changed(reaching("toy.losses.alone", after))
    fine = {**FILES, "toy/losses.py": f"{FILES['toy/losses.py']}import toy.shapes\nfrom . import tools as more\n"}
    assert not reaching("toy.losses.alone").changed(reaching("toy.losses.alone", fine))
