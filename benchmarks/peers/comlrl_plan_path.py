"""MAGRPO of the package `comlrl` on Plan-Path 4x4, beside `benchmarks/teams.py`. Prints one JSON line.

    python benchmarks/peers/comlrl_plan_path.py --start runs/teams/warm-team-0 --tokens 500000 --seed 0

The instances, rules, prompts, the model and the weights it starts from are those of our own arms, one model per role.
What differs, because it cannot be said otherwise there:

- The agents of a turn answer at the same time: the planner reads the tool's proposal of the turn before.
- One reward for the whole team: the sum of what we pay to the tool and to the planner.
- All answers are followed into the next turn, so that a tree of K answers and T turns has K + K^2 + … + K^T joint
  answers; eight turns are out of reach, and two are played.
- One instance at a time.

SIGTERM ends the training early and scores what it has reached.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from comlrl.trainers.reinforce import MAGRPOConfig, MAGRPOTrainer
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from coterie.core import seeding
from coterie.lm.learn.tokenizers import CHARACTERS, FIRST
from coterie.runs.checkpoint import load
from coterie.worlds.tasks.plan_path import PathState, PlanPath, PlanPathSettings
from coterie.worlds.tasks.world import AGENT_TYPE, draw_instance

PROMPTS = {"tool": "T\n{grid}\n{blocked}>", "planner": "P\n{grid}\n{path}\n{blocked}>"}
ROLES = tuple(PROMPTS)
EPISODES = 200


class BudgetSpent(Exception):
    """So many tokens were sampled."""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character, with the ids of our own models."""
    words = {"<end>": 0, "<unknown>": 1} | {letter: FIRST + i for i, letter in enumerate(CHARACTERS)}
    made = Tokenizer(models.WordLevel(words, unk_token="<unknown>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    made.decoder = decoders.Fuse()
    special = {"eos_token": "<end>", "pad_token": "<end>", "unk_token": "<unknown>"}
    return PreTrainedTokenizerFast(tokenizer_object=made, padding_side="left", **special)


def make_model(weights: dict[str, Any], context: int = 96) -> LlamaForCausalLM:
    """Our transformer, layer by layer, as one of Hugging Face."""
    vocabulary, width = weights["embedding"].shape
    layers = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("layers."))
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    sizes = {"hidden_size": width, "intermediate_size": weights["layers.0.down.weight"].shape[1]}
    config = LlamaConfig(
        vocab_size=vocabulary,
        num_hidden_layers=layers,
        max_position_embeddings=context,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=0,
        bos_token_id=None,
        **heads,
        **sizes,
    )
    model = LlamaForCausalLM(config)
    named = {"model.embed_tokens.weight": weights["embedding"], "model.norm.weight": weights["norm"]}
    for layer in range(layers):
        here, there = f"layers.{layer}", f"model.layers.{layer}"
        query, key, value = weights[f"{here}.query_key_value.weight"].reshape(3, width, width)
        gate, up = weights[f"{here}.gate_up.weight"].reshape(2, -1, width)
        named |= {
            f"{there}.input_layernorm.weight": weights[f"{here}.attention_norm"],
            f"{there}.post_attention_layernorm.weight": weights[f"{here}.feed_norm"],
            f"{there}.self_attn.q_proj.weight": query,
            f"{there}.self_attn.k_proj.weight": key,
            f"{there}.self_attn.v_proj.weight": value,
            f"{there}.self_attn.o_proj.weight": weights[f"{here}.output.weight"],
            f"{there}.mlp.gate_proj.weight": gate,
            f"{there}.mlp.up_proj.weight": up,
            f"{there}.mlp.down_proj.weight": weights[f"{here}.down.weight"],
        }
    tensors = {name: torch.from_numpy(array.copy()) for name, array in named.items()}
    missing = model.load_state_dict(tensors, strict=False)
    assert set(missing.missing_keys) <= {"lm_head.weight"}, missing  # it is tied to the embeddings
    assert not missing.unexpected_keys, missing
    model.tie_weights()
    return model


class Team:
    """The task in the peer's terms: prompts, a joint reward and a transition, on the branch that is being followed."""

    def __init__(self, settings: PlanPathSettings, budget: int) -> None:
        self.world = PlanPath(settings, 1)
        self.task, self.budget, self.tokens = self.world.task, budget, 0
        self.state: PathState | None = None  # where the present answers are given

    def prompt(self, role: str) -> str:
        return PROMPTS[role].format_map(self.task.fields(self.state, role))

    def formatter(self, role: str) -> Any:
        def formatted(item: dict[str, Any], external_prompts: str | None = None) -> str:
            if external_prompts is not None:
                return external_prompts
            self.state = PathState(**json.loads(item["state"]))  # the root of a tree
            return self.prompt(role)

        return formatted

    def reward(self, proposals: list[str], moves: list[str]) -> list[float]:
        """What we pay to both roles, in one number."""
        self.tokens += sum(len(text) + 1 for text in (*proposals, *moves))
        if self.tokens > self.budget:
            raise BudgetSpent
        found = []
        for proposal, answer in zip(proposals, moves, strict=True):
            if self.state.at == self.state.goal:  # solved on an earlier turn of this branch
                found.append(0.0)
                continue
            outcomes = [self.task.apply(self.state, *said) for said in (("tool", proposal), ("planner", answer))]
            found.append(sum(self.world.reward(outcome) for outcome in outcomes))
        return found

    def transition(self, prompt: str, agent_completions: list[str], response_history_per_agent: Any, **_: Any) -> Any:
        """Follow a branch from its root; returns the roles' next prompts."""
        self.state = PathState(**json.loads(prompt))
        for proposal, answer in zip(*response_history_per_agent, strict=True):
            proposed = self.task.apply(self.state, "tool", proposal).state.proposal
            moved = self.task.apply(self.state, "planner", answer).state
            self.state = replace(moved, proposal=proposed)
        return [self.prompt(role) for role in ROLES]


@torch.no_grad()
def score(agents: list[LlamaForCausalLM], tokenizer: Any, settings: PlanPathSettings, longest: int) -> float:
    """Greedy success on the instances that score our own runs, by the rules of our world: tool, then planner."""
    world = PlanPath(settings.for_evaluation(), EPISODES)
    world.number_episodes()
    step = world.reset(seeding.integer(seeding.integer(0, "evaluate"), "world", 0)).agent_types[AGENT_TYPE]
    solved, going = torch.zeros(EPISODES, dtype=torch.bool), torch.ones(EPISODES, dtype=torch.bool)
    while bool(going.any()):
        texts = step.observation.copy()
        for column, agent in enumerate(agents):
            rows = [n for n in range(EPISODES) if step.acting[n, column]]
            if rows:
                read = tokenizer([step.observation[n, column] for n in rows], padding=True, return_tensors="pt")
                said = agent.eval().generate(
                    input_ids=read.input_ids,
                    attention_mask=read.attention_mask,
                    do_sample=False,
                    max_new_tokens=longest,
                )
                written = tokenizer.batch_decode(said[:, read.input_ids.shape[1] :], skip_special_tokens=True)
                for n, text in zip(rows, written, strict=True):
                    texts[n, column] = text
        timestep = world.step({AGENT_TYPE: texts})
        step = timestep.agent_types[AGENT_TYPE]
        ended = torch.from_numpy(timestep.ended.copy())
        solved |= going & ended & torch.from_numpy(timestep.success.copy())
        going &= ~ended
    return float(solved.float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", type=Path, required=True, help="the warm start, a run of coterie clone")
    parser.add_argument("--tokens", type=int, default=500_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--generations", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=2)
    parser.add_argument("--invalid-reward", type=float, default=-0.1)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    settings = PlanPathSettings(size=4, max_moves=2, turns=8, prompts=PROMPTS, invalid_reward=options.invalid_reward)
    saved = load(max(options.start.glob("checkpoints/best-*")))["policies"]["team"]["networks"][0]
    tokenizer, agents = make_tokenizer(), [make_model(saved) for _ in ROLES]
    team = Team(settings, options.tokens)
    signal.signal(signal.SIGTERM, lambda *_: setattr(team, "budget", 0))
    keys = ((options.seed, n) for n in range(options.tokens // 50))
    states = [json.dumps(asdict(draw_instance(team.task, "train", key))) for key in keys]
    trainer = MAGRPOTrainer(
        agents=agents,
        num_agents=len(ROLES),
        tokenizer=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": state, "state": state} for state in states]),
        reward_func=team.reward,
        formatters=[team.formatter(role) for role in ROLES],
        external_transition=team.transition,
        args=MAGRPOConfig(
            num_train_epochs=1,
            agent_learning_rate=options.learning_rate,
            num_agents=len(ROLES),
            num_generations=options.generations,
            max_new_tokens=options.max_tokens,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            num_turns=options.turns,
            early_termination_threshold=None,
            external_prompt_passthrough=True,
            eval_interval=0,
            rollout_buffer_size=16,
            train_batch_size=16,
            agent_devices="cpu",
        ),
    )
    trainer.verbose = False
    before, began = score(agents, tokenizer, settings, options.max_tokens), time.perf_counter()
    with contextlib.suppress(BudgetSpent):
        trainer.train()
    seconds = time.perf_counter() - began
    found = {
        "peer": "comlrl MAGRPO",
        "seed": options.seed,
        "tokens": team.tokens,
        "seconds": round(seconds, 1),
        "step_0": before,
        "success": score(agents, tokenizer, settings, options.max_tokens),
        "settings": {name: value for name, value in vars(options).items() if name != "start"},
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
