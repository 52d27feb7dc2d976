/* engine.c - a whole engine: one prompt of 8 tokens through 4 layers. */
#include "attnd.h"

#include <err.h>
#include <stdio.h>

enum { LAYERS = 4, TOKENS = 8, HEADS = 8, HEADS_KV = 2, DIM = 64 };
enum { Q = 0, O = 8192, K = 16384, V = 18432, LSE = 20480, BYTES = 20736 }; /* one memory */

static void check(const struct attnd_fault *fault)
{
    char text[160];

    if (fault->code < 0)
        errx(1, "%s", attnd_fault_string(fault, text, sizeof(text)));
}

static void must(int code)
{
    struct attnd_fault fault;

    attnd_last_fault(&fault);
    if (code < 0)
        check(&fault);
}

int main(void)
{
    struct attnd_session *s;
    uint32_t pool, memory, plan;
    int32_t page = 0, rows[] = {0, TOKENS}, pages[] = {0, 1}, last_page_len = TOKENS;
    struct attnd_pool_desc kv = {
        sizeof(kv), LAYERS, 64, 16, HEADS_KV, DIM, DIM, ATTND_DTYPE_FP16, ATTND_PAGES_OF_ENGINE,
        NULL,       NULL,   0};
    struct attnd_level level = {1, rows, pages, &page, &last_page_len};
    struct attnd_batch batch = {.size = sizeof(batch), .flags = ATTND_CAUSAL, .level = &level};
    struct attnd_op quiet = {.flags = ATTND_SKIP_SUCCESS}, loud = {0};
    void *tensors;

    must(attnd_open(NULL, &s));
    must(attnd_pool_create(s, &kv, &pool));
    must(attnd_memory_create(s, BYTES, &memory, &tensors));
    struct attnd_plan_args room = {sizeof(room), pool, 1, TOKENS, 1, 1, HEADS};
    must(attnd_plan_create(s, &room, &plan));
    must(attnd_plan_set(s, plan, &batch, &quiet));
    for (uint32_t layer = 0; layer < LAYERS; layer++) { /* the model writes q, k and v here */
        struct attnd_append_args append = {sizeof(append), layer, {memory, K}, {memory, V}};
        struct attnd_run_args run = {sizeof(run), layer, {memory, Q}, {memory, O}, {memory, LSE}};
        struct attnd_completion done;
        must(attnd_append(s, plan, &append, &quiet));
        must(attnd_run(s, plan, &run, &loud));
        must(attnd_wait(s, &done, 1, ATTND_FOREVER));
        check(&done.fault);
    }
    /* Zero q and k: all visible keys weigh the same, and the last token sees 8 of them: log2(8). */
    printf("lse of the last token: %g\n", (double)((float *)tensors)[LSE / 4 + TOKENS * HEADS - 1]);
    attnd_close(s);
}
