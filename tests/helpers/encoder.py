"""A world with words, its codec, and models that embed: one that counts, one whose adapters have something to learn."""

import numpy as np
import torch
from torch import nn

from coterie.algorithms.ppo.ppo import PPO, PPOSettings
from coterie.core.types import AgentStep, AgentType, Box, Dict, Discrete, TimeStep, View
from coterie.lm.ask.interface import LanguageModel, Unsupported
from coterie.lm.ask.scripted import Scripted
from coterie.policies.network import NetworkPolicy, NetworkSettings
from coterie.policies.text_encoder import EncoderModel, TextSettings
from coterie.preferences.standard import Individual, IndividualSettings
from helpers.lm import Counting
from helpers.small_worlds import generator, spec_in

HASHES = Counting(Scripted(lambda prompt, random: "", identity="hashes", width=6))
WORDS = ("left", "right")
VECTOR = Box((3,), -1.0, 1.0)  # what there is to see, and the number of an instruction
PICTURE = Box((2, 3, 3), 0, 255, "uint8")
THINGS = Dict({"own": Box((2,), -1.0, 1.0), "at": Box((2, 2), -1.0, 1.0)}, (("at",),))


class Hall:
    """Agents see numbers, the last of which says what they are asked to do; one step is an episode of `length`."""

    simultaneous = True
    state_size = 0

    def __init__(self, observation=VECTOR, num_envs=4, agents=2, length=1):
        self.num_envs, self.length, self.space = num_envs, length, observation
        names = tuple(f"agent_{i}" for i in range(agents))
        self.agent_types = {"player": AgentType(names, observation, Discrete(2))}
        self.rows = (num_envs, agents)

    def look(self):
        self.asked = self.random.integers(2, size=self.rows)

        def one(space):
            if space.dtype == "uint8":
                return self.random.integers(256, size=(*self.rows, *space.shape)).astype(np.uint8)
            return self.random.choice([-0.5, 0.5], (*self.rows, *space.shape)).astype(np.float32)

        if isinstance(self.space, Dict):
            return {name: one(space) for name, space in self.space.entries.items()}
        seen = one(self.space)
        if seen.ndim == 3:
            seen[..., -1] = self.asked
        return seen

    def agent_step(self, reward, over):
        seen, ends = self.look(), np.full(self.rows, over)
        agent_step = AgentStep(seen, np.ones(self.rows, bool), reward, ends, np.zeros(self.rows, bool), seen)
        return TimeStep({"player": agent_step}, np.full(self.num_envs, over))

    def reset(self, seed):
        self.random, self.clock = np.random.default_rng(seed), 0
        return self.agent_step(np.zeros(self.rows, np.float32), False)

    def step(self, actions):
        self.clock += 1
        return self.agent_step((actions["player"] == self.asked).astype(np.float32), self.clock % self.length == 0)


class HallText:
    """Describes the instruction, and the number on the left in tenths."""

    prompt, choices, idle = "numbers", WORDS, None

    def __init__(self, world, agent_type):
        self.rows = 0  # described so far

    def describe(self, observation):
        first = next(iter(observation.values())) if isinstance(observation, dict) else observation
        self.rows += len(first)
        return [f"There is {float(np.ravel(row)[0]):.1f} to the left." for row in first]

    def actions(self, chosen):
        return chosen

    def samples(self):
        return []


class HallWords(HallText):
    """The same with instructions."""

    def __init__(self, world, agent_type):
        super().__init__(world, agent_type)
        space = world.agent_types[agent_type].observation
        self.space_without_instruction = Box((space.shape[0] - 1,), space.low, space.high)

    def instruct(self, observation):
        return [f"Go {WORDS[int(row[-1] > 0.5)]}." for row in observation]

    def without_instruction(self, observation):
        return observation[..., :-1]


class ByteReader(nn.Module):
    """Bytes as vectors, and a layer of zeros."""

    def __init__(self):
        super().__init__()
        self.read, self.out = nn.Embedding(256, 8), nn.Linear(8, 4)
        with torch.no_grad():
            self.read.weight.normal_(generator=torch.Generator().manual_seed(0))
            self.out.weight.zero_()
            self.out.bias.fill_(0.5)

    def get_output_embeddings(self):
        return None


class Blind(LanguageModel):
    """Averages bytes: every text has the same vector, until adapters let something through."""

    def __init__(self, model=None, tokenizer=None):
        self.model, self.tokenizer = model or ByteReader(), None

    identity = "blind"

    def vectors(self, prompts):
        mean = torch.stack([self.model.read(torch.tensor(list(text.encode()))).mean(0) for text in prompts])
        return nn.functional.normalize(self.model.out(mean), dim=-1)

    def embed(self, prompts):
        with torch.no_grad():
            return self.vectors(prompts).numpy()

    def complete(self, prompts, n=1, sampling=None, first=0):
        raise Unsupported("no")

    def scores(self, prompts, choices):
        raise Unsupported("no")


BLIND = Blind()


def text(model="HASHES", words=True, **settings):
    codec = f"helpers.encoder:{'HallWords' if words else 'HallText'}"
    return TextSettings(**{"lm": EncoderModel(f"helpers.encoder:{model}"), "codec": codec} | settings)


def policy(world=None, parameters="shared", network=None, **settings):
    """A network that reads in a hall."""
    where = spec_in(world or Hall(), parameters=parameters)
    return NetworkPolicy(NetworkSettings(**{"hidden": (16,)} | (network or {}), text=text(**settings)), where)


def learner(made, **settings):
    return PPO(PPOSettings(**settings), made, made.group_spec, Individual(IndividualSettings()))


def seen(rows, agents=2):
    """Observations of one tick `[N, A, 3]`."""
    return np.array(rows, np.float32).reshape(-1, agents, 3)


def view(observation, **fields):
    rows = observation.shape[:2]
    return View(observation, np.ones(rows, bool), np.arange(rows[1]), generator(), True, **fields)


def outputs(made, observation):
    """Outputs of the network, `[N, A, outputs]`."""
    return made.forward(made.pack(observation), view(observation))[0]


ROWS = seen([[0.5, 0.1, 0], [0.5, 0.2, 1], [0.5, 0.1, 0], [-0.5, 0.1, 1]])
