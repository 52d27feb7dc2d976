/*
 * handover.c - one process fills pages, another one goes on with them: no byte is copied.
 *
 * The prefill engine leases pages, appends a prompt to them and offers the leases by ticket. It may
 * be gone by the time the decode engine claims them. The two processes only need to pass 32 bytes:
 * the pool's token and the ticket. fork() comes before attnd_open(): a session belongs to one
 * process.
 *
 *     cc handover.c $(pkg-config --cflags --libs attnd) -lm
 */
#include "attnd.h"

#include <math.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TOKENS = 24, PAGES = 2, PAGE_SIZE = 16, HEADS = 8, HEADS_KV = 2, DIM = 64 };
enum { Q = 0, O = 32768, K = 65536, V = 73728, LSE = 81920, BYTES = 82944 };

struct message {
    struct attnd_token pool, ticket;
};

static const struct attnd_op quiet = {.flags = ATTND_SKIP_SUCCESS};

/* A plan of one request that ends with @rows query rows, set. Return: 0, or negative. */
static int plan_request(struct attnd_session *s, uint32_t pool, const int32_t *page, int32_t rows,
                        uint32_t *plan)
{
    int32_t row_ends[] = {0, rows}, pages[] = {0, PAGES};
    int32_t last_page_len = TOKENS - (PAGES - 1) * PAGE_SIZE;
    struct attnd_level level = {1, row_ends, pages, page, &last_page_len};
    struct attnd_plan_args room = ATTND_ARGS(plan_args, pool, 1, (uint32_t)rows, PAGES, 1, HEADS);

    if (attnd_plan_create(s, &room, plan) < 0)
        return -1;
    return attnd_plan_set(s, *plan, &ATTND_ARGS(batch, .flags = ATTND_CAUSAL, .level = &level),
                          &quiet);
}

static int prefill(int to)
{
    struct attnd_session *s;
    struct message message;
    uint32_t pool, memory, plan;
    int32_t page[PAGES];

    if (attnd_open(NULL, &s) < 0 ||
        attnd_pool_create_leased(s, 1, 64, PAGE_SIZE, HEADS_KV, DIM, ATTND_DTYPE_FP16, &pool) < 0 ||
        attnd_memory_create(s, BYTES, &memory, NULL) < 0 ||
        attnd_pages_alloc(s, pool, PAGES, page) < 0 ||
        plan_request(s, pool, page, TOKENS, &plan) < 0)
        return -1;
    struct attnd_append_args append = ATTND_ARGS(append_args, 0, {memory, K}, {memory, V});
    struct attnd_run_args run = ATTND_ARGS(run_args, 0, {memory, Q}, {memory, O});
    if (attnd_append(s, plan, &append, &quiet) < 0 || attnd_run_sync(s, plan, &run) < 0 ||
        attnd_pool_share(s, pool, 1, &message.pool) < 0 ||
        attnd_pages_offer(s, pool, PAGES, page, 10000, &message.ticket) < 0)
        return -1;
    /* The pool lives while somebody has it attached: wait until the other one has. */
    int status, sent = write(to, &message, sizeof(message)) == (ssize_t)sizeof(message);
    int taken = sent && wait(&status) > 0 && status == 0;
    attnd_close(s);
    return taken ? 0 : -1;
}

static int decode(int from)
{
    struct attnd_session *s;
    struct message message;
    uint32_t pool, claimed, memory, plan;
    int32_t page[PAGES];
    void *at;

    if (read(from, &message, sizeof(message)) != (ssize_t)sizeof(message) ||
        attnd_open(NULL, &s) < 0 || attnd_pool_attach(s, &message.pool, &pool) < 0 ||
        attnd_pages_claim(s, &message.ticket, &claimed, page, PAGES) != PAGES ||
        attnd_memory_create(s, BYTES, &memory, &at) < 0 ||
        plan_request(s, pool, page, 1, &plan) < 0)
        return -1;
    struct attnd_run_args run = ATTND_ARGS(run_args, 0, {memory, Q}, {memory, O}, {memory, LSE});
    if (attnd_run_sync(s, plan, &run) < 0)
        return -1;
    const float *lse = (const float *)at + LSE / 4;
    printf("the decode engine sees %g tokens of the prefill engine\n", round(exp2((double)lse[0])));
    attnd_close(s);
    return 0;
}

int main(void)
{
    struct attnd_fault fault;
    char text[160];
    int ends[2];

    if (pipe(ends) < 0)
        return 1;
    pid_t child = fork();
    if (child < 0)
        return 1;
    close(ends[child == 0 ? 1 : 0]); /* so that each learns of the other's end */
    if ((child == 0 ? decode(ends[0]) : prefill(ends[1])) == 0)
        return 0;
    close(ends[child == 0 ? 0 : 1]); /* so does the one that still waits for a message */
    if (child > 0)
        (void)wait(NULL);
    attnd_last_fault(&fault);
    if (fault.code < 0) /* else it is the other process that failed, and it says why */
        fprintf(stderr, "%s\n", attnd_fault_string(&fault, text, sizeof(text)));
    return 1;
}
