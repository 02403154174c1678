"""Recurrent layers, which torch can map over nothing: folded where weights are shared, looped where they are drawn.

Outside a mapped pass they are torch's own. Drawn recurrent layers read their weights anew in every forward and keep no
flat copy of them, so nothing of a draw stays behind.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dubio._engine import current_pass, is_mapped
from dubio.layers.drawn import drawn_names
from dubio.layers.leaf_loop import apart, loop_over_draws

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell"]


class _Recurrent(nn.RNNBase):
    @property
    def _flat_weights(self) -> list[Any]:
        if not drawn_names(self):
            return list(self.__dict__["_flat_weights"])
        return [getattr(self, name, None) for name in self._flat_weights_names]

    @_flat_weights.setter
    def _flat_weights(self, value: list[Any]) -> None:
        if not drawn_names(self):
            self.__dict__["_flat_weights"] = value

    def _weights_have_changed(self) -> bool:
        return not drawn_names(self) and super()._weights_have_changed()

    def flatten_parameters(self) -> None:
        """Make plain weights one piece for cuDNN; drawn ones are put together by torch in every forward."""
        if not drawn_names(self):
            super().flatten_parameters()

    def forward(self, input: Any, hx: Any = None) -> Any:
        """The layer's outputs and last states."""
        run = current_pass()
        if run is None or not run.mapped:
            return super().forward(input, hx)
        if not drawn_names(self) and isinstance(input, Tensor) and input.dim() == 3 and is_mapped(input, hx):
            return self._fold(input, hx)
        return loop_over_draws(self, super().forward, input, hx)

    def _fold(self, input: Tensor, hx: Any) -> Any:
        """Shared weights: draws are more rows. Rows are on axis 0 or 1 of the inputs, and on axis 1 of the states."""
        states, states_spec = pytree.tree_flatten(hx)
        states = [state for state in states if isinstance(state, Tensor)]
        input_rows = 0 if self.batch_first else 1
        output_spec: list[pytree.TreeSpec] = []

        def rule(num_samples: int, tensors: Sequence[Tensor], axes: Sequence[int | None]) -> tuple[Tensor, ...]:
            folded = [
                _join(tensor, axis, num_samples, input_rows if place == 0 else 1)
                for place, (tensor, axis) in enumerate(zip(tensors, axes, strict=True))
            ]
            own = pytree.tree_unflatten(folded[1:], states_spec) if states else None
            outputs, spec = pytree.tree_flatten(super(_Recurrent, self).forward(folded[0], own))
            output_spec[:] = [spec]
            return tuple(
                _part(output, num_samples, input_rows if place == 0 else 1) for place, output in enumerate(outputs)
            )

        outputs = apart(rule, [input, *states])
        return pytree.tree_unflatten(list(outputs), output_spec[0])


def _join(tensor: Tensor, axis: int | None, num_samples: int, rows: int) -> Tensor:
    tensor = tensor.expand(num_samples, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
    return tensor.movedim(0, rows).flatten(rows, rows + 1)


def _part(tensor: Tensor, num_samples: int, rows: int) -> Tensor:
    parts: Tensor = tensor.unflatten(rows, (num_samples, -1))
    return parts.movedim(rows, 0)


class LSTM(_Recurrent, nn.LSTM):
    """``nn.LSTM`` that can be mapped over draws."""


class GRU(_Recurrent, nn.GRU):
    """``nn.GRU`` that can be mapped over draws."""


class RNN(_Recurrent, nn.RNN):
    """``nn.RNN`` that can be mapped over draws."""


class _Cell(nn.RNNCellBase):
    def forward(self, input: Tensor, hx: Any = None) -> Any:
        """One step of the cell."""
        run = current_pass()
        if run is None or not run.mapped:
            return super().forward(input, hx)
        return loop_over_draws(self, super().forward, input, hx)


class LSTMCell(_Cell, nn.LSTMCell):
    """``nn.LSTMCell`` that can be mapped over draws."""


class GRUCell(_Cell, nn.GRUCell):
    """``nn.GRUCell`` that can be mapped over draws."""


class RNNCell(_Cell, nn.RNNCell):
    """``nn.RNNCell`` that can be mapped over draws."""
