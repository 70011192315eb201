"""A binding for the loop in which TRL's GRPO trainer calls tools and generates the next turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sentinel import AbsentError, Binding, StandIn
from sentinel.binding import kit

_GRPO = "trl.trainer.grpo_trainer"
#: Token ids: a prompt's are below 1,000, and the environment's start at 9,000. Between them are the model's ids, 1,000
#: for each row and 100 for each turn.
_ROW, _TURN, _HEARD = 1000, 100, 9000
#: The maximum number of tokens of a completion.
_LONGEST = 100


def _locate_turn(ids: Sequence[int]) -> tuple[int, int]:
    """Return the indices of the row and of the turn in which the model generated these tokens."""
    row, rest = divmod(ids[0], _ROW)
    return row - 1, rest // _TURN


class _Episodes:
    """A stand-in for the model, the tools and the chat template in a batch of five rows. Row 1 is the scenario's.

    Row 0 calls a tool once, row 2 never. Row 3 calls a tool that fails, and row 4 gets a result that is too long.

    :ivar said: for each row, the number of tokens that the model generates in each turn.
    :ivar heard: for each row, the number of tokens of the tool's result after each turn; 0 if the turn calls no tool.
    """

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        self.said = [[2, 1], list(inputs["said"]), [2], [3, 2], [2, 2]]
        self.heard = [[1, 0], list(inputs["heard"]), [0], [1, 0], [2 * _LONGEST, 0]]
        self.turns = Counter[int]()

    def prompts(self) -> list[list[int]]:
        return [[10 + row, 20 + row] for row in range(len(self.said))]

    def next_turn(self, row: int) -> list[int]:
        turn, self.turns[row] = self.turns[row], self.turns[row] + 1
        return [_ROW * (1 + row) + _TURN * turn + place for place in range(self.said[row][turn])]

    def parse(self, ids: Sequence[int]) -> dict[str, Any]:
        """Convert a turn to a message, which calls the tool if ``heard`` has a result for it."""
        row, turn = _locate_turn(ids)
        told: dict[str, Any] = {"role": "assistant", "content": f"row {row}, turn {turn}"}
        if self.heard[row][turn]:
            call = {"name": "look", "arguments": {"turn": turn}}
            told["tool_calls"] = [{"type": "function", "function": call}]
        return told

    def call_tool(self, row: int, turn: int) -> Any:
        """Return a text and a picture as the tool's result, or raise LookupError for row 3."""
        if row == 3:
            raise LookupError("closed")
        picture = {"type": "image", "image": f"of row {row}"}
        return [{"type": "text", "text": str(self.heard[row][turn])}, picture]

    def generate(self, prompts: Any, images: Any, fields: Mapping[str, Any], *_: Any) -> tuple[Any, Any]:
        """Generate the next turn of each row, with log-probs that depend on the row's pictures and fields."""
        said, log_probs = [], []
        for place, prompt in enumerate(prompts):
            row = prompt[0] - 10
            own = sum(each == f"of row {row}" for each in images[place] or ()) if images else 0
            mark = sum(fields["marks"][place]) if fields else 0
            said.append(self.next_turn(row))
            log_probs.append([-0.5 - 0.125 * own - 0.25 * mark] * len(said[-1]))
        return said, log_probs

    def suffix(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the tokens of tool results. The text of a result is its number of tokens; an error has one token."""
        texts = [
            each["content"] if isinstance(each["content"], str) else each["content"][0]["text"] for each in messages
        ]
        return [_HEARD + place for text in texts for place in range(int(text) if text.isdigit() else 1)]


def _run_episode(boundary: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run TRL's tool loop, and return the loss mask of the scenario's row.

    The loss mask is -1 for a token of the model that TRL masks, and for a token of the environment that TRL does not.
    """
    if "multimodal_fields" not in boundary.parameters:
        raise AbsentError("this version's tool loop does not support pictures (it has no parameter multimodal_fields)")
    episodes = _Episodes(inputs)
    rows = range(len(episodes.said))
    said = [episodes.next_turn(row) for row in rows]
    trainer = kit.make_unbuilt(
        boundary.owner,
        max_tool_calling_iterations=len(inputs["said"]) - 1,
        max_completion_length=_LONGEST,
        use_vllm=False,
        model=kit.stand_in(config=kit.stand_in(max_position_embeddings=1000)),
        _is_vlm=False,
        _tokenizer=None,
        _sync_tool_dicts=[{"look": lambda turn, row=row: episodes.call_tool(row, turn)} for row in rows],
        _async_tool_dicts=[{} for _ in rows],
        _get_tool_suffix_ids=episodes.suffix,
        _generate_single_turn=episodes.generate,
    )
    with kit.swap(boundary.module, "parse_response", lambda _, ids, **__: episodes.parse(ids)):
        mask, _, ids, *_ = boundary.function(
            trainer,
            [[{"role": "user", "content": f"row {row}"}] for row in rows],
            episodes.prompts(),
            said,
            [[episodes.parse(each)] for each in said],
            [[-0.5] * len(each) for each in said],
            None,
            {"marks": [[1 + row] for row in rows]},
        )
    own = [token < _HEARD for token in ids[1]]
    loss_mask = [counted if bool(counted) == spoken else -1 for counted, spoken in zip(mask[1], own)]
    return {"loss_mask": loss_mask if len(own) == len(mask[1]) else mask[1], "cut": False}


TOOLS = (
    Binding(
        f"{_GRPO}.GRPOTrainer._tool_call_loop", "rollout_episode", call=_run_episode, fixed={"max_tokens": 100},
        stand_ins=(
            StandIn("self", "TRL's class without its constructor, which loads a model"),
            StandIn("_generate_single_turn", "replaces the model; returns as many tokens as the scenario sets"),
            StandIn("_get_tool_suffix_ids", "replaces the chat template; returns as many tokens as the scenario sets"),
        ),
    ),
)  # fmt: skip
