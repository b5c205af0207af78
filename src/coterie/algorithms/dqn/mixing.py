"""Mixers: networks that turn the values of a team's members into one value of the team.

Every mixer is monotonic in each member's value, so that the best joint action consists of every member's own best
action (Rashid et al. 2018, eq. 4).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from coterie.nn.networks import Dense

Name = Literal["none", "vdn", "qmix"]
LEAK = 0.5  # the smaller slope of hidden units; the paper's ELU is flat far below 0, where the values of penalties lie


class QMIX(nn.Module):
    """A network of two layers whose weights, never negative, are functions of the world's state.

    Rashid et al. 2018, section 4 and figure 2: the weights are absolute outputs of linear layers, the first
    bias of a linear layer, the last of a perceptron. The activation of half of the hidden units is convex (slope `LEAK`
    below 0, 1 above), that of the others concave (1 below 0, `LEAK` above), and the hidden layer is averaged. So the
    team's value begins near the sum of its members' (VDN), whatever their sign, and departs from it where that pays.
    """

    def __init__(self, members: int, state: int, width: int, seed: int) -> None:
        super().__init__()
        generators = [torch.Generator().manual_seed(seed)]
        self.members, self.width = members, width
        self.weight_in = Dense(state, members * width, 0.1, generators)
        self.bias_in = Dense(state, width, 0.1, generators)
        self.weight_out = Dense(state, width, 0.1, generators)
        self.bias_hidden = Dense(state, width, 0.1, generators)
        self.bias_out = Dense(width, 1, 0.1, generators)

        nn.init.ones_(self.weight_in.bias)
        nn.init.constant_(self.weight_out.bias, 2 / (1 + LEAK))  # 1 over the mean slope of the hidden units

    def unroll(self, rows: Tensor, sequences: None) -> Tensor:
        """One value `[1, B, 1]` from rows `[1, B, Z + M]`: the world's state, then the members' values."""
        state, values = rows[0].tensor_split([rows.shape[-1] - self.members], dim=1)
        return self.forward(values, state)[None, :, None]

    def forward(self, values: Tensor, state: Tensor) -> Tensor:
        """One value `[B]` from the members' `[B, M]` and the world's state `[B, Z]`."""
        rows = state.unsqueeze(0)
        weight = self.weight_in(rows)[0].abs().view(-1, self.members, self.width)
        hidden = torch.einsum("bm,bmw->bw", values, weight) + self.bias_in(rows)[0]
        convex, concave = hidden.tensor_split([self.width // 2], dim=1)
        bent = [nn.functional.leaky_relu(convex, LEAK), -nn.functional.leaky_relu(-concave, LEAK)]
        out = (torch.cat(bent, dim=1) * self.weight_out(rows)[0].abs()).mean(dim=-1)
        return out + self.bias_out(torch.relu(self.bias_hidden(rows)))[0, :, 0]
