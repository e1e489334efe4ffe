# Everything here works from a fresh clone with only python3 and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PARITY_VENV ?= .venv-parity
PARITY_BIN := $(PARITY_VENV)/bin
PARITY_STAMP := $(PARITY_VENV)/.installed
VLLM_VENV ?= .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_STAMP := $(VLLM_VENV)/.installed
LLAMA_CPP_VENV ?= .venv-llama-cpp
LLAMA_CPP_BIN := $(LLAMA_CPP_VENV)/bin
LLAMA_CPP_STAMP := $(LLAMA_CPP_VENV)/.installed
LAUNCHERS_VENV ?= .venv-launchers
LAUNCHERS_BIN := $(LAUNCHERS_VENV)/bin
LAUNCHERS_STAMP := $(LAUNCHERS_VENV)/.installed
DEEPSPEED_VENV ?= .venv-deepspeed
DEEPSPEED_BIN := $(DEEPSPEED_VENV)/bin
DEEPSPEED_STAMP := $(DEEPSPEED_VENV)/.installed
SITE_VENV ?= .venv-site
SITE_BIN := $(SITE_VENV)/bin
SITE_STAMP := $(SITE_VENV)/.installed
DOCTORS_VENV ?= .venv-doctors
DOCTORS_BIN := $(DOCTORS_VENV)/bin
DOCTORS_STAMP := $(DOCTORS_VENV)/.installed
# Many tests start processes: they load bytecode instead of compiling the library each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow test-learning test-gpu test-parity test-vllm test-llama-cpp test-launchers test-deepspeed test-browser test-chapters test-native test-mutants native bench-native bench-control bench-doctor bench-cpu bench-gpu lint types format docs site check clean install

demo: $(STAMP)  ## a whole RL run on CPU, and a report to look at
	$(BIN)/whet demo

# Two workers with a thread each are twice as fast on small models as one with two.
test: $(STAMP)  ## the default suite: two CPU cores, under twelve minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

test-learning: $(STAMP)  ## every method on three seeds
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m learning

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -m gpu

test-parity: $(PARITY_STAMP)  ## our losses against TRL's on the same tensors, in a venv of their own
	HF_HUB_OFFLINE=1 $(PARITY_BIN)/python -m pytest -m parity tests/parity

# MODEL: the directory of SmolLM2-135M-Instruct; without it, random weights in the same shape.
bench-cpu: $(PARITY_STAMP)  ## whole GRPO steps against TRL and transformers, about half an hour on two cores
	$(PARITY_BIN)/python -m bench.cpu $(if $(MODEL),--model $(MODEL)) $(BENCH)

bench-gpu: $(STAMP)  ## rollouts and whole GRPO steps on one GPU; BENCH='--only group --model qwen3' for a part
	$(BIN)/python -m bench.gpu $(BENCH)

test-vllm: $(VLLM_STAMP)  ## the vLLM engine and the HTTP engine against a real vLLM on CPU, in a venv of their own
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=2 $(VLLM_BIN)/python -m pytest -m vllm tests/with_vllm

# MODELS: directories of real models besides stories260K and a pulled SmolLM2, separated by colons.
test-llama-cpp: $(LLAMA_CPP_STAMP)  ## exported GGUF files in llama.cpp: ids, logits, greedy text; pip builds llama.cpp from source
	HF_HUB_OFFLINE=1 WHET_TEST_MODELS=$(MODELS) OMP_NUM_THREADS=1 $(LLAMA_CPP_BIN)/python -m pytest -m llama_cpp tests/with_llama_cpp

test-launchers: $(LAUNCHERS_STAMP)  ## job files of `whet launch` against each tool's own parser, and a job on a real Ray
	OMP_NUM_THREADS=1 $(LAUNCHERS_BIN)/python -m pytest -m launchers tests/with_launchers

test-deepspeed: $(DEEPSPEED_STAMP)  ## models spread by DeepSpeed's ZeRO-3 over 2 and 4 processes, about five minutes
	DS_ACCELERATOR=cpu OMP_NUM_THREADS=1 $(DEEPSPEED_BIN)/python -m pytest -m 'slow or not slow' tests/distributed/test_zero3.py tests/contracts/test_resumption_zero3.py

test-chapters: $(STAMP)  ## the commands of docs/learn that take minutes; about twenty-five minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow tests/learn/test_chapters.py

test-browser: $(STAMP)  ## the page of `whet ui` in Debian's chromium, headless: live, search, microscope, export, hostile runs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m browser tests/browser

# The trainer in C++, built against the libtorch of the installed torch; needs g++, cmake and ninja (docs/native.md).
native: $(STAMP)  ## native/build/whet-native
	cmake -G Ninja -S native -B native/build \
		-DTorch_DIR="$$($(BIN)/python -c 'import torch; print(torch.utils.cmake_prefix_path)')/Torch" \
		-DTORCH_CXX11_ABI="$$($(BIN)/python -c 'import torch; print(int(torch.compiled_with_cxx11_abi()))')"
	cmake --build native/build -j 2

test-native: native  ## the trainer in C++ against Python, with real files, signals and processes
	NATIVE_REQUIRED=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m native tests/native_trainer

bench-native: native  ## tokens per second of the trainer in C++ beside Python's
	$(BIN)/python -m bench.native $(BENCH)

# Runs that stand in the file of histories are not trained again.
bench-doctor: $(DOCTORS_STAMP)  ## planted faults and healthy runs: verdicts of `whet doctor` and of others, several hours on two cores
	OMP_NUM_THREADS=1 $(DOCTORS_BIN)/python -m studies.doctor.run all --parallel 2 --run-seconds 600 --runs runs/doctor --to runs/doctor/histories.jsonl.gz
	$(DOCTORS_BIN)/python -m studies.doctor.results runs/doctor/histories.jsonl.gz --to studies/doctor/verdicts/whet.json
	$(DOCTORS_BIN)/python -m studies.doctor.rivals runs/doctor/histories.jsonl.gz --to studies/doctor/verdicts/rivals.json

bench-control: $(STAMP)  ## loop control beside Stable-Baselines3: PEER=python with it, BENCH='--environments Acrobot-v1 --seeds 0-4'
	$(BIN)/python -m studies.control.run --peer "$(PEER)" --to studies/control/results.jsonl $(BENCH)

# Results of files that were not run stay as they are; afterwards `make docs` writes docs/testing.md.
test-mutants: $(STAMP)  ## bugs planted one at a time; MUTANTS='--only algorithms/policy_loss.py' for a part
	$(BIN)/python -m tests.mutants --out tests/mutants/results.json $(MUTANTS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP)  ## docs/algorithms.md from the table, keys.md from the config classes, metrics.md from the table of metrics and studies/curves, doctor.md from studies/doctor, planning.md from the formulas of `whet plan` and bench/results, scaling.md from its simulator, performance.md from bench/results, preferences.md from studies/*/results, tasks/results.md from studies/verifiable, gpt2-lab.md from studies/gpt2_lab, lora.md from studies/weights, control.md from studies/control, testing.md from tests/mutants
	$(BIN)/python -m pages.algorithms docs/algorithms.template.md docs/algorithms.md
	$(BIN)/python -m pages.keys docs/keys.md
	$(BIN)/python -m pages.metrics docs/metrics.md
	$(BIN)/python -m studies.curves.pictures docs
	$(BIN)/python -m studies.doctor.page docs/doctor.template.md docs/doctor.md
	$(BIN)/python -m pages.planning docs/planning.template.md docs/planning.md
	$(BIN)/python -m pages.scaling docs/scaling.template.md docs/scaling.md
	$(BIN)/python -m bench.table docs/performance.template.md docs/performance.md
	$(BIN)/python -m studies.page docs/preferences.template.md docs/preferences.md
	$(BIN)/python -m studies.verifiable.page docs/tasks
	$(BIN)/python -m studies.gpt2_lab.page docs/gpt2-lab.template.md docs/gpt2-lab.md
	$(BIN)/python -m studies.weights.page docs/lora.template.md docs/lora.md docs/lora.png
	$(BIN)/python -m studies.control.page docs/control.template.md docs/control.md docs/control.png
	$(BIN)/python -m tests.mutants.page docs/testing.template.md docs/testing.md
	$(BIN)/python -m bench.figure docs/learning.png
	$(BIN)/python -m pages.learning_figures docs/learn

# Opens from a file: site/index.html. The pages are those of docs/ and a few beside it, in the order of pages/site/mkdocs.yml.
site: $(STAMP) $(SITE_STAMP)  ## the documentation as files in site/, with search, that make no request to other hosts
	$(BIN)/python -m pages.site.staging build/pages
	$(SITE_BIN)/python -m mkdocs build --quiet -f pages/site/mkdocs.yml
	$(BIN)/python -m pages.site.check site

check: lint types test

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(PARITY_STAMP): pyproject.toml constraints.txt tests/parity/requirements.txt
	$(PYTHON) -m venv $(PARITY_VENV)
	$(PARITY_BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e . -r tests/parity/requirements.txt
	@touch $@

# What vLLM brings for pictures and sound is built for another torch, and breaks its import.
$(VLLM_STAMP): pyproject.toml constraints.txt tests/with_vllm/requirements.txt
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e . -r tests/with_vllm/requirements.txt
	$(VLLM_BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

$(LLAMA_CPP_STAMP): pyproject.toml constraints.txt tests/with_llama_cpp/requirements.txt
	$(PYTHON) -m venv $(LLAMA_CPP_VENV)
	$(LLAMA_CPP_BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e . -r tests/with_llama_cpp/requirements.txt
	@touch $@

$(DOCTORS_STAMP): pyproject.toml constraints.txt studies/doctor/requirements.txt
	$(PYTHON) -m venv $(DOCTORS_VENV)
	$(DOCTORS_BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' -r studies/doctor/requirements.txt
	@touch $@

$(LAUNCHERS_STAMP): pyproject.toml constraints.txt tests/with_launchers/requirements.txt
	$(PYTHON) -m venv $(LAUNCHERS_VENV)
	$(LAUNCHERS_BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]' -r tests/with_launchers/requirements.txt
	@touch $@

$(SITE_STAMP): pages/site/requirements.txt
	$(PYTHON) -m venv $(SITE_VENV)
	$(SITE_BIN)/python -m pip install --quiet --disable-pip-version-check -r pages/site/requirements.txt
	@touch $@

$(DEEPSPEED_STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DEEPSPEED_VENV)
	$(DEEPSPEED_BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,deepspeed]'
	@touch $@

clean:
	rm -rf $(VENV) $(PARITY_VENV) $(VLLM_VENV) $(LLAMA_CPP_VENV) $(LAUNCHERS_VENV) $(DEEPSPEED_VENV) $(DOCTORS_VENV) $(SITE_VENV) native/build build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
