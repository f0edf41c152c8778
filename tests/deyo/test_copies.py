"""AugMix copies in DeYO and EATA: as x', and for the entropy filter; runs together equal runs alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from parity_cases import network_for, rgb

from deyo.augment import augmix, step_keys
from deyo.losses import entropy
from deyo.methods import create_method, settings_class
from deyo.methods.copies import ENTROPY_STREAM, PLPD_STREAM, augmix_views, mean_copy_entropy
from deyo.random import hash64
from deyo.types import MethodContext

NETWORKS = ("network_bn", "network_gn", "network_ln")


def make(name: str, network: str, settings, seeds=(1,)):
    context = MethodContext(network=network_for(network)[0], seeds=list(seeds), batch_size=12, precision="float64")
    return create_method(name, context, settings)


def batches(network: str, count: int = 3, size: int = 12, run: int = 0) -> list[torch.Tensor]:
    flat = network_for(network)[1].reshape(-1, 32, 32)
    order = np.random.default_rng(run).permutation(len(flat))
    return [rgb(flat[order[k * size : (k + 1) * size]]) for k in range(count)]


def test_copies_are_augmix_of_the_batch_and_new_at_every_step() -> None:
    method = make("tent", "network_bn", [settings_class("tent")(learning_rate=0.0)])
    pixels = batches("network_bn")[0]
    views = augmix_views(method, pixels, 3, PLPD_STREAM)
    assert views.shape == (3, *pixels.shape)
    keys = hash64(step_keys(torch.tensor([1]), 0, 12), PLPD_STREAM).flatten()
    theirs = augmix(pixels[0], copies=3, keys=keys, mean=(0.2,) * 3, std=(0.4,) * 3, dtype=torch.float64)
    torch.testing.assert_close(views[:, 0], theirs)
    assert not torch.equal(augmix_views(method, pixels, 3, ENTROPY_STREAM), views)
    method.step(pixels)
    assert not torch.equal(augmix_views(method, pixels, 3, PLPD_STREAM), views)


def test_mean_entropy_is_the_mean_over_copies() -> None:
    method = make("tent", "network_bn", [settings_class("tent")(learning_rate=0.0)])
    pixels = batches("network_bn")[0]
    each = [entropy(method.network(view)) for view in augmix_views(method, pixels, 4, ENTROPY_STREAM)]
    mean = mean_copy_entropy(method, pixels, 4)
    torch.testing.assert_close(mean, torch.stack(each).mean(0), rtol=0, atol=1e-12)
    assert not mean.requires_grad


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("deyo", {"transform": "augmix", "copies": 3, "plpd_threshold": 0.01}),
        ("deyo", {"entropy_copies": 2, "plpd_threshold": 0.05}),
        ("eta", {"entropy_copies": 2}),
    ],
    ids=["deyo-augmix", "deyo-filter", "eta-filter"],
)
def test_runs_together_equal_runs_alone(network: str, name: str, changes: dict) -> None:
    cls = settings_class(name)
    settings = [cls(learning_rate=rate, entropy_margin=0.7, **changes) for rate in (0.01, 0.03)]
    feeds = [batches(network, run=run) for run in range(2)]
    together = make(name, network, settings, seeds=(1, 2))
    logits = [together.step(torch.cat(parts)) for parts in zip(*feeds)]
    assert not torch.equal(together.network.theta[0], together.network.source_theta[0])
    for run in range(2):
        alone = make(name, network, [settings[run]], seeds=(run + 1,))
        for step, pixels in enumerate(feeds[run]):
            torch.testing.assert_close(alone.step(pixels)[0], logits[step][run], rtol=0, atol=1e-9)


def test_the_filter_reads_the_copies_and_the_loss_the_image() -> None:
    """Table 19: with a margin between the two entropies the selection follows the copies'."""
    cls = settings_class("deyo")
    switches = {"filter_plpd": False, "weight_entropy": False, "weight_plpd": False}
    settings = cls(learning_rate=0.0, entropy_margin=0.5, entropy_copies=4, **switches)
    method = make("deyo", "network_gn", [settings])
    pixels = batches("network_gn", size=32)[0]
    expected = mean_copy_entropy(method, pixels, 4) < 0.5 * np.log(10)
    method.step(pixels)
    assert torch.equal(method.report.passed_entropy, expected)
    assert not torch.equal(expected, method.report.entropy < 0.5 * np.log(10))


def test_copies_count_as_forwards() -> None:
    deyo, eta = settings_class("deyo"), settings_class("eta")
    pixels = batches("network_gn")[0]
    settings = [
        deyo(learning_rate=0.01, transform="augmix", copies=3, entropy_copies=2),
        deyo(learning_rate=0.01, entropy_copies=2),
    ]
    method = make("deyo", "network_gn", settings, seeds=(1, 2))
    method.step(torch.cat([pixels, pixels]))
    report, certain = method.report, method.report.passed_entropy.sum(1)
    assert certain.min() > 0
    assert report.forwards.tolist() == [12 * 3 + 3 * int(certain[0]), 12 * 3 + int(certain[1])]
    for margin in (0.5, 1e-9):  # also where nothing passes
        method = make("eta", "network_gn", [eta(learning_rate=0.01, entropy_copies=2, entropy_margin=margin)])
        method.step(pixels)
        assert method.report.forwards.tolist() == [12 * 3]
