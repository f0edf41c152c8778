"""Risk-coverage curves and the area under them: how well a confidence score orders right before wrong.

Risk is the error rate among the samples kept, coverage the fraction of samples kept, when the most confident
come first (El-Yaniv and Wiener, 2010; AURC and E-AURC: Geifman, Uziel and El-Yaniv, 2019; methods.md §4).
Numbers are fractions in [0, 1]; the paper prints AURC in percent.
"""

from __future__ import annotations

import numpy as np


def confidence_order(confidence: np.ndarray) -> np.ndarray:
    """int64 [n]: sample indices from the most to the least confident.

    Ties keep the samples' order (stable), so a score with many equal values gives one answer, not one per
    sorting algorithm. NaN counts as the least confident.
    """
    score = np.where(np.isnan(confidence), -np.inf, confidence)
    return np.argsort(-score, kind="stable")


def risk_coverage(confidence: np.ndarray, correct: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coverage k/n and risk (error rate of the k most confident samples), k = 1..n; float64 [n] each.

    ``confidence`` float [n], ``correct`` bool [n]. Raises ``ValueError`` if the lengths differ.
    """
    if len(confidence) != len(correct):
        raise ValueError(f"{len(confidence)} confidences for {len(correct)} samples: one of each is needed")
    errors = ~np.asarray(correct, dtype=bool)[confidence_order(np.asarray(confidence))]
    kept = np.arange(1, len(errors) + 1)
    return kept / max(len(errors), 1), np.cumsum(errors) / kept


def aurc(confidence: np.ndarray, correct: np.ndarray) -> float:
    """Area under the risk-coverage curve: the mean of risk(k) over k = 1..n. NaN for no samples."""
    risk = risk_coverage(confidence, correct)[1]
    return float(risk.mean()) if len(risk) else float("nan")


def optimal_aurc(correct: np.ndarray) -> float:
    """AURC of a perfect score (every right sample before every wrong one). NaN for no samples."""
    correct = np.asarray(correct, dtype=bool)
    return aurc(correct.astype(np.float64), correct)


def excess_aurc(confidence: np.ndarray, correct: np.ndarray) -> float:
    """E-AURC: AURC less that of a perfect score at the same accuracy; 0 is perfect, whatever the accuracy."""
    return aurc(confidence, correct) - optimal_aurc(correct)
