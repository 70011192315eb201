"""Decide from the words in a function's source whether the function carries training signal.

The rule consists of the word tables below and their weights. docs/coverage.md explains how they were chosen. The tables
have words of reinforcement learning, and no names of frameworks. Sources are parsed in processes with limits on time
and memory; no code is imported or run.
"""

from __future__ import annotations

import ast
import os
import re
import resource
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing import get_context
from typing import Literal, get_args

from sentinel.errors import SentinelError
from sentinel.search.bindings import Name, names_of, span_of, syntax_of
from sentinel.worker.codes import LARGEST_SOURCE

#: Subject -> (strong words, weak words). A strong word alone indicates the subject; a weak word counts less. Each is a
#: regular expression for whole words of an identifier in snake case.
WORDS: Mapping[str, tuple[str, str]] = {
    "mask": (r"masks?|masked|unmasked|ignore_index", ""),
    "log-probability": (r"log_?probs?|logps?|logits?|log_?ratio|kl|kld|kl_\w+|entropy|entropies", ""),
    "advantage": (r"adv|advs|advantages?|returns|gae|whiten", r"discount|gamma|lam|lambd|baselines?"),
    "reward": (
        r"rewards?|ground_truths?|verif(y|ier)|grade|grader|rm|solution_strs?",
        r"scores?|penalty|correct|is_correct|accuracy|answer|filter",
    ),
    "value": ("", r"values|vpreds?|critic|ratio|normali[sz]e"),
    "loss": (r"loss|losses|clip_(ratio|low|high|frac)|clipfrac|eps_clip|cross_entropy", ""),
    "token": (
        r"(input|token|prompt|response|output|completion|position|pad|eos|stop|bos|(pad|eos|stop)_token)_ids?|tokens"
        r"|responses|cu_seq_?lens?|seq_?lens?|seqlen_list|labels|(response|prompt)_len(gth)?s?|tokeni[sz]e"
        r"|chat_template|truncat(e|ed|ion)",
        r"seqs?|sequences?|lengths?",
    ),
    "batch": (
        r"(micro|mini)_?batch(es)?|mbs|collate|collator|data_?loader|data_?proto",
        r"batch|data|dataset|sampler|samples?|pack(ed|ing)?|unpack|balanced?|partitions?|idxs"
        r"|shards?|chunks?|buffer|padding|pad|unpad|experiences?",
    ),
    "rollout": (
        r"sampling_params?|trajector(y|ies)|finish_reasons?|stop_reason",
        r"rollouts?|turns?|episodes?|messages?|message_logs?|conversations?|generat(e|ion|ed|ions)|temperature|top_[pk]"
        r"|repetition_penalty|n_samples|staleness|agent_loop|routing|prompts?|response|completion|multi_?turn|replay",
    ),
    "group": (r"uids?|group_ind(ex|ices)", r"groups|grouped|group_(id|ids|size)|indices|index"),
    "step": (
        r"update_(policy|actor|critic)|(train|optim|optimi[sz]er)_step|grad_norm|accumulation|lr|learning_rates?|warmup",
        r"optimi[sz]er|grads?|gradients?|accumulate|backward|forward|train_batch|global_steps?|schedule|scal(e|ing)",
    ),
    "metric": (r"metrics?|logs", r"statistics"),
}

#: Words of infrastructure and model code. They lower the score if the name of a function, class or module has one.
ASIDE = (
    r"init|initialize|getstate|setstate|repr|str|configs?|cfg|args|arguments|argparse|cli|api|service|servers?|client"
    r"|https?|url|ports?|addr\w*|launch\w*|install|profil\w*|wandb|tensorboard|swanlab|placement|slurm|socket|nccl"
    r"|process_group|parallel_group|worker_group|device\w*|memory|cache|kv|lock(ed)?|controller|scheduling|callback"
    r"|scraper|registry|plot\w*|checkpoint\w*|ckpt|(de)?serialize\w*|convert\w*|weights?_(update|sync|transfer)|lora"
    r"|quant\w*|qat|fp8|kernels?|deepgemm\w*|moe|mla|mlp|indexer|layers?|rotary|transformers|attn|attention(?!_mask)"
    r"|benchmarks?|flops\w*|visuali[sz]e\w*|health|tracking|logging"
)

#: Place of a word in the source -> (weight of a strong word, weight of a weak word). A method's class counts most.
SITES: Mapping[str, tuple[int, int]] = {
    "parameter": (4, 2), "name": (4, 2), "class": (6, 3), "module": (2, 1), "body": (1, 0)
}  # fmt: skip

#: The minimum score of a signal function, and the penalty for each name with a word of :data:`ASIDE`.
ENOUGH, AGAINST = 6, 2

#: Calls that compute or rearrange tensors.
OPERATIONS = (
    r"sum|mean|std|var|cumsum|cumprod|masked_fill|masked_select|where|gather|scatter(_add)?_?|clamp|exp|flip|roll|cat"
    r"|(log_)?softmax|logsumexp|concat(enate)?|stack|chunk|unbind|pad_sequence|repeat(_interleave)?|expand|unsqueeze"
    r"|squeeze|reshape|transpose|permute|argsort|argmax|topk|minimum|maximum|detach|backward|all_reduce|all_gather"
    r"|nonzero|unique|index_(select|add)|(zeros|ones|full)(_like)?|arange|einsum|matmul|bincount|cross_entropy"
    r"|nan_to_num|isnan|isfinite|tolist|clone|extend|append"
)

_WORDS = [(level, subject, both[level]) for subject, both in WORDS.items() for level in (0, 1) if both[level]]
_PATTERNS = [(level, subject, re.compile(rf"_({words})(?=_)")) for level, subject, words in _WORDS]
_AGAINST = re.compile(rf"_({ASIDE})(?=_)")
_Def = ast.FunctionDef | ast.AsyncFunctionDef
_ARITHMETIC = (ast.BinOp, ast.AugAssign, ast.Compare)
_ITEMS = (ast.Subscript, ast.comprehension, ast.Yield, ast.YieldFrom)
_COMPOUND = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.AsyncFor, ast.AsyncWith)
_OPERATION = re.compile(OPERATIONS)
_KEY = re.compile(r"[\w/.-]{1,40}")

_PYTHON = ".".join(map(str, sys.version_info[:2]))

#: Limits of a parsing process, in CPU seconds and bytes. A whole framework takes one to three seconds and 100 MB.
_SECONDS, _MEMORY = 60, 2 << 30


State = Literal["bound", "not bound", "no signal"]
STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True)
class Function:
    """A function or method that carries training signal according to this module's rule.

    :ivar name: the qualified name within the module.
    :ivar file: the path of its file; empty while only the file's content is known.
    :ivar state: whether a binding exists; ``no signal`` if the adapter's globs exclude it.
    :ivar contracts: the contracts to which it is bound.
    """

    module: str
    name: str
    file: str
    line: int
    end_line: int
    subjects: tuple[str, ...]
    state: State = "not bound"
    contracts: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def span(self) -> tuple[int, int]:
        return self.line, self.end_line


@dataclass(frozen=True)
class Source:
    """The names and the signal functions of a source file.

    :ivar unread: why the file could not be read; empty if it was read.
    """

    names: Mapping[str, Name] = field(default_factory=dict)
    functions: tuple[Function, ...] = ()
    unread: str = ""


def read(sources: Mapping[str, tuple[str, bytes]]) -> dict[str, Source]:
    """Parse source files in separate processes.

    :param sources: file -> (module, content).
    :raises SentinelError: if a file exceeds the limit of CPU time or memory.
    """
    spawn = get_context("spawn")  # spawn, because a forked process could inherit locks that the caller's threads hold
    work = list(sources.values())
    try:
        with ProcessPoolExecutor(min(os.cpu_count() or 1, 1 + len(work) // 64), spawn, limit_resources) as pool:
            results = list(pool.map(_parse, work, chunksize=max(1, min(32, len(work) // 16))))
    except BrokenProcessPool:
        raise SentinelError(f"a file takes more than {_SECONDS} seconds or {_MEMORY >> 30} GiB to parse") from None
    return dict(zip(sources, results))


def limit_resources() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")  # warnings about the framework's syntax are for its authors


def _parse(work: tuple[str, bytes]) -> Source:
    module, content = work
    if len(content) > LARGEST_SOURCE:
        return Source(unread=f"the file has more than {LARGEST_SOURCE >> 20} MiB")
    try:
        body = syntax_of(content).body
        return Source(names_of(body), tuple(signal_functions(body, module)))
    except SyntaxError as error:
        return Source(unread=f"the file does not parse with Python {_PYTHON}: {error.msg}")


#: Decorators that compile a function for a GPU.
_KERNELS = (
    ".triton.jit",
    ".triton.autotune",
    ".triton.heuristics",
    ".cute.jit",
    ".cute.kernel",
    ".T.prim_func",
)


def signal_functions(body: Sequence[ast.stmt], module: str) -> list[Function]:
    """Return the functions and methods of a module that carry training signal. If a name is defined twice, the last
    definition counts."""
    parts = module.split(".")[1:]
    if _is_test(parts):
        return []
    functions = dict(_functions(body))
    judged = ((name, node, *_score(node, parts, name.split("."))) for name, node in functions.items())
    return [
        Function(module, name, "", *span_of(node), subjects)
        for name, node, score, subjects in judged
        if score >= ENOUGH and not _is_kernel(node)
    ]


def _is_test(module: Sequence[str]) -> bool:
    return any(part in ("test", "tests") or part.startswith("test_") for part in module)


def doubtful_functions(body: Sequence[ast.stmt], module: str) -> set[str]:
    """Return functions that the rule excludes although they may carry signal.

    A function is doubtful if one of these is true:

    * a parameter, its name, its class or its module has a strong word;
    * it is a GPU kernel;
    * it declares a program's options;
    * it changes an object and returns it, such as a decorator for configuration classes.
    """
    parts = module.split(".")[1:]
    if _is_test(parts):
        return set()
    counted = {function.name for function in signal_functions(body, module)}
    return {name for name, node in _functions(body) if name not in counted and _is_doubtful(node, parts, name)}


def names_signal(text: str) -> bool:
    """Return True if an identifier or key in source text has a strong word of the rule."""
    return any(not level for word in re.findall(r"[A-Za-z_]\w*", text) for level, _ in _subjects_in(word))


def _is_doubtful(node: _Def, module: Sequence[str], name: str) -> bool:
    words = _identifiers_by_place(node, module, name.split("."))
    strong = any(
        not level for site in SITES if site != "body" for word in words[site] for level, _ in _subjects_in(word)
    )
    calls = (each for each in ast.walk(node) if isinstance(each, ast.Call))
    return (
        strong or _is_kernel(node) or _returns_changed(node) or any(_called(each) == "add_argument" for each in calls)
    )


#: Methods that return their own object without changing a setting.
_ENTERS = ("__enter__", "__aenter__")


def _returns_changed(node: _Def) -> bool:
    """Return True if a function returns a parameter that it has changed, or a subclass of a parameter.

    Its nested functions are examined too.
    """
    for function in (each for each in ast.walk(node) if isinstance(each, _Def) and each.name not in _ENTERS):
        parameters = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
        changed: set[str] = set()
        returned: set[str] = set()
        for each in ast.walk(function):
            if isinstance(each, ast.ClassDef) and parameters & {getattr(base, "id", "") for base in each.bases}:
                return True
            if isinstance(each, ast.Return):
                returned.add(getattr(each.value, "id", ""))
            elif isinstance(each, (ast.Attribute, ast.Subscript)) and isinstance(each.ctx, ast.Store):
                changed |= {getattr(part.value, "id", "") for part in ast.walk(each) if isinstance(part, ast.Attribute)}
            elif isinstance(each, ast.Call) and _called(each) == "setattr":
                changed |= {getattr(part, "id", "") for part in each.args[:1]}
        if parameters & changed & returned:
            return True
    return False


def _is_kernel(node: _Def) -> bool:
    """Return True for a GPU kernel. The inventory has the function that launches it instead."""
    decorators = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
    return any(f".{ast.unparse(each)}".endswith(_KERNELS) for each in decorators)


def _functions(body: Sequence[ast.stmt], owner: str = "") -> Iterator[tuple[str, _Def]]:
    for node in body:
        if isinstance(node, _Def):
            yield f"{owner}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{owner}{node.name}.")
        else:  # code under a condition counts as defined
            for part in ("body", "orelse", "finalbody"):
                yield from _functions(getattr(node, part, ()), owner)
            for handler in getattr(node, "handlers", ()):
                yield from _functions(handler.body, owner)


def _score(node: _Def, module: Sequence[str], names: Sequence[str]) -> tuple[int, tuple[str, ...]]:
    """Return a function's score, and the subjects that its words indicate.

    The score is 0 if the body only raises an exception or forwards a call.
    """
    below = [each for statement in node.body for each in ast.walk(statement)]
    acts = [any(isinstance(each, kinds) for each in below) for kinds in (_ARITHMETIC, _ITEMS)]
    acts.append(any(isinstance(each, ast.Call) and _OPERATION.fullmatch(_called(each)) for each in below))
    own = [each for each in node.body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]
    if all(isinstance(each, (ast.Pass, ast.Raise)) for each in own):
        return 0, ()
    # A function that only forwards a call or an attribute carries no training signal.
    if len(own) == 1 and not isinstance(own[0], _COMPOUND) and not any(acts):
        return 0, ()
    words = _identifiers_by_place(node, module, names)
    score, weight_of = sum(acts), defaultdict[str, int](int)
    for site, weights in SITES.items():
        levels: dict[str, int] = {}
        for level, subject in (spoken for word in words[site] for spoken in _subjects_in(word)):
            levels[subject] = min(level, levels.get(subject, level))
        for subject, level in levels.items():
            weight_of[subject] += weights[level]
    against = sum(bool(_AGAINST.search(_snake_case(name))) for name in (*module, *names))
    against += "hidden_states" in words["parameter"]
    return score + sum(weight_of.values()) - AGAINST * against, tuple(sorted(filter(weight_of.__getitem__, weight_of)))


def _identifiers_by_place(node: _Def, module: Sequence[str], names: Sequence[str]) -> dict[str, list[str]]:
    arguments = node.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    parameters += filter(None, (arguments.vararg, arguments.kwarg))
    types = (each for parameter in parameters if parameter.annotation for each in ast.walk(parameter.annotation))
    return {
        "parameter": [*(parameter.arg for parameter in parameters), *_identifiers(types)],
        "name": [*names[-1:]],
        "class": [*names[-2:-1]],
        "module": [*module[-1:]],
        "body": list(_identifiers(each for statement in node.body for each in ast.walk(statement))),
    }


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _identifiers(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield names, attributes, keyword arguments, and strings that look like keys."""
    for node in nodes:
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, (ast.arg, ast.keyword)) and node.arg:
            yield node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _KEY.fullmatch(node.value):
            yield re.sub(r"\W", "_", node.value)


@lru_cache(maxsize=1 << 16)
def _subjects_in(name: str) -> tuple[tuple[int, str], ...]:
    """Return ``(level, subject)`` for each subject that an identifier indicates: level 0 for a strong word, 1 for a
    weak one."""
    spelled = _snake_case(name)
    return tuple((level, subject) for level, subject, pattern in _PATTERNS if pattern.search(spelled))


def _snake_case(name: str) -> str:
    return f"_{re.sub(r'(?<=[a-z0-9])(?=[A-Z])', '_', name[:200]).lower().strip('_')}_"
