/* disagg.c - a prefilled request changes its engine and its pages stay where they are.
 *
 * The prefill engine offers the leases of all pages of the request, also of those the answer will
 * need, and sends the ticket through a pipe that the parent made; the decode engine claims it and
 * reads the same bytes. From then on the prefill engine may finish and exit. A note is far below
 * PIPE_BUF, so notes of several engines arrive whole. A pipe that is full makes the prefill engine
 * wait: the decode engine empties it before every step. */
#include "bench/replay/engine.h"
#include "ipc/wake.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define TICKET_EXPIRE_MS 600000u

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
    count = attnd_pages_claim(engine->session, &note->ticket, &pool, request->pages,
                              request->pages_count);
    if (count < 0 || (uint32_t)count != request->pages_count || pool != engine->pool) {
        replay_request_free(request);
        return count < 0 ? replay_fail_call(engine, "attnd_pages_claim", count)
                         : replay_fail(engine, "a ticket held %d pages of pool %u", count, pool);
    }
    request->stored = request->trace->input_tokens;
    request->generated = 1;
    engine->stats->pages_claimed += (uint32_t)count;
    bench_histogram_add(&engine->stats->handover_ns, attnd_clock_ns() - note->offered_ns);
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
