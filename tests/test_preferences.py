"""What a group makes of its rewards."""

import numpy as np

from coterie.preferences import Team, TeamSettings, Unchanged, UnchangedSettings
from small_worlds import experience


def test_unchanged_rewards_are_the_worlds_own():
    own = experience([[1, 2], [3, -4]])
    assert np.array_equal(Unchanged(UnchangedSettings()).rewards(own), own.reward)


def test_a_team_shares_the_mean_tick_by_tick():
    own = experience([[1, 2, 6], [3, -3, 0]])
    shared = Team(TeamSettings()).rewards(own)
    assert shared[:, 0].tolist() == [[3, 3, 3], [0, 0, 0]]
    assert shared.dtype == np.float32
    assert own.reward[:, 0].tolist() == [[1, 2, 6], [3, -3, 0]]  # what is stored stays
    shared += 1  # may be worked on
