/*
 * fuzz_admit.c - any bytes as an arena, and good arenas with some bytes changed.
 *
 * From nothing a fuzzer seldom finds its way past a packed header, so half of the inputs describe a
 * good batch (tests/support/rigs/plan_draw.c turns bytes into choices) and then say where to spoil
 * it. A batch that is admitted keeps the contract of schemas/batch.h, and the planner must cope
 * with it.
 */
#include "service/admission/admit.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/oracle/batch_check.h"
#include "tests/support/rigs/plan_check.h"

#include <string.h>

#define ARENA_BYTES (1u << 18)

static struct attnd_staging staging;

static void plan_it(struct plan_case *c, const struct attnd_batch_view *batch)
{
    const struct attnd_batch_view mine = c->batch;
    struct attnd_fault fault;
    char why[200] = "";

    if (batch->rows > 500 || plan_case_new(c))
        return;
    if (!attnd_planner_set(c->plan, batch, &fault)) {
        c->batch = *batch;
        int right = plan_check(c, why, sizeof(why));
        c->batch = mine;
        fuzz_require(right, why);
    }
}

static void admit(struct plan_case *c, const uint8_t *arena, uint64_t arena_bytes, uint64_t offset,
                  uint32_t header_bytes)
{
    const struct attnd_batch_limits limits = case_limits(c);
    struct attnd_batch_view batch;
    struct attnd_fault fault = {0};
    int code = attnd_admit_batch(arena, arena_bytes, offset, header_bytes, &limits, &staging,
                                 &batch, &fault);

    fuzz_require(code == fault.code, "a refusal says why");
    if (code)
        return;
    const char *wrong = batch_check(&batch, &limits);
    fuzz_require(!wrong, wrong);
    plan_it(c, &batch);
}

static void admit_advance(const struct plan_case *c, struct case_source *source,
                          const uint8_t *arena, uint64_t arena_bytes)
{
    const struct attnd_batch_limits limits = case_limits(c);
    const struct attnd_sqe_advance sqe = {
        .arrays_offset_bytes = 4ull * case_below(source, 1u << 14),
        .entries = case_below(source, 2 * limits.requests + 2),
        .pages = case_below(source, limits.pages + 2),
    };
    struct attnd_advance_view advance;
    struct attnd_fault fault = {0};
    int code = attnd_admit_advance(arena, arena_bytes, &sqe, &limits, &staging, &advance, &fault);

    fuzz_require(code == fault.code, "a refusal says why");
    if (code)
        return;
    const char *wrong = advance_check(&advance, &limits);
    fuzz_require(!wrong, wrong);
}

/* The arena is what is left of the input, in memory of exactly that size. */
static void raw(struct case_source *source)
{
    struct plan_case c;
    const int32_t one[1] = {1};

    plan_case_begin(&c);
    plan_case_level(&c, 1, one, one);
    plan_case_fit(&c);
    c.limits.requests = c.limits.rows = 16;
    c.limits.pages = 64;
    c.limits.levels = ATTND_LEVELS_MAX;
    uint64_t offset = case_below(source, 64);
    uint32_t header_bytes = case_below(source, 512);
    uint8_t *arena = malloc(source->bytes_left + 1);
    fuzz_require(arena != NULL, "memory");
    memcpy(arena, source->bytes, source->bytes_left);
    admit(&c, arena, source->bytes_left, offset, header_bytes);
    free(arena);
    plan_case_free(&c);
}

static void spoil(uint8_t *arena, const struct case_bytes *at, struct case_source *source)
{
    const uint32_t first_array = (uint32_t)at->qo_indptr[0];

    while (source->bytes_left) {
        uint64_t place = case_below(source, 2)
                             ? at->header_offset_bytes + case_below(source, at->header_bytes)
                             : first_array + case_below(source, 1u << 14);
        if (place < at->end)
            arena[place] ^= (uint8_t)case_below(source, 256);
    }
}

static void spoilt(struct case_source *source)
{
    static uint8_t large[ARENA_BYTES];
    struct plan_case c;

    plan_case_draw(&c, source);
    const struct case_bytes at = case_write(&c, large, ARENA_BYTES);
    uint8_t *arena = malloc(at.end + 1);
    fuzz_require(arena != NULL, "memory");
    memcpy(arena, large, at.end);
    if (at.end) { /* 0: too large for this */
        const struct case_source before = *source;
        spoil(arena, &at, source);
        *source = before;
        admit_advance(&c, source, arena, at.end);
        admit(&c, arena, at.end, at.header_offset_bytes, at.header_bytes);
    }
    free(arena);
    plan_case_free(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct case_source source = {.bytes = data, .bytes_left = bytes};

    if (!data || !bytes)
        return 0;
    if (case_below(&source, 2))
        spoilt(&source);
    else
        raw(&source);
    return 0;
}
