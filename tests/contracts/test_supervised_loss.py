import math

import pytest
import torch

from sentinel.contracts.supervised_loss import IGNORED, SUPERVISED_LOSS


def _loss(logits, ids, mask, total=None):
    inputs = {"logits": logits, "token_ids": ids, "response_mask": mask, "batch_num_tokens": total}
    return SUPERVISED_LOSS.reference(inputs)["loss"]


def test_the_loss_of_two_tokens_equals_a_hand_computed_one():
    logits = torch.tensor([[[math.log(3.0), 0.0], [0.0, math.log(7.0)], [9.0, 9.0]]], dtype=torch.float64)

    # Token 1 is 0, with probability 3/4; token 2 is 1, with 7/8. Nothing predicts token 0; the last logits predict
    # nothing.
    loss = _loss(logits, torch.tensor([[1, 0, 1]]), torch.tensor([[1, 1, 1]]))
    assert float(loss) == pytest.approx(-(math.log(3 / 4) + math.log(7 / 8)) / 2)
    assert float(_loss(logits, torch.tensor([[1, 0, 1]]), torch.tensor([[1, 0, 1]]), 4)) == pytest.approx(
        -math.log(7 / 8) / 4
    )
    assert float(_loss(logits, torch.tensor([[1, 0, 1]]), torch.tensor([[1, 0, 0]]))) == 0.0


def test_the_loss_is_the_shifted_cross_entropy():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 7, dtype=torch.float64, generator=generator)
    ids = torch.randint(7, (3, 5), generator=generator)
    mask = torch.randint(2, (3, 5), generator=generator)
    labels = torch.where(mask != 0, ids, IGNORED)

    expected = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED
    )
    assert float(_loss(logits, ids, mask)) == pytest.approx(float(expected))
