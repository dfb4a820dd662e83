"""Which runs are worth measuring first."""

from __future__ import annotations

import numpy as np

from calibrate.refit_cluster import most_telling


def test_the_run_that_depends_most_on_what_is_uncertain_comes_first_and_none_comes_twice() -> None:
    slope = np.array([[0.1, 0.0], [0.3, 0.0], [0.0, 0.2], [0.29, 0.0]])
    assert most_telling(slope, 2) == [1, 2]  # the fourth row says what the second one has said
    assert sorted(most_telling(slope, 9)) == [0, 1, 2, 3]


def test_runs_that_no_constant_moves_are_taken_in_their_order() -> None:
    assert most_telling(np.zeros((3, 2)), 2) == [0, 1]
