/* engine.c - a whole engine: one prompt of 8 tokens through 4 layers. */
#include "attnd.h"

#include <stdio.h>

enum { LAYERS = 4, TOKENS = 8, HEADS = 8, HEADS_KV = 2, DIM = 64 };
enum { Q = 0, O = 8192, K = 16384, V = 18432, LSE = 20480, BYTES = 20736 }; /* one memory */

static int failed(struct attnd_fault fault) /* an operation; if none did, the last call */
{
    char text[160];

    if (fault.code == 0)
        attnd_last_fault(&fault);
    fprintf(stderr, "%s\n", attnd_fault_string(&fault, text, sizeof(text)));
    return 1;
}

int main(void)
{
    int32_t page = 0, rows[] = {0, TOKENS}, pages[] = {0, 1}, last_page_len = TOKENS;
    struct attnd_level level = {1, rows, pages, &page, &last_page_len};
    struct attnd_batch batch = {.size = sizeof(batch), .flags = ATTND_CAUSAL, .level = &level};
    struct attnd_pool_desc kv = {
        sizeof(kv), LAYERS, 64, 16, HEADS_KV, DIM, DIM, ATTND_DTYPE_FP16, ATTND_PAGES_OF_ENGINE,
        NULL,       NULL,   0};
    struct attnd_plan_args room = {sizeof(room), 0, 1, TOKENS, 1, 1, HEADS};
    struct attnd_op quiet = {.flags = ATTND_SKIP_SUCCESS};
    struct attnd_completion done = {0};
    struct attnd_session *s;
    uint32_t memory, plan;
    void *tensors;

    if (attnd_open(NULL, &s) < 0 || attnd_pool_create(s, &kv, &room.pool) < 0 ||
        attnd_memory_create(s, BYTES, &memory, &tensors) < 0 ||
        attnd_plan_create(s, &room, &plan) < 0 || attnd_plan_set(s, plan, &batch, &quiet) < 0)
        return failed(done.fault);
    for (uint32_t layer = 0; layer < LAYERS; layer++) { /* the model writes q, k and v here */
        struct attnd_append_args append = {sizeof(append), layer, {memory, K}, {memory, V}};
        struct attnd_run_args run = {sizeof(run), layer, {memory, Q}, {memory, O}, {memory, LSE}};
        if (attnd_append(s, plan, &append, &quiet) < 0 || attnd_run(s, plan, &run, NULL) < 0 ||
            attnd_wait(s, &done, 1, ATTND_FOREVER) < 0 || done.fault.code < 0)
            return failed(done.fault);
    }
    /* Zero q and k: all visible keys weigh the same, and the last token sees 8 of them: log2(8). */
    printf("lse of the last token: %g\n", (double)((float *)tensors)[LSE / 4 + TOKENS * HEADS - 1]);
    attnd_close(s);
    return 0;
}
