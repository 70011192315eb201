"""Decides from its syntax whether a function carries training signal: which names it handles, and where they stand.

The rule is the tables of words below and their weights; docs/coverage.md says what they mean and how they were chosen.
It knows words of the field and no framework. Nothing is imported or run: foreign source is parsed, in processes that
are bounded in time and memory.
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

#: Subject -> (words that are of training signal wherever they stand, words that are so beside others). Each is a
#: regular expression for whole words of an identifier in lower case, joined by ``_``.
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

#: Words of what surrounds the training signal, or of what is computed from weights: in a function's name, class or
#: module they speak against it.
ASIDE = (
    r"init|initialize|getstate|setstate|repr|str|configs?|cfg|args|arguments|argparse|cli|api|service|servers?|client"
    r"|https?|url|ports?|addr\w*|launch\w*|install|profil\w*|wandb|tensorboard|swanlab|placement|slurm|socket|nccl"
    r"|process_group|parallel_group|worker_group|device\w*|memory|cache|kv|lock(ed)?|controller|scheduling|callback"
    r"|scraper|registry|plot\w*|checkpoint\w*|ckpt|(de)?serialize\w*|convert\w*|weights?_(update|sync|transfer)|lora"
    r"|quant\w*|qat|fp8|kernels?|deepgemm\w*|moe|mla|mlp|indexer|layers?|rotary|transformers|attn|attention(?!_mask)"
    r"|benchmarks?|flops\w*|visuali[sz]e\w*|health|tracking|logging"
)

#: Where a word stands -> what it counts, of itself and beside others. A class stands for the parameter ``self``.
SITES: Mapping[str, tuple[int, int]] = {
    "parameter": (4, 2), "name": (4, 2), "class": (6, 3), "module": (2, 1), "body": (1, 0)
}  # fmt: skip

#: What the words of a function must count together, and what one that speaks against it takes away.
ENOUGH, AGAINST = 6, 2

#: Calls that compute or rearrange values.
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

#: Bounds of a process that parses: a framework takes it one to three seconds and 100 MB.
_SECONDS, _MEMORY = 60, 2 << 30


State = Literal["bound", "not bound", "no signal"]
STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True)
class Function:
    """A function or method that carries training signal by the rule.

    :ivar name: the name within the module, with its classes.
    :ivar file: the file, empty until the tree is known.
    :ivar state: whether a binding exists; ``no signal`` if the adapter's globs exclude it.
    :ivar contracts: the contracts that it is bound to.
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
    """What a file defines."""

    names: Mapping[str, Name] = field(default_factory=dict)
    functions: tuple[Function, ...] = ()
    unread: str = ""


def read(sources: Mapping[str, tuple[str, bytes]]) -> dict[str, Source]:
    """Read source files.

    :raises SentinelError: where one takes longer, or more memory, than any file of a framework should.
    """
    spawn = get_context("spawn")  # a fork would have what the caller's threads hold
    work = list(sources.values())
    try:
        with ProcessPoolExecutor(min(os.cpu_count() or 1, 1 + len(work) // 64), spawn, _bound) as pool:
            results = list(pool.map(_read, work, chunksize=max(1, min(32, len(work) // 16))))
    except BrokenProcessPool:
        raise SentinelError(f"a file takes more than {_SECONDS} seconds or {_MEMORY >> 30} GiB to parse") from None
    return dict(zip(sources, results))


def _bound() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")  # what the compiler says of its style is for whoever wrote it


def _read(work: tuple[str, bytes]) -> Source:
    module, content = work
    if len(content) > LARGEST_SOURCE:
        return Source(unread=f"it has more than {LARGEST_SOURCE >> 20} MiB")
    try:
        body = syntax_of(content).body
        return Source(names_of(body), tuple(signal_functions(body, module)))
    except SyntaxError as error:
        return Source(unread=f"it does not parse with Python {_PYTHON}: {error.msg}")


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
    """Give the functions and methods of a module's body that carry training signal. Of two of one name, the last."""
    parts = module.split(".")[1:]
    if any(part in ("test", "tests") or part.startswith("test_") for part in parts):
        return []
    functions = dict(_functions(body))
    judged = ((name, node, *_judged(node, parts, name.split("."))) for name, node in functions.items())
    return [
        Function(module, name, "", *span_of(node), subjects)
        for name, node, score, subjects in judged
        if score >= ENOUGH and not _is_kernel(node)
    ]


def _is_kernel(node: _Def) -> bool:
    """Return True if a function is compiled for a GPU: the function that launches it carries the signal."""
    decorators = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
    return any(f".{ast.unparse(each)}".endswith(_KERNELS) for each in decorators)


def _functions(body: Sequence[ast.stmt], owner: str = "") -> Iterator[tuple[str, _Def]]:
    for node in body:
        if isinstance(node, _Def):
            yield f"{owner}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{owner}{node.name}.")
        else:  # what stands under a condition may be there or not
            for part in ("body", "orelse", "finalbody"):
                yield from _functions(getattr(node, part, ()), owner)
            for handler in getattr(node, "handlers", ()):
                yield from _functions(handler.body, owner)


def _judged(node: _Def, module: Sequence[str], names: Sequence[str]) -> tuple[int, tuple[str, ...]]:
    """Give the score of a function and the subjects of its words; 0 where its body does nothing."""
    below = [each for statement in node.body for each in ast.walk(statement)]
    acts = [any(isinstance(each, kinds) for each in below) for kinds in (_ARITHMETIC, _ITEMS)]
    acts.append(any(isinstance(each, ast.Call) and _OPERATION.fullmatch(_called(each)) for each in below))
    own = [each for each in node.body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]
    if all(isinstance(each, (ast.Pass, ast.Raise)) for each in own):
        return 0, ()
    if len(own) == 1 and not isinstance(own[0], _COMPOUND) and not any(acts):  # it hands on
        return 0, ()
    arguments = node.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    parameters += filter(None, (arguments.vararg, arguments.kwarg))
    types = (each for parameter in parameters if parameter.annotation for each in ast.walk(parameter.annotation))
    words = {
        "parameter": [*(parameter.arg for parameter in parameters), *_identifiers(types)],
        "name": names[-1:],
        "class": names[-2:-1],
        "module": module[-1:],
        "body": list(_identifiers(below)),
    }
    score, weight_of = sum(acts), defaultdict[str, int](int)
    for site, weights in SITES.items():
        levels: dict[str, int] = {}
        for level, subject in (spoken for word in words[site] for spoken in _spoken(word)):
            levels[subject] = min(level, levels.get(subject, level))
        for subject, level in levels.items():
            weight_of[subject] += weights[level]
    against = sum(bool(_AGAINST.search(_spelled(name))) for name in (*module, *names))
    against += any(parameter.arg == "hidden_states" for parameter in parameters)
    return score + sum(weight_of.values()) - AGAINST * against, tuple(sorted(filter(weight_of.__getitem__, weight_of)))


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _identifiers(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Give names, attributes, keywords and keys that are plain text."""
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
def _spoken(name: str) -> tuple[tuple[int, str], ...]:
    """Give the subjects that an identifier speaks of, and how: of itself (0) or beside others (1)."""
    spelled = _spelled(name)
    return tuple((level, subject) for level, subject, pattern in _PATTERNS if pattern.search(spelled))


def _spelled(name: str) -> str:
    return f"_{re.sub(r'(?<=[a-z0-9])(?=[A-Z])', '_', name[:200]).lower().strip('_')}_"
