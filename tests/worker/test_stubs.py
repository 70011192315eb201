# ruff: noqa: E501 (a statement is easier to read on one line)
"""Stub modules: which packages get one, and what works during import but not during a probe."""

import pytest
from demo_kit import returned

from sentinel.worker.answers import Failed, Measured


def failure(answer: Measured | Failed) -> tuple[str, str]:
    assert isinstance(answer, Failed), answer
    return answer.kind, answer.reason


def test_a_stub_reports_the_declared_version(lab):
    text = "import absent_one, absent_two\ndef f():\n    return [absent_one.__version__, absent_two.__version__]\n"
    process = lab.open(lab.write({"mod.py": text}), versions={"absent_one": "1.2.3"})
    assert lab.probe(process, "pkg.mod.f").observation[""]["returned"] == ["1.2.3", "0.0.0"]


def test_importlib_metadata_reports_stub_versions_only_to_the_target(lab):
    text = (
        "from importlib.metadata import version\nimport importlib.metadata, json\nVERSION = version('absent-one')\n"
        "try:\n    version('absent-two')\nexcept importlib.metadata.PackageNotFoundError:\n    OTHER = None\n"
        "try:\n    FOREIGN = eval(compile('ask(\"absent-one\")', 'foreign.py', 'eval'), {'ask': version})\n"
        "except importlib.metadata.PackageNotFoundError:\n    FOREIGN = None\n"
        "def f():\n    return [VERSION, OTHER, FOREIGN, importlib.metadata.version('numpy') != '']\n"
    )
    process = lab.open(lab.write({"mod.py": text}), versions={"absent_one": "1.2.3"})
    assert returned(lab.probe(process, "pkg.mod.f")) == ["1.2.3", None, None, True]


@pytest.mark.parametrize(
    "statement",
    [
        "import absent_one",
        "import absent_one.part.deep",
        "import absent_one.part as part",
        "from absent_one import name",
        "from absent_one.part import name as other",
        "from absent_one import *",
        "import absent_one, absent_two",
        "if True:\n    import absent_one",
        "class Holder:\n    import absent_one",
        "try:\n    import json\nfinally:\n    import absent_one",
        "try:\n    import absent_zero\nexcept ImportError:\n    import absent_one",
        "try:\n    import absent_one\nexcept KeyError:\n    pass",
        "try:\n    import absent_one\nexcept ImportError as error:\n    raise RuntimeError('install it') from error",
        "try:\n    import absent_one\nexcept ModuleNotFoundError:\n    raise\nexcept Exception:\n    pass",
    ],
)
def test_an_unguarded_import_gets_a_stub(statement, lab):
    files = {"mod.py": f"{statement}\ndef f():\n    return 7\n"}
    answer = lab.call(files, "pkg.mod.f")
    assert answer.observation[""]["returned"] == 7
    assert answer.ghosts[:1] == ("absent_one",)


@pytest.mark.parametrize(
    "statement",
    [
        "try:\n    import absent_one\n    HAVE = True\nexcept ImportError:\n    HAVE = False",
        "try:\n    from absent_one.part import name\n    HAVE = True\nexcept (ImportError, AttributeError):\n    HAVE = False",
        "try:\n    import absent_one\n    HAVE = True\nexcept ModuleNotFoundError:\n    HAVE = False",
        "try:\n    import absent_one\n    HAVE = True\nexcept Exception:\n    HAVE = False",
        "try:\n    import absent_one\n    HAVE = True\nexcept:\n    HAVE = False",
        "try: import absent_one\nexcept ImportError: HAVE = False",
        "for HAVE in (False,):\n    try:\n        import absent_one\n    except ImportError:\n        if not HAVE:\n            break\n        raise",
        "try:\n    try:\n        import absent_one\n    except KeyError:\n        pass\nexcept ImportError:\n    HAVE = False",
        "try:\n    from absent_one import (\n        name,\n    )\nexcept ImportError:\n    HAVE = False",
        "import contextlib\nHAVE = False\nwith contextlib.suppress(ImportError):\n    import absent_one\n    HAVE = True",
        "from importlib.util import find_spec\nHAVE = find_spec('absent_one') is not None",
        "import importlib\ntry:\n    importlib.import_module('absent_one')\nexcept ImportError:\n    HAVE = False",
        "try:\n    __import__('absent_one')\nexcept ImportError:\n    HAVE = False",
        "try:\n    from pkg.needs import name\nexcept ImportError:\n    HAVE = False",
        "try:\n    from . import chain\nexcept ImportError:\n    HAVE = False",
        "import sys\nHAVE = 'absent_one' in sys.modules",
        "def load():\n    import absent_one\ntry:\n    load()\nexcept ImportError:\n    HAVE = False",
    ],
)
def test_availability_checks_do_not_see_stubs(statement, lab):
    files = {
        # An unguarded import in another module comes first, so a stub exists already.
        "unguarded.py": "import absent_one\n",
        "needs.py": "import absent_one\nname = 1\n",
        "chain.py": "from pkg.link import name\n",
        "link.py": "from absent_one.part import name\n",
        "mod.py": f"import pkg.unguarded\n{statement}\ndef f():\n    return HAVE\n",
    }
    assert lab.returned(files, "pkg.mod.f") is False


LAZY = """
import importlib, sys, types

class _LazyModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            value = getattr(self._module("layers"), name)
        except (ModuleNotFoundError, RuntimeError) as error:
            raise ModuleNotFoundError(f"could not import {name}") from error
        setattr(self, name, value)
        return value

    def _module(self, name):
        try:
            return importlib.import_module("." + name, self.__name__)
        except Exception as error:
            raise RuntimeError(f"failed to import {name}") from error

lazy = _LazyModule(__name__)
lazy.__path__, lazy.__spec__, lazy.__file__ = __path__, __spec__, __file__
sys.modules[__name__] = lazy
"""


def test_lazy_modules_do_not_count_as_guards(lab):
    """The library imports everything inside ``try/except Exception`` and only stores the reason."""
    files = {
        "library/__init__.py": LAZY,
        "library/layers.py": "import absent_one\ndef layer():\n    return 7\n",
        "mod.py": "from pkg.library import layer\ndef f():\n    return layer()\n",
    }
    answer = lab.call(files, "pkg.mod.f")
    assert answer.observation[""]["returned"] == 7
    assert answer.ghosts == ("absent_one",)


def test_a_third_party_importer_sees_no_stub(lab):
    tree = lab.write({"mod.py": "import absent_one\nimport vendor\ndef f():\n    return vendor.HAVE\n"})
    (tree / "vendor.py").write_text("try:\n    import absent_one\nexcept ImportError:\n    HAVE = False\n")
    answer = lab.probe(lab.open(tree), "pkg.mod.f")
    assert answer.observation[""]["returned"] is False


def test_a_third_party_import_fails_as_without_stubs(lab):
    tree = lab.write({"mod.py": "import vendor\ndef f():\n    return 7\n"})
    wrapped = "try:\n    import absent_one\nexcept Exception as error:\n    raise RuntimeError('no') from error\n"
    for text in ("import absent_one\n", wrapped):  # the second is the form of lazy modules
        (tree / "vendor.py").write_text(text)
        kind, reason = failure(lab.probe(lab.open(tree), "pkg.mod.f"))
        assert kind == "import"
        assert reason.endswith("; install absent_one, or name an interpreter that has it")


@pytest.mark.parametrize("statement", ["from pkg import missing", "import pkg.missing", "from .missing import x"])
def test_the_targets_own_modules_never_become_stubs(statement, lab):
    kind, reason = failure(lab.call({"mod.py": f"{statement}\ndef f():\n    return 7\n"}, "pkg.mod.f"))
    assert kind == "import"
    assert "missing" in reason


def test_a_missing_module_of_an_installed_package_is_not_a_stub(lab):
    kind, _ = failure(lab.call({"mod.py": "import torch.absent\ndef f():\n    return 7\n"}, "pkg.mod.f"))
    assert kind == "import"


def test_a_name_from_a_missing_module_is_a_stub(lab):
    tree = lab.write({"mod.py": "from torch.absent import one\nfrom vendor import two\ndef f():\n    return 7\n"})
    (tree / "vendor.py").write_text("import absent_one\n")
    answer = lab.probe(lab.open(tree), "pkg.mod.f")
    assert answer.observation[""]["returned"] == 7
    assert answer.ghosts == ("absent_one", "torch.absent")


def test_a_stub_can_be_the_type_of_a_model_field(lab):
    """pydantic requests a type's schema when the model is defined."""
    pytest.importorskip("pydantic")
    text = """
import pydantic
from absent_one import Base, Name
class Settings(Base):
    pass
class Model(pydantic.BaseModel):
    settings: Settings | None = None
    name: Name = None
    number: int = 7
def f():
    return Model().number
"""
    process = lab.open(lab.write({"mod.py": text}), real=("pydantic",))
    assert returned(lab.probe(process, "pkg.mod.f")) == 7


def test_the_evidence_names_the_stubs_that_the_boundary_reaches(lab):
    files = {
        "mod.py": "import absent_one\nfrom pkg.near import g\ndef f():\n    return g()\n",
        "near.py": "import absent_two\ndef g():\n    return 7\n",
        "far.py": "import absent_three\ndef h():\n    return 7\n",
    }
    process = lab.open(lab.write(files), real=("pydantic",))
    assert lab.probe(process, "pkg.far.h").ghosts == ("absent_three",)
    assert lab.probe(process, "pkg.mod.f").ghosts == ("absent_one", "absent_two")


HARMLESS = """
import abc, dataclasses, enum, typing
import absent as stub
from absent import Base, Meta, decorator, Type

@decorator
def plain(x): return x + 1

@decorator(retries=3)
def with_arguments(x): return x + 2

@decorator.nested.deep(1)
@staticmethod
def static(x): return x + 3

class Held:
    @decorator
    def method(self, x): return x + 4
    @staticmethod
    @decorator
    def static(x): return x + 5
    @decorator
    @classmethod
    def klass(cls, x): return x + 6
    @decorator
    @property
    def value(self): return 7

@decorator
class Kept:
    def method(self, x): return x + 8

import functools
@decorator
@functools.lru_cache
def cached(x): return x + 9

class Child(Base):
    def method(self, x): return x + 10

class Both(Base, Kept): pass
class Two(Base, stub.Other):
    def method(self, x): return x + 11
class Generic(Base, typing.Generic[typing.TypeVar("T")]):
    def method(self, x): return x + 12
class WithMeta(metaclass=Meta):
    def method(self, x): return x + 13
class WithBoth(Base, metaclass=Meta, flag=True):
    def method(self, x): return x + 14
class Abstract(Base, abc.ABC):
    def method(self, x): return x + 15

def annotated(a: Type | None = None, b: "Type" = None, c: typing.Optional[Type] = None, d: None | Type = None,
              e: list[Type] = (), f: typing.Union[Type, int] = 0, g: Type[int] = None, *h: stub.A.B) -> Type | int:
    return 16

@dataclasses.dataclass
class Data:
    x: Type | None = None
    y: Type = stub.default
    z: int = 17

CONSTANTS = [
    stub.A + 1, 1 + stub.A, stub.A * 2, -stub.A, stub.A["k"], stub.A("x").y.z, stub.A == 1, stub.A != 1,
    stub.A < 1, len(stub.A), bool(stub.A), list(stub.A), 3 in stub.A, int(stub.A), float(stub.A),
    f"{stub.A}", isinstance(1, stub.A), issubclass(int, stub.A), hash(stub.A) and 1, stub.__version__ > "1",
    {stub.A: 1}, stub.A | stub.B, stub.A % 2, stub.A // 2, stub.A ** 2, range(stub.A), [0][stub.A],
]
stub.A["k"] = 1
stub.A.flag = True
del stub.A["k"]
if stub.version_check(">=1"):
    raise RuntimeError("a stub said yes")
with stub.context() as c:
    pass
for item in stub.items():
    raise RuntimeError("a stub had items")
stub.register("name")(plain)
logger = stub.getLogger(__name__)
logger.info("hello")

def f():
    return [
        plain(0), with_arguments(0), static(0), Held().method(0), Held.static(0), Held.klass(0), Held().value,
        Kept().method(0), cached(0), Child.method(None, 0), Two.method(None, 0), Generic.method(None, 0),
        WithMeta().method(0), WithBoth.method(None, 0), Abstract.method(None, 0), annotated(), Data().z,
    ]

def asks_isinstance():
    return isinstance(1, Type)

def reads_names():
    return repr(stub.A.B)
"""


def test_stubs_support_the_operations_of_imports(lab):
    found = lab.returned({"mod.py": HARMLESS}, "pkg.mod.f")
    assert found == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]


def test_harmless_operations_are_not_uses_of_a_stub(lab):
    process = lab.open(lab.write({"mod.py": HARMLESS}))
    assert lab.probe(process, "pkg.mod.asks_isinstance").observation[""]["returned"] is False
    assert lab.probe(process, "pkg.mod.reads_names").observation[""]["returned"] == "<stub absent.A.B>"


USES = (
    "stub.get_rank()",
    "bool(stub.flag)",
    "not stub.flag",
    "len(stub.items)",
    "list(stub.items)",
    "stub.x + 1",
    "1 + stub.x",
    "stub.x['k']",
    "stub.x == 1",
    "1 == stub.x",
    "stub.x != 1",
    "stub.x < 1",
    "1 in stub.x",
    "int(stub.x)",
    "float(stub.x)",
    "[1][stub.x]",
    "stub.x",
    "{'deep': [stub.x]}",
    "Child()",
    "decorated_later(f)",
    "caught()",
    "caught_all()",
    "lazily()",
    "entered()",
    "set_item()",
    "logger.info('x')",
)
USING = """
import absent_thing as stub
logger = stub.getLogger()
class Child(stub.Base): pass
def decorated_later(g): return stub.decorator(g)
def caught():
    try:
        return stub.call()
    except RuntimeError:
        return 1.0
def caught_all():
    try:
        return stub.call()
    except BaseException:
        return 1.0
def lazily():
    import absent_thing.part
    return absent_thing.part.call()
def entered():
    with stub.context():
        return 1.0
def set_item():
    stub.x["k"] = 1
    return 1.0
def f(): ...
"""


def test_using_a_stub_during_a_probe_is_inconclusive(lab):
    functions = "".join(f"def use_{number}():\n    return {use}\n" for number, use in enumerate(USES))
    process = lab.open(lab.write({"mod.py": USING + functions}))
    for number, use in enumerate(USES):
        kind, reason = failure(lab.probe(process, f"pkg.mod.use_{number}"))
        assert kind == "ghost", use
        assert reason.startswith("the code used absent_thing"), (use, reason)


def test_imports_inside_a_probe_may_use_stubs(lab):
    """A module that the boundary imports on its first call may still decorate with a stub."""
    files = {
        "mod.py": "def f():\n    from pkg.later import g\n    return g()\n",
        "later.py": "import absent\n\n@absent.remote(num_cpus=1)\ndef g():\n    return 7\n",
    }
    assert lab.returned(files, "pkg.mod.f") == 7


def test_a_stub_of_a_late_import_is_refused_during_a_probe(lab):
    files = {
        "mod.py": "def f():\n    from pkg.later import g\n    return g()\n",
        "later.py": "import absent\nX = absent.compute()\n\ndef g():\n    return X + 1\n",
    }
    assert failure(lab.call(files, "pkg.mod.f"))[0] == "ghost"
