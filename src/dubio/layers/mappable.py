"""Layers that torch cannot map over draws, or maps wrongly, and what conversion puts in their place.

Each is a subclass of its plain layer with the same parameters, buffers and names, and does the same outside a mapped
pass.
"""

from torch import nn

from dubio.layers.attention import MultiheadAttention, TransformerEncoder, TransformerEncoderLayer
from dubio.layers.batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from dubio.layers.embedding import Embedding, EmbeddingBag
from dubio.layers.prelu import PReLU
from dubio.layers.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell

__all__ = ["MAPPABLE", "PLAIN"]

MAPPABLE: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
    nn.BatchNorm3d: BatchNorm3d,
    nn.Embedding: Embedding,
    nn.EmbeddingBag: EmbeddingBag,
    nn.GRU: GRU,
    nn.GRUCell: GRUCell,
    nn.LSTM: LSTM,
    nn.LSTMCell: LSTMCell,
    nn.MultiheadAttention: MultiheadAttention,
    nn.PReLU: PReLU,
    nn.RNN: RNN,
    nn.RNNCell: RNNCell,
    nn.TransformerEncoder: TransformerEncoder,
    nn.TransformerEncoderLayer: TransformerEncoderLayer,
}
"""The mappable layer for each plain one."""

PLAIN = {mappable: plain for plain, mappable in MAPPABLE.items()}
"""The way back."""
