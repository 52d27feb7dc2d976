# The demonstration, and the figures. Included by the Makefile.

# Three engines, a small trace, every step verified; replayed with prefixes shared and without. It
# starts its own service on a private socket and stops it, also on Ctrl-C.
DEMO_OPTIONS ?= --engines 3 --layers 2 --limit 32 --route turns --compare engine
DEMO_TRACE ?= bench/traces/sample.jsonl

.PHONY: demo
demo:
	@.ci/deps.sh demo
	@$(MAKE) --no-print-directory -s -j2 $(PROGRAMS) $(BUILD)/bench/attnd-replay
	@exec $(BUILD)/bench/attnd-replay --spawn --attnd $(BUILD)/attnd --trace $(DEMO_TRACE) $(DEMO_OPTIONS)

# Every suite of figures on this machine's CPU, into bench/results. Wants a quiet machine and a
# clean checkout: a build with uncommitted changes is refused.
BENCH_RESULTS ?= bench/results
BENCH_SUITES ?= ring plan prefix cpu
BENCH_OPTIONS ?=
.PHONY: bench figures figures-update
bench:
	@$(MAKE) --no-print-directory -s -j2 all
	@for suite in $(BENCH_SUITES); do \
	  echo "== $$suite"; \
	  $(BUILD)/bench/$$suite --spawn --record $(BENCH_RESULTS) $(BENCH_OPTIONS) || exit 1; \
	done

figures: $(BUILD)/bench/figures
	@$(BUILD)/bench/figures
figures-update: $(BUILD)/bench/figures
	@$(BUILD)/bench/figures --update README.md
