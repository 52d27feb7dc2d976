# Fuzz targets: libFuzzer with ASan and UBSan, built by clang in a folder of their own.
#
#   make fuzz-short    8 s each, two at once at the lowest priority, part of `make check`
#   make fuzz-long     2 minutes each, two at once, part of `make check-long`
#
# tests/fuzz/corpus has some inputs for each target, which together reach what some minutes of
# fuzzing reached. Every run begins with them. Inputs found are kept in $(BUILD)/fuzz/corpus and
# used again. `make fuzz-corpus` looks for the smallest set of both that reaches as much, and puts
# it into tests/fuzz/corpus. A failing input is left in $(BUILD)/fuzz/found: run the target with its
# path to repeat it.
FUZZ_CORPUS := tests/fuzz/corpus
FUZZ_CC ?= clang
FUZZ_CFLAGS := -O1 -g -std=c11 -fno-strict-aliasing -fno-omit-frame-pointer -pthread -MMD -MP \
               -fsanitize=address,undefined -fno-sanitize-recover=all
FUZZ := $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_LIB := $(SCHEMAS) ipc/admit_alloc.c ipc/closer.c \
            $(wildcard service/admission/*.c persistent/plan/*.c tests/support/rigs/plan_*.c) \
            service/rpc/control_decode.c service/peers/message.c \
            tests/fuzz/made_message.c tests/support/random/case_bytes.c \
            tests/support/oracle/batch_check.c
# fuzz_client makes calls of libattnd to a service of its own.
FUZZ_LIB := $(sort $(FUZZ_LIB) $(CLIENT) $(IPC_CLIENT))
$(BUILD)/fuzz/fuzz_client: $(PROGRAMS)
FUZZ_OBJ := $(patsubst %.c,$(BUILD)/fuzz/obj/%.o,$(FUZZ_LIB)) \
            $(PROTOS:%=$(BUILD)/fuzz/obj/gen/%.pb-c.o)

# What single targets look into.
$(BUILD)/fuzz/fuzz_discard $(BUILD)/fuzz/fuzz_scrape: $(BUILD)/fuzz/obj/ipc/discard.o
$(BUILD)/fuzz/fuzz_scrape $(BUILD)/fuzz/fuzz_config: $(BUILD)/fuzz/obj/service/args/args.o
$(BUILD)/fuzz/fuzz_trace: $(patsubst %,$(BUILD)/fuzz/obj/bench/replay/%.o,trace trace_line)
$(BUILD)/fuzz/fuzz_trace: LDLIBS_FUZZ := -ljansson
$(BUILD)/fuzz/fuzz_config: $(patsubst %,$(BUILD)/fuzz/obj/service/daemon/%.o,config options \
                                       options_list options_own machine) \
                           $(BUILD)/fuzz/obj/service/args/address.o \
                           $(BUILD)/fuzz/obj/persistent/modules.o
$(BUILD)/fuzz/fuzz_config: LDLIBS_FUZZ := -linih

$(PROTOS:%=$(BUILD)/fuzz/obj/gen/%.pb-c.o): $(BUILD)/fuzz/obj/gen/%.o: $(BUILD)/gen/schemas/%.c
	$(call say,$<)
	@mkdir -p $(@D)
	$(FUZZ_CC) $(CPPFLAGS) $(FUZZ_CFLAGS) -fsanitize=fuzzer-no-link -w -c $< -o $@
$(BUILD)/fuzz/obj/%.o: %.c | $(GEN)
	$(call say,$<)
	@mkdir -p $(@D)
	$(FUZZ_CC) $(CPPFLAGS) $(FUZZ_CFLAGS) -fsanitize=fuzzer-no-link $(WARN) -c $< -o $@
$(BUILD)/fuzz/%: $(BUILD)/fuzz/obj/tests/fuzz/%.o $(FUZZ_OBJ)
	$(call say,$@)
	$(FUZZ_CC) $(FUZZ_CFLAGS) -fsanitize=fuzzer $(filter %.o,$^) $(LDLIBS_PB) $(LDLIBS_FUZZ) -lm -o $@

.PHONY: fuzz fuzz-short fuzz-long
fuzz-short fuzz-long fuzz-corpus: export ATTND_FUZZ_SERVICE := $(abspath $(BUILD))/attnd
fuzz: $(FUZZ)
fuzz-short: FUZZ_S := 8
fuzz-long: FUZZ_S := 120
fuzz-short fuzz-long: fuzz
	@mkdir -p $(BUILD)/fuzz/found
	@printf '%s\n' $(FUZZ) | xargs -P 2 -I @ sh -c ' \
	  name=$${1##*/}; corpus=$(BUILD)/fuzz/corpus/$$name; log=$(BUILD)/fuzz/$$name.log; \
	  mkdir -p $$corpus; \
	  if $$1 -max_total_time=$(FUZZ_S) -timeout=20 -max_len=8192 -rss_limit_mb=2048 \
	      -artifact_prefix=$(BUILD)/fuzz/found/ $$corpus $(FUZZ_CORPUS)/$$name >$$log 2>&1; then \
	    echo "$$name: $$(tail -n 1 $$log)"; \
	  else \
	    tail -n 60 $$log; echo "$$name: FAILED"; exit 1; \
	  fi' sh @

.PHONY: fuzz-corpus
fuzz-corpus: fuzz
	@for target in $(FUZZ); do \
	  name=$${target##*/}; kept=$(FUZZ_CORPUS)/$$name; found=$(BUILD)/fuzz/corpus/$$name; \
	  new=$(BUILD)/fuzz/merged/$$name; rm -rf $$new; mkdir -p $$kept $$found $$new; \
	  $$target -set_cover_merge=1 -max_len=512 $$new $$kept $$found \
	    >$(BUILD)/fuzz/$$name.log 2>&1 || exit 1; \
	  rm -f $$kept/*; cp $$new/* $$kept/; echo "$$name: $$(ls $$kept | wc -l) inputs"; \
	done

-include $(shell find $(BUILD)/fuzz/obj -name '*.d' 2>/dev/null)
