"""Studies of runs whose players search: eval, match and exploit with other numbers of simulations, and reports."""

import json

import numpy as np
import pytest

from coterie.config import schema
from coterie.core.types import CoterieError
from coterie.policies.search.policy import SearchPolicy
from coterie.runs.run import Run
from coterie.studies.exploit import deviations, exploit
from coterie.studies.exploit.deviations import ExploitSpec, player_policy
from coterie.studies.exploit.results import read_result
from coterie.studies.match.match import cross_play, open_players
from coterie.studies.report import curves
from coterie.training import table
from helpers.run import train, written

TICTACTOE = """\
world: {name: tictactoe}
groups:
  players:
    agents: "player_*"
    policy: {name: search, simulations: 2, network: {kind: mlp, hidden: [16]}}
    learner: {name: alphazero, batch_size: 32, updates_per_step: 0.1, replay: {size: 2000, learning_starts: 100},
              elo: {every: 4, games: 4, opponents: 2, simulations: 2}}
train: {num_envs: 16, rollout_steps: 10, total_steps: 1600, evaluate_episodes: 4, video: false, tensorboard: false}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A search player that has hardly learned anything and looks at two positions per move."""
    base = tmp_path_factory.mktemp("search")
    return train(base / "run", experiment=written(base / "tictactoe.yaml", TICTACTOE))


def record_calls(monkeypatch, name):
    """The settings of the search policies whose method is called."""
    calls, real = [], getattr(SearchPolicy, name)

    def counted(self, *arguments):
        calls.append(self.settings)
        return real(self, *arguments)

    monkeypatch.setattr(SearchPolicy, name, counted)
    return calls


# Strength over time -----------------------------------------------------------------------------------


def test_reports_draw_the_ratings_against_past_selves(run):
    (chart,) = [one for one in curves.charts([run]) if one.title == "strength against past selves"]
    (line,) = chart.series
    rated = [(record["env_steps"], record["players/elo"]) for record in run.metrics() if "players/elo" in record]
    assert [steps for steps, _ in rated] == [640, 1280]
    assert list(zip(line.x, line.estimate.value, strict=True)) == rated


@pytest.mark.parametrize("name", ["tictactoe-alphazero", "connect-four-alphazero", "othello6-alphazero"])
def test_shipped_search_players_are_rated_many_times(name):
    """Returns of self-play say nothing about strength."""
    config = schema.load(name)
    elo = config.groups["players"].learner.settings.elo
    assert elo is not None
    assert config.train.total_steps / config.train.iteration_steps / elo.every >= 10


# Settings of play ---------------------------------------------------------------------------------------


def test_eval_plays_the_network_alone(coterie_, run, monkeypatch):
    searches, moves = record_calls(monkeypatch, "_trees_of"), record_calls(monkeypatch, "_play_network")
    code, out, _ = coterie_("eval", run.path, "groups.players.policy.play=network", "--episodes", 4, "--json")
    assert code == 0
    assert json.loads(out)["players"]["players"].startswith("checkpoint best (1,600 steps)")  # with its weights
    assert len(moves) >= 5
    assert not searches


def test_eval_searches_with_another_number_of_simulations(coterie_, run, monkeypatch):
    searches = record_calls(monkeypatch, "_trees_of")
    code, _, _ = coterie_("eval", run.path, "groups.players.policy.simulations=30", "--episodes", 4)
    assert code == 0
    assert {settings.simulations for settings in searches} == {30}
    deeper = table.load(run.path, "last", ["groups.players.policy.simulations=30"])
    saved = run.load_checkpoint("last")["policies"]["players"]["net"]
    np.testing.assert_equal(deeper.groups[0].policy.state()["net"], saved)


def test_another_network_does_not_fit_the_weights(coterie_, run):
    code, _, err = coterie_("eval", run.path, "groups.players.policy.network.hidden=[8]", "--episodes", 4)
    assert code == 1
    assert "group 'players'" in err


@pytest.mark.slow
def test_a_run_meets_itself_with_more_simulations(run):
    names = [str(run.path), f"{run.path}:simulations=100", f"{run.path}:play=network", "random"]
    players = open_players(names, "best")
    settings = [player.table.groups[0].policy.settings for player in players[:3]]
    assert [(one.simulations, one.play) for one in settings] == [(2, "search"), (100, "search"), (2, "network")]
    matrix = cross_play(players, players[0].table.config, 20, 0)
    against_random = [matrix[i][3].first.mean() for i in range(3)]
    assert against_random[1] > max(0.7, against_random[0], against_random[2])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("simulatons=3", "groups.players.policy.simulatons: no such setting; did you mean 'simulations'?"),
        ("simulations=0", "simulations must be at least 1, got 0"),
        ("3", "expected key=value"),
    ],
)
def test_wrong_settings_of_a_run_are_refused(run, words, said):
    with pytest.raises(schema.ConfigError) as error:
        open_players([f"{run.path}:{words}"], "best")
    assert said in str(error.value)


def test_a_directory_that_is_no_run_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("")  # the working directory is not meant by ':simulations=3'
    for name in ("nowhere:simulations=3", ":simulations=3"):
        with pytest.raises(CoterieError, match="neither a run nor a policy"):
            open_players([name], "best")


# A deeper search as a response --------------------------------------------------------------------------


@pytest.mark.slow
def test_a_deeper_search_exploits_a_shallow_one(run, coterie_):
    """Two simulations lose to a hundred with the same network; nobody is trained."""
    arguments = ["--by", f"{run.path}:simulations=100", "--stochastic", "--episodes", 48, "--deviator", "each"]
    code, out, _ = coterie_("exploit", run.path, *arguments, "--json")
    assert code == 0
    found = json.loads(out)
    assert [one["name"] for one in found["responses"]] == ["players-player_0", "players-player_1"]
    for one in found["responses"]:
        assert one["gain"]["mean"] > 0.3
        assert one["responder"]["learner"] == "none"
        assert one["who"] == f"{run.path}:simulations=100"
    assert [file.name for file in run.exploit_file.parent.iterdir()] == ["exploit.json"]
    stored = read_result(run)
    assert stored is not None
    assert stored.to_dict() == found


def test_a_policy_by_name_may_deviate(run, tmp_path, coterie_):
    code, out, _ = coterie_(
        "exploit", run.path, "--by", "search:simulations=300", "--stochastic", "--episodes", 24, "--out", tmp_path
    )
    assert code == 0
    assert "search:simulations=300" in out
    assert "players: not trained, search:simulations=300" in out


def test_the_original_and_the_player_sit_in_the_deviators_seat(run):
    at = exploit.open_run(run.path, ExploitSpec())
    spec = ExploitSpec(by=f"{run.path}:simulations=9", deviator="each")
    second = deviations.deviations(at, spec)[1]
    config = deviations.responder_config(at, second, spec, [])
    own, rest = config.groups["responder"], config.groups["players-rest"]
    assert (own.agents, rest.agents, own.learner) == (("player_1",), ("player_0",), None)
    assert own.policy.settings.overrides == ("groups.players.policy.simulations=9",)
    assert rest.policy.settings.overrides == ()
    assert own.policy.settings.checkpoint == str(at.step)
    before = deviations.player_policy(at, "players", f"{run.path}:simulations=9,checkpoint=0", "best")
    assert (before["checkpoint"], before["overrides"]) == ("0", ("groups.players.policy.simulations=9",))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--by", "ppo"], "--by: 'ppo' is neither a run nor a policy that needs no training"),
        (["--by", "search:simulations=0"], "simulations must be at least 1, got 0"),
        (["--by", "random", "--steps", "64"], "--steps: has no effect with --by"),
        (["--by", "random", "--learner", "ppo"], "--learner: has no effect with --by"),
        (["train.num_envs=8", "--by", "random"], "train.num_envs=8: has no effect with --by"),
    ],
)
def test_what_cannot_deviate_is_refused(coterie_, run, words, said):
    code, _, err = coterie_("exploit", run.path, *words)
    assert code == 2
    assert said in err
    assert len(err.splitlines()) == 1


def test_another_run_deviates_from_its_own_checkpoint(run):
    at = exploit.open_run(run.path, ExploitSpec())
    assert player_policy(at, "players", str(run.path), "last")["checkpoint"] == str(at.step)
    other = Run.create(run.path.parent / "other", run.config())
    assert player_policy(at, "players", str(other.path), "last")["checkpoint"] == "last"
