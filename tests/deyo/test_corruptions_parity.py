"""Each corruption against ``imagecorruptions-imaug``, fed with our random numbers where it draws any.

Where that package departs from the published generator (github.com/hendrycks/robustness) the published one is
followed: its enlargements are cut at the centre (the package: top left, which moves zoom blur and snow), pixelate
enlarges with the box filter (the package: nearest; the same pixels), snow's flakes are cut to levels before the wind
smears them (the package: after), elastic transform starts with an affine map
and has other constants (the package has neither), frost uses five unscaled photographs (the package: six, scaled
by 1.1), motion blur rounds (the package cuts, and stops where the motion leaves small images), and impulse noise
follows the seed (the package ignores NumPy's).
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image

from deyo.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt
from deyo.corruptions.constants import IMAGENET
from deyo.corruptions.draws import Draws
from deyo.corruptions.photographs import frost_photographs

pytest.importorskip("imagecorruptions", reason="pip install 'deyo-sweep[test]'", exc_type=ImportError)
import cv2
from imagecorruptions import corruptions as package
from scipy.ndimage import map_coordinates, zoom
from skimage.filters import gaussian

NAMES = CORRUPTIONS + EXTRA_CORRUPTIONS
SEED = 11


@pytest.fixture(scope="module")
def picture() -> np.ndarray:
    """A picture with structure at every scale, uint8 [224, 224, 3]."""
    rng = np.random.default_rng(1)
    total = sum(
        cv2.resize(rng.uniform(-1, 1, (side, side, 3)), (224, 224), interpolation=cv2.INTER_CUBIC) * 256 / side**0.5
        for side in (4, 8, 16, 32, 64, 112)
    )
    return np.clip(110 + total / 2, 0, 255).astype(np.uint8)


def ours(picture: np.ndarray, name: str, severity: int) -> np.ndarray:
    images = torch.from_numpy(picture).unsqueeze(0)
    return corrupt(images, name, severity, seed=SEED, indices=torch.tensor([0]))[0].numpy().astype(int)


def draws(name: str, severity: int) -> Draws:
    return Draws.of(SEED, NAMES.index(name), severity, torch.tensor([0]))


def theirs(picture: np.ndarray, name: str, severity: int) -> np.ndarray:
    result = getattr(package, name)(Image.fromarray(picture), severity)
    return np.asarray(result, dtype=np.float64)


class FedRandom:
    """Stands for ``np.random``: normal and uniform numbers are ours, one stream a call."""

    def __init__(self, source: Draws, first_stream: int = 0) -> None:
        self.source, self.stream = source, first_stream

    def _next(self, kind: str, size) -> np.ndarray:
        shape = () if size is None else tuple(size)
        self.stream += 1
        return getattr(self.source, kind)(self.stream - 1, *shape)[0].numpy()

    def normal(self, loc=0.0, scale=1.0, size=None):
        return loc + scale * self._next("normal", size)

    def uniform(self, low=0.0, high=1.0, size=None):
        return low + (high - low) * self._next("uniform", size)


@pytest.fixture
def feed(monkeypatch):
    class FedNumpy:
        random: FedRandom

        def __getattr__(self, name):
            return getattr(np, name)

    def install(name: str, severity: int, first_stream: int = 0) -> None:
        fed = FedNumpy()
        fed.random = FedRandom(draws(name, severity), first_stream)
        monkeypatch.setattr(package, "np", fed)

    return install


def published_clipped_zoom(image: np.ndarray, factor: float) -> np.ndarray:
    size = image.shape[0]
    crop = math.ceil(size / factor)
    top = (size - crop) // 2
    large = zoom(image[top : top + crop, top : top + crop], (factor, factor, 1), order=1)
    trim = (large.shape[0] - size) // 2
    return large[trim : trim + size, trim : trim + size]


def assert_cut_from(found: np.ndarray, expected: np.ndarray, slack: float = 0.01) -> None:
    """``found`` levels are ``expected`` ones, not yet cut, up to the cut and rounding errors."""
    lost = expected - found
    assert lost.min() >= -slack
    assert lost.max() <= 1 + slack


@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize("name", ["defocus_blur", "gaussian_blur", "brightness", "contrast", "saturate"])
def test_what_is_not_random_is_equal(name, severity, picture):
    assert_cut_from(ours(picture, name, severity), theirs(picture, name, severity))


@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize("name", ["pixelate", "jpeg_compression"])
def test_what_pillow_does_is_equal_to_the_bit(name, severity, picture):
    assert np.array_equal(ours(picture, name, severity), theirs(picture, name, severity))


@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize(("name", "first"), [("gaussian_noise", 0), ("speckle_noise", 0), ("fog", 1)])
def test_with_our_random_numbers_it_is_equal(name, first, severity, picture, feed):
    feed(name, severity, first)
    assert_cut_from(ours(picture, name, severity), theirs(picture, name, severity))


@pytest.mark.parametrize("severity", range(1, 6))
def test_spatter_is_equal_with_our_random_numbers(severity, picture, feed):
    feed("spatter", severity)
    lost = theirs(picture, "spatter", severity) - ours(picture, "spatter", severity)
    assert ((lost < -0.01) | (lost > 1.01)).mean() < 0.002


@pytest.mark.parametrize("severity", range(1, 6))
def test_zoom_blur_is_equal_when_cut_at_the_centre(severity, picture, monkeypatch):
    monkeypatch.setattr(package, "clipped_zoom", published_clipped_zoom)
    assert_cut_from(ours(picture, "zoom_blur", severity), theirs(picture, "zoom_blur", severity))


@pytest.mark.parametrize("severity", range(1, 6))
def test_snow_is_equal_when_cut_at_the_centre_and_to_levels(severity, picture, feed, monkeypatch):
    monkeypatch.setattr(package, "clipped_zoom", published_clipped_zoom)
    smear = package._motion_blur
    monkeypatch.setattr(package, "_motion_blur", lambda x, **how: smear(np.uint8(x * 255) / 255.0, **how))
    feed("snow", severity)
    assert_cut_from(ours(picture, "snow", severity), theirs(picture, "snow", severity))


@pytest.mark.parametrize("severity", range(1, 6))
def test_motion_blur_is_equal_but_rounded(severity, picture, feed):
    feed("motion_blur", severity)
    rounded = ours(picture, "motion_blur", severity) - theirs(picture, "motion_blur", severity)
    assert np.abs(rounded).max() <= 0.51


@pytest.mark.parametrize("severity", range(1, 6))
def test_glass_blur_is_equal_with_our_random_numbers(severity, picture):
    sigma, reach, rounds = IMAGENET["glass_blur"][severity - 1]
    x = np.uint8(gaussian(picture / 255.0, sigma=sigma, channel_axis=-1) * 255 + 2.0**-10)
    for turn in range(rounds):
        offsets = draws("glass_blur", severity).integers(turn, -reach, reach, 2, 224, 224)[0].numpy()
        for h in range(224 - reach, reach, -1):
            for w in range(224 - reach, reach, -1):
                dx, dy = offsets[:, h, w]
                x[h, w], x[h + dy, w + dx] = x[h + dy, w + dx], x[h, w]
    expected = np.clip(gaussian(x / 255.0, sigma=sigma, channel_axis=-1), 0, 1) * 255
    lost = expected - ours(picture, "glass_blur", severity)
    assert ((lost < -0.01) | (lost > 1.01)).mean() < 1e-4  # the first blur may be cut to the next level


@pytest.mark.parametrize("severity", range(1, 6))
def test_elastic_transform_follows_the_published_steps(severity, picture):
    strength, smoothness, reach = (
        244 * k
        for k in [(2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)][
            severity - 1
        ]
    )
    source = draws("elastic_transform", severity)
    corners = np.float32([[112 + 74, 112 + 74], [112 + 74, 112 - 74], [112 - 74, 112 - 74]])
    moved = corners + ((source.uniform(0, 3, 2)[0].numpy() * 2 - 1) * reach).astype(np.float32)
    image = picture.astype(np.float32) / 255
    matrix = cv2.getAffineTransform(corners, moved)
    image = cv2.warpAffine(image, matrix, (224, 224), borderMode=cv2.BORDER_REFLECT_101)
    fields = [source.uniform(stream, 224, 224)[0].numpy() * 2 - 1 for stream in (1, 2)]
    dx, dy = (gaussian(f, smoothness, mode="reflect", truncate=3) * strength for f in fields)
    rows, columns = np.mgrid[:224, :224]
    expected = np.stack(
        [map_coordinates(image[..., c], [rows + dy, columns + dx], order=1, mode="reflect") for c in range(3)], axis=2
    )
    difference = np.abs(ours(picture, "elastic_transform", severity) - np.clip(expected * 255, 0, 255).astype(int))
    assert difference.mean() < 0.5  # OpenCV's map is cut to 1/32 pixel
    assert (difference > 4).mean() < 0.01


def test_impulse_noise_has_the_package_s_distribution(picture):
    for severity in range(1, 6):
        amount = IMAGENET["impulse_noise"][severity - 1]
        flat = np.full((224, 224, 3), 100, dtype=np.uint8)
        for found in (ours(flat, "impulse_noise", severity), theirs(flat, "impulse_noise", severity)):
            assert (found == 255).mean() == pytest.approx(amount / 2, rel=0.12)
            assert (found == 0).mean() == pytest.approx(amount / 2, rel=0.12)


def test_shot_noise_has_the_package_s_distribution():
    ramp = np.broadcast_to(np.arange(224, dtype=np.uint8)[:, None, None], (224, 224, 3)).copy()
    np.random.seed(0)  # the package draws from NumPy's global generator
    for severity in range(1, 6):
        found, expected = ours(ramp, "shot_noise", severity), theirs(ramp, "shot_noise", severity)
        assert np.abs(found.mean(axis=(1, 2)) - expected.mean(axis=(1, 2))).max() < 20
        assert found.mean() == pytest.approx(expected.mean(), rel=0.01)
        assert found.std() == pytest.approx(expected.std(), rel=0.01)


@pytest.mark.parametrize("severity", [1, 5])
def test_frost_is_a_cut_of_a_photograph(severity):
    share, frost_share, scale = IMAGENET["frost"][severity - 1]
    gray = np.full((224, 224, 3), 40, dtype=np.uint8)
    found = ours(gray, "frost", severity)
    source = draws("frost", severity)
    photograph = frost_photographs(scale, 224)[int(source.integers(0, 0, 5))].numpy()
    row, column = source.uniform(1, 2)[0].tolist()
    top, left = int(row * (photograph.shape[0] - 224)), int(column * (photograph.shape[1] - 224))
    expected = share * 40 + frost_share * photograph[top : top + 224, left : left + 224]
    assert_cut_from(found, np.clip(expected, 0, 255))
