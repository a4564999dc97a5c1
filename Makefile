# What a newcomer needs: Rust by rustup, a C compiler, Python 3 with venv, make. Everything else is fetched,
# pinned and checked, into .cache/ and target/.
#
# All native programs and tests share one profile, but for those that measure or simulate for minutes. Cargo
# gives a dependency the features that the packages of one command ask for together, test-only ones included
# when it builds tests; so `make test` builds its programs and all of its tests in one selection of packages,
# and nothing is compiled twice. Clippy is the compiler of this workspace's crates there: they are linted
# while they are built, where `cargo clippy` would go through all dependencies once more.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory
# Two cores build one thing at a time; cargo itself uses both.
.NOTPARALLEL:

TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
BIN := $(TARGET_DIR)/debug
# Programs whose work is all their own: a release build of them is soon made up for.
FAST_BIN := $(TARGET_DIR)/release
CARGO ?= cargo
LOCKED ?= --locked
NATIVE := --workspace --exclude warmpath-filter
# What is built of each native package.
BUILD := --bins
# The filter's flags come from .cargo/config.toml, which a RUSTFLAGS variable would silently replace; and its
# code is the compiler's own.
WASM_CARGO := env -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS -u RUSTC_WORKSPACE_WRAPPER $(CARGO)
IN_WASM := --profile wasm --target wasm32-wasip1
WASM := $(TARGET_DIR)/wasm32-wasip1/wasm/warmpath_filter.wasm
ENVOY := .cache/envoy/.installed
PROMTOOL := .cache/promtool/.installed
MODEL := .cache/demo-model/.installed
VLLM := $(or $(WARMPATH_VLLM),.cache/vllm)
LLAMA_CPP := $(or $(WARMPATH_LLAMA_CPP),.cache/llama-cpp)
TOOLCHAIN := .cache/toolchain.installed
VECTORS := .cache/vectors.fetched
CRATES := .cache/crates.fetched

.PHONY: help
help: ## List the targets.
	@echo 'Warmpath: LLM requests go to the GPU that holds their KV blocks.'
	@echo
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

.PHONY: demo
demo: filter bundle native $(ENVOY) ## Round robin, least request and Warmpath side by side (KEEP=1 leaves it up).
	@$(BIN)/warmpath-demo $(if $(filter 1,$(KEEP)),--keep)

.PHONY: test
test: ## Everything that CI runs: check, the tests in a real Envoy, a short run of the fuzz targets.
	@tools/need.sh rust cc cxx python
	@tools/tally.sh $(MAKE) test-all

.PHONY: test-all
test-all: check e2e fuzz-smoke

# Lint what is built natively. (This is how cargo-clippy hands on `-D warnings`.)
check e2e: export RUSTC_WORKSPACE_WRAPPER := clippy-driver
check e2e: export CLIPPY_ARGS := -D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__
check e2e: BUILD := --all-targets

.PHONY: check
check: format filter native $(VECTORS) ## Format, lints (native and wasm), docs, tests without Envoy, repository rules.
	$(WASM_CARGO) clippy $(LOCKED) --quiet -p warmpath-filter $(IN_WASM) -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(WASM_CARGO) doc $(LOCKED) --quiet --no-deps $(IN_WASM) \
		-p warmpath-filter -p warmpath-core -p warmpath-bundle -p warmpath-template
	$(CARGO) test $(LOCKED) $(NATIVE) --exclude warmpath-e2e --tests -- --skip in_envoy::

.PHONY: format
format: $(TOOLCHAIN)
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path filter/fuzz/Cargo.toml --check

.PHONY: e2e
e2e: filter bundle $(ENVOY) $(PROMTOOL) ## The tests in a real Envoy.
	@# A test waits for half of its time: one more at a time than there are cores.
	$(CARGO) test $(LOCKED) $(NATIVE) --test plain_envoy --test in_envoy -- --test-threads=$$(($$(nproc) + 1))
	@tools/skipped.sh

.PHONY: e2e-page
e2e-page: filter bundle $(ENVOY) ## The status page in headless Chromium; its picture is .cache/page.png.
	@tools/need.sh chromium
	$(CARGO) test $(LOCKED) $(NATIVE) --test in_envoy -- page:: --nocapture

.PHONY: fuzz-smoke
fuzz-smoke: $(TOOLCHAIN) ## Four seconds of each fuzz target.
	@tools/need.sh cxx
	tools/fuzz-smoke.sh

.PHONY: e2e-vllm
e2e-vllm: filter $(ENVOY) $(VECTORS) $(VLLM) ## The same against a real vLLM on the CPU: 6 GB to install, opt-in.
	python3 integration/vllm/models.py $(VLLM)/models
	WARMPATH_VLLM=$(abspath $(VLLM)) $(CARGO) test $(LOCKED) $(NATIVE) --test real_engine --test real_cache -- --ignored --nocapture --test-threads=1

.PHONY: e2e-llama-cpp
e2e-llama-cpp: filter $(ENVOY) $(VECTORS) $(LLAMA_CPP)/.installed ## The same against two real llama.cpp servers: 90 MB, opt-in.
	$(LLAMA_CPP)/bin/python integration/llama-cpp/models.py $(LLAMA_CPP)
	WARMPATH_LLAMA_CPP=$(abspath $(LLAMA_CPP)) $(CARGO) test $(LOCKED) $(NATIVE) --test real_llama_cpp -- --ignored --nocapture

.PHONY: evaluate
evaluate: fast ## Simulate fleets under every policy: docs/evaluation.md.
	@$(FAST_BIN)/warmpath-fleet evaluate

.PHONY: confirm
confirm: filter bundle fast $(ENVOY) ## Rows of the evaluation again, in a real Envoy: docs/confirmation.md.
	@$(FAST_BIN)/warmpath-confirm --page docs/confirmation.md

.PHONY: resilience
resilience: filter native $(ENVOY) ## What faults cost, in a real Envoy (20 minutes): docs/resilience.md.
	@$(BIN)/warmpath-resilience --page docs/resilience.md

.PHONY: bench
bench: filter bundle fast $(ENVOY) ## What the filter adds to a request's latency.
	@$(FAST_BIN)/warmpath-bench

.PHONY: bench-memory
bench-memory: filter bundle fast $(ENVOY) $(VECTORS) ## What the filter and its bundles take of Envoy's memory.
	@mkdir -p .cache/bundles
	@for name in llama3_1 gemma3; do \
		$(BIN)/warmpath-pack --model-dir .cache/tokenizers/$$name --name $$name -o .cache/bundles/$$name.wpb >/dev/null; \
	done
	@$(FAST_BIN)/warmpath-bench memory .cache/demo.wpb .cache/bundles/llama3_1.wpb .cache/bundles/gemma3.wpb

.PHONY: docs
docs: $(TOOLCHAIN) $(CRATES) ## Write the documents that are made from the code: metrics, configuration.
	@$(CARGO) run $(LOCKED) --quiet -p warmpath-docs

.PHONY: filter
filter: $(TOOLCHAIN) $(CRATES) ## Build the filter: .cache/warmpath.wasm.
	@$(WASM_CARGO) build $(LOCKED) -p warmpath-filter $(IN_WASM)
	@cmp -s $(WASM) .cache/warmpath.wasm || cp $(WASM) .cache/warmpath.wasm

.PHONY: bundle
bundle: native $(MODEL) ## Pack the demo model's tokenizer and chat template: .cache/demo.wpb.
	@$(MAKE) --silent .cache/demo.wpb

.cache/demo.wpb: $(BIN)/warmpath-pack $(MODEL) examples/demo-model/chat_template.jinja
	$(BIN)/warmpath-pack --model-dir .cache/demo-model --chat-template examples/demo-model/chat_template.jinja \
		--name demo -o $@

.PHONY: native
native: $(TOOLCHAIN) $(CRATES)
	@$(CARGO) build $(LOCKED) $(NATIVE) $(BUILD)

.PHONY: fast
fast: $(TOOLCHAIN) $(CRATES)
	@$(CARGO) build $(LOCKED) --release -p warmpath-fleet -p warmpath-confirm -p warmpath-bench

.PHONY: fetch
fetch: $(TOOLCHAIN) $(CRATES) $(ENVOY) $(PROMTOOL) $(MODEL) $(VECTORS) ## Download all that the other targets need.

$(TOOLCHAIN): rust-toolchain.toml tools/toolchain.sh
	@tools/need.sh rust cc
	@tools/toolchain.sh
	@mkdir -p $(@D) && touch $@

$(CRATES): Cargo.lock | $(TOOLCHAIN)
	@$(CARGO) fetch $(LOCKED) || { echo 'missing: crates (cargo could not fetch them: is the crates registry reachable?)' >&2; exit 1; }
	@mkdir -p $(@D) && touch $@

$(ENVOY): tools/envoy-requirements.txt tools/fetch-envoy.sh
	@tools/need.sh python
	@mkdir -p .cache
	@tools/fetch-envoy.sh
	@touch $@

# Missing where it cannot be had; the test that needs it says so.
$(PROMTOOL): tools/fetch-promtool.sh
	@mkdir -p .cache
	@tools/fetch-promtool.sh

$(LLAMA_CPP)/.installed: integration/llama-cpp/setup.sh integration/llama-cpp/requirements.txt
	@tools/need.sh python
	integration/llama-cpp/setup.sh $(LLAMA_CPP)

$(VLLM):
	@tools/need.sh python
	integration/vllm/setup.sh $@

# Other people's templates and vocabularies, which golden vectors are made from. Tokenizers that come
# through npm are left out, by name, where there is no npm.
$(VECTORS): $(wildcard integration/vectors/*/fetch.py) integration/vectors/tokenizers/sources.json
	@tools/need.sh python
	@mkdir -p $(@D)
	@python3 integration/vectors/templates/fetch.py
	@python3 integration/vectors/tokenizers/fetch.py
	@touch $@

$(MODEL): tools/demo-model-requirements.txt tools/fetch-demo-model.sh
	@tools/need.sh python
	@mkdir -p .cache
	@tools/fetch-demo-model.sh
	@touch $@

.PHONY: clean
clean: ## Remove everything that was built or fetched.
	rm -rf .cache
	$(CARGO) clean --quiet
