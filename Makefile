# Two commands on a fresh machine: make demo, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# compiled test files are kept: to rewrite their assertions anew takes every worker some ten seconds
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal
EXTRAS := worlds,openspiel,minari,window,tensorboard,wandb,mlflow,onnx,video,charts,web,tune,ray,lm,server,bench,docs,dev

.PHONY: $(shell sed -nE 's/^([a-z-]+):.*/\1/p' $(firstword $(MAKEFILE_LIST)))  # every target that is not a file

help: ## show these lines
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 17

install: $(STAMP) ## create .venv and install everything, once (2.8 GB on disk; more where pip picks PyTorch with CUDA)

install-core: $(VENV)/.core ## the same without extras: no third-party worlds, language models, tests (1.5 GB on disk)

$(VENV)/.core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.11 …"; exit 1; }
	@echo "installing Coterie without extras: about 1.5 GB in $(VENV), half of it PyTorch"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt "torch==2.13.0"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	@touch $@

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.11 …"; exit 1; }
	@echo "installing Coterie with all extras: 2.8 GB in $(VENV) (make install-core: 1.5 GB); a few minutes"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt "torch==2.13.0"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[$(EXTRAS)]"
	@touch $@

sync: ## bring .venv to exactly the pinned versions again
	rm -f $(STAMP)
	$(MAKE) install

demo: $(STAMP) ## train two agents on a grid (video, report), then seat a language model beside them
	@run=runs/demo/$$(date +%Y%m%d-%H%M%S)/learned && $(BIN)/coterie train gridworld-cooperative --out $$run && \
	printf '\nEvery pair of players in one team: the agent that has just learned, the\nembedded language model, which reads what it sees as text, and random play.\n\n' && \
	$(BIN)/coterie match $$run language random --episodes 20

lm: $(STAMP) ## fetch the embedded language model and the sentence encoder, once (177 MB to download, 0.7 GB on disk)
	@echo "fetching two models: 177 MB to download, 0.7 GB on disk; kept, see 'coterie doctor'"
	$(BIN)/python -m coterie.lm.ask.embedded
	$(BIN)/python -m coterie.lm.ask.minilm

test: $(STAMP) ## run all tests on all cores
	$(PYTEST)

test-fast: $(STAMP) ## run the tests that take seconds and need no language model's weights
	$(PYTEST) -m "not slow and not lm"

coverage: $(STAMP) ## run all tests (a third slower), then print how much of each package they run
	$(PYTEST) --cov --cov-report=
	$(BIN)/python tests/helpers/coverage_by_package.py

check: $(STAMP) ## formatter, linter and type checker, changing nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(STAMP) ## build the documentation into site/ (open site/index.html); any warning is an error
	$(BIN)/python docs/tools/tables.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html"

notebook: $(STAMP) ## run the notebooks of the documentation again and keep their outputs (a few minutes, needs `make lm`)
	$(BIN)/python docs/tools/notebook.py

format: $(STAMP) ## format the code and fix what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

pre-commit: $(STAMP) ## run the checks before every commit from now on
	$(BIN)/pre-commit install

bench-grid: $(STAMP) ## grid world: stepping and learning speed on one core
	$(BIN)/python benchmarks/grid_stepping.py
	$(BIN)/python benchmarks/grid_learning.py

bench-ppo: $(STAMP) ## PPO against Stable-Baselines3 and a plain loop, interleaved (about 8 minutes)
	$(BIN)/python benchmarks/ppo.py

bench-pixels: $(STAMP) ## PPO on 84×84×4 pixels against Stable-Baselines3's CnnPolicy, speed and memory (about 3 minutes)
	$(BIN)/python benchmarks/pixels.py

bench-dqn: $(STAMP) .venv-tianshou/.installed ## DQN against Stable-Baselines3 and a plain loop, replay against Tianshou (about 5 minutes)
	$(BIN)/python benchmarks/dqn.py
	$(BIN)/python benchmarks/replay_sampling.py --tianshou .venv-tianshou/bin/python

bench-sac: $(STAMP) ## SAC against Stable-Baselines3, speed and scores (about 16 minutes)
	$(BIN)/python benchmarks/sac.py --out docs/results/bench-sac.json

bench-pbt: $(STAMP) .venv-agilerl/.installed ## population-based training against plain Optuna and AgileRL at equal steps, five studies each (about 25 minutes)
	$(BIN)/python benchmarks/pbt.py --agilerl .venv-agilerl/bin/python --out docs/results/bench-pbt.json

bench-mpe: $(STAMP) ## native simple_spread against mpe2, stepping
	$(BIN)/python benchmarks/mpe_stepping.py

bench-teacher: $(STAMP) ## PPO with a cached teacher against a plain loop over one environment (about 2 minutes)
	$(BIN)/python benchmarks/teacher_speed.py --out docs/results/bench-teacher.json

teacher-study: $(STAMP) ## students of a teacher against PPO alone, five seeds each, into docs/results (about two hours)
	$(BIN)/python benchmarks/teacher.py --jobs 2

bench-doorkey: $(STAMP) ## native door-key tasks against MiniGrid, stepping, and frames per second with PPO
	$(BIN)/python benchmarks/doorkey.py --out docs/results/bench-doorkey.json

expert-study: $(STAMP) ## what demonstrations save on DoorKey 5x5 and 8x8, five seeds each, into docs/results (about an hour)
	$(BIN)/python benchmarks/expert.py --size 5
	$(BIN)/python benchmarks/expert.py --size 8 --steps 300000 --after 16384 --arms lm-20 scratch-tuned

dagger-study: $(STAMP) .venv-imitation/.installed ## labels that DAgger and cloning need, against `imitation`, five seeds each, into docs/results
	$(BIN)/python benchmarks/dagger.py --imitation .venv-imitation/bin/python

bench-comlrl: .venv-comlrl/.installed ## MAGRPO of CoMLRL on Plan-Path 4x4, from the warm start of `make teams-study` (about 10 minutes)
	PYTHONPATH=src .venv-comlrl/bin/python benchmarks/peers/comlrl_plan_path.py --start runs/teams/warm-team-2 --seed 2 --tokens 300000

bench-teams: $(STAMP) ## teams on one GPU: rollout and update speed against Hugging Face (about 5 minutes, needs CUDA)
	$(BIN)/python benchmarks/gpu_teams.py --out docs/results/bench-teams.json

teams-gpu-study: $(STAMP) ## teams of SmolLM2 on one GPU: all tasks and arms, into docs/results (an hour, needs CUDA)
	for study in plan-path-5 plan-path-10 sudoku-4 sokoban-1 math; do \
	  $(BIN)/python benchmarks/gpu_teams_study.py $$study --jobs 3 --out docs/results/teams-gpu.json || exit 1; done

task-baselines: $(STAMP) ## random characters, guesses and the scripted solver in every text task, into docs/results (about a minute)
	$(BIN)/python benchmarks/task_baselines.py --out docs/results/task-baselines.json

bench-code: $(STAMP) ## answers per second of the code task, one sandbox for all tests of a program or one each (about a minute)
	$(BIN)/python benchmarks/code_task.py --out docs/results/bench-code-task.json

teams-study: $(STAMP) ## teams of tiny language models: AT-GRPO, plain GRPO, a single agent, three seeds, into docs/results (an hour)
	$(BIN)/python benchmarks/teams.py --tokens 2000000 --jobs 2

auction-study: $(STAMP) ## risk-neutral bidders and prospect theorists, five seeds each, into docs/results
	$(BIN)/python benchmarks/auction_study.py

bench-auction: $(STAMP) ## auctions: bids per second on one core
	$(BIN)/python benchmarks/auction_stepping.py

bench-sandbox: $(STAMP) ## programs per second in the sandbox, against a plain interpreter (about a minute)
	$(BIN)/python benchmarks/sandbox.py --out docs/results/bench-sandbox.json

bench-lm: $(STAMP) ## language models: scored choices, completion tokens and cached answers per second (about 2 minutes)
	$(BIN)/python benchmarks/lm.py

peers: .venv-rllib/.installed .venv-benchmarl/.installed .venv-tianshou/.installed ## environments for RLlib, BenchMARL and Tianshou, one each

.venv-rllib/.installed:
	$(PYTHON) -m venv .venv-rllib
	.venv-rllib/bin/python -m pip install --quiet torch==2.13.0
	.venv-rllib/bin/python -m pip install --quiet torch==2.13.0 "ray[rllib]==2.60.0" mpe2==1.1.1 pettingzoo==1.27.0 numba==0.68.1 scipy==1.17.1
	@touch $@

.venv-benchmarl/.installed:
	$(PYTHON) -m venv .venv-benchmarl
	.venv-benchmarl/bin/python -m pip install --quiet torch==2.13.0
	.venv-benchmarl/bin/python -m pip install --quiet torch==2.13.0 benchmarl==1.5.2 torchrl==0.11.1 pettingzoo==1.25.0 mpe2==1.1.1 pygame-ce
	@touch $@

.venv-tianshou/.installed:
	$(PYTHON) -m venv .venv-tianshou
	.venv-tianshou/bin/python -m pip install --quiet torch==2.13.0
	.venv-tianshou/bin/python -m pip install --quiet torch==2.13.0 tianshou==2.0.1
	@touch $@

.venv-mctx/.installed:
	$(PYTHON) -m venv .venv-mctx
	.venv-mctx/bin/python -m pip install --quiet jax==0.10.2 mctx==0.0.71 numpy==2.4.6
	@touch $@

.venv-agilerl/.installed:
	$(PYTHON) -m venv .venv-agilerl
	.venv-agilerl/bin/python -m pip install --quiet torch==2.13.0
	.venv-agilerl/bin/python -m pip install --quiet torch==2.13.0 agilerl==2.58.0 peft==0.21.2 box2d==2.3.10
	@touch $@

.venv-comlrl/.installed:
	$(PYTHON) -m venv .venv-comlrl
	.venv-comlrl/bin/python -m pip install --quiet torch==2.13.0
	.venv-comlrl/bin/python -m pip install --quiet torch==2.13.0 comlrl==1.4.3 numba==0.68.1
	@touch $@

.venv-imitation/.installed:
	$(PYTHON) -m venv .venv-imitation
	.venv-imitation/bin/python -m pip install --quiet torch==2.13.0
	.venv-imitation/bin/python -m pip install --quiet torch==2.13.0 imitation==1.0.1 numba==0.68.1
	@touch $@

bench-spread: $(STAMP) .venv-rllib/.installed .venv-benchmarl/.installed ## simple_spread with learning against RLlib and BenchMARL (about 15 minutes)
	$(BIN)/python benchmarks/spread.py --rllib .venv-rllib/bin/python --benchmarl .venv-benchmarl/bin/python --out docs/results/bench-spread.json

bench-maddpg: $(STAMP) .venv-benchmarl/.installed ## MADDPG on simple_spread against BenchMARL, speed and scores (about 10 minutes)
	$(BIN)/python benchmarks/maddpg.py --benchmarl .venv-benchmarl/bin/python --steps 100000 --episodes 1024 --out docs/results/bench-maddpg.json

bench-search: $(STAMP) .venv-mctx/.installed ## tree search against OpenSpiel, mctx and a plain tree (about 6 minutes)
	$(BIN)/python benchmarks/search.py --mctx .venv-mctx/bin/python --out docs/results/bench-search.json

learning: $(STAMP) ## every experiment over five seeds, scores and curves into docs/results (about two hours)
	$(BIN)/python benchmarks/learning.py

pictures: $(STAMP) ## draw the pictures of docs/results again from their numbers, without training (a minute)
	$(BIN)/python benchmarks/pictures.py

ablations: $(STAMP) ## what each improvement of DQN brings, five seeds each (about two hours)
	$(BIN)/python benchmarks/ablations.py

worlds: $(STAMP) ## third-party environments: check, short training, comparison with a bare loop (about 12 minutes)
	$(BIN)/python benchmarks/worlds.py
	$(BIN)/python docs/tools/tables.py

same-numbers: $(STAMP) ## train every experiment briefly at BASE=COMMIT and as it is now; numbers must be equal (ONLY="…")
	$(BIN)/python benchmarks/same_numbers.py --base $(BASE) $(if $(ONLY),--only $(ONLY)) $(if $(SETTINGS),--settings)

clean: ## remove caches, not runs
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
