"""Match a function's parameter names to the inputs of a contract, by names that are common in RL code."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache

from sentinel.contracts.contract import REQUIRED, Contract, Input

#: A word of a name -> its synonyms. The words under the empty key are ignored in names, so ``policy_logps`` matches
#: ``log_probs``.
_SAME_WORDS = {
    "logprob": "logp lp logpi",
    "advantage": "adv",
    "ref": "reference",
    "old": "prev previous",
    "eps": "epsilon",
    "lam": "lambda lambd lmbda",
    "coef": "coeff coefficient",
    "behaviour": "behavior behav beh mu",
    "generation": "gen generated",
    "response": "resp",
    "temperature": "temp",
    "value": "v val",
    "len": "length",
    "norm": "normalize normalise",
    "": "new cur curr current policy pi actor student train per level wise the",
}
_WORDS = {word: one for one, several in _SAME_WORDS.items() for word in several.split()}

#: A parameter whose name has fewer characters is never suggested, because it resembles many inputs by chance.
_SHORTEST = 3

#: Words that distinguish quantities. A parameter with such a word is never suggested for an input without this word.
_DISTINCT = frozenset(
    {"ref", "old", "behaviour", "rollout", "chosen", "rejected", "low", "high", "reward", "return", "value", "mask"}
    | {"done", "terminal", "terminated", "truncated"}  # flags for the end of an episode, not a response mask
)

#: Input -> other names for it, the most specific first. A contract's own aliases come before these.
SYNONYMS: Mapping[str, str] = {
    "log_probs": "log_probs per_token_log_probs token_log_probs",
    "old_log_probs": "old prev_log_probs proximal_log_probs behaviour_log_probs rollout_log_probs sampling_log_probs "
    "generation_log_probs behaviour rollout log_probs",
    "proximal_log_probs": "prox_log_probs old_log_probs",
    "behaviour_log_probs": "rollout_log_probs old_log_probs",
    "ref_log_probs": "ref base_log_probs teacher_log_probs",
    "rollout_log_probs": "inference_log_probs sampler_log_probs vllm_log_probs behaviour_log_probs "
    "generation_log_probs old_log_probs",
    "response_mask": "loss_mask action_mask completion_mask token_mask valid_mask mask eos_mask attention_mask",
    "attention_mask": "mask",
    "chosen_mask": "chosen_loss_mask mask_chosen",
    "rejected_mask": "rejected_loss_mask mask_rejected",
    "chosen_ref_log_probs": "ref_chosen",
    "rejected_ref_log_probs": "ref_rejected",
    "chosen_log_probs": "chosen",
    "rejected_log_probs": "rejected",
    "advantages": "gae",
    "token_level_rewards": "rewards token_rewards reward scores score",
    "rewards": "reward raw_rewards scores score r",
    "values": "old_values value critic_values x xs data tensor input",
    "vpreds": "value_preds values_pred predicted_values preds values",
    "returns": "return targets value_targets target_values ret",
    "group": "groups group_ids group_index uid uids index prompt_ids prompt_index prompts",
    "epsilon": "eps",
    "estimator": "algorithm adv_estimator advantage_estimator",
    "eps_clip_low": "clip_low cliprange_low clip_ratio_low clip_range_low eps_low low",
    "eps_clip_high": "clip_high cliprange_high clip_ratio_high clip_range_high eps_high high",
    "eps_clip": "eps clip_eps clip_range cliprange clip_ratio",
    "cliprange_value": "value_clip clip_value vf_clip value_clip_range value_clip_eps cliprange clip_range clip_eps "
    "clip eps",
    "dual_clip": "clip_ratio_c clip_c c_clip dual_clip_c delta",
    "loss_agg_mode": "agg_mode mode reduction loss_reduction aggregation loss_aggregation",
    "loss_mat": "losses token_losses loss per_token_loss",
    "batch_num_tokens": "num_tokens total_tokens global_num_tokens num_items_in_batch n_tokens",
    "global_batch_size": "num_sequences",
    "dp_size": "world_size",
    "loss_scale_factor": "max_len max_tokens max_completion_len norm_factor",
    "importance_weights": "is_weights rollout_is_weights tis_weights iw weights",
    "norm_by_std": "norm_adv_by_std_in_grpo scale_rewards use_std std_norm norm_std",
    "gamma": "discount discount_factor",
    "lam": "gae_lam tau",
    "kl": "kls kl_penalty per_token_kl",
    "entropy": "entropies token_entropy per_token_entropy ent entropy_bonus",
    "entropy_coef": "ent_coef entropy_weight entropy_beta entropy_bonus_coef",
    "kl_coef": "beta kl_beta kl_weight kl_loss_coef",
    "kl_estimator": "kl_penalty kl_type estimator kind mode",
    "level": "is_level granularity",
    "threshold_high": "threshold cap max_weight c upper",
    "importance_weight_cap": "tis_cap tis_imp_ratio_cap rollout_is_threshold is_cap iw_cap max_weight cap",
    "threshold_low": "lower min_weight",
    "axis": "dim",
    "teacher_logits": "ref_logits",
    "token_ids": "labels input_ids targets ids tokens target",
    "max_length": "max_len max_response_len max_tokens limit",
    "buffer": "buffer_len overlong_buffer_len cache cache_len",
    "factor": "penalty_factor overlong_penalty_factor penalty",
    "max_tokens_per_microbatch": "max_tokens max_token_len token_budget budget capacity",
    "lengths": "seq_lens seqlens sizes lens seqlen_list",
    "training_steps": "total_steps num_steps max_steps n_steps t_max",
    "warmup_steps": "num_warmup_steps warmup warmup_iters",
    "schedule": "lr_schedule schedule_type scheduler_type lr_scheduler_type",
    "parts": "k n_parts num_parts num_bins k_partitions bins world_size",
}

#: Inputs -> names of one parameter that supplies all of them.
SHARED: Mapping[tuple[str, ...], str] = {
    (
        "eps_clip_low",
        "eps_clip_high",
    ): "eps eps_clip clip_eps clip_range cliprange clip_ratio clip clip_param clip_coef ppo_clip",
}


@dataclass(frozen=True)
class Matching:
    """The result of :func:`match_names`.

    :ivar names: input -> parameter. A parameter may supply several inputs.
    :ivar missing: required inputs without a parameter.
    :ivar unknown: parameters without a default that match no input.
    :ivar ambiguous: input -> parameters that match it equally well.
    """

    names: Mapping[str, str]
    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    ambiguous: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def match_names(
    contract: Contract,
    parameters: Sequence[str],
    required: Collection[str] = (),
    given: Mapping[str, str | None] | None = None,
    known: Collection[str] = (),
) -> Matching:
    """Match a function's parameters to the inputs of a contract.

    Required inputs are matched first, even if a parameter's name fits another input better. So if a value loss has the
    parameters ``values`` and ``old_values``, then ``values`` is matched to the predictions.

    :param required: the parameters without a default.
    :param given: input -> parameter, or None if the function has no such parameter. These matches take precedence.
    :param known: inputs that need no parameter, because their value is known.
    """
    given = given or {}
    names = {name: parameter for name, parameter in given.items() if parameter is not None}
    free = [name for name in parameters if name not in names.values()]
    inputs = [item for item in contract.inputs if not item.dialect and item.name not in given]
    for several, words in SHARED.items():
        rank = {_words(word): place for place, word in enumerate(words.split())}
        fitting = sorted((rank[_words(name)], name) for name in free if _words(name) in rank)
        specific = any(fits(contract, one, name) is not None for one in several for name in free)
        if fitting and not specific and {item.name for item in inputs}.issuperset(several):
            names.update(dict.fromkeys(several, fitting[0][1]))
            free.remove(fitting[0][1])
    needed = [item for item in inputs if item.default is REQUIRED and item.name not in {*names, *known}]
    own = _assign(contract, needed, free)
    names |= own
    free = [name for name in free if name not in own.values()]
    rest = [item for item in inputs if item.name not in names and item not in needed]
    ambiguous = {item.name: alike for item in needed if (alike := _alike(contract, item, own, free))}
    own = _assign(contract, rest, free)
    names |= own
    return Matching(
        names,
        tuple(item.name for item in needed if item.name not in names),
        tuple(name for name in free if name in required and name not in own.values()),
        ambiguous,
    )


def suggest_names(
    contract: Contract, parameters: Iterable[str], inputs: Iterable[str], likeness: float = 0.4
) -> dict[str, str]:
    """Return input -> the most similar parameter, if their similarity (0 to 1) is at least ``likeness``."""
    parameters = list(parameters)
    pairs = []
    for name in inputs:
        texts = (name, *SYNONYMS.get(name, "").split(), *_aliases(contract, name))
        own = frozenset[str]().union(*map(_words, texts))
        for parameter in parameters:
            if len(parameter) < _SHORTEST or _words(parameter) & _DISTINCT - own:
                continue
            pairs.append((max(SequenceMatcher(None, text, parameter).ratio() for text in texts), name, parameter))
    found: dict[str, str] = {}
    for ratio, name, parameter in sorted(pairs, key=lambda pair: -pair[0]):
        if ratio >= likeness and name not in found and parameter not in found.values():
            found[name] = parameter
    return found


def fits(contract: Contract, name: str, parameter: str) -> int | None:
    """Return the rank of a parameter's name among the names of an input: 0 is best; None if it is not one of them."""
    candidates = (name, *_aliases(contract, name), *SYNONYMS.get(name, "").split())
    wanted = _words(parameter)
    return next((place for place, text in enumerate(candidates) if _words(text) == wanted), None)


def _aliases(contract: Contract, name: str) -> tuple[str, ...]:
    return tuple(alias for alias, of in contract.aliases.items() if of == name)


@lru_cache(maxsize=4096)
def _words(name: str) -> frozenset[str]:
    """Return the significant words of a name: ``chosen`` and ``logprob`` for ``policy_chosen_logps``.

    ``A`` stands for ``advantage``.
    """
    name = "advantage" if name == "A" else name
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    snake = re.sub(r"log_?(probabilities|probability|probs|prob|ps)\b|log_?(probs|prob|ps)(?=_)", "logprob", snake)
    words = [word for word in snake.replace("per_token_", "").split("_") if word]
    known = [_WORDS.get(word, _WORDS.get(_singular(word), _singular(word))) for word in words]
    return frozenset(word for word in known if word) or frozenset(words)


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _assign(contract: Contract, inputs: Sequence[Input], parameters: Sequence[str]) -> dict[str, str]:
    """Match as many inputs as possible, each to a different parameter; return input -> parameter."""
    ranks = {item.name: {name: fits(contract, item.name, name) for name in parameters} for item in inputs}
    options = {
        name: sorted((parameter for parameter in of if of[parameter] is not None), key=lambda each: of[each] or 0)
        for name, of in ranks.items()
    }
    taken: dict[str, str] = {}

    def place(name: str, tried: set[str]) -> bool:
        for parameter in options[name]:
            if parameter not in tried:
                tried.add(parameter)
                if parameter not in taken or place(taken[parameter], tried):
                    taken[parameter] = name
                    return True
        return False

    # Inputs with the best-fitting parameters are matched first. An input loses its best parameter only if another input
    # would otherwise have none.
    for name in sorted(options, key=lambda each: min((ranks[each][one] or 0 for one in options[each]), default=99)):
        place(name, set())
    return {name: parameter for parameter, name in taken.items()}


def _alike(contract: Contract, item: Input, own: Mapping[str, str], free: Sequence[str]) -> tuple[str, ...]:
    """Return the parameters that fit an input equally well; empty if only one parameter fits best."""
    if item.name not in own:
        return ()
    rank = fits(contract, item.name, own[item.name])
    alike = [name for name in free if fits(contract, item.name, name) == rank]
    return (own[item.name], *alike) if alike else ()
