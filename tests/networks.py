"""Networks as people write them, in the style of torchvision's families; and some that cannot be cut. Each takes what
the data have under the names that `edgebed.models.network` gives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH = 8


class ConvNorm(nn.Sequential):
    def __init__(self, before: int, after: int, size: int = 3, stride: int = 1, groups: int = 1, act: Any = nn.ReLU):
        conv = nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False)
        super().__init__(conv, nn.BatchNorm2d(after), act(inplace=True))


class ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return self.relu(out)


class Residual(nn.Module):
    """As ResNet: one ReLU used again and again, in place."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.stem = ConvNorm(input_shape[0], WIDTH)
        self.layer1 = nn.Sequential(ResidualBlock(WIDTH), ResidualBlock(WIDTH))
        self.layer2 = nn.Sequential(ConvNorm(WIDTH, 2 * WIDTH, stride=2), ResidualBlock(2 * WIDTH))
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(2 * WIDTH, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.stem(x)))
        return self.fc(torch.flatten(self.pool(x), 1))


class DenseBlock(nn.Module):
    def __init__(self, width: int, growth: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(ConvNorm(width + i * growth, growth) for i in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return torch.cat(features, 1)


class Dense(nn.Module):
    """As DenseNet: connections from each layer to all later ones of its block."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        parts: list[nn.Module] = [ConvNorm(input_shape[0], WIDTH)]
        for _ in range(3):
            parts += [DenseBlock(WIDTH, 4, 3), ConvNorm(WIDTH + 12, WIDTH, 1)]
        self.features, self.classifier = nn.Sequential(*parts), nn.Linear(WIDTH, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.tanh_(self.features(x) + 0)
        return self.classifier(functional.adaptive_avg_pool2d(out, (1, 1)).flatten(1))


class SqueezeExcite(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.avgpool, self.fc1, self.fc2 = nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, 4, 1), nn.Conv2d(4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = functional.hardsigmoid(self.fc2(functional.relu(self.fc1(self.avgpool(x)))))
        return scale * x


class InvertedResidual(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        wide = 2 * before
        self.use_res_connect = stride == 1 and before == after
        self.block = nn.Sequential(
            ConvNorm(before, wide, 1, act=nn.Hardswish),
            ConvNorm(wide, wide, 3, stride, groups=wide, act=nn.Hardswish),
            SqueezeExcite(wide),
            nn.Sequential(nn.Conv2d(wide, after, 1, bias=False), nn.BatchNorm2d(after)),
        )

    def forward(self, x: Tensor) -> Tensor:
        result = self.block(x)
        if self.use_res_connect:
            result += x
        return result


class MobileNetV3(nn.Module):
    """Inverted residuals with squeeze and excitation, hardswish and dropout."""

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, width: int = WIDTH, dropout: float = 0.2
    ) -> None:
        super().__init__()
        self.features = nn.Sequential(
            ConvNorm(input_shape[0], width, act=nn.Hardswish),
            InvertedResidual(width, width, 1),
            InvertedResidual(width, 2 * width, 2),
            InvertedResidual(2 * width, 2 * width, 1),
            InvertedResidual(2 * width, 2 * width, 1),
        )
        self.classifier = nn.Sequential(
            nn.Linear(2 * width, 32),
            nn.Hardswish(inplace=True),
            nn.Dropout(dropout, inplace=True),
            nn.Linear(32, num_classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((2, 3)))


class InceptionBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch1 = ConvNorm(width, 4, 1)
        self.branch2 = nn.Sequential(ConvNorm(width, 4, 1), ConvNorm(4, 4))
        self.branch3 = ConvNorm(width, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = functional.avg_pool2d(x, kernel_size=3, stride=1, padding=1)
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(pooled)], 1)


class Inception(nn.Module):
    """Branches side by side; a constant that the forward pass makes."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.stem = ConvNorm(input_shape[0], WIDTH)
        self.mix1, self.mix2, self.mix3 = InceptionBlock(WIDTH), InceptionBlock(12), InceptionBlock(12)
        self.fc = nn.Linear(12, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - torch.tensor(0.5)) / torch.tensor([0.25, 0.5]).view(1, -1, 1, 1)
        return self.fc(self.mix3(self.mix2(self.mix1(self.stem(x)))).mean((2, 3)))


class EncoderBlock(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, dropout=dropout, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln_1(x)
        y, _ = self.attention(y, y, y, need_weights=False)
        x = x + y
        return x + self.mlp(self.ln_2(x))


class Vit(nn.Module):
    """As torchvision's: a class token, embeddings of places, checks of the picture's side."""

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, patch: int = 4, width: int = 16, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.side, self.patch = input_shape[1], patch
        self.conv_proj = nn.Conv2d(input_shape[0], width, patch, patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embedding = nn.Parameter(torch.empty(1, (self.side // patch) ** 2 + 1, width).normal_(std=0.02))
        self.encoder = nn.Sequential(*(EncoderBlock(width, dropout) for _ in range(4)))
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, num_classes)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        n, _, h, _ = x.shape
        torch._assert(h == self.side, "wrong picture height")  # noqa: SLF001 - as torchvision does it
        x = self.conv_proj(x).reshape(n, self.pos_embedding.shape[2], -1).permute(0, 2, 1)
        x = torch.cat([self.class_token.expand(n, -1, -1), x], dim=1)
        x = x + self.pos_embedding
        if mask is not None:
            x = x * mask
        return self.head(self.ln(self.encoder(x))[:, 0])


class ChannelsLast(nn.Module):
    """As ConvNeXt and Swin: the channels come last, layers are scaled, and some are left out in training."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, dropout: float = 0.2) -> None:
        super().__init__()
        self.embed = nn.Conv2d(input_shape[0], WIDTH, 2, 2)
        self.blocks = nn.Sequential(*(ScaledBlock(WIDTH, dropout) for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embed(x).permute(0, 2, 3, 1))).mean((1, 2)))


class ScaledBlock(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.layer_scale = nn.Parameter(torch.full((width,), 0.1))
        self.drop = DropPath(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.layer_scale * self.second(functional.gelu(self.first(x))))


class DropPath(nn.Module):
    def __init__(self, share: float) -> None:
        super().__init__()
        self.kept = 1 - share

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x * torch.empty(x.shape[0], 1, 1, 1).bernoulli_(self.kept).div_(self.kept)


class Text(nn.Module):
    """A class for a sequence of tokens: embeddings, convolutions, functional dropout."""

    def __init__(self, vocabulary: int, num_classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, WIDTH)
        self.place = nn.Embedding(64, WIDTH)
        self.register_buffer("ids", torch.arange(64).unsqueeze(0), persistent=False)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.fc = nn.Linear(WIDTH, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place(self.ids[:, : tokens.shape[1]])
        for layer in self.layers:
            x = torch.tanh(layer(x)) + x
        return self.fc(x.mean(1))


class NextToken(nn.Module):
    """The next token, with one matrix for the first and the last layer: weights are tied across all blocks."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(vocabulary, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, vocabulary, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.out(torch.tanh(self.mix(x)))


class Mlp(nn.Sequential):
    """Layers with batch norm, of which two share their weights."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        shared = nn.Linear(16, 16)
        super().__init__(
            nn.Flatten(), nn.Linear(input_shape[-1], 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True),
            shared, nn.ReLU(), shared, nn.ReLU(),
            nn.Linear(16, 16), nn.BatchNorm1d(16), nn.LeakyReLU(), nn.Linear(16, num_classes),
        )  # fmt: skip


class Peculiar(nn.Module):
    """Its input is divided by what follows from a buffer, its features are turned, and its end has no weights."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(1))
        self.first, self.second = nn.Linear(input_shape[-1], 16), nn.Linear(16, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.first(x / (self.scale + 1)).t()).t()
        return functional.log_softmax(self.second(x), 1)


class LengthBlock(nn.Module):
    """Cannot be followed, but runs without values."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) if len(x) > 0 else x


class Branched(nn.Module):
    """One of its modules cannot be followed: it stays whole."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.stem, self.block, self.last = ConvNorm(input_shape[0], WIDTH), LengthBlock(), ConvNorm(WIDTH, WIDTH)
        self.fc = nn.Linear(WIDTH, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.last(self.block(self.stem(x))).mean((2, 3)))


# ---- of these none can be cut ----


class BranchOnData(nn.Module):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(input_shape[-1], 16), nn.Linear(16, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if x.mean() > 0:  # the branch
            x = functional.relu(x)
        return self.second(x)


class BranchOnPicture(nn.Module):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.first, self.second = ConvNorm(input_shape[0], WIDTH), nn.Linear(WIDTH, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if x.mean() > 0:  # the branch
            x = 2 * x
        return self.second(x.mean((2, 3)))


class Trains(nn.Module):
    """Its own forward depends on whether it trains."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(input_shape[-1], 16), nn.Linear(16, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.dropout(self.first(x), 0.1, self.training)  # it trains
        return self.second(x)


class InPlace(nn.Module):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(input_shape[-1], 16), nn.Linear(16, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)  # changed later
        return self.second(x.mul_(2).view(-1, 16)) + 0 * x.sum()


class TwoResults(nn.Module):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(input_shape[-1], num_classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # two
        return self.fc(x), x


# ---- by what an experiment, or a task, says ----


class Named(nn.Module):
    """Its layers have names that are given."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, names: list[str]) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({name: nn.Linear(input_shape[-1], input_shape[-1]) for name in names})
        self.last = nn.Linear(input_shape[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers.values():
            x = functional.relu(layer(x))
        return self.last(x)


class NoNetwork:
    """A class that does something as it is made."""

    made: list[dict[str, Any]] = []  # noqa: RUF012 - by all

    def __init__(self, **options: Any) -> None:
        self.made.append(options)
