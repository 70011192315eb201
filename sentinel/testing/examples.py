"""Write a two-line example for each contract: a function, and the decorator that checks it."""

from __future__ import annotations

from sentinel.contracts.contract import REQUIRED, Contract
from sentinel.contracts.names import SHARED
from sentinel.testing.binding import passed_names

#: Example values for settings that have no list of choices, or whose default does not select an algorithm.
_CHOSEN = {"algorithm": "ppo", "estimator": "grpo", "statistic": "whiten", "surgery": "split"}

#: Contract -> an optional input that is a parameter of the example function nevertheless.
_ALSO = {"supervised_loss": "labels", "token_log_probs": "token_ids", "row_surgery": "count"}

#: String inputs that are data. All other string inputs are options.
_DATA = ("ground_truth",)

#: Contract -> the example function's return value, if it is not the first output that the contract observes.
RETURNS = {
    "balanced_partition": "parts",
    "batch_surgery": "real_rows, made_rows, loss_mask",
    "collation": "samples",
    "constructed_trainer": "attributes, losses, steps, logged, update, batches",
    "epoch_order": "drawn",
    "group_filter": "numbers, rewards",
    "masked_statistics": "result",
    "microbatch_packing": "parts",
    "minibatch_iteration": "parts",
    "model_forward": "log_probs, embedding, parameters",
    "policy_update": "gradient",
    "rollout": "prompt_ids, response_ids, loss_mask, asked",
    "rollout_episode": "loss_mask, cut",
    "rollout_buffer": "taken, left",
    "rollout_collection": "taken, left",
    "router_replay": "model_calls, left_over",
    "row_surgery": "parts, metas",
    "rule_reward": "score",
    "sampling_request": "request, configured",
    "training_input": "refusal, rollout_log_probs",
    "training_step": "gradient, stages, rows",
}


def example_of(contract: Contract) -> tuple[str, str]:
    """Return the signature of an example function, and the decorator that checks it.

    Required numbers become parameters of the function. Required options with a list of choices become arguments of the
    decorator.
    """
    required = [item for item in contract.inputs if item.default is REQUIRED]
    settings = {item.name: item.choices[0] for item in required if item.kind in ("string", "boolean") and item.choices}
    settings = {name: value for name, value in settings.items() if name not in _DATA}
    parameters = [*passed_names(contract), *(item.name for item in required if item.name not in settings)]
    parameters = [name for name in parameters if name not in _CHOSEN] + _ALSO.get(contract.name, "").split()
    settings |= {name: value for name, value in _CHOSEN.items() if contract.input(name) is not None}
    knobs = [item.name for item in contract.inputs if item.knob and item.name not in settings]
    for several, words in SHARED.items():
        if set(several) <= set(knobs):
            parameters.append(words.split()[0])
    first = next((item.key for item in contract.observes if item.role != "gradient"), "")
    output = RETURNS.get(contract.name, first)
    given = "".join(f", {name}={value!r}" for name, value in settings.items())
    return (
        f"def f({', '.join(parameters)}): ...  # returns {output}",
        f'@parametrize_with_laws(f, "{contract.name}"{given})',
    )
