"""Memory that is kept from call to call, so that a step allocates nothing and finds it in cache."""

from __future__ import annotations

import torch


class Scratch:
    """One stretch of memory a name and dtype, as long as the longest that was asked for."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    def get(self, name: str, dtype: torch.dtype, numel: int) -> torch.Tensor:
        """A one-dimensional tensor whose content is whatever was left there.

        Example:
            >>> scratch = Scratch()
            >>> scratch.get("rows", torch.float32, 8).data_ptr() == scratch.get("rows", torch.float32, 5).data_ptr()
            True
        """
        kept = self._kept.get((name, dtype))
        if kept is None or kept.numel() < numel:
            with torch.inference_mode(False):  # what is made in inference mode cannot be written to outside
                kept = self._kept[name, dtype] = torch.empty(numel, dtype=dtype)
        return kept if kept.numel() == numel else kept[:numel]
