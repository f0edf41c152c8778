"""Pretraining: the source networks of the biased benchmarks and of the bundled digits (methods.md §2.4)."""

from __future__ import annotations

from deyo.pretrain.checkpoint import checkpoint_path, read_checkpoint
from deyo.pretrain.recipes import Recipe, recipe_for
from deyo.pretrain.run import PretrainProgress, pretrain

__all__ = ["PretrainProgress", "Recipe", "checkpoint_path", "pretrain", "read_checkpoint", "recipe_for"]
