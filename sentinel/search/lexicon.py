"""The lexicon: what a parameter, key or attribute of a name means in this field, whatever the framework.

A framework's own spellings stand in its adapter (:attr:`sentinel.targets.Target.spellings`). A name that stands nowhere
is not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sentinel.contracts.contract import REQUIRED, TOKENS, Input

#: How a value that stands on rows or tokens is made: what an annotation, or a container, asks for.
Form = Literal["tensor", "list", "tensors", "array"]

ROWS = ("batch",)


@dataclass(frozen=True)
class Term:
    """What some names mean.

    :ivar input: what is drawn for them; its name is the field's own.
    :ivar names: the names, whole, as a regular expression.
    :ivar derived: what the worker makes it of, where it follows from the rest of the scenario; empty where it is drawn.
    :ivar inside: its precondition: it is 0 wherever the mask is 0, and nobody perturbs it there.
    :ivar form: the form that it has where no annotation says so; empty for scalars.
    """

    input: Input
    names: re.Pattern[str]
    derived: str = ""
    inside: bool = False
    form: Form | Literal[""] = ""


def _per(shape: tuple[str, ...], name: str, names: str, domain: str = "", form: Form = "tensor", **more: Any) -> Term:
    dtype, inside, derived = more.pop("dtype", "float32"), more.pop("inside", False), more.pop("derived", "")
    item = Input(name, "tensor", names, dtype, shape, REQUIRED, dtype == "float32" and not inside, domain, **more)
    return Term(item, re.compile(names), derived, inside, form)


def _any_of(name: str, names: str, *choices: Any) -> Term:
    return Term(Input(name, "any", names, default=choices[0], choices=choices), re.compile(names))


def _made(derived: str, names: str) -> Term:
    return Term(Input(derived, "any", ""), re.compile(names), derived)


_WHOSE = r"((old|new|cur|curr|current|ref|reference|rollout|prox|proximal|behav|behave|behavior|policy|actor|action" + (
    r"|base|base_action|teacher|student|target|train|inference|infer|sampling|engine|recomputed|per_token|token"
    r"|response|draft|chosen|rejected|original)_)*"
)

#: The table. The first term that has a name means it.
TERMS: tuple[Term, ...] = (
    # which tokens count
    _per(TOKENS, "response_mask",
        r"(response|responses|loss|action|token|completion|valid|eos|assistant|generation|compute_logp|train)_masks?"
        r"|masks?|final_response_mask|shifted_loss_mask",
        "mask", dtype="int64", dtypes=("bool", "float32")),
    _per(TOKENS, "attention_mask", r"(attention|attn)_masks?", "mask", dtype="int64", choices=("full", "right")),
    # numbers of tokens
    _per(TOKENS, "log_probs", _WHOSE + r"(log_?probs?|logps?)[12]?(_(gt|list|tensor|target))?", "log_prob"),
    _per(TOKENS, "log_ratio", r"(negative_approx_kl|log_?ratios?|log_importance_weights?|log_p|log_q)", "log_ratio"),
    _per(TOKENS, "advantages", r"(token_level_|raw_)?(advantages?|adv|advs)", "advantage"),
    _per(TOKENS, "returns", r"returns?", "value"),
    _per(TOKENS, "values", _WHOSE + r"(values|vpreds?|value_preds)|vpred_clipped", "value"),
    _per(TOKENS, "token_level_rewards", r"token_(level_)?(rewards?|scores?)|rm_scores|kl_rewards?", "reward",
        inside=True),
    _per(TOKENS, "token_loss", r"(loss_mat|(per_)?token_(level_)?loss(es)?|pg_losses|policy_losses|losses)", "loss"),
    _per(TOKENS, "ratio", r"(importance_|prob_?)?ratios?|(rollout_)?is_weights|importance_weights?|tis_weights",
        "weight"),
    _per(TOKENS, "entropy", r"(token_)?(entropy|entropys|entropies)", "weight"),
    _per(TOKENS, "kl", r"(token_)?(kls?|kld|kl_(div|divs|penalty|divergence)|approx_kl|ref_kl|kl_loss)", "weight"),
    _per((*TOKENS, "vocabulary"), "logits",
        _WHOSE + r"(vocab_parallel_|vp_|mtp_|main_|full_)?(logits|output_logits|next_token_logits)", "value"),
    _per((*TOKENS, "vocabulary"), "probs", _WHOSE + r"(probs|probabilities)", "weight"),
    _per((*TOKENS, "hidden"), "hidden_states", r"(last_|final_)?hidden(_states?)?|hidden_tensor", "value"),
    _per(("vocabulary", "hidden"), "weight", r"(lm_head_|head_|vocab_)?weight", "value"),
    _per(TOKENS, "tensor", r"x|tensor|t|input_?|arr|array|data_tensor", "value"),
    # ids
    _per(TOKENS, "token_ids", r"(output|input|token|target|response|completion|responses|sequence)_ids", "token_id",
        dtype="int64"),
    _per(TOKENS, "token_ids", r"(tokens|responses|labels(_for_loss)?|targets?|sequences|completions|output_tokens)",
        "token_id", dtype="int64"),
    _per(TOKENS, "prompts", r"prompts|prompt_(token_)?ids", "token_id", dtype="int64"),
    _per(TOKENS, "turn_ids", r"(turn|step|segment)_ids", dtype="int64", derived="turns"),
    _per(TOKENS, "versions", r"versions", "token_id", dtype="int64"),
    _per(TOKENS, "position_ids", r"position_ids|positions", dtype="int64", derived="positions"),
    # numbers of rows
    _per(ROWS, "rewards",
        r"(raw_|outcome_|response_|sequence_|episode_|final_|rule_|accuracy_)?(rewards?|scores?)|accs?|accuracies",
        "reward"),
    _per(ROWS, "lengths",
        r"(responses?|completion|sequence|total|seq|sample|valid|output)_?(lens?|lengths?)|seqlens?(_list)?|lengths|seq_?len_list|batch_seqlens|input_lens|(timestep|effective_token)_lengths|turn_counts|prompt_id_lens",
        dtype="int64", derived="lengths"),
    _per(ROWS, "group", r"uids?|index|group_(index|indices|ids?)|group_uids?|prompt_uids?|traj_uids?", form="array",
        derived="group"),
    _per(ROWS, "places", r"idxs|indices|indexes|idx_list|perm|permutation", dtype="int64", derived="places"),
    _per(("edges",), "cu_seqlens", r"cu_seq_?lens?(_(q|k|kv|padded|rmpad))?", dtype="int32", derived="edges"),
    # what the worker makes of the batch
    _made("rows", r"batch_size|bsz|bs|num_(samples|sequences|seqs|rows)"),
    _made("answered", r"(max_)?response_len(gth)?|num_actions"),
    _made("tokens", r"seq_?len|sequence_length|max_(seq_?)?len(gth)?|max_seqlen(_[qk])?|origin_seqlen|total_len"),
    _made("valid", r"(num|total|batch_num|global_num)_tokens|tokens_sum|token_count"),
    _made("vocabulary", r"vocab_(size|end_index)|padded_vocab_size"),
    # objects
    _made("tokenizer", r"_?tokenizer|hf_tokenizer|processing_class|text_tokenizer"),
    _made("process_group",
        r"((tp|cp|dp|pp|sp|ep|process|tensor_parallel|context_parallel|data_parallel|model_parallel"
        r"|tensor_model_parallel|device|sequence_parallel)_)+(process_)?group|group"),
    _made("model", r"_?(actor_|policy_|critic_|wrapped_|train_|base_|ref_|language_)?(model|module)"),
    _made("optimizer", r"_?(actor_|critic_|policy_)?(optimizer|optim)"),
    _made("scheduler", r"_?(actor_|critic_)?(lr_)?scheduler"),
    _made("device", r"_?(device|torch_device|target_device)"),
    _made("dataset", r"_?(train_|eval_|val_|raw_)?(dataset|dataframe|ds)"),
    _made("reward_function", r"_?(custom_|async_)?(reward|score)_f(n|unc|unction)|compute_score"),
    _made("dtype", r"(torch_|model_|param_|params_|compute_|logits_)?dtype"),
    # settings
    _any_of("gamma", r"gamma|discount(_factor)?", 1.0, 0.9),
    _any_of("lam", r"lam|lambd|lambda_|gae_lam(bda)?|lmbda", 0.95, 1.0, 0.5),
    _any_of("clip_low",
        r"(eps_)?clip|cliprange(_low|_high)?|clip_ratio(_low|_high)?|(policy_)?clip_eps(_low|_high)?|eps_clip(_low|_high|_higher)?|clip_range|(pg|ratio)_clip(_low|_high|_min|_max)?|epsilon(_low|_high)",
        0.2, 0.28, 0.1),
    _any_of("clip_dual", r"clip_ratio_c|dual_clip|c_clip|eps_clip_c|dual_clip_loss_c", 3.0, 2.0),
    _any_of("clip_value", r"(value_clip|cliprange_value|value_eps_clip|clip_value|value_clip_eps)(_range)?", 0.5, 0.2),
    _any_of("coefficient",
        r"(kl|entropy|vf|value|kl_loss|init_kl|aux|kl_penalty|distill(ation)?|mtp|opd_kl)_?(loss_)?(coef|coeff|weight|scale)|beta|kl_(ctl|beta)|entropy_coeff|alpha|mixing_factor",
        0.1, 0.5, 0.0),
    _any_of("temperature", r"(sampling_|train_)?temperature", 1.0, 0.5, 2.0),
    _any_of("inv_temperature", r"inv_temperature", 1.0, 2.0),
    _any_of("eps", r"eps|epsilon|numerical_eps|norm_eps|tol", 1e-6, 1e-8),
    _any_of("ids", r"(pad|padding)_(token_)?id|pad_id|pad_value|padding_value", 0),
    _any_of("eos", r"(eos|stop|end)_token(_id)?|eos_id", 1, 2),
    _any_of("ignore", r"ignore_(index|id)|label_pad_token_id", -100),
    _any_of("one",
        r"(dp|cp|tp|pp|sp|ep|world|tensor_parallel|context_parallel|data_parallel|ulysses_sequence_parallel)(_world)?_?size|num_(ranks|workers|replicas|gpus)|(gpu_|n_)?gpus_per_node|loss_scale|num_proc",
        1),
    _any_of("zero",
        r"((dp|cp|tp|pp|sp|ep|local|global|data_parallel|tensor_parallel|context_parallel|tensor_model_parallel|model_parallel)_)*rank|seed|step|global_steps?|epoch|current_(version|step)|rollout_id|weight_version|vocab_start_index",
        0, 1),
    _any_of("some",
        r"(num_|n_|ppo_)?(micro|mini)_?batch(es|_size|_num)?(_per_(gpu|device|rank))?|num_(micro|mini)batches|num_(splits|chunks|groups|parts|partitions|generations)|chunk_size|n_batches|k|k_partitions|partitions?_num|rollout_n|n_samples(_per_prompt)?|group_size|num_return_sequences",
        2, 1, 3),
    _any_of("many",
        r"(global_|train_|rollout_|sample_)batch_size|max_tokens?(_len)?(_per_(gpu|device|microbatch|mb|rank))?|max_(prompt|new|total|model|context|response)_?(tokens|len|length)|max_tokens|token_budget|sequence_length_round|divisor|multiple(_of)?|pad_to_(multiple|length)(_of)?|size_divisor|(target_|truncate_|new_)?length|bin_capacity",
        8, 4, 16),
    _any_of("bound",
        r"max_(norm|grad_norm|ratio|weight|value)|clip_grad(_norm)?|(upper|lower)_bound|(tis|is|imp_ratio|rollout_is|importance)_(threshold|cap|clip|clip_low)|threshold|cap|delta|tis_clip(_low)?|opsm_delta|reward_clip",
        1.0, 2.0, 0.5),
    _any_of("scale",
        r"(reward|loss|logit|adv)_(scale|scaling|bias|weight|multiplier)|scale|scaling|bias|penalty_factor|reward_(mean|std)|mean|std|momentum|decay|warmup_ratio|min_lr_ratio|lr|learning_rate|weight_decay|peak_lr|inv_scale",
        1.0, 0.5, 0.0),
    _any_of("steps", r"(num_|total_|max_)?(training|warmup|decay|train|optimizer|lr_warmup|lr_decay|wsd_decay)_steps",
        4, 10, 2),
    _any_of("return_dict", r"return_dict", True),
    _any_of("top_k", r"top_?k", -1, 2),
    _any_of("top_p", r"top_?p|min_p", 1.0, 0.9),
    _any_of("repetition_penalty", r"(repetition|frequency|presence)_penalty", 1.0, 1.2),
    _any_of("stop", r"stop(_words|_strings|_sequences|_token_ids)?|bad_words", None, []),
    _any_of("window", r"window(_size)?|block_size|head_dim|hidden_size|num_heads|num_experts|num_layers", 4, 2),
    _any_of("finish", r"(stop|finish)_reason", "stop", "length"),
    _any_of("finishes", r"(stop|finish)_reasons", ["stop", "length"], ["stop"]),
    _any_of("axis", r"dim|axis|seq_dim|gather_dim|scatter_dim|batch_dim|sequence_dim", -1, 1, 0),
    _any_of("flag",
        r"(use|is|are|enable|disable|norm|normalize|whiten|calculate|return|with|should|do|apply|has|need|skip|ignore|keep|drop|include|add|allow|strict|mask|force|return|equal|shift|balance|remove|per|post|pre|sequence)_(?!name|key|index|id$|ids$|size|token)\w+|whiten|normalize|unbiased|keepdim|shuffle|truncate|reverse|equal_size|inplace|training|dry_run|verbose|by_seq|debug|causal|forward_only|sum_pi_squared",
        False, True),
    _any_of("aggregation", r"loss_agg_mode|loss_aggregation|loss_reduction|loss_agg(_type)?", "token-mean",
        "seq-mean-token-sum", "seq-mean-token-mean"),
    _any_of("estimator", r"adv_estimator|advantage_estimator", "grpo", "gae"),
    _any_of("kl_estimator", r"kl_(type|estimator|penalty_type|estimator_type)|kl_penalty", "k1", "kl", "k3",
        "low_var_kl"),
    _any_of("reduction", r"reduction|reduce(_op)?|agg|aggregation", "mean", "sum", "none"),
    # text
    _any_of("answer", r"ground_truths?|answers?|gold|target_answer|reference_answer|label|gt|expected", "42", "7",
        "1/2", "b"),
    _any_of("response",
        r"(solution|model_output|response|completion|generated|output|predict|pred|given)_?(str|text|string|answer)?|solution|text|content|prediction|passage|s|string",
        "The answer is \\boxed{42}.", "#### 42", "<think>2</think><answer>7</answer>", "42", ""),
    _any_of("data_source", r"data_source|task_type|domain|task", "openai/gsm8k", "math"),
    _any_of("messages",
        r"((new|old|previous|updated|appended|tool|full|history|initial|chat|input|prompt)_)?messages|conversations?|message_list|chat|message_log|raw_prompt",
        [{"role": "user", "content": "two plus two"}, {"role": "assistant", "content": "it is four"}],
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}], [{"role": "tool",
        "content": "4"}, {"role": "user", "content": [{"type": "text", "text": "and two more"}]}], [{"role": "user",
        "content": [*({"type": kind, kind: "a"} for kind in ("image", "video", "audio", "text"))]}]),
    _any_of("prompt", r"prompt(_text|_str)?|question|query|problem|instruction|user_input|user_prompt", "two plus two",
        "hi"),
    _any_of("metrics", r"metrics|log_dict|stats|eval_metrics|reward_metrics|metric_dict|logging_dict|train_metrics",
        {"a/mean": 1.0, "b": 2.0}, {}),
    _any_of("metrics_list",
        r"(metrics|stats|metric|output)_(list|lst)|all_metrics|list_of_metrics|metric_dicts|list_of_dict",
        [{"loss": 1.0, "n": 2.0}, {"loss": 3.0, "n": 4.0}], [{"loss": 1.0}]),
    _any_of("nothing",
        r"tools|images?|videos?|multi_modal_(inputs|data)|extra_info|processor|logger|timeout|video_fps|multimodal_\w+|image_data|mm_\w+|lora_\w+|tracker|routed_experts|prefix|suffix|non_tensor_\w+|device_mesh|callback",
        None),
    _any_of("timing", r"(timing|timings|time|timing_raw|timing_dict|metric_timing)_?(raw|dict)?", {}),
    _any_of("name", r"(\w+_)?name|key|split|tag|partition_id|request_id|model_id|mode", "train", "val"),
    _any_of("place", r"(prompt|worker|env|episode|session|traj|trajectory|item|task|instance|sample|node)_id", 0, 1),
    _any_of("data_sources", r"data_sources|domains", ["openai/gsm8k", "math"], ["math"]),
)  # fmt: skip

#: A tensor of which nothing is known but that it is one.
TENSOR = next(term for term in TERMS if term.input.name == "tensor")

#: What an annotation says of a name that the table does not have: any small one.
PLAIN: Mapping[str, tuple[Any, ...]] = {
    "int": (2, 1, 3),
    "float": (0.5, 1.0, 2.0),
    "str": ("a", "b"),
    "[Ll]ist\\[int\\]|Sequence\\[int\\]": ([3, 1, 2], [2]),
    "[Ll]ist\\[float\\]|Sequence\\[float\\]": ([0.5, 2.0], [1.0]),
    "[Ll]ist\\[str\\]|Sequence\\[str\\]": (["a", "b"], ["a"]),
    "[Ll]ist\\[[Ll]ist\\[int\\]\\]": ([[3, 1], [2]], [[2]]),
    "[Ll]ist\\[[Ll]ist\\[float\\]\\]": ([[0.5, 1.0], [2.0]], [[2.0]]),
    "[Dd]ict\\[str, (int|float)\\]": ({"a": 1, "b": 2}, {}),
}

#: What is made in the worker, and is nobody's value.
OBJECTS = (
    "tokenizer", "process_group", "model", "optimizer", "scheduler", "dataset", "reward_function", "device", "dtype",
)  # fmt: skip

#: What every batch has, whatever a body says that it reads.
USUAL = (
    "input_ids", "attention_mask", "prompts", "responses", "position_ids", "response_mask", "old_log_probs",
    "rollout_log_probs", "ref_log_prob", "values", "returns", "advantages", "token_level_scores",
    "token_level_rewards", "rewards", "uid",
)  # fmt: skip

#: What a batch has beside its columns.
BESIDE = ("response_length", "temperature", "global_steps", "micro_batch_size", "max_token_len", "use_dynamic_bsz")

#: What a name says of how a value lies in memory, and not of what it is.
_LIES = re.compile(r"_(rmpad|unpad|unpadded|padded|packed|local|cpu|np|tensors?|list)$")


def meaning(name: str, spellings: Mapping[str, str], whole: bool = False) -> Term | None:
    """Look a name up; None where neither the field's table nor the framework's own has it. What stands before a
    name of numbers on rows or tokens says which of them they are: ``draft_logits`` are logits.
    """
    plain = spellings.get(name, name).lower().strip("_")
    last = _LIES.sub("", plain)
    term = _named(plain) or (None if whole else _named(last))
    while term is None and "_" in last and not whole:
        last = last.partition("_")[2]
        shorter = _named(last)
        term = shorter if shorter is not None and shorter.form and len(last) > 3 else None
    return term


def _named(name: str) -> Term | None:
    return next((term for term in TERMS if term.names.fullmatch(name)), None)
