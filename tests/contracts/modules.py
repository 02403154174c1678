"""The table of networks that conversion must take: by name, each with its inputs, and what torch itself refuses.

Rows are on axis 0 of every input that is not ``shared``. A row's ``refused`` holds, for each ability that torch (or
ONNX) does not have for such a module whether converted or not, a pattern of the message that says so.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils import _pytree as pytree

__all__ = [
    "MODULES",
    "BasicBlockNet",
    "BidirectionalClassifier",
    "LanguageModel",
    "Row",
    "TiedPair",
    "UNet",
    "VisionTransformer",
    "resnet18",
]


@dataclass(frozen=True)
class Row:
    """A network, the inputs it takes for a number of rows, how it is converted, and what is known about it."""

    make: Callable[[], nn.Module]
    inputs: Callable[[int], Any]
    where: Any = None
    norms: bool = False
    shared: tuple[int | str, ...] = ()
    """Inputs without rows."""
    bitwise: bool = True
    """Whether noise off is the original to the last bit in inference mode too, where torch may fuse an attention."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Pattern of the message with which torch refuses, by ability."""


# ---------------------------------------------------------------------------------------------------- small networks


class Picking(nn.Module):
    """A module of torch's among layers: takes ``x``, gives the tensor at ``place`` of what the module returns."""

    def __init__(self, module: nn.Module, before: nn.Module | None = None, after: nn.Module | None = None) -> None:
        super().__init__()
        self.before = before or nn.Identity()
        self.module = module
        self.after = after or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = self.module(self.before(x))
        return self.after(out[0] if isinstance(out, tuple) else out)


class SequenceFirst(nn.Module):
    """A recurrent layer whose rows are on axis 1, in a network whose rows are on axis 0."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        outputs, states = self.module(x.transpose(0, 1))
        states = states if isinstance(states, tuple) else (states,)
        return (outputs.transpose(0, 1), *(state.transpose(0, 1) for state in states))


class StartingState(nn.Module):
    """An LSTM whose first states are computed by a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Linear(2, 8)
        self.memory = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        h, c = self.start(context).tanh().unsqueeze(0).chunk(2, dim=-1)
        outputs, _ = self.memory(x, (h.contiguous(), c.contiguous()))
        return outputs


class Packed(nn.Module):
    """An LSTM over sequences of several lengths, packed."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(3, 3)
        self.memory = nn.LSTM(3, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        lengths = 1 + torch.arange(x.shape[0]) % x.shape[1]
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        outputs, _ = pad_packed_sequence(self.memory(packed)[0], batch_first=True, total_length=x.shape[1])
        return self.head(outputs)


class Unrolled(nn.Module):
    """A cell called once per step."""

    def __init__(self, cell: nn.Module, before: nn.Module | None = None) -> None:
        super().__init__()
        self.before = before or nn.Identity()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state, outputs = None, []
        for step in self.before(x).unbind(1):
            state = self.cell(step, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs, dim=1)


class SelfAttention(nn.Module):
    """One tensor attends to itself; the attention weights are returned on request."""

    def __init__(self, need_weights: bool, before: nn.Module | None = None, **options: Any) -> None:
        super().__init__()
        self.before = before or nn.Identity()
        self.attend = nn.MultiheadAttention(8, 2, **({"batch_first": True} | options))
        self.need_weights = need_weights

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Any:
        x = self.before(x)
        if not self.attend.batch_first:
            x = x.transpose(0, 1)
        out, weights = self.attend(x, x, x, attn_mask=mask, need_weights=self.need_weights)
        out = out if self.attend.batch_first else out.transpose(0, 1)
        return (out, weights) if self.need_weights else out


class PaddedAttention(nn.Module):
    """Attention that does not see padded positions, nor what a mask of truth values hides."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor, padding: Tensor, mask: Tensor) -> Tensor:
        out, _ = self.attend(x, x, x, key_padding_mask=padding, attn_mask=mask, need_weights=False)
        return out


class PaddedEncoder(nn.Module):
    """A stack of encoder layers with a padding mask, of which positions that are not padded count."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        seen = (~padding).unsqueeze(-1).to(x.dtype)
        encoded = self.encode(x, src_key_padding_mask=padding)
        return self.head((encoded * seen).sum(dim=1) / seen.sum(dim=1))


class Bags(nn.Module):
    """An embedding bag, and a layer behind it."""

    def __init__(self, mode: str, padding_idx: int | None = None) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(9, 4, mode=mode, padding_idx=padding_idx)
        self.head = nn.Linear(4, 3)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.bag(words))


class Own(nn.Module):
    """Parameters of a user's own, a buffer, and children."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.randn(4))
        self.mix = nn.Parameter(torch.randn(4, 4))
        self.register_parameter("absent", None)
        self.register_buffer("offset", torch.randn(4))
        self.project = nn.Linear(4, 4)
        self.shape = nn.PReLU()

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        return self.shape(self.project(x @ self.mix + self.offset) * self.gain * scale)


class Listed(nn.Module):
    """Parameters in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ParameterList([torch.randn(4, 4) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = (x @ stage).tanh()
        return x + self.stages[0].sum()


class ByName(nn.Module):
    """Parameters in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterDict({"left": torch.randn(4, 3), "right": torch.randn(3, 4)})

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.parts["left"]).tanh() @ self.parts["right"]


class TiedPair(nn.Module):
    """One weight in two layers, and under two names in one module."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(4, 4)
        self.decode = nn.Linear(4, 4)
        self.decode.weight = self.encode.weight
        self.first = nn.Parameter(torch.randn(4))
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.encode(x).tanh() * self.first) + self.second


class Twice(nn.Module):
    """A submodule called twice, under one name and under two."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.again = self.block
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.again(self.block(self.block(x))))


class Nested(nn.Module):
    """Modules in modules in lists in dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            [nn.ModuleDict({"a": nn.Sequential(nn.Linear(4, 4), nn.Tanh()), "b": nn.Linear(4, 4)}) for _ in range(2)]
        )

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage["a"](x) + stage["b"](x).relu()
        return x


class ManyInputs(nn.Module):
    """Three inputs: two positional with rows, one mask without."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 6)
        self.right = nn.Linear(3, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, left: Tensor, right: Tensor, mask: Tensor | None = None) -> Tensor:
        h = self.left(left).tanh() + self.right(right).tanh()
        return self.head(h if mask is None else h * mask)


class Named(NamedTuple):
    """Two outputs by name."""

    hidden: Tensor
    score: Tensor


class SeveralOutputs(nn.Module):
    """A dictionary of a tensor and a named tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> dict[str, Any]:
        h = self.body(x).tanh()
        return {"named": Named(h, self.head(h)), "sum": h.sum(dim=-1)}


@dataclass
class Logits:
    """What a classifier gives."""

    logits: Tensor
    hidden: Tensor | None = None


pytree.register_dataclass(Logits)


class Classifier(nn.Module):
    """Gives an object with logits."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Logits:
        h = self.body(x).tanh()
        return Logits(self.head(h), h)


class ModelOutput(OrderedDict[str, Any]):
    """An ordered dictionary whose entries are attributes too, as in transformers."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


pytree.register_pytree_node(
    ModelOutput,
    lambda output: (list(output.values()), list(output)),
    lambda values, names: ModelOutput(zip(names, values, strict=True)),
    serialized_type_name="contracts.modules.ModelOutput",
)


class PretrainedLike(nn.Module):
    """Keyword inputs, an attention mask made additive inside, an output object: as in transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict({"word": nn.Embedding(11, 8, padding_idx=0), "place": nn.Embedding(6, 8)})
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.norm = nn.LayerNorm(8)
        self.classifier = nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> ModelOutput:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        h = self.embeddings["word"](input_ids) + self.embeddings["place"](places)
        q, k, v = (layer(h).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        bias = None
        if attention_mask is not None:
            bias = (1.0 - attention_mask.to(h.dtype))[:, None, None, :] * torch.finfo(h.dtype).min
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)
        h = self.norm(h + mixed)
        return ModelOutput(logits=self.classifier(h[:, 0]), last_hidden_state=h)


class ScaledLinear(nn.Linear):
    """A linear layer with a forward of its own."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.scale = nn.Parameter(torch.rand(out_features) + 0.5)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight * self.scale[:, None], self.bias)


class WithOutputSize(nn.Module):
    """A transposed convolution that is told the size it has to give."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(2, 3, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(3, 2, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x), output_size=[x.shape[2], x.shape[3]])


# ----------------------------------------------------------------------------------------------- whole architectures


class BasicBlock(nn.Module):
    """Two convolutions and a skip connection, as in torchvision."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample = None
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class BasicBlockNet(nn.Module):
    """A residual network of basic blocks for small images."""

    def __init__(self, blocks: tuple[int, ...] = (1, 1), width: int = 4, num_classes: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        layers: list[nn.Module] = []
        channels = width
        for stage, count in enumerate(blocks):
            for block in range(count):
                out = width * 2**stage
                layers.append(BasicBlock(channels, out, 2 if stage > 0 and block == 0 else 1))
                channels = out
        self.layers = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn1(self.conv1(x)))
        return self.fc(torch.flatten(self.avgpool(self.layers(x)), 1))


def resnet18(width: int = 64, num_classes: int = 10) -> BasicBlockNet:
    """ResNet-18 for 32x32 images: 11.2 million weights at its full width."""
    return BasicBlockNet((2, 2, 2, 2), width, num_classes)


class VisionTransformer(nn.Module):
    """Patches, a class token and positions as parameters, encoder layers, a head."""

    def __init__(self, dim: int = 8, depth: int = 1, size: int = 8, num_classes: int = 3) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, dim, 4, 4)
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.randn(1, (size // 4) ** 2 + 1, dim) * 0.1)
        layer = nn.TransformerEncoderLayer(
            dim, 2, 2 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, nn.LayerNorm(dim), enable_nested_tensor=False)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.cls_token.expand(tokens.shape[0], -1, -1), tokens], dim=1) + self.pos_embed
        return self.head(self.encoder(tokens)[:, 0])


class UNet(nn.Module):
    """Down twice, up twice by transposed convolutions, with skip connections."""

    def __init__(self, width: int = 4, num_classes: int = 1) -> None:
        super().__init__()
        self.enter = self._block(2, width)
        self.down = self._block(width, 2 * width)
        self.pool = nn.MaxPool2d(2)
        self.middle = self._block(2 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, 2 * width, 2, stride=2)
        self.join1 = self._block(4 * width, width)
        self.up2 = nn.ConvTranspose2d(width, width, 2, stride=2)
        self.join2 = nn.Conv2d(2 * width, num_classes, 1)

    @staticmethod
    def _block(channels: int, out: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(channels, out, 3, padding=1), nn.GroupNorm(2, out), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        high = self.enter(x)
        low = self.down(self.pool(high))
        x = self.up1(self.middle(self.pool(low)))
        x = self.up2(self.join1(torch.cat([x, low], dim=1)))
        return self.join2(torch.cat([x, high], dim=1))


class LanguageModel(nn.Module):
    """An LSTM over words whose output layer has the weights of its embedding."""

    def __init__(self, words: int = 11, dim: int = 6) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, dim, padding_idx=0)
        self.memory = nn.LSTM(dim, dim, batch_first=True)
        self.decode = nn.Linear(dim, words)
        self.decode.weight = self.embed.weight

    def forward(self, words: Tensor) -> Tensor:
        outputs, _ = self.memory(self.embed(words))
        return self.decode(outputs)


class BidirectionalClassifier(nn.Module):
    """A two-layer bidirectional LSTM that reads a sequence, and a head."""

    def __init__(self, features: int = 3, hidden: int = 4, num_classes: int = 3) -> None:
        super().__init__()
        self.memory = nn.LSTM(features, hidden, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * hidden, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.memory(x)
        return self.head(outputs.mean(dim=1))


# --------------------------------------------------------------------------------------------------------- the table


def tensor(*shape: int) -> Callable[[int], Tensor]:
    """Inputs of this shape behind the rows."""
    return lambda rows: torch.randn(rows, *shape)


def words(length: int, count: int) -> Callable[[int], Tensor]:
    """Sequences of word numbers, of which 0 is the padding: the first row begins with one."""

    def make(rows: int) -> Tensor:
        sequences = torch.randint(1, count, (rows, length))
        sequences[0, 0] = 0
        return sequences

    return make


def together(*parts: Callable[[int], Any]) -> Callable[[int], tuple[Any, ...]]:
    """Several positional inputs."""
    return lambda rows: tuple(part(rows) for part in parts)


def shared(value: Callable[[], Tensor]) -> Callable[[int], Tensor]:
    """An input without rows."""
    return lambda rows: value()


def padding(length: int) -> Callable[[int], Tensor]:
    """True where a position is padded: the last one of every second row."""

    def make(rows: int) -> Tensor:
        mask = torch.zeros(rows, length, dtype=torch.bool)
        mask[1::2, -1] = True
        return mask

    return make


def causal(length: int) -> Tensor:
    """An additive mask: nobody sees what follows."""
    return torch.full((length, length), float("-inf")).triu(1)


def next_hidden(length: int) -> Tensor:
    """A mask of truth values: nobody sees the position that follows."""
    return torch.eye(length, dtype=torch.bool).roll(1, dims=1)


NO_FULLGRAPH = r"Dynamo does not support RNN, GRU, or LSTM|marked that the function `pack_padded_sequence`"
NO_RULE = r"Batching rule not implemented for aten::(lstm|gru|rnn)|calling \.item\(\) on a Tensor"
PARAMETRIZED = r"Serialization of parametrized modules is only supported through state_dict"
NO_PACKING = r"argument 'size' failed to unpack|Failed to export the model"
NO_PROJECTIONS = r"its LSTM has no projections, got proj_size=2"

no_rule = {"outer vmap": NO_RULE, "plain outer vmap": NO_RULE}
recurrent = {"compile": NO_FULLGRAPH, **no_rule}
packed = recurrent | {"export": NO_PACKING, "onnx": NO_PACKING}
parametrized = {"pickle": PARAMETRIZED}


MODULES: dict[str, Row] = {
    # Linear layers and convolutions
    "linear": Row(lambda: nn.Linear(4, 3), tensor(4)),
    "linear, no bias, inner axis": Row(lambda: nn.Linear(4, 3, bias=False), tensor(2, 4)),
    "conv1d, reflect, stride, groups": Row(
        lambda: nn.Conv1d(2, 4, 3, 2, 1, groups=2, padding_mode="reflect"), tensor(2, 7)
    ),
    "conv1d, circular, dilation, no bias": Row(
        lambda: nn.Conv1d(2, 3, 2, padding=1, dilation=2, padding_mode="circular", bias=False), tensor(2, 6)
    ),
    "conv2d, same, dilation": Row(lambda: nn.Conv2d(2, 3, (3, 2), padding="same", dilation=2), tensor(2, 5, 6)),
    "conv2d, reflect, stride, no bias": Row(
        lambda: nn.Conv2d(2, 3, 3, 2, (1, 2), padding_mode="reflect", bias=False), tensor(2, 5, 6)
    ),
    "conv2d, circular, depthwise": Row(
        lambda: nn.Conv2d(3, 6, 3, padding=1, padding_mode="circular", groups=3), tensor(3, 5, 6)
    ),
    "conv2d, replicate, same": Row(
        lambda: nn.Conv2d(2, 3, 3, padding="same", padding_mode="replicate"), tensor(2, 5, 6)
    ),
    "conv3d, zeros, groups, stride": Row(lambda: nn.Conv3d(2, 4, 3, 2, 1, groups=2), tensor(2, 4, 5, 4)),
    "transposed conv1d, stride, output padding": Row(
        lambda: nn.ConvTranspose1d(2, 3, 3, 2, 1, output_padding=1), tensor(2, 5)
    ),
    "transposed conv2d, groups, dilation": Row(
        lambda: nn.ConvTranspose2d(4, 2, 3, 2, 1, (1, 0), groups=2, dilation=(1, 2)), tensor(4, 4, 3)
    ),
    "transposed conv2d, output size": Row(WithOutputSize, tensor(2, 6, 5)),
    "transposed conv3d, output padding, no bias": Row(
        lambda: nn.ConvTranspose3d(2, 2, 2, 2, output_padding=(1, 0, 1), bias=False), tensor(2, 2, 3, 2)
    ),
    # Recurrent layers
    "lstm": Row(lambda: nn.LSTM(3, 4, batch_first=True), tensor(3, 3), refused=recurrent),
    "lstm, projections, both directions, no bias": Row(
        lambda: Picking(nn.LSTM(3, 4, proj_size=2, bias=False, bidirectional=True, batch_first=True)),
        tensor(3, 3),
        refused=recurrent | {"onnx": NO_PROJECTIONS},
    ),
    "lstm, 2 layers, sequence first": Row(lambda: SequenceFirst(nn.LSTM(3, 4, 2)), tensor(3, 3), refused=recurrent),
    "lstm, starting states": Row(StartingState, together(tensor(3, 3), tensor(2)), refused=recurrent),
    "lstm, packed sequences": Row(Packed, tensor(3, 3), refused=packed),
    "gru, 2 layers, both directions": Row(
        lambda: Picking(nn.GRU(3, 4, 2, bidirectional=True, batch_first=True)), tensor(3, 3), refused=recurrent
    ),
    "gru, sequence first, no bias": Row(
        lambda: SequenceFirst(nn.GRU(3, 4, bias=False)), tensor(3, 3), refused=recurrent
    ),
    "rnn, relu, 2 layers": Row(
        lambda: nn.RNN(3, 4, 2, nonlinearity="relu", batch_first=True), tensor(3, 3), refused=recurrent
    ),
    "rnn, both directions, sequence first": Row(
        lambda: SequenceFirst(nn.RNN(3, 4, bidirectional=True)), tensor(3, 3), refused=recurrent
    ),
    "lstm cell": Row(lambda: Unrolled(nn.LSTMCell(3, 4)), tensor(2, 3), refused=no_rule),
    "gru cell, no bias": Row(lambda: Unrolled(nn.GRUCell(3, 4, bias=False)), tensor(2, 3)),
    "rnn cell, relu": Row(lambda: Unrolled(nn.RNNCell(3, 4, nonlinearity="relu")), tensor(3, 3)),
    "fixed lstm behind noise": Row(
        lambda: Picking(nn.LSTM(4, 4, 2, batch_first=True), nn.Linear(3, 4)),
        tensor(3, 3),
        where="before",
        refused=recurrent,
    ),
    "fixed lstm behind noise, packed sequences": Row(Packed, tensor(3, 3), where=nn.Linear, refused=packed),
    "fixed gru behind noise, sequence first": Row(
        lambda: nn.Sequential(nn.Linear(3, 4), SequenceFirst(nn.GRU(4, 4, bidirectional=True))),
        tensor(3, 3),
        where=nn.Linear,
        refused=recurrent,
    ),
    "fixed lstm cell behind noise": Row(
        lambda: Unrolled(nn.LSTMCell(4, 4), nn.Linear(3, 4)), tensor(2, 3), where="before", refused=no_rule
    ),
    # Attention and transformers
    "attention": Row(
        lambda: nn.MultiheadAttention(8, 2, batch_first=True), together(*(tensor(3, 8) for _ in range(3)))
    ),
    "self-attention": Row(lambda: SelfAttention(False), tensor(3, 8), bitwise=False),
    "self-attention, weights, no bias": Row(lambda: SelfAttention(True, bias=False), tensor(3, 8)),
    "self-attention, float mask, sequence first": Row(
        lambda: SelfAttention(True, batch_first=False), together(tensor(3, 8), shared(lambda: causal(3))), shared=(1,)
    ),
    "self-attention, padding, boolean mask": Row(
        PaddedAttention, together(tensor(3, 8), padding(3), shared(lambda: next_hidden(3))), shared=(2,), bitwise=False
    ),
    "cross-attention, kdim, vdim": Row(
        lambda: nn.MultiheadAttention(8, 2, kdim=5, vdim=6, batch_first=True),
        together(tensor(3, 8), tensor(4, 5), tensor(4, 6)),
    ),
    "attention, bias of keys and values, zero attention": Row(
        lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True, add_zero_attn=True, batch_first=True),
        together(tensor(3, 8), tensor(4, 8), tensor(4, 8)),
    ),
    "fixed attention behind noise": Row(
        lambda: SelfAttention(False, nn.Linear(4, 8)), tensor(3, 4), where="before", bitwise=False
    ),
    "encoder layer": Row(lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), tensor(3, 8), bitwise=False),
    "encoder layer, norm first, gelu, random norms": Row(
        lambda: nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", norm_first=True, batch_first=True),
        tensor(3, 8),
        norms=True,
        bitwise=False,
    ),
    "fixed encoder layer behind noise": Row(
        lambda: Picking(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(4, 8)),
        tensor(3, 4),
        where="before",
        bitwise=False,
    ),
    "encoder, 2 layers, padding": Row(
        PaddedEncoder,
        together(tensor(3, 8), padding(3)),
        bitwise=False,
        refused={"plain outer vmap": "Batching rule not implemented for aten::_nested_tensor_from_mask"},
    ),
    "decoder layer": Row(
        lambda: nn.TransformerDecoderLayer(8, 2, 16, batch_first=True),
        together(tensor(3, 8), tensor(4, 8)),
        bitwise=False,
    ),
    "transformer": Row(
        lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True), together(tensor(4, 8), tensor(3, 8)), bitwise=False
    ),
    # Embeddings
    "embedding, padding": Row(lambda: Picking(nn.Embedding(9, 4, padding_idx=0), after=nn.Linear(4, 3)), words(4, 9)),
    "embedding, largest norm": Row(
        lambda: Picking(nn.Embedding(9, 4, max_norm=1.0), after=nn.Linear(4, 3)),
        words(4, 9),
        refused={"plain outer vmap": "embedding_renorm_"},
    ),
    "embedding bag, sum, padding": Row(lambda: Bags("sum", padding_idx=0), words(4, 9)),
    "embedding bag, mean": Row(lambda: Bags("mean"), words(4, 9)),
    "embedding bag, max, padding": Row(lambda: Bags("max", padding_idx=0), words(4, 9)),
    # Other layers of torch
    "bilinear": Row(lambda: nn.Bilinear(3, 4, 2), together(tensor(3), tensor(4))),
    "prelu": Row(lambda: nn.Sequential(nn.Linear(4, 3), nn.PReLU(3)), tensor(4)),
    "layer and rms norm": Row(lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.RMSNorm(6)), tensor(4)),
    "layer and rms norm, random": Row(
        lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.RMSNorm(6)), tensor(4), norms=True
    ),
    "batch, group and instance norm": Row(
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.GroupNorm(2, 4), nn.InstanceNorm1d(4, affine=True)
        ),
        tensor(2, 6),
    ),
    "batch, group and instance norm, random": Row(
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.GroupNorm(2, 4), nn.InstanceNorm1d(4, affine=True)
        ),
        tensor(2, 6),
        norms=True,
    ),
    "batch norm in three dimensions": Row(
        lambda: nn.Sequential(
            nn.Conv3d(2, 3, 2, padding=1, dilation=2, padding_mode="replicate", bias=False), nn.BatchNorm3d(3)
        ),
        tensor(2, 3, 4, 3),
    ),
    "weight norm": Row(
        lambda: nn.Sequential(
            parametrizations.weight_norm(nn.Conv1d(2, 3, 3)), nn.Tanh(), parametrizations.weight_norm(nn.Linear(4, 3))
        ),
        tensor(2, 6),
        refused=parametrized,
    ),
    "spectral norm": Row(lambda: parametrizations.spectral_norm(nn.Linear(4, 5)), tensor(4), refused=parametrized),
    # A user's own
    "own parameters and children": Row(Own, tensor(4)),
    "parameter list": Row(Listed, tensor(4)),
    "parameter dict": Row(ByName, tensor(4)),
    "tied weights": Row(TiedPair, tensor(4)),
    "submodule called twice": Row(Twice, tensor(4)),
    "nested modules": Row(Nested, tensor(4)),
    "subclass of linear": Row(lambda: ScaledLinear(4, 3), tensor(4)),
    "several inputs, shared mask": Row(
        ManyInputs, together(tensor(4), tensor(3), shared(lambda: torch.linspace(0.5, 1.0, 6))), shared=(2,)
    ),
    "dict input": Row(ManyInputs, lambda rows: {"right": torch.randn(rows, 3), "left": torch.randn(rows, 4)}),
    "several outputs": Row(SeveralOutputs, tensor(4)),
    "output with logits": Row(Classifier, tensor(4)),
    # Whole architectures
    "residual network": Row(BasicBlockNet, tensor(3, 8, 8)),
    "vision transformer": Row(VisionTransformer, tensor(3, 8, 8), bitwise=False),
    "u-net": Row(UNet, tensor(2, 8, 8)),
    "language model, tied": Row(LanguageModel, words(4, 11), refused=recurrent),
    "two-layer bidirectional lstm": Row(BidirectionalClassifier, tensor(3, 3), refused=recurrent),
    "transformers-style": Row(
        PretrainedLike, lambda rows: {"input_ids": words(4, 11)(rows), "attention_mask": (~padding(4)(rows)).long()}
    ),
}
