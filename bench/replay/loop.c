/* loop.c - the loop of an engine: take what has arrived, admit what fits, run a step, see who is
 * done. One process, one session, one plan, one lane. */
#include "bench/replay/engine.h"
#include "ipc/wake.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define RETRY_NS 1000000u /* the pool is full of other engines' requests */

/* ---- coming and going ---- */

static uint32_t context_tokens_max(const struct replay_trace *trace)
{
    uint32_t most = 1;

    for (uint32_t i = 0; i < trace->requests; i++) {
        uint32_t tokens = trace->request[i].input_tokens + trace->request[i].output_tokens;
        most = tokens > most ? tokens : most;
    }
    return most;
}

static uint16_t first_engine(const struct replay_engine *engine, uint32_t request)
{
    return engine->job->prefill_of[request];
}

/* Does @request end its life in this engine or pass through it? */
static bool comes_here(const struct replay_engine *engine, uint32_t request)
{
    if (engine->role == REPLAY_DECODE)
        return engine->job->decode_of[request] == engine->index &&
               engine->job->trace->request[request].output_tokens > 1;
    return first_engine(engine, request) == engine->index;
}

static uint64_t arrival_ns(const struct replay_engine *engine, uint32_t request)
{
    double offset = (double)engine->job->trace->request[request].arrival_ns;

    return engine->job->start_ns + (uint64_t)(offset * engine->options->time_scale);
}

/* Requests whose time has come; not many more than can run, so that a trace replayed at full speed
 * does not lie in memory as a whole. */
static int take_arrivals(struct replay_engine *engine)
{
    const struct replay_trace *trace = engine->job->trace;
    uint64_t now_ns = attnd_clock_ns();

    while (engine->next_arrival < trace->requests &&
           engine->waiting_count < 2 * engine->options->batch) {
        uint32_t i = engine->next_arrival;
        struct replay_request *request;

        if (comes_here(engine, i)) {
            if (arrival_ns(engine, i) > now_ns)
                break;
            request = replay_request_new(engine, &trace->request[i]);
            if (!request)
                return replay_fail(engine, "out of memory");
            replay_wait_append(engine, request);
        }
        engine->next_arrival++;
    }
    return 0;
}

static void sleep_ns(uint64_t ns)
{
    struct timespec time = {.tv_sec = (time_t)(ns / 1000000000u),
                            .tv_nsec = (long)(ns % 1000000000u)};

    nanosleep(&time, NULL);
}

/* Nothing runs: until the next arrival, or until others have freed pages. */
static void sleep_idle(const struct replay_engine *engine)
{
    uint64_t now_ns = attnd_clock_ns(), until_ns;

    if (engine->waiting || engine->next_arrival >= engine->job->trace->requests) {
        sleep_ns(RETRY_NS);
        return;
    }
    until_ns = arrival_ns(engine, engine->next_arrival);
    if (until_ns > now_ns)
        sleep_ns(until_ns - now_ns);
}

/* ---- after a step ---- */

static void count_token(struct replay_engine *engine, struct replay_request *request)
{
    struct replay_stats *stats = engine->stats;
    bool first_here = request->token_clock_ns == request->admitted_clock_ns;

    if (!request->generated)
        bench_histogram_add(&stats->first_token_ns, engine->clock_ns - request->admitted_clock_ns);
    else if (!first_here || engine->role != REPLAY_DECODE)
        /* the gap over a hand-over lies between two clocks: counted as hand-over time */
        bench_histogram_add(&stats->next_token_ns, engine->clock_ns - request->token_clock_ns);
    request->token_clock_ns = engine->clock_ns;
    request->generated++;
    stats->output_tokens++;
    replay_progress_add(engine, 1);
}

static int leave(struct replay_engine *engine, struct replay_request *request, bool handover)
{
    if (handover && replay_handover(engine, request))
        return -1;
    if (replay_admit_leave(engine, request, !handover))
        return -1;
    engine->stats->requests += !handover;
    replay_request_free(request);
    return 0;
}

static int after_slot(struct replay_engine *engine, const struct replay_slot *slot)
{
    struct replay_request *request = slot->request;
    const struct replay_trace_request *trace = request->trace;
    bool was_prompt = request->stored < trace->input_tokens;

    request->stored += slot->row_count;
    if (was_prompt) {
        assert(engine->role != REPLAY_DECODE);
        engine->stats->prompt_computed += slot->row_count;
        replay_progress_add(engine, slot->row_count);
        if (replay_admit_computed(engine, request))
            return -1;
    }
    if (request->stored < trace->input_tokens)
        return 0;
    if (request->generated < trace->output_tokens)
        count_token(engine, request);
    if (request->generated == trace->output_tokens)
        return leave(engine, request, false);
    return engine->role == REPLAY_PREFILL ? leave(engine, request, true) : 0;
}

/* ---- the loop ---- */

static int admit(struct replay_engine *engine)
{
    uint64_t begin_ns = attnd_clock_ns();
    int failed = replay_admit(engine);

    engine->stats->pages_ns += attnd_clock_ns() - begin_ns;
    return failed;
}

static int turn(struct replay_engine *engine)
{
    uint64_t begin_ns;
    bool advance;

    if (engine->role == REPLAY_DECODE) {
        bool idle = !engine->running_count && !engine->waiting;
        if (replay_takeover(engine, idle ? 1000 : 0))
            return -1;
    } else if (take_arrivals(engine)) {
        return -1;
    }
    if (admit(engine))
        return -1;
    if (!engine->running_count && engine->role == REPLAY_DECODE)
        return engine->waiting ? replay_bring_await(engine, RETRY_NS) : 0;
    if (!engine->running_count) {
        sleep_idle(engine);
        return 0;
    }
    advance = replay_batch_advance(&engine->batch, engine);
    if (!advance)
        replay_batch_compose(&engine->batch, engine);
    if (replay_step(engine, advance))
        return -1;
    begin_ns = attnd_clock_ns();
    for (uint32_t i = 0; i < engine->batch.slots; i++)
        if (after_slot(engine, &engine->batch.slot[i]))
            return -1;
    engine->stats->pages_ns += attnd_clock_ns() - begin_ns;
    return 0;
}

static uint64_t place(uint64_t *end, uint64_t bytes)
{
    uint64_t at = *end;

    *end = (at + bytes + 63) & ~(uint64_t)63;
    return at;
}

static int make_buffers(struct replay_engine *engine)
{
    const struct replay_options *options = engine->options;
    struct replay_buffers *b = &engine->buffers;
    uint64_t rows = options->batch + options->chunk, end = 0;
    uint64_t q_bytes = rows * options->heads_q * options->head_dim * 2;
    uint64_t kv_bytes = rows * options->heads_kv * options->head_dim * 2;
    void *address;
    int code;

    b->q_offset = place(&end, q_bytes);
    b->o_offset = place(&end, q_bytes);
    b->k_offset = place(&end, kv_bytes);
    b->v_offset = place(&end, kv_bytes);
    b->lse_offset = place(&end, rows * options->heads_q * sizeof(float));
    code = attnd_memory_create(engine->session, end, &b->memory, &address);
    if (code)
        return replay_fail_call(engine, "attnd_memory_create", code);
    b->address = address;
    return 0;
}

static int make_plan(struct replay_engine *engine, uint32_t pages_max)
{
    const struct replay_options *options = engine->options;
    struct attnd_plan_args args = {.size = sizeof(args),
                                   .pool = engine->pool,
                                   .requests = 2 * options->batch,
                                   .rows = options->batch + options->chunk,
                                   .pages = pages_max,
                                   .levels = 2,
                                   .heads_q = options->heads_q};
    int code = attnd_plan_create(engine->session, &args, &engine->plan);

    return code ? replay_fail_call(engine, "attnd_plan_create", code) : 0;
}

static int connect_service(struct replay_engine *engine, uint32_t pages_per_request)
{
    static const char *const roles[] = {"engine", "prefill", "decode"};
    uint32_t pages_max = replay_batch_pages_max(engine->options, pages_per_request);
    uint32_t service = engine->role == REPLAY_DECODE ? engine->options->services - 1 : 0;
    char name[32];
    struct attnd_open_args args = {.size = sizeof(args),
                                   .arena_bytes = (8u << 20) + 8 * (uint64_t)pages_max,
                                   .socket_path = engine->job->socket_path[service],
                                   .name = name};
    int code;

    snprintf(name, sizeof(name), "replay-%s-%u", roles[engine->role], engine->index);
    code = attnd_open(&args, &engine->session);
    if (code)
        return replay_fail_call(engine, "attnd_open", code);
    code = attnd_pool_attach(engine->session, &engine->job->pool_token[service], &engine->pool);
    if (code)
        return replay_fail_call(engine, "attnd_pool_attach", code);
    if (engine->job->cache == REPLAY_CACHE_SERVICE && !service && replay_tree_attach(engine))
        return -1;
    return make_buffers(engine) || make_plan(engine, pages_max) ? -1 : 0;
}

static enum replay_role role_of(const struct replay_options *options, uint32_t index)
{
    if (options->mode == REPLAY_SHARED)
        return REPLAY_BOTH;
    return index < options->prefill_engines ? REPLAY_PREFILL : REPLAY_DECODE;
}

static int start(struct replay_engine *engine)
{
    const struct replay_options *options = engine->options;
    const struct replay_trace *trace = engine->job->trace;
    uint32_t context = context_tokens_max(trace);
    uint32_t pages_per_request = context / options->page_size + 1;

    engine->waiting_tail = &engine->waiting;
    engine->running = calloc(options->batch, sizeof(void *));
    engine->page_scratch = calloc(engine->job->pool_pages, sizeof(int32_t));
    engine->check_scratch = calloc(options->head_dim, sizeof(double));
    if (!engine->running || !engine->page_scratch || !engine->check_scratch ||
        replay_prefix_init(&engine->prefix, replay_cache_pages_max(engine->job)) ||
        replay_batch_init(&engine->batch, options, pages_per_request) ||
        replay_reference_init(&engine->reference, &engine->model, trace, context))
        return replay_fail(engine, "out of memory");
    replay_model_init(&engine->model, options->heads_q, options->heads_kv, options->head_dim,
                      options->dtype, options->seed);
    for (uint32_t i = 0; i < trace->requests; i++)
        engine->unfinished += comes_here(engine, i);
    return connect_service(engine, pages_per_request);
}

int replay_engine_main(const struct replay_job *job, uint32_t index)
{
    struct replay_engine engine = {.job = job,
                                   .options = job->options,
                                   .index = index,
                                   .role = role_of(job->options, index),
                                   .out = &job->slot[index],
                                   .stats = &job->slot[index].stats,
                                   .random = job->options->seed + index,
                                   .ticket_fd = job->pipe[index][0]};
    int result = start(&engine);

    engine.stats->begin_ns = attnd_clock_ns();
    while (!result && engine.unfinished)
        result = turn(&engine);
    engine.stats->end_ns = attnd_clock_ns();
    /* Memory goes with the process; the session is closed so that the service need not notice. */
    attnd_close(engine.session);
    return result ? EXIT_FAILURE : EXIT_SUCCESS;
}
