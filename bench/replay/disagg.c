/* disagg.c - a prefilled request changes its engine and its pages stay where they are.
 *
 * The prefill engine offers the leases of all pages of the request, also of those the answer will
 * need, and sends the ticket through a pipe that the parent made; the decode engine claims it and
 * reads the same bytes. From then on the prefill engine may finish and exit. A note is far below
 * PIPE_BUF, so notes of several engines arrive whole. A pipe that is full makes the prefill engine
 * wait: the decode engine empties it before every step.
 *
 * With a service of its own the decode engine has the pages brought, while it decodes what is here
 * already. A claim that finds too little room is repeated: the ticket is as it was. */
#include "bench/replay/engine.h"
#include "ipc/wake.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define TICKET_EXPIRE_MS 600000u
#define BRINGING_MAX 16u /* a session's ring has room for more */

struct note {
    struct attnd_token ticket;
    uint64_t offered_ns;
    uint32_t request; /* in the trace */
    uint32_t pages;
};

int replay_handover(struct replay_engine *engine, struct replay_request *request)
{
    uint32_t index = (uint32_t)(request->trace - engine->job->trace->request);
    struct note note = {
        .offered_ns = attnd_clock_ns(), .request = index, .pages = request->pages_count};
    int fd = engine->job->pipe[engine->job->decode_of[index]][1], code;
    ssize_t sent;

    code = attnd_pages_offer(engine->session, engine->pool, request->pages_count, request->pages,
                             TICKET_EXPIRE_MS, &note.ticket);
    if (code)
        return replay_fail_call(engine, "attnd_pages_offer", code);
    engine->stats->pages_offered += request->pages_count;
    do
        sent = write(fd, &note, sizeof(note));
    while (sent < 0 && errno == EINTR);
    if (sent != sizeof(note))
        return replay_fail(engine, "the decode engine is gone: %s", strerror(errno));
    return 0;
}

/* All of the prompt is in its pages, and the first token was told by the prefill engine. */
static void begin(struct replay_engine *engine, struct replay_request *request)
{
    request->stored = request->trace->input_tokens;
    request->generated = 1;
    bench_histogram_add(&engine->stats->handover_ns, attnd_clock_ns() - request->offered_ns);
}

static int claim(struct replay_engine *engine, const struct note *note)
{
    struct replay_request *request;
    uint32_t pool;
    int count;

    if (note->request >= engine->job->trace->requests)
        return replay_fail(engine, "a note names request %u", note->request);
    request = replay_request_new(engine, &engine->job->trace->request[note->request]);
    if (!request)
        return replay_fail(engine, "out of memory");
    request->ticket = note->ticket;
    request->offered_ns = note->offered_ns;
    if (engine->options->services > 1) { /* when it has a place to run: replay_bring() */
        replay_wait_append(engine, request);
        return 0;
    }
    count = attnd_pages_claim(engine->session, &note->ticket, &pool, request->pages,
                              request->pages_count);
    if (count < 0 || (uint32_t)count != request->pages_count || pool != engine->pool) {
        replay_request_free(request);
        return count < 0 ? replay_fail_call(engine, "attnd_pages_claim", count)
                         : replay_fail(engine, "a ticket held %d pages of pool %u", count, pool);
    }
    engine->stats->pages_claimed += (uint32_t)count;
    begin(engine, request);
    replay_wait_append(engine, request);
    return 0;
}

/* The prefill engines have exited: right if nothing is to come from them. */
static int end_of_tickets(struct replay_engine *engine)
{
    uint32_t here = engine->waiting_count + engine->running_count;

    engine->ticket_fd = -1;
    if (engine->unfinished == here)
        return 0;
    return replay_fail(engine, "the prefill engines are gone with %u requests to come",
                       engine->unfinished - here);
}

int replay_takeover(struct replay_engine *engine, int timeout_ms)
{
    struct pollfd fd = {.fd = engine->ticket_fd, .events = POLLIN};
    struct note note;

    if (engine->ticket_fd < 0)
        return 0;
    while (poll(&fd, 1, timeout_ms) > 0) {
        ssize_t got = read(engine->ticket_fd, &note, sizeof(note));

        if (got < 0 && errno == EINTR)
            continue;
        if (!got)
            return end_of_tickets(engine);
        if (got != sizeof(note))
            return replay_fail(engine, "half a note in the pipe");
        if (claim(engine, &note))
            return -1;
        timeout_ms = 0;
    }
    return 0;
}

/* ---- from service to service ---- */

int replay_bring(struct replay_engine *engine, struct replay_request *request)
{
    struct attnd_claim_args args = {.size = sizeof(args),
                                    .pool = engine->pool,
                                    .pages_max = request->pages_count,
                                    .ticket = &request->ticket};
    struct attnd_op op = {.user_data = (uintptr_t)request};
    int code;

    if (request->answer == REPLAY_ASKED || engine->bringing == BRINGING_MAX)
        return 0;
    code = attnd_pages_claim_async(engine->session, &args, &op);
    if (code == -ATTND_E_FULL)
        return 0;
    if (code)
        return replay_fail_call(engine, "attnd_pages_claim_async", code);
    request->answer = REPLAY_ASKED;
    engine->bringing++;
    return 0;
}

/* What passes: the pool is full of requests that run, or a worker was restarted under it. */
static bool may_be_asked_again(int code)
{
    return code == -ATTND_E_NO_SPACE || code == -ATTND_E_FULL || code == -ATTND_E_WORKER_RESTARTED;
}

int replay_brought(struct replay_engine *engine, const struct attnd_completion *completion)
{
    struct attnd_claim_result result = {.size = sizeof(result)};
    struct replay_request *request = (struct replay_request *)(uintptr_t)completion->user_data;

    engine->bringing--;
    request->answer = REPLAY_UNASKED;
    if (may_be_asked_again(completion->fault.code))
        return 0;
    if (completion->fault.code) {
        char text[160];
        return replay_fail(engine, "pages could not be brought: %s",
                           attnd_fault_string(&completion->fault, text, sizeof(text)));
    }
    if (attnd_claim_result(engine->session, completion, &result) ||
        result.pages_count != request->pages_count)
        return replay_fail(engine, "a ticket held %u pages", result.pages_count);
    memcpy(request->pages, result.pages, result.pages_count * sizeof(request->pages[0]));
    engine->stats->pages_brought += result.pages_count;
    begin(engine, request);
    return 0;
}

int replay_bring_await(struct replay_engine *engine, uint64_t timeout_ns)
{
    struct attnd_completion completions[8];
    int count = attnd_wait(engine->session, completions, 8, timeout_ns);

    if (count < 0)
        return replay_fail_call(engine, "attnd_wait", count);
    for (int i = 0; i < count; i++)
        if (replay_brought(engine, &completions[i]))
            return -1;
    return 0;
}
