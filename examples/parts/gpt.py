"""A small GPT in plain torch: what is said at a place depends on the places before it."""

import torch
from torch import nn
from torch.nn import functional as F


class GPT(nn.Module):
    def __init__(self, vocabulary, longest, width=64, num_layers=2, num_heads=4):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        layer = nn.TransformerEncoderLayer(width, num_heads, 4 * width, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x):
        """Numbers of shape (sequences, length) -> scores of shape (sequences, length, vocabulary)."""
        length = x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, x.device, self.head.weight.dtype)
        h = self.token(x) + self.position(torch.arange(length, device=x.device))
        return self.head(self.layers(h, mask, is_causal=True))
