/*
 * trace.c - a thread that asks for the worker's records as `attnctl trace` does, while a shape is
 * timed; then the shape without it. In turns, because a card's clock follows its power: the median
 * of the ratios of neighbours.
 */
#include "bench/gpu/trace.h"

#include "bench/support/histogram.h"
#include "schemas/abi.h"
#include "schemas/atomics.h"
#include "service/ctl/attnctl.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TURNS 3
#define PATIENCE_MS 50u

struct reader {
    const char *socket_path;
    uint32_t stop, begun;
    uint64_t items, lost;
    int code;
    Attnd__TraceQuery query;
};

static void pause_ms(long ms)
{
    const struct timespec time = {.tv_nsec = ms * 1000000};
    (void)nanosleep(&time, NULL);
}

/* Return: records that came; -1: no more questions. */
static long ask(struct reader *reader)
{
    Attnd__Request request = ATTND__REQUEST__INIT;
    Attnd__Reply *reply;

    request.call_case = ATTND__REQUEST__CALL_TRACE;
    request.trace = &reader->query;
    reader->code = attnctl_ask(reader->socket_path, &request, &reply);
    if (reader->code < 0)
        return -1;
    if (reply->code < 0 || reply->result_case != ATTND__REPLY__RESULT_TRACE)
        reader->code = reply->code < 0 ? reply->code : -ATTND_E_PROTOCOL;
    if (reader->code < 0) {
        attnd__reply__free_unpacked(reply, NULL);
        return -1;
    }
    const Attnd__TraceReply *trace = reply->trace;
    const size_t got = trace->records.len / sizeof(struct attnd_trace_record);
    reader->query.n_next =
        trace->n_next < ATTND_TRACE_WORKERS_MAX ? trace->n_next : ATTND_TRACE_WORKERS_MAX;
    memcpy(reader->query.next, trace->next, reader->query.n_next * sizeof(*trace->next));
    reader->query.worker_pid = trace->worker_pid;
    reader->query.has_worker_pid = 1;
    reader->items += got;
    reader->lost += trace->lost;
    attnd__reply__free_unpacked(reply, NULL);
    return (long)got;
}

static void *read_all(void *argument)
{
    struct reader *reader = argument;

    while (!attnd_observe32(&reader->stop)) {
        const long got = ask(reader);
        attnd_publish32(&reader->begun, 1);
        if (got < 0)
            break;
        if (got == 0)
            pause_ms(10);
    }
    return NULL;
}

/* The shape with a reader. Return: 0 after a failure. */
static double time_read(struct bench_suite *suite, struct reader *reader, int shape,
                        double (*time_us)(struct bench_suite *suite, int shape))
{
    pthread_t thread;

    reader->stop = reader->begun = 0;
    if (pthread_create(&thread, NULL, read_all, reader) != 0) {
        bench_suite_fail(suite, "no thread");
        return 0;
    }
    while (!attnd_observe32(&reader->begun))
        pause_ms(1);
    const double us = time_us(suite, shape);
    attnd_publish32(&reader->stop, 1);
    (void)pthread_join(thread, NULL);
    if (reader->code < 0)
        bench_suite_call(suite, "trace", reader->code);
    pause_ms(2 * (long)PATIENCE_MS); /* until nothing is recorded any more */
    return reader->code < 0 ? 0 : us;
}

/* Return: the median of the ratios; 0 after a failure. */
static double cost_of(struct bench_suite *suite, struct reader *reader, int shape,
                      double (*time_us)(struct bench_suite *suite, int shape))
{
    uint64_t ratios[TURNS]; /* in millionths */

    for (int turn = 0; turn < TURNS; turn++) {
        const double off_us = time_us(suite, shape);
        const double on_us = time_read(suite, reader, shape, time_us);
        if (!(off_us > 0) || !(on_us > 0))
            return 0;
        ratios[turn] = (uint64_t)(on_us / off_us * 1e6);
    }
    return (double)bench_p50(ratios, TURNS) * 1e-6;
}

void gpu_measure_trace(struct bench_suite *suite,
                       double (*time_us)(struct bench_suite *suite, int shape))
{
    uint32_t next[ATTND_TRACE_WORKERS_MAX];
    struct reader reader = {.socket_path = suite->socket_path};
    double cost[2];
    char notes[160];

    attnd__trace_query__init(&reader.query);
    reader.query.next = next;
    reader.query.patience_ms = PATIENCE_MS;
    reader.query.has_patience_ms = 1;
    for (int shape = 0; shape < 2; shape++) {
        cost[shape] = cost_of(suite, &reader, shape, time_us);
        if (!(cost[shape] > 0))
            return;
    }
    snprintf(notes, sizeof(notes),
             "64x8192 %.3f, prefill_8192 %.3f: medians of %d turns; %llu items read, %llu lost",
             cost[0], cost[1], TURNS, (unsigned long long)reader.items,
             (unsigned long long)reader.lost);
    bench_suite_figure(suite, "trace_cost", cost[0] > cost[1] ? cost[0] : cost[1], "ratio", "lower",
                       1.02, notes);
}
