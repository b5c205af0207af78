"""The literal name tables: what a config may name, and where each class lives.

Every entry is `module:Class`, imported on first use. A user names classes of their own in the same form. A
class takes its settings, a frozen dataclass, as the first parameter of its constructor.
"""

from __future__ import annotations

WORLDS = {
    "gridworld": "coterie.worlds.gridworld.world:Gridworld",
    "tictactoe": "coterie.worlds.boards.tictactoe:Tictactoe",
    "connect_four": "coterie.worlds.boards.connect_four:ConnectFour",
    "othello": "coterie.worlds.boards.othello:Othello",
    "spread": "coterie.worlds.mpe.world:Spread",
    "tag": "coterie.worlds.mpe.world:Tag",
    "doorkey": "coterie.worlds.doorkey.world:DoorKey",
    "auction": "coterie.worlds.auction.world:Auction",
    "plan_path": "coterie.worlds.tasks.plan_path:PlanPath",
    "math": "coterie.worlds.tasks.mathematics.task:Mathematics",
    "code": "coterie.worlds.tasks.code.task:CodeProblems",
    "sokoban": "coterie.worlds.tasks.sokoban:Sokoban",
    "sudoku": "coterie.worlds.tasks.sudoku:Sudoku",
    "gymnasium/": "coterie.worlds.adapters.gymnasium:GymnasiumWorld",
    "minigrid/": "coterie.worlds.adapters.minigrid:MinigridWorld",
    "pettingzoo/": "coterie.worlds.adapters.pettingzoo:PettingZooWorld",
    "mpe/": "coterie.worlds.adapters.pettingzoo:MPEWorld",
    "openspiel/": "coterie.worlds.adapters.openspiel:OpenSpielWorld",
}
POLICIES = {
    "network": "coterie.policies.network:NetworkPolicy",
    "q_network": "coterie.policies.q_network:QNetworkPolicy",
    "deterministic": "coterie.policies.deterministic:DeterministicPolicy",
    "gaussian": "coterie.policies.gaussian:GaussianPolicy",
    "ensemble": "coterie.policies.ensemble:EnsemblePolicy",
    "random": "coterie.policies.scripted:RandomPolicy",
    "expert": "coterie.policies.scripted:ExpertPolicy",
    "guess": "coterie.policies.scripted:GuessPolicy",
    "minimax": "coterie.policies.alphabeta:MinimaxPolicy",
    "alphabeta": "coterie.policies.alphabeta:AlphabetaPolicy",
    "language": "coterie.policies.language:LanguagePolicy",
    "writer": "coterie.policies.writer:WriterPolicy",
    "planner": "coterie.policies.planner:PlannerPolicy",
    "person": "coterie.policies.person:PersonPolicy",
    "lora": "coterie.policies.lora:LoraPolicy",
    "search": "coterie.policies.search.policy:SearchPolicy",
    "causal_lm": "coterie.policies.causal_lm.policy:CausalLMPolicy",
}
SCRIPTED = ("random", "expert", "guess")  # policies that follow a rule
UNTRAINED = (
    *SCRIPTED,
    "minimax",
    "alphabeta",
    "search",
    "language",
    "writer",
    "planner",
    "person",
)  # policies that play without having been trained
LEARNERS = {
    "ppo": "coterie.algorithms.ppo.ppo:PPO",
    "dqn": "coterie.algorithms.dqn.dqn:DQN",
    "maddpg": "coterie.algorithms.maddpg.maddpg:MADDPG",
    "sac": "coterie.algorithms.sac.sac:SAC",
    "alphazero": "coterie.algorithms.alphazero.alphazero:AlphaZero",
    "bc": "coterie.algorithms.imitation.bc:BC",
    "dagger": "coterie.algorithms.imitation.dagger:DAgger",
    "at_grpo": "coterie.algorithms.at_grpo.at_grpo:ATGRPO",
    "sft": "coterie.algorithms.imitation.sft:SFT",
}
ADVISORS = {
    "language": "coterie.advice.advisor:LanguageAdvisor",
    "expert": "coterie.advice.advisor:ExpertAdvisor",
    "policy": "coterie.advice.advisor:PolicyAdvisor",
    "teacher": "coterie.advice.teacher:TeacherAdvisor",
}
SHIELDS = {
    "language": "coterie.advice.constraints:LanguageShield",
}
PREFERENCES = {
    "individual": "coterie.preferences.standard:Individual",
    "team": "coterie.preferences.standard:Team",
    "cpt": "coterie.preferences.standard:CPT",
    "cvar": "coterie.preferences.standard:CVaR",
    "mean_variance": "coterie.preferences.standard:MeanVariance",
    "reward_model": "coterie.preferences.reward_model:RewardModelPreference",
    "potential_shaping": "coterie.advice.shaping:PotentialShaping",
    "pairwise_lm": "coterie.advice.bonus:PairwiseBonus",
    "instruction_lm": "coterie.advice.bonus:InstructionBonus",
}
