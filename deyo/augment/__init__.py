"""Object-preserving augmentations of uint8 images, batched on CPU or GPU, equal to the published Pillow code.

    augmix(pixels, *, copies, keys, mean, std, dtype=float32, draws=None) -> float [copies, M, 3, H, W]
    randaugment(pixels, *, copies, keys, mean, std, magnitude=2.0, operations=3, ...) -> float [copies, M, 3, H, W]

``pixels`` uint8 [M, 3, H, W]; ``keys`` int64 [M] decides all randomness of image m (``deyo.random``): the same
image and key give the same views in any batch, on any device. ``mean`` and ``std`` are the network's, per
channel; the views come normalised. Nothing touches a global generator.

Views depend on pixels and keys only, not on what the network says, so they can be made for a whole batch before
the captured part of a step. Drawing happens on the CPU (keys on a GPU cost one small transfer).
"""

from deyo.augment.augmix import AugMixDraws, augmix, draw_augmix
from deyo.augment.keys import content_keys, step_keys
from deyo.augment.randaugment import RandAugmentDraws, draw_randaugment, randaugment

__all__ = [
    "AugMixDraws",
    "RandAugmentDraws",
    "augmix",
    "content_keys",
    "draw_augmix",
    "draw_randaugment",
    "randaugment",
    "step_keys",
]
