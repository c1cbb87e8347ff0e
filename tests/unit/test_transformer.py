"""The transformer: its attention is torch's, places count, and the answer of a sample is from all its tokens."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from edgebed.errors import UsageError
from edgebed.models.learning import blank_x, blank_y
from edgebed.models.staged import MODELS, StagedModel, seeded
from edgebed.models.transformer import AttentionBlock, answer_head
from edgebed.wire.settings import LearningTask

NEXT = LearningTask((6,), 7, vocabulary=7, per_token=True)
SEQUENCES = LearningTask((6,), 9, vocabulary=7)


def transformer(task: LearningTask, **options: object) -> StagedModel:
    return seeded(lambda: MODELS.create({"name": "transformer", "blocks": 1, **options}).build(task), 1).eval()


@pytest.mark.parametrize("causal", [True, False])
def test_a_block_is_pre_norm_attention_and_two_layers_each_added_to_its_input(causal: bool) -> None:
    torch.manual_seed(1)
    block, x = AttentionBlock(8, 2, causal=causal), torch.randn(3, 5, 8)
    query, key, value = (
        part.view(3, 5, 2, 4).transpose(1, 2) for part in block.mix(functional.layer_norm(x, (8,))).chunk(3, dim=-1)
    )
    seen = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
    after = x + block.out(seen.transpose(1, 2).reshape(3, 5, 8))
    assert torch.allclose(block(x), after + block.feed(after), atol=1e-6)


def test_the_order_of_the_tokens_counts() -> None:
    model, x = transformer(SEQUENCES), torch.tensor([[0, 1, 2, 3, 4, 5]])
    assert not torch.allclose(model(x), model(x.flip(1)), atol=1e-4)


def test_a_sample_s_answer_is_from_the_mean_of_all_tokens_and_a_token_s_from_its_own() -> None:
    x = torch.randn(2, 6, 16)
    for task, fed in ((SEQUENCES, x), (NEXT, x)):
        head = answer_head(16, task)
        normal = functional.layer_norm(fed, (16,))
        linear = head.get_submodule("fc")
        assert torch.allclose(head(fed), linear(normal if task.per_token else normal.mean(1)), atol=1e-6)


@pytest.mark.parametrize("task", [NEXT, SEQUENCES])
def test_answers_have_the_shape_of_the_task(task: LearningTask) -> None:
    """Blank samples are of the whole vocabulary, whatever the number of classes."""
    x, y = blank_x(task, 100, torch.Generator().manual_seed(1)), blank_y(task, 100)
    assert (int(x.min()), int(x.max())) == (0, 6)
    assert y.shape == ((100, 6) if task.per_token else (100,))
    assert transformer(task)(x).shape == (*y.shape, task.classes)


def test_a_width_that_the_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(UsageError, match="no multiple of attention_heads"):
        MODELS.create({"name": "transformer", "width": 10, "attention_heads": 4})
