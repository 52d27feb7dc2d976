/* safety.c - what others beside it cost a small client, and how soon what is cancelled ends.
 *
 * safety.honest_p99_ratio: attnd_plan_set() and attnd_run() of a small batch, 500 times a second,
 * beside one attacker (bench/support/attack.h) at a time, over alone; the worst of them.
 * safety.flood_p99_over_item: the same beside three floods, over the time of the longest item that
 * the worker has, which is one of theirs. safety.control_p99_ratio: beside programs that burn all
 * processors and never call the service. That is what the operating system does to a neighbour:
 * nothing of attnd is in it but that the small client is one of attnd's. Blocks alone and blocks
 * beside alternate, so that the machine's moods meet both.
 *
 * safety.stall_longest_ms and safety.stall_share: how long the daemon's one thread is away for
 * others. A session asks a trivial call in a closed loop beside one attacker at a time: the longest
 * answer, and the part of the time that went into answers of more than 5 ms. Both are of the worst
 * attacker, and the operating system's share is in them (see control_p99_ratio). Not in
 * safety.stall_own_ms: the longest that the daemon's thread worked before it answered.
 *
 * safety.left_behind: what the service has more than before, in descriptors, bytes and objects
 * together, after --deaths processes were killed with everything open.
 *
 * safety.cancel_us: from attnd_cancel() to the completion, of runs of 16,384 and of 2^31 keys; the
 * median of each, and the worse of the two. */
#include "bench/support/amounts.h"
#include "bench/support/attack.h"
#include "bench/support/deaths.h"
#include "bench/support/stall.h"
#include "bench/support/suite.h"
#include "bench/support/uniform.h"
#include "ipc/wake.h"
#include "service/args/args.h"

#include <argp.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BLOCKS 4u
#define FLOODS 3u
#define ATTACKERS_MAX 256u
#define CANCELS 50u
#define ITEM_RUNS 20u
#define REST_NS 20000000
#define SETTLE_NS 300000000    /* what the ended attackers had is given back */
#define AFTERMATH_NS 900000000 /* the kernel takes that long to end tens of thousands of waits */
#define PACE_NS UINT64_C(2000000)

static void nap(long ns)
{
    const struct timespec time = {.tv_nsec = ns};

    nanosleep(&time, NULL);
}

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static double p99_us(uint64_t *samples, size_t count)
{
    const size_t at = (count - 1) * 99 / 100;

    qsort(samples, count, sizeof(*samples), by_value);
    return (double)samples[at] * 1e-3;
}

/* Of samples in order. */
static double p50_us(const uint64_t *samples, size_t count)
{
    const size_t at = count / 2;

    return (double)samples[at] * 1e-3;
}

/* ---- the small client ---- */

struct small {
    struct attnd_session *session;
    uint32_t plan, memory;
    uint64_t *alone_ns, *beside_ns; /* [rounds] each */
};

/* One decode of 256 keys, 8 heads. */
static const struct bench_uniform small_batch = {.dtype = ATTND_DTYPE_FP16,
                                                 .layers = 1,
                                                 .requests = 1,
                                                 .qo_len = 1,
                                                 .kv_len = 256,
                                                 .page_size = 16,
                                                 .heads_q = 8,
                                                 .heads_kv = 8,
                                                 .dim = 64};

static bool open_with(struct bench_suite *suite, const struct bench_uniform *uniform,
                      struct attnd_session **session, uint32_t *plan, uint32_t *memory)
{
    struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = suite->socket_path, .name = "bench-safety"};
    const uint64_t q_bytes = bench_uniform_q_bytes(uniform);
    struct attnd_pool_info info;
    void *address;
    uint32_t pool;

    if (!bench_suite_call(suite, "attnd_open", attnd_open(&args, session)) ||
        !bench_suite_call(suite, "attnd_memory_create",
                          attnd_memory_create(*session, 2 * q_bytes, memory, &address)) ||
        !bench_uniform_pool(suite, *session, uniform, &pool, &info))
        return false;
    bench_uniform_fill(address, q_bytes, uniform->dtype);
    bench_uniform_fill(info.address, info.memory_bytes, uniform->dtype);
    return bench_uniform_plan(suite, *session, uniform, pool, plan);
}

static void measure_block(struct bench_suite *suite, const struct small *small, uint64_t *samples,
                          size_t count)
{
    static const int32_t qo_indptr[] = {0, 1}, kv_indptr[] = {0, 16}, last = 16,
                         pages[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const struct attnd_level level = {1, qo_indptr, kv_indptr, pages, &last};
    const struct attnd_batch batch = {.size = sizeof(batch), .levels = 1, .level = &level};
    const struct attnd_run_args run = {.size = sizeof(run),
                                       .q = {small->memory, 0},
                                       .o = {small->memory, bench_uniform_q_bytes(&small_batch)}};
    const struct attnd_op quiet = {.flags = ATTND_SKIP_SUCCESS}, op = {0};

    for (size_t i = 0; i < count && !suite->failed; i++) {
        const uint64_t begin_ns = attnd_clock_ns(), next_ns = begin_ns + PACE_NS;
        if (bench_suite_call(suite, "attnd_plan_set",
                             attnd_plan_set(small->session, small->plan, &batch, &quiet)) &&
            bench_suite_call(suite, "attnd_run", attnd_run(small->session, small->plan, &run, &op)))
            bench_wait_all(suite, small->session, 1, NULL);
        const uint64_t end_ns = attnd_clock_ns();
        samples[i] = end_ns - begin_ns;
        if (end_ns < next_ns)
            nap((long)(next_ns - end_ns));
    }
}

static void measure_attacked(struct bench_suite *suite, const struct small *small,
                             enum bench_attack attack, uint32_t attackers, uint64_t *samples,
                             size_t count)
{
    pid_t pids[ATTACKERS_MAX] = {0};

    for (uint32_t i = 0; i < attackers && !suite->failed; i++)
        pids[i] = bench_attack_start(suite, attack);
    nap(REST_NS);
    measure_block(suite, small, samples, count);
    for (uint32_t i = 0; i < attackers; i++)
        bench_attack_stop(pids[i]);
    nap(SETTLE_NS);
}

/* Fills both arrays of @small, in blocks in turn. */
static void measure_beside(struct bench_suite *suite, struct small *small, enum bench_attack attack,
                           uint32_t attackers)
{
    const size_t block = suite->rounds / BLOCKS;

    for (uint32_t b = 0; b < BLOCKS && !suite->failed; b++) {
        measure_block(suite, small, small->alone_ns + b * block, block);
        measure_attacked(suite, small, attack, attackers, small->beside_ns + b * block, block);
    }
}

/* ---- figures ---- */

static const char *const names[BENCH_ATTACKS_END] = {
    [BENCH_ATTACK_FLOOD] = "flood",         [BENCH_ATTACK_ENDLESS] = "endless",
    [BENCH_ATTACK_PLANNER] = "planner",     [BENCH_ATTACK_CLAIMS] = "claims",
    [BENCH_ATTACK_TIMEOUTS] = "timeouts",   [BENCH_ATTACK_PLANES] = "planes",
    [BENCH_ATTACK_POOLS] = "pools",         [BENCH_ATTACK_DEATHS] = "deaths",
    [BENCH_ATTACK_BATCHES] = "batches",     [BENCH_ATTACK_PARKED] = "parked",
    [BENCH_ATTACK_EVICTIONS] = "evictions", [BENCH_ATTACK_READERS] = "readers",
    [BENCH_ATTACK_TICKETS] = "tickets",     [BENCH_ATTACK_FUTEXES] = "futexes",
    [BENCH_ATTACK_WAITERS] = "waiters",     [BENCH_ATTACK_MEMORIES] = "memories",
    [BENCH_ATTACK_ASKERS] = "askers",       [BENCH_ATTACK_VISITS] = "visits"};

static uint32_t attacks; /* bit a: of enum bench_attack; 0: all of those with a name */

static bool is_wanted(int attack)
{
    return names[attack] && (!attacks || attacks >> attack & 1);
}

/* Blocks alone are between rounds of all attackers: what is compared is some ten seconds apart. */
static void measure_attackers(struct bench_suite *suite, struct small *small)
{
    const size_t block = suite->rounds / BLOCKS, samples = block * BLOCKS;
    uint64_t *beside_ns = calloc(BENCH_ATTACKS_END * samples, sizeof(*beside_ns));
    char notes[600];
    double worst = 0;

    if (!beside_ns) {
        bench_suite_fail(suite, "out of memory");
        return;
    }
    for (uint32_t b = 0; b < BLOCKS && !suite->failed; b++) {
        measure_block(suite, small, small->alone_ns + b * block, block);
        for (uint32_t a = 0; a < BENCH_ATTACKS_END && !suite->failed; a++)
            if (is_wanted((int)a))
                measure_attacked(suite, small, (enum bench_attack)a, 1,
                                 beside_ns + a * samples + b * block, block);
    }
    const double alone_us = suite->failed ? 1 : p99_us(small->alone_ns, samples);
    snprintf(notes, sizeof(notes), "p99 us: alone %.0f", alone_us);
    for (uint32_t a = 0; a < BENCH_ATTACKS_END && !suite->failed; a++) {
        if (!is_wanted((int)a))
            continue;
        const double us = p99_us(beside_ns + a * samples, samples);
        const size_t length = strlen(notes);
        snprintf(notes + length, sizeof(notes) - length, ", %s %.0f", names[a], us);
        worst = us / alone_us > worst ? us / alone_us : worst;
    }
    free(beside_ns);
    if (!suite->failed)
        bench_suite_figure(suite, "honest_p99_ratio", worst, "ratio", "lower", 2, notes);
}

/* ---- the daemon's thread ---- */

static void note_stall(const char *name, const struct bench_stall *stall, char *notes,
                       size_t notes_bytes)
{
    const size_t length = strlen(notes);

    snprintf(notes + length, notes_bytes - length, "%s%s %.1f (%.1f; %.1f+%.1f) %.4f",
             length ? ", " : "", name, stall->longest_ms, stall->own_ms, stall->waited_ms,
             stall->asker_waited_ms, stall->share);
}

static void measure_stalls(struct bench_suite *suite)
{
    struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = suite->socket_path, .name = "bench-probe"};
    struct attnd_session *session = NULL;
    double longest_ms = 0, own_ms = 0, share = 0;
    char notes[1200] = "";

    if (suite->failed || !bench_suite_call(suite, "attnd_open", attnd_open(&args, &session)))
        return;
    const struct bench_stall alone = bench_stall_probe(suite, session);
    note_stall("ms (own; daemon waited + asker waited) share: alone", &alone, notes, sizeof(notes));
    for (int a = 0; a < BENCH_ATTACKS_END && !suite->failed; a++) {
        if (!is_wanted(a))
            continue;
        const pid_t pid = bench_attack_start(suite, (enum bench_attack)a);
        const struct bench_stall stall = bench_stall_probe(suite, session);
        bench_attack_stop(pid);
        nap(AFTERMATH_NS);
        note_stall(names[a], &stall, notes, sizeof(notes));
        longest_ms = stall.longest_ms > longest_ms ? stall.longest_ms : longest_ms;
        own_ms = stall.own_ms > own_ms ? stall.own_ms : own_ms;
        share = stall.share > share ? stall.share : share;
    }
    attnd_close(session);
    if (suite->failed)
        return;
    bench_suite_figure(suite, "stall_longest_ms", longest_ms, "ms", "lower", 2, notes);
    if (!isnan(alone.own_ms))
        bench_suite_figure(suite, "stall_own_ms", own_ms, "ms", "lower", 2, notes);
    bench_suite_figure(suite, "stall_share", share, "ratio", "lower", 0.001, notes);
}

static void measure_control(struct bench_suite *suite, struct small *small)
{
    const uint32_t processors = bench_attack_processors();
    char notes[120];

    if (suite->failed || processors > ATTACKERS_MAX)
        return;
    measure_beside(suite, small, BENCH_ATTACK_OUTSIDE, processors);
    if (suite->failed)
        return;
    const size_t samples = suite->rounds / BLOCKS * BLOCKS;
    const double alone_us = p99_us(small->alone_ns, samples);
    const double beside_us = p99_us(small->beside_ns, samples);
    snprintf(notes, sizeof(notes), "p99 us: alone %.0f, beside programs that never call attnd %.0f",
             alone_us, beside_us);
    bench_suite_figure(suite, "control_p99_ratio", beside_us / alone_us, "ratio", "lower", NAN,
                       notes);
}

/* The longest item of a flood: a tile's 192 rows against its keys, for one head. */
static double item_us(struct bench_suite *suite)
{
    const struct bench_uniform uniform = {.dtype = ATTND_DTYPE_FP16,
                                          .layers = 1,
                                          .requests = 1,
                                          .qo_len = 192,
                                          .kv_len = 2048,
                                          .page_size = 16,
                                          .heads_q = 1,
                                          .heads_kv = 1,
                                          .dim = 128};
    struct attnd_session *session = NULL;
    uint32_t plan, memory;
    uint64_t samples[ITEM_RUNS] = {0};

    if (open_with(suite, &uniform, &session, &plan, &memory)) {
        const struct attnd_run_args run = {
            .size = sizeof(run), .q = {memory, 0}, .o = {memory, bench_uniform_q_bytes(&uniform)}};
        const struct attnd_op op = {0};
        for (uint32_t i = 0; i < ITEM_RUNS && !suite->failed; i++) {
            struct attnd_completion done = {0};
            if (bench_suite_call(suite, "attnd_run", attnd_run(session, plan, &run, &op)) &&
                bench_wait_all(suite, session, 1, &done))
                samples[i] = done.end_ns - done.begin_ns;
        }
    }
    attnd_close(session);
    return (double)bench_p50(samples, ITEM_RUNS) * 1e-3;
}

static void measure_flood(struct bench_suite *suite, struct small *small)
{
    const size_t samples = suite->rounds / BLOCKS * BLOCKS;
    const double item = item_us(suite);
    char notes[200];

    if (suite->failed)
        return;
    measure_beside(suite, small, BENCH_ATTACK_FLOOD, FLOODS);
    if (suite->failed)
        return;
    const double p99 = p99_us(small->beside_ns, samples);
    snprintf(notes, sizeof(notes),
             "p99 %.0f us, p50 %.0f, beside %u floods; the longest item %.0f us; alone %.0f", p99,
             p50_us(small->beside_ns, samples), FLOODS, item, p99_us(small->alone_ns, samples));
    bench_suite_figure(suite, "flood_p99_over_item", p99 / item, "ratio", "lower", 3, notes);
}

/* The median over runs that are cancelled while the worker has them. */
static double cancel_us(struct bench_suite *suite, struct attnd_session *session, uint32_t plan,
                        const struct attnd_run_args *run)
{
    uint64_t samples[CANCELS] = {0};

    for (uint32_t i = 0; i < CANCELS && !suite->failed; i++) {
        const struct attnd_op op = {.user_data = i + 1};
        struct attnd_completion done = {0};

        if (!bench_suite_call(suite, "attnd_run", attnd_run(session, plan, run, &op)))
            break;
        nap(REST_NS / 10);
        const uint64_t begin_ns = attnd_clock_ns();
        if (!bench_suite_call(suite, "attnd_cancel", attnd_cancel(session, i + 1)) ||
            attnd_wait(session, &done, 1, ATTND_FOREVER) != 1)
            bench_suite_fail(suite, "nothing came of a cancel");
        samples[i] = attnd_clock_ns() - begin_ns;
        if (done.fault.code != -ATTND_E_CANCELLED)
            bench_suite_fail(suite, "a run was over before it was cancelled");
    }
    return (double)bench_p50(samples, CANCELS) * 1e-3;
}

static void measure_cancel(struct bench_suite *suite)
{
    const struct bench_uniform uniform = {.dtype = ATTND_DTYPE_FP16,
                                          .layers = 1,
                                          .requests = 1,
                                          .qo_len = 512,
                                          .kv_len = 16384,
                                          .page_size = 16,
                                          .heads_q = 8,
                                          .heads_kv = 8,
                                          .dim = 128};
    const uint64_t q_bytes = bench_uniform_q_bytes(&uniform);
    struct attnd_session *session = NULL, *endless = NULL;
    uint32_t plan, memory;
    double long_us = 0, endless_us = 0;
    char notes[160];

    if (open_with(suite, &uniform, &session, &plan, &memory)) {
        const struct attnd_run_args run = {
            .size = sizeof(run), .q = {memory, 0}, .o = {memory, q_bytes}};
        long_us = cancel_us(suite, session, plan, &run);
    }
    attnd_close(session);
    if (!suite->failed && bench_endless_open(suite, INT32_MAX, &endless, &plan, &memory)) {
        const struct attnd_run_args run = {
            .size = sizeof(run), .q = {memory, 0}, .o = {memory, 4096}};
        endless_us = cancel_us(suite, endless, plan, &run);
    }
    attnd_close(endless);
    if (suite->failed)
        return;
    snprintf(notes, sizeof(notes), "p50 of %u: kv 16384 %.0f us, kv 2^31 %.0f us", CANCELS, long_us,
             endless_us);
    bench_suite_figure(suite, "cancel_us", long_us > endless_us ? long_us : endless_us, "us",
                       "lower", 1000, notes);
}

/* ---- what is left of the dead ---- */

static void measure_left(struct bench_suite *suite, uint64_t deaths)
{
    struct bench_estate before, after;
    char notes[200];

    /* What is made once is there after some. */
    if (!bench_deaths(suite, deaths / 20 + 1) || !bench_estate(suite, &before) ||
        !bench_deaths(suite, deaths) || !bench_estate(suite, &after))
        return;
    const uint64_t descriptors = bench_left(after.descriptors, before.descriptors) +
                                 bench_left(after.worker_descriptors, before.worker_descriptors);
    const uint64_t bytes = bench_left(after.bytes, before.bytes);
    const uint64_t objects = bench_left(after.objects, before.objects);
    snprintf(notes, sizeof(notes),
             "%llu deaths with everything open: %llu descriptors, %llu bytes, %llu objects",
             (unsigned long long)deaths, (unsigned long long)descriptors, (unsigned long long)bytes,
             (unsigned long long)objects);
    bench_suite_figure(suite, "left_behind", (double)(descriptors + bytes + objects), "things",
                       "lower", 0, notes);
}

/* ---- options ---- */

enum part { CANCEL = 1, HONEST = 2, STALLS = 4, LEFT = 8, ALL = 15 };

struct options {
    unsigned parts;
    uint64_t deaths;
};

enum { KEY_DEATHS = 600 };

static int part_named(const char *text)
{
    static const char *const parts[] = {"cancel", "honest", "stalls", "left"};

    for (int i = 0; i < (int)(sizeof(parts) / sizeof(parts[0])); i++)
        if (strcmp(text, parts[i]) == 0)
            return i;
    return -1;
}

static int attack_named(const char *text)
{
    for (int a = 0; a < BENCH_ATTACKS_END; a++)
        if (names[a] && strcmp(text, names[a]) == 0)
            return a;
    return -1;
}

static const struct argp_option option_list[] = {
    {"only", 'o', "PART", 0, "cancel, honest, stalls or left; repeat for more (default: all)", 0},
    {"beside", 'b', "NAME", 0,
     "An attacker, by its name in the notes of honest_p99_ratio; repeat for more (default: all)",
     0},
    {"deaths", KEY_DEATHS, "N", 0, "Processes that are killed (10000)", 0},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct options *options = state->input;
    int which;

    switch (key) {
    case 'o':
        which = part_named(text);
        if (which < 0)
            argp_error(state, "--only %s: it is cancel, honest, stalls or left", text);
        else
            options->parts |= 1u << which;
        return 0;
    case 'b':
        which = attack_named(text);
        if (which < 0)
            argp_error(state, "--beside %s: there is no such attacker", text);
        else
            attacks |= 1u << which;
        return 0;
    case KEY_DEATHS:
        options->deaths = attnd_args_number(state, "deaths", text, 1, 100000000);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- all of it ---- */

static void measure_small(struct bench_suite *suite)
{
    struct small small = {.alone_ns = calloc(suite->rounds, sizeof(uint64_t)),
                          .beside_ns = calloc(suite->rounds, sizeof(uint64_t))};

    if (!small.alone_ns || !small.beside_ns)
        bench_suite_fail(suite, "out of memory");
    else if (open_with(suite, &small_batch, &small.session, &small.plan, &small.memory)) {
        measure_flood(suite, &small);
        measure_attackers(suite, &small);
        measure_control(suite, &small);
    }
    attnd_close(small.session);
    free(small.alone_ns);
    free(small.beside_ns);
}

int main(int argc, char **argv)
{
    static const struct argp own = {option_list, parse_option, NULL, NULL, NULL, NULL, NULL};
    static struct options options = {.deaths = 10000};
    static struct bench_suite suite = {
        .name = "safety",
        .doc = "safety - a small client beside sessions that take what they can; cancelling; what "
               "is left of the dead",
        .rounds = 4000,
        .own_options = &own,
        .own_input = &options};

    bench_suite_begin(&suite, argc, argv);
    const unsigned parts = options.parts ? options.parts : ALL;
    if (parts & (HONEST | STALLS))
        bench_brief_slices();
    if (parts & CANCEL)
        measure_cancel(&suite);
    if (parts & HONEST && !suite.failed)
        measure_small(&suite);
    if (parts & STALLS)
        measure_stalls(&suite);
    if (parts & LEFT && !suite.failed)
        measure_left(&suite, options.deaths);
    return bench_suite_end(&suite);
}
