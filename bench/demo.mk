# The demonstration, and the figures. Included by the Makefile.

# Three engines, a small trace, every step verified; replayed with one prefix tree for all, and with
# a cache of each engine's own. It starts its own service on a private socket and stops it, also on
# Ctrl-C.
DEMO_OPTIONS ?= --engines 3 --layers 2 --limit 32 --route turns --compare engine
DEMO_TRACE ?= bench/traces/sample.jsonl
# Where there is no GPU the CPU worker computes, and nvcc has nothing to do. Where there is one, nvcc
# compiles the one kernel that replays use unless they are told otherwise; --dtype and --head-dim in
# DEMO_OPTIONS want their own here. Either is built apart, because nothing that is linked with one
# CUDA worker may be mixed up with another.
DEMO_VARIANTS ?= 64_bf16_plain
DEMO_CUDA := $(and $(wildcard /dev/nvidiactl),$(filter 1,$(CUDA)))
DEMO_BUILD := $(BUILD)$(if $(DEMO_CUDA),/demo-cuda,$(if $(filter 1,$(CUDA)),/demo))
DEMO_FLAGS := $(if $(DEMO_CUDA),CUDA_VARIANTS='$(DEMO_VARIANTS)',CUDA=0)
DEMO_PROGRAMS := $(addprefix $(DEMO_BUILD)/,attnd attnd-worker bench/attnd-replay)

.PHONY: demo
demo:
	@.ci/deps.sh demo
	@HIDE='^ptxas (info|warning)' $(BUILD_SAYING) 'build of the demonstration' -j$(shell nproc) BUILD=$(DEMO_BUILD) \
	  $(DEMO_FLAGS) $(DEMO_PROGRAMS)
	@exec $(DEMO_BUILD)/bench/attnd-replay --spawn --attnd $(DEMO_BUILD)/attnd --trace $(DEMO_TRACE) $(DEMO_OPTIONS)

# Every suite of figures on this machine's CPU, into bench/results. Wants a quiet machine and a
# clean checkout: a build with uncommitted changes is refused.
BENCH_RESULTS ?= bench/results
BENCH_SUITES ?= ring plan prefix reach cpu
BENCH_OPTIONS ?=
.PHONY: bench figures figures-update
bench:
	@$(BUILD_SAYING) 'build of what measures' -j2 all
	@for suite in $(BENCH_SUITES); do \
	  echo "== $$suite"; \
	  $(BUILD)/bench/$$suite --spawn --record $(BENCH_RESULTS) $(BENCH_OPTIONS) || exit 1; \
	done

figures: $(BUILD)/bench/figures
	@$(BUILD)/bench/figures
figures-update: $(BUILD)/bench/figures
	@$(BUILD)/bench/figures --update bench/results/README.md
	@.ci/headline.py --update
