"""ColoredMNIST's recipe: digits coloured so that the colour foretells the class, but not in the test set.

Source: the authors' ``ColoredMNIST_dataset.py`` ("official") and the paper's appendix ("paper"); methods.md §2.3
(D8 to D11) and §3.7.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

GROUP_NAMES = ("0-green", "0-red", "1-green", "1-red")
ENVIRONMENTS = ("train1", "train2", "test")
RECIPES = ("official", "paper")
_LABEL_NOISE = 0.25
_FLIPS = {"official": (0.2, 0.1, 0.9), "paper": (0.2, 0.2, 0.9)}


@dataclass(frozen=True, kw_only=True)
class Coloring:
    """What the recipe drew for N digits, in their order.

    environment: int [N], 0 train1, 1 train2, 2 test. clean: 0 for digits 0–4, 1 for 5–9. noisy: ``clean`` with
    label noise. red: bool [N]. target: what counts as label (noisy in training, clean in the test).
    """

    environment: np.ndarray
    clean: np.ndarray
    noisy: np.ndarray
    red: np.ndarray
    target: np.ndarray

    @property
    def groups(self) -> np.ndarray:
        """2 · target + red, int64 [N]."""
        return 2 * self.target + self.red


def color(digits: np.ndarray, *, recipe: str, numpy_seed: int) -> Coloring:
    """Draw labels and colours for ``digits`` int [N]; the three environments are thirds, in order.

    "official": per image two uniform draws of NumPy's legacy generator, label noise 25 %, then the colour flip
    (0.2, 0.1, 0.9 by environment); class 0 is red. It is the authors' set bit for bit for the same seed.
    "paper": no label noise, flips 0.2 in training and 0.9 in the test, class 0 is green.
    """
    count = len(digits)
    environment = np.minimum(np.arange(count) // (count // 3), 2)
    draws = np.random.RandomState(numpy_seed).uniform(size=(count, 2))
    clean = (digits >= 5).astype(np.int64)
    noisy = clean ^ (draws[:, 0] < _LABEL_NOISE) if recipe == "official" else clean
    default_red = (noisy == 0) if recipe == "official" else (noisy == 1)
    red = default_red ^ (draws[:, 1] < np.asarray(_FLIPS[recipe])[environment])
    target = np.where(environment == 2, clean, noisy)
    return Coloring(environment=environment, clean=clean, noisy=noisy, red=red, target=target)


def paint(gray: np.ndarray, red: np.ndarray) -> np.ndarray:
    """uint8 digits [N, H, W] in the red or the green channel of uint8 [N, H, W, 3]; the others are 0."""
    pixels = np.zeros((*gray.shape, 3), dtype=np.uint8)
    pixels[red, :, :, 0] = gray[red]
    pixels[~red, :, :, 1] = gray[~red]
    return pixels


def correlations(coloring: Coloring) -> dict[str, dict[str, float]]:
    """Realised P(colour is the class's default), per environment, given the clean and given the noisy label.

    Expected for "official" (methods.md §3.7): clean .65, .70, .30; noisy .8, .9, .1.
    """
    default_red = 0 if _red_is_class_zero(coloring) else 1
    table = {}
    for number, name in enumerate(ENVIRONMENTS):
        here = coloring.environment == number
        table[name] = {
            "images": int(here.sum()),
            "clean": float((coloring.red == (coloring.clean == default_red))[here].mean()),
            "noisy": float((coloring.red == (coloring.noisy == default_red))[here].mean()),
        }
    return table


def _red_is_class_zero(coloring: Coloring) -> bool:
    train = coloring.environment < 2
    return float(coloring.red[train & (coloring.noisy == 0)].mean()) > 0.5
