# Every target installs what it needs into .venv the first time. `make help` lists them.
#
#   CLUSTER=frontier      a file in conf/cluster/: submit to Slurm at full size
#   DRY_RUN=1             show what the same target does (with CLUSTER=, the sbatch text); start and submit nothing
#   search=bayes          a file in conf/search/; so too budget=, controller=, launcher= and trainer=
#   OVERRIDES="a=b c=d"   further Hydra overrides
#   OPTIONS="--here"      further options of the command
#   TORCH=site            use the Python's own torch instead of installing one
#   PYTHON=python3.12     the interpreter of the environment (3.11 or newer)

SHELL := /bin/bash
# Else `make plan-`, without a name, would be taken for a file that is made from a plan-.o.
MAKEFLAGS += --no-builtin-rules
PYTHON ?= python3
BIN := .venv/bin
TRISWEEP := $(BIN)/trisweep
OPTION_GROUPS := search budget controller launcher trainer
CHOICE := $(if $(CLUSTER),cluster=$(CLUSTER)) $(foreach group,$(OPTION_GROUPS),$(if $($(group)),$(group)=$($(group)))) $(OVERRIDES)
PIP := $(BIN)/python -m pip --disable-pip-version-check
# A worker for each core, and three for the test clusters, on which they mostly wait. Each worker imports everything: of
# tests/sweeps, three on two cores took 67 and 61 s, six 80 and 98 s. On a shared machine with many cores eight do.
WORKERS := $(shell cores=$$(nproc 2>/dev/null || echo 2); echo $$((cores < 6 ? cores + 3 : 8)))
# Tests start thousands of processes. Where the environment forbids bytecode, each would compile the package anew.
# Threads of linear algebra wait for each other in loops, and take the cores of other workers: on two busy cores,
# tests/sweeps/search/layouts took 18 s of CPU time with two threads, and 8 with one.
PYTEST := env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder
TORCH_CONSTRAINT := $(if $(filter site,$(TORCH)),,-c constraints-torch.txt)

# Where PYTHON is itself an environment, a new one does not see its packages.
export PRINT_SITE_OF_TORCH := import pathlib, torch; print(pathlib.Path(torch.__file__).parent.parent)

.DEFAULT_GOAL := help
.PHONY: help setup trainers test-trainers docs screenshots doctor bench chaos bench-gpu gpu-check sweep-frontier-study test test-fast test-pythons test-all check messages format ui slurm-up slurm-down clean

help: ## list the targets
	@echo "make TARGET [CLUSTER=frontier] [DRY_RUN=1] [OVERRIDES=\"a=b\"] [TORCH=site]; NAME is a sweep: 22b, 175b, 1t, smoke, ...; see trisweep list sweep"
	@awk -F ':.*## ' '/^[a-z%-]+:.*## /{sub(/%/, "NAME", $$1); printf "  %-14s %s\n", $$1, $$2}' Makefile

.venv/bin/python:
	@command -v "$(PYTHON)" >/dev/null || \
	  { echo "PYTHON=$(PYTHON): there is no such command. Name a Python of 3.11 or newer, with its path if need be." >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; $(PYTHON) is older. Use make PYTHON=python3.12 ..." >&2; exit 2; }
ifeq ($(TORCH),site)
	@$(PYTHON) -c 'import torch' 2>/dev/null || \
	  { echo "TORCH=site: $(PYTHON) cannot import torch. Load its module first, or leave TORCH out." >&2; exit 2; }
endif
	$(PYTHON) -m venv $(if $(filter site,$(TORCH)),--system-site-packages) .venv || { rm -rf .venv; exit 2; }
ifeq ($(TORCH),site)
	@$@ -c 'import torch' 2>/dev/null || $(PYTHON) -c "$$PRINT_SITE_OF_TORCH" \
	  > "$$($@ -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/site-torch.pth"
endif

.venv/.installed: pyproject.toml constraints.txt constraints-torch.txt | .venv/bin/python
	@echo "Installing into .venv: some minutes, and about 2 GB of disk$(if $(TORCH_CONSTRAINT), (a third of it torch)) ..."
	@$(PIP) install --quiet -c constraints.txt $(TORCH_CONSTRAINT) -e .
	@echo "Installed. The command is $(TRISWEEP)."
	@touch $@

.venv/.installed-dev: .venv/.installed
	@echo "Installing what checks and tests need: another minute or two, and 0.5 GB ..."
	@$(PIP) install --quiet --no-compile -c constraints.txt $(TORCH_CONSTRAINT) -e .[dev]
	@touch $@

setup: .venv/.installed ## install into .venv; the command is then .venv/bin/trisweep

plan-%: setup ## predict every point of a sweep on paper
	@$(TRISWEEP) plan $* $(CHOICE) $(OPTIONS)

sweep-%: setup ## plan, measure and report a sweep: on Slurm with CLUSTER=, else its proxy on this machine
	@$(TRISWEEP) sweep $* $(CHOICE) $(if $(filter-out 0,$(DRY_RUN)),--dry-run) $(OPTIONS)

# This sweep has no proxy: without a cluster its search is replayed on made-up machines.
ON_CLUSTER := $(CLUSTER)$(filter-out 0,$(DRY_RUN))$(filter cluster=%,$(OVERRIDES))
sweep-frontier-study: setup
	@$(if $(ON_CLUSTER),$(TRISWEEP) sweep,$(BIN)/python -m benchmarks.replay) frontier-study $(CHOICE) \
	  $(if $(filter-out 0,$(DRY_RUN)),--dry-run) $(OPTIONS)

scaling-%: setup ## weak and strong scaling, a report each: scaling-175b or scaling-1t
	@$(TRISWEEP) sweep weak-$* $(CHOICE) $(if $(filter-out 0,$(DRY_RUN)),--dry-run) $(OPTIONS)
	@$(TRISWEEP) sweep strong-$* $(CHOICE) $(if $(filter-out 0,$(DRY_RUN)),--dry-run) $(OPTIONS)

status-%: setup ## every trial: state, cause of failure, last log line
	@$(TRISWEEP) status $* $(CHOICE) $(OPTIONS)

logs-%: setup ## the log of a trial: TRIAL=part of its name, OPTIONS=-f to follow it
	@$(TRISWEEP) logs $* $(TRIAL) $(CHOICE) $(OPTIONS)

report-%: setup ## write the report and import into MLflow
	@$(TRISWEEP) report $* $(CHOICE) $(OPTIONS)

doctor: setup ## is this site ready for sweeps, and what to change? CLUSTER=NAME where there is Slurm
	@$(TRISWEEP) doctor $(CHOICE) $(OPTIONS)

cancel-%: setup ## end what is queued or running
	@$(TRISWEEP) cancel $* $(CHOICE) $(OPTIONS)

ui: setup ## open the MLflow UI on loopback
	@$(TRISWEEP) ui $(CHOICE) $(OPTIONS)

bench: setup ## every promise in numbers: predictions against published rows, search, trainer
	@$(BIN)/python -m benchmarks

chaos: setup ## what goes wrong on clusters, done to real sweeps on the Slurm test cluster (root, Debian)
	@$(BIN)/python -m benchmarks.chaos $(OPTIONS)

bench-gpu: setup ## what the trainer reaches on the GPUs of this machine; without one it says so
	@$(BIN)/python -m benchmarks.gpu_check --parts speed $(OPTIONS)

gpu-check: setup ## ten minutes on one node with GPUs: does all of it work here? Writes a page to send back
	@$(BIN)/python -m benchmarks.gpu_check $(OPTIONS)

test: check ## check, then run the tests, on a real Slurm too, without what is long and alike
	$(PYTEST)

test-fast: .venv/.installed-dev ## tests that need no root, no cluster, no server and no browser: two minutes
	$(PYTEST) --fast

# Each environment takes 3 GB and is kept, so that a second run only tests.
test-pythons: ## the fast tests with every Python from 3.11 to 3.14 of this machine, each in .pythons/VERSION
	@for version in 3.11 3.12 3.13 3.14; do \
	  python$$version -c '' 2>/dev/null || { echo "Python $$version: not here"; continue; }; \
	  bin=.pythons/$$version/bin; \
	  [ -e $$bin/pytest ] || { echo "Python $$version: installing ..."; python$$version -m venv .pythons/$$version \
	    && $$bin/python -m pip install --quiet -c constraints.txt $(TORCH_CONSTRAINT) -e .[dev]; } || exit 2; \
	  echo "Python $$version:"; $$bin/python -m pytest -n 4 --dist loadgroup --no-loadscope-reorder --fast || exit 1; \
	done

test-all: check ## the same with all that is long, and every case
	$(PYTEST) --all-cases

# Somebody else's trainers, each with what it needs beside torch; constraints-trainers.txt has the versions.
TRAINERS := huggingface torchtitan megatron-lm
NEEDS_huggingface := transformers accelerate deepspeed
# What DeepSpeed would compile in its first run on a CPU, for a minute, and would wait for forever where that run was ended.
SHARED_MEMORY_OF_huggingface = TORCH_EXTENSIONS_DIR=$(CURDIR)/.trainers/huggingface/extensions DS_ACCELERATOR=cpu \
  PATH=$(CURDIR)/.trainers/huggingface/bin:$$PATH python -c 'from deepspeed.accelerator import get_accelerator; \
  get_accelerator().create_op_builder("ShareMemCommBuilder").load()' > .trainers/huggingface/compiled.log
NEEDS_torchtitan := torchtitan triton
NEEDS_megatron-lm := triton numpy packaging pybind11 einops omegaconf psutil

trainers: $(TRAINERS:%=.trainers/%/.installed) ## environments of Hugging Face, DeepSpeed, torchtitan and for Megatron-LM, 1 to 2.4 GB each

# DeepSpeed is built where it is installed: without its operators, and with the torch that is there already.
.trainers/%/.installed: constraints-trainers.txt
	@echo "Installing .trainers/$*: torch $(NEEDS_$*), some minutes and $(if $(filter huggingface,$*),1.2,2.4) GB of disk (more with a torch for GPUs) ..."
	@$(PYTHON) -m venv .trainers/$*
	@.trainers/$*/bin/python -m pip --disable-pip-version-check install --quiet -c constraints-trainers.txt torch setuptools wheel
	@DS_BUILD_OPS=0 .trainers/$*/bin/python -m pip --disable-pip-version-check install --quiet --no-build-isolation \
	  -c constraints-trainers.txt $(NEEDS_$*)
	@$(SHARED_MEMORY_OF_$*)
	@touch $@

test-trainers: trainers .venv/.installed-dev ## sweep those trainers on two ranks; MEGATRON_LM=CHECKOUT adds Megatron-LM
	$(if $(MEGATRON_LM),MEGATRON_LM=$(MEGATRON_LM) TRISWEEP_MEGATRON_LM=$(MEGATRON_LM)) \
	TRISWEEP_MEGATRON_LM_PYTHON=$(CURDIR)/.trainers/megatron-lm/bin/python \
	TRISWEEP_TORCHTITAN_PYTHON=$(CURDIR)/.trainers/torchtitan/bin/python \
	$(BIN)/python -m pytest -n 0 -rs tests/trainers tests/launcher/command_trainer/test_own_parsers.py

check: .venv/.installed-dev ## lint, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPY_NUM_WORKERS=2 $(BIN)/mypy
	$(BIN)/lint-imports

# Those that record a message, unless some are named.
TESTS ?= $(shell grep -rlE 'from tests.messages import .*(refused|said)' tests --include='test_*.py')

messages: .venv/.installed-dev ## record anew what users are told, in tests/messages.golden; TESTS=FILES for some of them
	$(PYTEST) --all-cases --rewrite-messages $(TESTS)
	@git --no-pager diff --stat -- tests/messages.golden

format: .venv/.installed-dev ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

slurm-up: ## start the Slurm test cluster on this machine (root, Debian)
	@tests/slurm/cluster.sh up

slurm-down: ## stop it and remove its state
	@tests/slurm/cluster.sh down

docs: .venv/.installed-dev ## the documentation as a site in site/, with the pages of commands and keys, its links checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "Open site/index.html, or with its search: $(BIN)/python -m http.server -d site"

screenshots: .venv/.installed-dev ## the pictures of README and docs, from REPORT=runs/175b-proxy/report.html
	$(BIN)/python -m docs.making.screenshots $(or $(REPORT),runs/175b-proxy/report.html)

clean: ## remove the environment and the caches; results in runs/ stay
	rm -rf .venv .pythons .trainers .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
