"""A small transformer for sequences of tokens: embeddings, pre-norm blocks, a linear layer (the order of GPT-2's).

With an answer for each token it predicts the next one and looks back only; else it answers from the mean of all tokens.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import ClassVar

import msgspec
import torch
from torch import Tensor, nn

from edgebed.models.layers import Positive
from edgebed.models.staged import ModelPlugin, StagedModel
from edgebed.wire.settings import LearningTask


class Transformer(ModelPlugin):
    name = "transformer"
    summary = "blocks of attention on tokens: a class, or the next token"
    takes = ("sequences of tokens", "the next token of sequences")
    small: ClassVar[dict[str, object]] = {"width": 16, "blocks": 2, "attention_heads": 2}

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        width: Positive = 64
        blocks: Positive = 4
        attention_heads: Positive = 4

        def __post_init__(self) -> None:
            if self.width % self.attention_heads:
                raise ValueError(f"width {self.width} is no multiple of attention_heads {self.attention_heads}")

    options: Options

    def build(self, task: LearningTask) -> StagedModel:
        width = self.options.width
        stages: list[tuple[str, nn.Module]] = [("embed", Embedding(task, width))]
        for number in range(1, self.options.blocks + 1):
            stages.append(
                (f"block{number}", AttentionBlock(width, self.options.attention_heads, causal=task.per_token))
            )
        heads = {cut: answer_head(width, task) for cut in range(1, len(stages) + 1)}
        stages.append(("top", answer_head(width, task)))
        return StagedModel(stages, heads, task)


class Embedding(nn.Module):
    """Tokens (B, T) -> (B, T, width), with their places added."""

    def __init__(self, task: LearningTask, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(task.vocabulary, width)
        self.place = nn.Parameter(torch.zeros(task.input_shape[0], width))
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.place, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.token(x) + self.place
        return out


class AttentionBlock(nn.Module):
    """Attention and two linear layers, each on its normalised input and added to it. (B, T, width) -> the same.
    `causal`: a token sees those before it and itself only."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm, self.mix, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            OrderedDict(
                norm=nn.LayerNorm(width), wide=nn.Linear(width, 4 * width), act=nn.GELU(),
                narrow=nn.Linear(4 * width, width),
            )
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.mix(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        if self.causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        seen = scores.softmax(-1) @ value
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        out: Tensor = x + self.feed(x)
        return out


class Mean(nn.Module):
    """The mean of all tokens. (B, T, width) -> (B, width)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def answer_head(width: int, task: LearningTask) -> nn.Module:
    """Norm, the mean of all tokens where the sample has one answer, and a linear layer. (B, T, width) -> (B,
    *answer_shape, classes)."""
    parts: dict[str, nn.Module] = {"norm": nn.LayerNorm(width)}
    if not task.per_token:
        parts["mean"] = Mean()
    return nn.Sequential(OrderedDict(parts, fc=nn.Linear(width, task.classes)))
