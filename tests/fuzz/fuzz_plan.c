/*
 * fuzz_plan.c - any admitted batch, then any advances: bytes become choices (plan_draw.c), the plan
 * is judged by brute force (plan_check.c).
 */
#include "tests/fuzz/fuzz.h"
#include "tests/support/rigs/plan_check.h"

#include <string.h>

#define ENTRIES_MAX 256u
#define PAGES_MAX 64u

/* Mostly possible: a length near the one there was, a page now and then. */
static void advance(struct plan_case *c, struct case_source *source, uint32_t generation)
{
    int32_t kv_len[ENTRIES_MAX], indptr[ENTRIES_MAX + 1], pages[PAGES_MAX];
    const uint32_t entries = attnd_plan_head(c->plan)->entries;
    struct attnd_fault fault = {0};

    if (entries > ENTRIES_MAX)
        return;
    indptr[0] = 0;
    for (uint32_t e = 0; e < entries; e++) {
        int32_t add = case_below(source, 8) ? 0 : (int32_t)case_below(source, 4);
        add = indptr[e] + add <= (int32_t)PAGES_MAX ? add : 0;
        indptr[e + 1] = indptr[e] + add;
        kv_len[e] = plan_kv_len(c, 0)[e] + (int32_t)case_below(source, 40) - 20;
    }
    for (int32_t p = 0; p < indptr[entries]; p++)
        pages[p] = (int32_t)case_below(source, c->pool.pages + c->pool.pages / 100);
    const struct attnd_advance_view view = {.entries = entries,
                                            .pages = (uint32_t)indptr[entries],
                                            .kv_len = kv_len,
                                            .page_indptr = indptr[entries] ? indptr : NULL,
                                            .page_indices = pages};
    int code = attnd_planner_advance(c->plan, &view, generation, c->pool.pages, &fault);
    fuzz_require(code == fault.code, "a refusal says why");
    if (code)
        return;
    for (uint32_t e = 0; e < entries; e++) {
        const struct attnd_entry *entry = &plan_entries(c)[e];
        fuzz_require(plan_kv_len(c, generation)[e] == kv_len[e], "lengths arrive");
        fuzz_require((int64_t)kv_len[e] <= (int64_t)entry->page_count * c->pool.page_size,
                     "lengths stay within the pages");
        for (uint32_t p = 0; p < entry->page_count; p++) {
            int32_t page = plan_kv_pages(c)[entry->page_begin + p];
            fuzz_require(page >= 0 && (uint32_t)page < c->pool.pages, "pages are the pool's");
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct case_source source = {.bytes = data, .bytes_left = bytes};
    struct attnd_fault fault = {0};
    struct plan_case c;
    char why[200] = "";

    if (!data)
        return 0;
    plan_case_draw(&c, &source);
    fuzz_require(!plan_case_new(&c), "limits that fit make a plan");
    fuzz_require(!attnd_planner_set(c.plan, &c.batch, &fault), "a batch within the limits fits");
    fuzz_require(plan_check(&c, why, sizeof(why)), why);
    for (uint32_t g = 1; source.bytes_left && g < 20; g++)
        advance(&c, &source, g % ATTND_GENERATIONS);
    plan_case_free(&c);
    return 0;
}
