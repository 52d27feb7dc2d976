/* engine.c - a whole engine: one prompt of 8 tokens through 4 layers. */
#include "attnd.h"
#include <stdio.h>

int main(void) /* 8 query heads and 2 of K and V, of 64; q, o, k, v and lse in one memory */
{
    int32_t page, rows[] = {0, 8}, pages[] = {0, 1}, last_page_len = 8;
    struct attnd_level level = {1, rows, pages, &page, &last_page_len};
    struct attnd_batch batch = ATTND_ARGS(batch, .flags = ATTND_CAUSAL, .level = &level);
    struct attnd_plan_args room = ATTND_ARGS(plan_args, 0, 1, 8, 1, 1, .heads_q = 8);
    struct attnd_op quiet = {.flags = ATTND_SKIP_SUCCESS};
    struct attnd_session *s;
    uint32_t m, plan, layer = 0;
    void *at;
    int rc = attnd_open(NULL, &s) < 0 ||
             attnd_pool_create_leased(s, 4, 64, 16, 2, 64, ATTND_DTYPE_FP16, &room.pool) < 0 ||
             attnd_pages_alloc(s, room.pool, 1, &page) < 0 ||
             attnd_memory_create(s, 20736, &m, &at) < 0 || attnd_plan_create(s, &room, &plan) < 0 ||
             attnd_plan_set(s, plan, &batch, &quiet) < 0;
    for (; rc == 0 && layer < 4; layer++) { /* a model computes q, k and v here; these are zero */
        struct attnd_append_args append = ATTND_ARGS(append_args, layer, {m, 16384}, {m, 18432});
        struct attnd_run_args run = ATTND_ARGS(run_args, layer, {m, 0}, {m, 8192}, {m, 20480});
        rc = attnd_append(s, plan, &append, &quiet) < 0 || attnd_run_sync(s, plan, &run) < 0;
    }
    if (rc)
        return fprintf(stderr, "%s\n", attnd_last_fault_string((char[160]){0}, 160)), 1;
    printf("lse of the last token: %g\n", (double)((float *)at)[20480 / 4 + 63]); /* log2(8) */
    attnd_close(s);
    return 0;
}
