"""Read the settings of a training run from its command (for Hydra or argparse) or its shell script.

Nothing is executed. A script is parsed, and its own variables, arrays and ``$(cat FILE)`` are substituted. Values that
only a shell can compute (the output of other commands, environment variables, assignments under a condition) are
unknown and are reported. ``bash -c "…"`` is read as a script.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from posixpath import normpath
from typing import TYPE_CHECKING

from sentinel.errors import INSTALL, SentinelError
from sentinel.values.files import read_bytes, read_text

if TYPE_CHECKING:
    from tree_sitter import Node

#: Placeholders for text that only a shell can compute: ``UNKNOWN`` for one word, ``ANY_NUMBER`` for any number of
#: words, which may be options, and ``ONE`` for at most one word, which is not an option. They contain NUL because no
#: argument can contain it.
UNKNOWN = "\0"
ANY_NUMBER = "\1\0"
ONE = "\2\0"
_ELSEWHERE = re.compile("[\1\2]?\0")
#: The value of a setting that cannot be read. It has the form of a reference that cannot be resolved, so it counts as
#: unknown. A setting without a value would get its default instead.
NOT_KNOWN = "${?}"
_DEEPEST = 5

#: Syntax nodes in an ``export`` or ``declare`` whose text only a shell can compute.
_COMPUTED = ("string", "concatenation", "command_substitution", "expansion", "simple_expansion")

#: Maximum number of characters of a script with its variables substituted. Without a limit, a few lines that double a
#: variable would exhaust the memory.
_MOST_TEXT = 2 << 20
_ASSIGNMENT = re.compile(r"\+{0,2}[A-Za-z_][\w/@]*(\.[\w/@-]+)*=")
_OPTION = re.compile(r"--?[A-Za-z_]")
_LOOPS = ("while_statement", "for_statement", "c_style_for_statement")
#: Statements whose assignments may not be executed, or are undone at the end of the statement.
_CONDITIONAL = ("if_statement", "case_statement", *_LOOPS, "list", "subshell", "pipeline")
#: Commands whose output is one word, and variables whose value is one word.
_ONE_WORD = re.compile(r"pwd|dirname|basename|realpath|readlink|date|nproc|wc|hostname")
_ONE_WORD_VARIABLES = ("HOME", "PWD", "USER", "HOSTNAME", "TMPDIR", "RANDOM", "SLURM_JOB_ID", "?", "#", "$", "0")
#: Programs that append arguments to a command.
_ADDING = ("xargs", "parallel")
_SHELLS = ("bash", "sh", "zsh", "dash", "sbatch", "qsub", "bsub", "ssh")
_SHELL_SCRIPT = re.compile(r".*\.(sh|bash|zsh|slurm|sbatch)")
#: Commands that read or write a script and do not run it.
_FILE_COMMANDS = re.compile(
    r"\[|awk|basename|cat|chmod|cp|curl|diff|dirname|dos2unix|echo|find|git|grep|head|ln|ls|mkdir|mv|printf|readlink|"
    "realpath|rm|rsync|scp|sed|tail|tar|tee|test|touch|wc|wget|which"
)
_NAME = re.compile(r"[A-Za-z_]\w*")
_ALL_ARGUMENTS = ("$@", "$*", "${@}", "${*}")


class Word(str):
    """A word of a script whose value only a shell can compute. ``source`` is its text, with the line number."""

    source: str

    @classmethod
    def of(cls, word: str, source: str) -> Word:
        made = cls(word)
        made.source = source
        return made


@dataclass(frozen=True)
class CommandLine:
    """The settings that a training command passes to its program.

    :ivar settings: the settings in order, each as ``KEY=VALUE`` with a value in YAML, in the form of ``--set``.
    :ivar unknown: the settings whose values only a shell can compute, each with the known parts of its value:
        ``data=…/train.parquet``.
    :ivar further: the words of the script that may expand to any options, each with its line.
    :ivar words: the arguments that are neither options nor assignments.
    :ivar where: the script's file and line; empty for a command that the user gave.
    :ivar others: ``file:line`` of the script's other commands that run a Python program, or run an unread script.
    :ivar assumed: ``NAME=default``, for each ``${NAME:-default}`` that was read as its default. The environment may set
        the variable.
    :ivar program: the Python file, module or command that receives the settings; empty if there is none.
    :ivar arguments: the word ``"$@"`` of the script, with its line, if it was read as empty because the user gave the
        script no arguments; otherwise empty.
    :ivar processes: the number of processes that a launcher starts; None if the command does not specify it.
    :ivar missing: the files that the script sources but that do not exist, each with the ``file:line`` of the command.
    """

    settings: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    further: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    where: str = ""
    program: str = ""
    others: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    arguments: str = ""
    processes: int | None = None
    missing: tuple[str, ...] = ()


def of_words(words: Sequence[str], where: str = "") -> CommandLine:
    """Read the settings that a command passes to its program: ``python -m package key=value --option value``.

    Words before the program (``ray job submit --address …``, ``torchrun --nproc-per-node 8``) belong to launchers. The
    setting of an option with several values is a list; that of an option without a value is true.
    """
    inner = _shell_command(words)
    if inner is not None:
        line = of_script(Path("bash -c"), inner.encode())
        return replace(line, further=(*line.further, line.arguments), arguments="") if line.arguments else line
    settings: list[str] = []
    unknown: list[str] = []
    single: list[str] = []
    first, program = _program(words)
    wrapper = _script_in(words[:first]) if program else None  # a wrapper script may add options
    further = [word for word in words[:first] if word in _ADDING or word == wrapper != program]
    for name, values in _arguments(words[first:]):
        any_option = UNKNOWN in name or not name
        further += [getattr(word, "source", "…") for word in values if word == ANY_NUMBER]
        if not name and UNKNOWN not in values[0]:
            single += values
        elif any_option:
            further += [name.replace(UNKNOWN, "…")] if name else [getattr(word, "source", "…") for word in values]
        elif any(UNKNOWN in word for word in values):
            known = _ELSEWHERE.sub("…", values[0]) if len(values) == 1 else "…"
            unknown.append(name if known == "…" else f"{name}={known}")
            settings.append(f"{name}={NOT_KNOWN}")
        else:
            value = "true" if not values else values[0] if len(values) == 1 else f"[{', '.join(values)}]"
            settings.append(f"{name}={value}")
    return CommandLine(
        tuple(settings),
        tuple(dict.fromkeys(unknown)),
        tuple(dict.fromkeys(further)),
        tuple(single if program else ()),
        where,
        program,
        processes=_processes(words[:first]),
    )


#: Options of launchers that set the number of processes: in total, and on each node.
_IN_ALL = ("num_processes", "num-processes")
_PER_NODE = ("nproc_per_node", "nproc-per-node", "num_gpus", "num-gpus")


def _processes(words: Sequence[str]) -> int | None:
    """Return the number of processes that a launcher starts, or None if the command does not contain it as a number."""
    given = {name: values[0] for name, values in _arguments(words) if name and values}
    whole = next((given[name] for name in _IN_ALL if name in given), None)
    each = next((given[name] for name in _PER_NODE if name in given), None)
    nodes = given.get("nnodes", "1")
    if whole is None and each is not None and each.isdigit() and nodes.isdigit():
        return int(each) * int(nodes)
    return int(whole) if whole is not None and whole.isdigit() else None


def _shell_command(words: Sequence[str]) -> str | None:
    """Return ``python train.py`` for ``srun bash -lc "python train.py"``, and None for commands without ``bash -c``."""
    for number, word in enumerate(words[:-2]):
        if word.rpartition("/")[2] in _SHELLS and re.fullmatch(r"-[a-z]*c[a-z]*", words[number + 1]):
            return _as_shell(words[number + 2])
    return None


def _script_in(words: Sequence[str]) -> str | None:
    """Return the shell script that a command runs. Return "" if it is read from standard input, and None if there is
    none."""
    if not words or _FILE_COMMANDS.fullmatch(words[0]):
        return None
    for number, word in enumerate(words):
        if _SHELL_SCRIPT.fullmatch(word) and not word.startswith("-"):
            return word
        after = [other for other in words[number + 1 :] if not other.startswith("-")]
        if word.rpartition("/")[2] in _SHELLS and (after or not number):
            return next(filter(_SHELL_SCRIPT.fullmatch, after), after[-1] if after else "")
    return None


def _as_shell(text: str) -> str:
    return _ELSEWHERE.sub("$NOT_KNOWN", text.replace(ANY_NUMBER, "$@"))


#: Modules that start another program, whose name follows the module's own options.
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher")


def _program(words: Sequence[str]) -> tuple[int, str]:
    """Return the index of the program's first argument and the program, or (0, "") if the command has none.

    Options of launchers (``env VAR=x srun torchrun --nproc-per-node 8``) have an unknown number of values. None of
    these values is a Python file, so the first Python file or module is the program. A module that is followed by a
    Python file is a launcher.
    """
    for number, word in enumerate(words):
        if word.endswith(".py") and not word.startswith("-"):
            return number + 1, word
        if word in ("-m", "--module") and number + 1 < len(words):
            module, after = words[number + 1], words[number + 2 : number + 3]
            if not module.startswith(_LAUNCHERS) and not any(item.endswith(".py") for item in after):
                return number + 2, module
    if "uv" in words and words[words.index("uv") :][1:2] == ["run"]:  # an installed command, as in: uv run rl @ rl.toml
        for number in range(words.index("uv") + 2, len(words)):
            if not words[number].startswith("-"):
                return number + 1, words[number]
    return 0, ""


def _arguments(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the values of each argument. The name is empty for a word without an option before it."""
    name, values = "", list[str]()
    for word in words:
        if _ASSIGNMENT.match(word) or _OPTION.match(word) or word == ANY_NUMBER:
            if name:
                yield name, values or ([word] if word == ANY_NUMBER else [])
            name, values = "", []
        if _ASSIGNMENT.match(word) or (_OPTION.match(word) and "=" in word):
            key, _, value = word.partition("=")
            yield key.lstrip("-"), [value]
        elif _OPTION.match(word):
            name = word.lstrip("-")
        elif name:
            option = word.startswith("-") or (word[0:1] == UNKNOWN and word[1:2] != "/" and values)  # not "$DIR/file"
            if UNKNOWN in word and option:
                yield "", [word]
            values.append(word)
        else:
            yield "", [word]
    if name:
        yield name, values


def of_script(file: Path, source: bytes | None = None, arguments: Sequence[str] = ()) -> CommandLine:
    """Read a launch script, and return the command in it that passes the most settings to a Python program.

    :param source: the script's text; None to read the file.
    :param arguments: the script's own arguments, if they are known.
    :raises SentinelError: if the file is not a shell script, or no command runs a Python program.
    """
    script = _Script(file, list(arguments))
    try:
        script.read(file, source=source)
    except RecursionError:
        raise SentinelError(f"{file} is not a launch script: nested too deeply") from None
    commands = [of_words(words, where) for where, words in script.commands if _program(words)[1]]
    if not commands:
        runs = f"; it runs scripts that were not read: {', '.join(script.unread)}" if script.unread else ""
        raise SentinelError(f"{file}: no command in it runs a Python program{runs}; give the command itself after --")
    best = max(commands, key=lambda command: len(command.settings) + len(command.unknown))
    others = [f"{other.where} ({other.program})" for other in commands if other is not best]
    assumed = [f"{name}={text.replace(ONE, '…')}" for name, text in script.assumed.items()]
    others = list(dict.fromkeys([*others, *script.unread]))
    missing = tuple(dict.fromkeys(script.missing))
    return replace(best, others=tuple(others), assumed=tuple(assumed), arguments=script.absent, missing=missing)


@dataclass
class _Script:
    """Reads the commands of a script in order, and stores the value of each variable as words."""

    file: Path
    arguments: Sequence[str] = ()
    left: int = _MOST_TEXT
    #: Nesting depth of the current text in functions, other files and evaluated texts, each with arguments of its own.
    inside: int = 0
    arrays: dict[str, list[str]] = field(default_factory=dict)
    #: Variable -> the numbers of the functions that assign it; 0 for code outside functions, and -1 for an assignment
    #: whose value is never certain.
    scopes: dict[str, set[int]] = field(default_factory=dict)
    #: The variables that are assigned more than once.
    again: set[str] = field(default_factory=set)
    #: Whether code that was not read may have set any variable.
    doubted: bool = False
    functions: list[str] = field(default_factory=list)
    noted: set[bytes] = field(default_factory=set)
    #: The variables that the script exports, and whether it may export all variables.
    exported: set[str] = field(default_factory=set)
    exports_all: bool = False
    #: File that the script writes -> its text; None if the text is not known. The empty name stands for the standard
    #: input of a command.
    written: dict[str, str | None] = field(default_factory=dict)
    #: The scripts that this script runs but that were not read, with ``file:line`` of the commands.
    unread: list[str] = field(default_factory=list)
    #: The files that this script sources but that do not exist, with ``file:line`` of the commands.
    missing: list[str] = field(default_factory=list)
    #: Whether a command such as ``set --`` may replace the script's arguments.
    given: bool = False
    #: The word ``"$@"`` that was read as empty because the user gave no arguments, with its line.
    absent: str = ""
    #: Variables that were read as the default in ``${NAME:-default}``, which the environment may replace.
    assumed: dict[str, str] = field(default_factory=dict)
    commands: list[tuple[str, list[str]]] = field(default_factory=list)

    def read(self, file: Path, depth: int = 0, source: bytes | None = None) -> None:
        source = read_bytes(file) if source is None else source
        if b"\0" in source:
            raise SentinelError(f"{file} is not a launch script: it contains a NUL byte")
        self._count_characters(len(source))
        root = _parsed(source)
        if source not in self.noted:
            self.noted.add(source)
            self._note(root, 0, loop=False)
        self.inside += depth > 0
        self._walk(root, file, depth, certain=True)
        self.inside -= depth > 0

    def _note(self, node: Node, scope: int, loop: bool) -> None:
        """Record the places where each variable of the script is assigned.

        Values assigned by a loop, a command (``read X``), ``local -n`` or arithmetic are never certain.
        """
        kind, text, names = node.type, "", list[str]()
        if kind == "function_definition":
            self.functions.append(_of(node.child_by_field_name("name") or node))
            scope = len(self.functions)
        elif kind == "variable_assignment":
            name, _, index = _of(node.child_by_field_name("name") or node).partition("[")
            self.again |= {name} & self.scopes.keys()
            self.scopes.setdefault(name, set()).add(-1 if loop or index else scope)
        elif kind in ("command", "unset_command"):
            names = [_of(child).strip("'\"") for child in node.named_children if child.type != "command_name"]
            if kind == "command" and names and _of(node.named_children[0]) == "set":
                self.given |= names[0][:1] not in "-+" or not {"-", "--"}.isdisjoint(names)
        elif kind == "declaration_command" and any(re.match("-[a-zA-Z]*n", _of(item)) for item in node.named_children):
            text = _of(node)
        elif kind == "arithmetic_expansion" or (node.children and node.children[0].type == "(("):
            text = _of(node) if re.search(r"[^=!<>]=[^=]|\+\+|--", _of(node)) else ""
        elif kind == "expansion":
            for name in re.findall(r"^\$\{(\w+):?=", _of(node)):
                self.again |= {name} & self.scopes.keys()
                self.scopes.setdefault(name, set()).add(-1 if loop else scope)
        for name in (*names, *_NAME.findall(text)):
            if _NAME.fullmatch(name):
                self.scopes.setdefault(name, set()).add(-1)
        for child in node.named_children:
            self._note(child, scope, loop or kind in _LOOPS)

    def _count_characters(self, characters: int) -> None:
        self.left -= characters
        if self.left < 0:
            raise SentinelError(
                f"{self.file}: its variables and the files that it sources have more than {_MOST_TEXT >> 20} MiB; "
                "give the command itself after --"
            )

    def _walk(self, node: Node, file: Path, depth: int, certain: bool) -> None:
        if node.type == "declaration_command" and re.match(r"export\b|\w+ +-[a-zA-Z]*x", _of(node)):
            named = (each.child_by_field_name("name") or each for each in node.named_children)
            self.exported.update(_of(each) for each in named if each.type == "variable_name")
        elif node.type == "redirected_statement":
            self._write(node, certain)
        if node.type == "variable_assignment":
            self._assign(node, certain)
        elif node.type == "declaration_command" and any(each.type in _COMPUTED for each in node.named_children):
            self._doubt_all(True)  # `export $(cat .env)`, `declare "$name=$value"`
        elif node.type == "command":
            where = f"{file}:{node.start_point[0] + 1}"
            self._set_defaults(node)
            words = [word for child in node.named_children for word in self._expand_argument(child)]
            inner, script = _shell_command(words), None if _program(words)[1] else _script_in(words)
            script = words[0] if words and normpath(words[0]) in self.written else script
            self.exports_all |= words[:1] == ["set"] and any(
                map(re.compile("-[a-zA-Z]*a.*|allexport").fullmatch, words)
            )
            if words and words[0] in ("source", ".") and depth < _DEEPEST:
                self._source(words[1:2], where, depth)
            elif inner is not None and depth < _DEEPEST:
                self.read(file, depth + 1, inner.encode())
            elif words[:1] == ["let"] or (words[:1] == ["trap"] and {"DEBUG", "ERR", "RETURN"} & {*words[2:]}):
                self._doubt_all(True)  # the shell runs code that was not read
            elif words[:1] == ["alias"] and depth < _DEEPEST:
                for word in words[1:]:
                    self.read(file, depth + 1, f'{_as_shell(word.partition("=")[2])} "$@"'.encode())
            elif words[:1] == ["eval"] and not _program(words)[1] and depth < _DEEPEST:
                self._doubt_all(any(UNKNOWN in word for word in words))
                self.read(file, depth + 1, _as_shell(" ".join(words[1:])).encode())
            elif script is not None:
                own = [child for child in node.named_children if child.type == "variable_assignment"]
                self._run(script, own, f"{where} ({_ELSEWHERE.sub('…', script or words[0])})", depth)
            else:
                if words and words[0] in self.functions:
                    words.append(Word.of(ANY_NUMBER, f"the function {words[0]} (line {node.start_point[0] + 1})"))
                self.commands.append((where, words))
        elif node.type == "function_definition":
            outside = self.arrays
            self.arrays = {name: words for name, words in outside.items() if name not in self.again}
            self.inside += 1
            for child in node.named_children:
                self._walk(child, file, depth, certain)
            self.inside -= 1
            self.arrays = outside
        else:
            if node.type == "for_statement":
                self._loop(node)
            for child in node.named_children:
                self._walk(child, file, depth, certain and node.type not in _CONDITIONAL)
            if node.type == "redirected_statement":
                self.written.pop("", None)

    def _write(self, node: Node, certain: bool) -> None:
        """Store the texts of heredocs, and of files that a statement writes."""
        parts = [*node.named_children, *(each for part in node.named_children for each in part.named_children)]
        body = next((part for part in parts if part.type == "heredoc_body"), None)
        start = next((_of(part) for part in parts if part.type == "heredoc_start"), "")
        outputs = [part for part in parts if part.type == "file_redirect" and ">" in _of(part)]
        names = [self._text(part.named_children[-1]) for part in outputs if part.named_children]
        command = node.child_by_field_name("body")
        words = self._output_words(command) if command is not None and command.type == "command" else [UNKNOWN]
        names += [word for word in words[1:] if words[0] == "tee" and not word.startswith("-")]
        whole = words in (["cat"], ["cat", "-"]) or words[0] == "tee"
        text = None
        if body is not None:
            text = (
                (body.text or b"").decode(errors="replace") if {*start} & {*"'\"\\"} else self._expand_quoted(body, 0)
            )
        self.written[""] = text
        for name in names:
            appends = any(part.children and part.children[0].type == ">>" for part in outputs) or "-a" in words
            again = not certain and (normpath(name) in self.written or self._file(name) is not None)
            self.written[normpath(name)] = text if whole and not appends and not again else None

    def _run(self, name: str, assignments: Sequence[Node], place: str, depth: int) -> None:
        """Read a script that a command runs, or add it to ``unread`` if it cannot be read."""
        key = name and normpath(name)
        path = self._file(name) if name and key not in self.written else None
        text = self.written.get(key) if path is None else read_text(path)
        if text is None or path == self.file or depth >= _DEEPEST:
            self.unread.append(place)
            return
        before, doubted = self.arrays, self.doubted  # the script runs in another process and cannot change them
        self.arrays = {name: words for name, words in before.items() if name in self.exported}
        if self.exports_all:
            self.arrays = {name: [ANY_NUMBER] for name in before}
        for node in assignments:
            self._assign(node, certain=True)
        self.read(path or Path(name.rpartition(UNKNOWN)[2] or self.file), depth + 1, _as_shell(text).encode())
        self.arrays, self.doubted = before, doubted

    def _set_defaults(self, node: Node) -> None:
        """Assign the default in ``${NAME:=default}`` to variables that are not set."""
        for child in node.named_children:
            name = re.match(r"\$\{(\w+)(:?)=", _of(child)) if child.type == "expansion" else None
            if name is not None and self.arrays.get(name[1]) in ((None, [""]) if name[2] else (None,)):
                text = "".join(map(self._text, child.named_children[1:]))
                self.assumed[name[1]] = text
                self.arrays[name[1]] = [text if _is_plain(text) else f"{text} {ANY_NUMBER}".strip()]
            self._set_defaults(child)

    def _loop(self, node: Node) -> None:
        name = node.child_by_field_name("variable")
        words = [word for child in node.children_by_field_name("value") for word in self._expand_argument(child)]
        if name is not None:
            self.arrays[_of(name)] = [ONE if words and all(map(_is_plain, words)) else ANY_NUMBER]

    def _doubt_all(self, doubt: bool) -> None:
        """If ``doubt``, treat all variables as unknown, because code that was not read may assign them."""
        if doubt:
            self.doubted = True
            self.arrays = {name: [ANY_NUMBER] for name in self.arrays}

    def _source(self, words: Sequence[str], where: str, depth: int) -> None:
        for word in words:
            path = self._file(word)
            self._doubt_all(path is None)
            if path is None:
                self.missing.append(f"{_ELSEWHERE.sub('…', word)} ({where})")
            if path is not None and path != self.file:
                self.read(path, depth + 1)

    def _file(self, word: str) -> Path | None:
        """Return the existing file that a word of the script names, or None.

        If the beginning of the path is unknown, the rest is looked up in the script's folder.
        """
        path = self.file.parent / word.rpartition(UNKNOWN)[2].lstrip("/")
        return path if path.is_file() else None

    def _output(self, node: Node) -> str:
        """Return the text of the file in ``$(cat FILE)`` and ``$(< FILE)``, and a placeholder for other commands."""
        words = [word for child in node.named_children for word in self._output_words(child)]
        file = self._file(words[1]) if len(words) == 2 and words[0] == "cat" else None
        if file is None:
            last = node.named_children[-1] if node.named_children else node
            last = last.named_children[-1] if last.type in ("list", "pipeline") else last
            command = last.child_by_field_name("name") if last.type == "command" else None
            return ONE if command is not None and _ONE_WORD.fullmatch(_of(command)) else UNKNOWN
        text = read_text(file)
        self._count_characters(len(text))
        return text.strip()

    def _output_words(self, node: Node) -> list[str]:
        if node.type == "command":
            return [word for child in node.named_children for word in self._expand_argument(child)]
        if node.type == "file_redirect":
            return ["cat", *(self._text(child) for child in node.named_children)]
        return [word for child in node.named_children for word in self._output_words(child)] or [UNKNOWN]

    def _assign(self, node: Node, certain: bool) -> None:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name is None or name.type != "variable_name":
            return
        if value is None:
            words = [""]
        elif value.type == "array":
            words = [word for child in value.named_children for word in self._expand_argument(child)]
        else:
            words = [self._text(value)]
        adds = any(child.type == "+=" for child in node.children)
        before = self.arrays.get(_of(name), [])
        if not certain:
            plain = (value is None or value.type != "array") and all(map(_is_plain, [*before, *words]))
            doubt = doubted(words if adds else [*before, *words]) if value and value.type == "array" else None
            left = doubt if doubt is not None else [ANY_NUMBER]
            self.arrays[_of(name)] = [ONE] if plain else [*(before if adds else []), *left]
            return
        before = before if adds else []
        if adds and (value is None or value.type != "array"):
            words, before = ["".join([*before, *words])], []
        self.arrays[_of(name)] = [*before, *words]

    def _expand_argument(self, node: Node) -> list[str]:
        if node.type in ("comment", "variable_assignment", "file_redirect"):
            return []
        inner = node.named_children[0] if node.type == "string" and len(node.named_children) == 1 else node
        name = _array(inner)
        if name:
            words = self._words(name, ANY_NUMBER)
        elif _of(inner) in _ALL_ARGUMENTS:
            words = [*self._own_arguments(node)]
        else:
            text = self._text(node)
            one = text.replace(ANY_NUMBER, UNKNOWN)
            splits = node.type in ("simple_expansion", "expansion", "command_substitution")
            words = one.split() if splits else [one]
            if ANY_NUMBER in text or (splits and UNKNOWN in text.replace(ONE, "")):
                words.append(ANY_NUMBER)
        source = f"{' '.join(_of(node).split())} (line {node.start_point[0] + 1})"
        return [Word.of(word, source) if UNKNOWN in word and not isinstance(word, Word) else word for word in words]

    def _own_arguments(self, node: Node) -> Sequence[str]:
        """Return the script's arguments for ``"$@"``. They are unknown inside a shell function."""
        if self.inside or self.given:
            return [ANY_NUMBER]
        if not self.arguments:
            self.absent = self.absent or f"{_of(node)} (line {node.start_point[0] + 1})"
        return self.arguments

    def _text(self, node: Node) -> str:
        if node.type in ("string_content", "heredoc_content"):
            return _unescaped(_of(node))
        if node.type in ("word", "number", "variable_name", "special_variable_name"):
            return re.sub(r"\\(.)", r"\1", _of(node))
        if node.type == "raw_string":
            return _of(node)[1:-1]
        if node.type in ("concatenation", "command_name"):
            return "".join(map(self._text, node.named_children))
        if node.type == "string":
            return self._expand_quoted(node, 1).replace(ANY_NUMBER, UNKNOWN)
        if _of(node) in _ALL_ARGUMENTS:
            return " ".join(self._own_arguments(node)).replace(ANY_NUMBER, UNKNOWN)
        if node.type == "simple_expansion":
            return self._value(_of(node)[1:])
        if node.type == "command_substitution":
            return self._output(node)
        if node.type == "arithmetic_expansion":
            return self._computed(_of(node)[3:-2])
        plain = re.fullmatch(r"\$\{(\w+)(?::?[-=].*)?\}", _of(node), re.DOTALL) if node.type == "expansion" else None
        if plain is None:
            return UNKNOWN
        default = node.named_children[1:]
        unset = self.arrays.get(plain[1]) == [""] and ":" in _of(node)[: len(plain[1]) + 3]
        if not default or (plain[1] in self.arrays and not unset):
            return self._value(plain[1])
        text = "".join(map(self._text, default))
        own = plain[1].isdigit() and bool(self.arguments or self.inside)  # an argument of the script
        if not text or own or self.doubted or not _is_plain(text.replace(ONE, "")):
            return f"{text} {UNKNOWN}".strip()  # the environment may set the variable to options
        self.assumed[plain[1]] = text
        return text

    def _expand_quoted(self, node: Node, margin: int) -> str:
        text, place, whole = "", margin, node.text or b""
        for child in node.named_children:  # the parser drops some of the text between expansions
            end = child.end_byte - node.start_byte
            between = whole[place : end - len(_of(child).encode(errors="replace"))]
            text += _unescaped(between.decode(errors="replace")) + self._text(child)
            place = end
        return text + _unescaped(whole[place : len(whole) - margin].decode(errors="replace"))

    def _computed(self, text: str) -> str:
        """Return the result of ``$((A * 2))`` if its variables are known integers; otherwise a placeholder."""
        text = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda name: self._value(name[1]), text)
        if len(text) > _LONGEST_SUM or not re.fullmatch(r"[\d\s()+*/%-]+", text) or "**" in text:
            return ONE
        try:
            return str(_sum(ast.parse(text.strip().replace("//", "?").replace("/", "//"), mode="eval").body))
        except (SyntaxError, ValueError, ArithmeticError):
            return ONE

    def _value(self, name: str) -> str:
        return " ".join(self._words(name, UNKNOWN))

    def _words(self, name: str, otherwise: str) -> list[str]:
        """Return the words in a variable's value, or ``[otherwise]`` if the script does not set the variable."""
        places = self.scopes.get(name, set[int]())
        otherwise = ONE if name in _ONE_WORD_VARIABLES and not places else otherwise
        words = [ANY_NUMBER] if -1 in places or len(places) > 1 else self.arrays.get(name, [otherwise])
        self._count_characters(len(words) + sum(map(len, words)))
        return words


_LONGEST_SUM = 200
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def _sum(node: ast.expr) -> int:
    """Evaluate an expression of integers. Division rounds towards zero, as in a shell.

    :raises ValueError: for other expressions.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_sum(node.operand)
    if isinstance(node, ast.BinOp):
        left, right = _sum(node.left), _sum(node.right)
        if type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](left, right)
        if isinstance(node.op, (ast.FloorDiv, ast.Mod)):
            whole = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            return whole if isinstance(node.op, ast.FloorDiv) else left - whole * right
    raise ValueError


def _array(node: Node) -> str:
    """Return ``ARGS`` for ``${ARGS[@]}``, and "" for any other node."""
    match = re.fullmatch(r"\$\{(\w+)\[[@*]\]\}", _of(node)) if node.type == "expansion" else None
    return match[1] if match else ""


def _is_plain(word: str) -> bool:
    """Return True if the value of a variable is at most one word and not an option."""
    return word == ONE or not (UNKNOWN in word or word.startswith("-") or re.search(r"\s|=", word))


def doubted(words: Sequence[str]) -> list[str] | None:
    """Return words with all values of options replaced by unknown values. Return None if the first word is not an
    option, because it may be the value of an option before it."""
    doubt: list[str] = []
    for word in words:
        if _ASSIGNMENT.match(word) or (_OPTION.match(word) and "=" in word):
            doubt.append(f"{word.partition('=')[0]}={UNKNOWN}")
        elif _OPTION.match(word) and UNKNOWN not in word:
            doubt += [word, UNKNOWN]
        elif not doubt or word.replace(ONE, "").startswith(("-", UNKNOWN, "\1")):
            return None
    return doubt


_EXPANSIONS = ("simple_expansion", "expansion", "command_substitution", "arithmetic_expansion")


def _of(node: Node) -> str:
    """Return the text of a syntax node. The spaces before a shell expansion such as ``$X`` are removed."""
    text = (node.text or b"").decode(errors="replace")
    return re.sub(r"^[^$`]*", "", text) if node.type in _EXPANSIONS else text


def _unescaped(text: str) -> str:
    return re.sub(r'\\([$`"\\\n])', lambda match: match[1].strip("\n"), text)


def _parsed(source: bytes) -> Node:
    try:
        import tree_sitter_bash
        from tree_sitter import Language, Parser
    except ImportError:
        raise SentinelError(
            f"tree-sitter-bash, which parses launch scripts, is not installed; {INSTALL.format('shell')}, or give the "
            "command itself after --"
        ) from None
    return Parser(Language(tree_sitter_bash.language())).parse(source).root_node
