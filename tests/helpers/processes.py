"""Processes that start in a moment: forked from one that has imported everything, which takes seconds."""

import multiprocessing

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(
    [
        *("coterie.training.table", "coterie.training.jobs", "coterie.training.workers"),
        *(
            "coterie.studies.report.report",
            "coterie.algorithms.ppo.ppo",
            "coterie.policies.network",
            "coterie.studies.tune.tune",
        ),
        *("coterie.worlds.gridworld", "coterie.worlds.boards.tictactoe", "helpers.run", "scipy.linalg"),
        "helpers.without_pictures",
    ]
)
