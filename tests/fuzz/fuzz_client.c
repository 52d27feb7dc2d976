/*
 * fuzz_client.c - any calls of attnd.h in any order, against a service of its own.
 *
 * Bytes choose calls, handles and numbers: mostly such that exist and fit, else from the edges of
 * their types. What the header asks of a caller holds: an array is as long as its comment says, and
 * not a byte longer, so that ASan sees a read beyond it. Each call returns what it may return: 0, a
 * count, or the code that attnd_last_fault() has, with a field that has a name. Waits end. When the
 * session is closed no descriptor of it is left.
 *
 * The service is build/attnd, or $ATTND_FUZZ_SERVICE, and ends with the fuzzer.
 */
#include "client/attnd.h"
#include "client/attnd_merge.h"
#include "client/attnd_tables.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/rigs/plan_case.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { CALLS_MAX = 48, ENTRIES_MAX = 40, KEPT_MAX = 8, WAIT_MS = 20000 };

int LLVMFuzzerInitialize(int *argc, char ***argv);

static char path[64];

/* Of one input. */
static struct {
    struct attnd_session *session;
    struct case_source source;
    uint32_t memory[KEPT_MAX], pool[KEPT_MAX], plan[KEPT_MAX], prefix[KEPT_MAX];
    uint32_t memories, pools, plans, prefixes, block_pages;
    struct attnd_token token;
    void *array[CALLS_MAX * 8];
    uint32_t arrays;
} fuzz;

/* ---- choices ---- */

static uint32_t below(uint32_t count)
{
    return case_below(&fuzz.source, count);
}

static uint32_t any32(void)
{
    static const uint32_t edges[] = {0,        1,         2,        7,          16,       63,
                                     64,       128,       1024,     65535,      65536,    1u << 20,
                                     1u << 24, INT32_MAX, 1u << 31, UINT32_MAX, 1u << 26, 4096};
    return edges[below(sizeof(edges) / sizeof(edges[0]))];
}

static uint64_t any64(void)
{
    static const uint64_t edges[] = {0,          1,         16,         4096,       1 << 20,
                                     UINT32_MAX, INT64_MAX, 1ull << 63, UINT64_MAX, 1ull << 32};
    return edges[below(sizeof(edges) / sizeof(edges[0]))];
}

/* @usual, or now and then something else. */
static uint32_t mostly(uint32_t usual)
{
    return below(16) ? usual : any32();
}

/* A handle that there is, or now and then another number. */
static uint32_t handle(const uint32_t *kept, uint32_t count)
{
    return count && below(16) ? kept[below(count)] : any32();
}

static void keep(uint32_t *kept, uint32_t *count, uint32_t made)
{
    kept[*count < KEPT_MAX ? (*count)++ : below(KEPT_MAX)] = made;
}

/* Memory of exactly as many bytes, for one input. */
static void *exactly(size_t bytes)
{
    void *made = malloc(bytes ? bytes : 1);

    fuzz_require(made != NULL && fuzz.arrays < sizeof(fuzz.array) / sizeof(fuzz.array[0]),
                 "there is memory");
    fuzz.array[fuzz.arrays++] = made;
    return made;
}

/* Counts that rise by @step at most, or now and then anything, and end at @end at most. */
static int32_t *starts(uint32_t entries, uint32_t step, int32_t end)
{
    int32_t *made = exactly((entries + 1) * sizeof(*made)), sum = 0;

    for (uint32_t i = 0; i <= entries; i++) {
        made[i] = below(24) ? sum : (int32_t)any32();
        sum += (int32_t)below(step + 1);
    }
    if (made[entries] > end)
        made[entries] = end;
    return made;
}

static int32_t *values(uint32_t count, uint32_t limit)
{
    int32_t *made = exactly(count * sizeof(*made));

    for (uint32_t i = 0; i < count; i++)
        made[i] = below(24) ? (int32_t)below(limit) : (int32_t)any32();
    return made;
}

/* ---- what a call may return ---- */

static int checked(int rc)
{
    struct attnd_fault fault;
    char text[64];

    if (rc >= 0)
        return rc;
    attnd_last_fault(&fault);
    fuzz_require(fault.code == rc, "the last fault is the call's");
    fuzz_require(strncmp(attnd_error_name(rc), "ATTND_E_", 8) == 0, "the code has a name");
    fuzz_require(attnd_field_name(fault.field) != NULL, "the field has a name");
    fuzz_require(attnd_last_fault_string(text, sizeof(text)) == text, "the fault is a sentence");
    return rc;
}

/* ---- calls ---- */

static struct attnd_op any_op(void)
{
    return (struct attnd_op){.user_data = below(4),
                             .lane = (uint16_t)mostly(below(3)),
                             .flags = (uint16_t)mostly(below(2)),
                             .timeout_us = below(8) ? 0 : any32()};
}

static struct attnd_tensor any_place(uint64_t offset_bytes)
{
    return (struct attnd_tensor){.memory = handle(fuzz.memory, fuzz.memories),
                                 .offset_bytes = below(16) ? offset_bytes : any64()};
}

static void make_memory(void)
{
    void *address = NULL;
    uint32_t memory = 0;

    if (checked(attnd_memory_create(fuzz.session, below(8) ? 65536 : any64(), &memory,
                                    below(4) ? &address : NULL)) == 0)
        keep(fuzz.memory, &fuzz.memories, memory);
}

static void make_pool(void)
{
    const struct attnd_pool_desc desc = {.size = mostly(sizeof(desc)),
                                         .layers = mostly(2),
                                         .pages = mostly(16),
                                         .page_size = mostly(4),
                                         .heads_kv = mostly(1),
                                         .dim_qk = mostly(16),
                                         .dim_vo = mostly(16),
                                         .dtype = mostly(1 + below(4)),
                                         .page_owner = mostly(1 + below(2)),
                                         .memory_kind = mostly(0)};
    uint32_t pool = 0;

    if (desc.size > sizeof(desc)) /* it would be longer than it is */
        return;
    if (checked(attnd_pool_create(fuzz.session, &desc, &pool)) == 0)
        keep(fuzz.pool, &fuzz.pools, pool);
}

static void make_plan(void)
{
    const struct attnd_plan_args args = {.size = sizeof(args),
                                         .pool = handle(fuzz.pool, fuzz.pools),
                                         .requests = mostly(8),
                                         .rows = mostly(32),
                                         .pages = mostly(64),
                                         .levels = mostly(1 + below(2)),
                                         .heads_q = mostly(2),
                                         .fixed_split = mostly(0)};
    uint32_t plan = 0;

    if (checked(attnd_plan_create(fuzz.session, &args, &plan)) == 0)
        keep(fuzz.plan, &fuzz.plans, plan);
}

static void set_plan(void)
{
    struct attnd_level level[2];
    struct attnd_variant variant = ATTND_VARIANT_INIT;
    const struct attnd_op op = any_op();
    struct attnd_batch batch = {.size = sizeof(batch),
                                .levels = below(4) ? 1 : 2,
                                .heads_q = mostly(below(2) * 2),
                                .dtype = mostly(below(2)),
                                .flags = mostly(below(8)),
                                .reserve_pages = mostly(below(3)),
                                .level = below(32) ? level : NULL,
                                .variant = below(4) ? NULL : &variant};

    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t requests = below(6);
        int32_t *kv = starts(requests, 4, ENTRIES_MAX);
        const uint32_t pages = kv[requests] > 0 ? (uint32_t)kv[requests] : 0;
        level[i] = (struct attnd_level){.requests = requests,
                                        .qo_indptr = starts(requests, 4, ENTRIES_MAX),
                                        .kv_indptr = kv,
                                        .kv_indices = below(32) ? values(pages, 16) : NULL,
                                        .kv_last_page_len = values(requests, 5)};
    }
    batch.q.row = (int64_t)(below(16) ? 0 : any64());
    variant.window_left = (int32_t)mostly(below(8));
    variant.position_encoding = mostly(below(3));
    variant.fixed_split = mostly(0);
    variant.k_scale = below(4) ? 1.0f : -1.0f / (float)below(2);
    variant.sinks.memory = below(2) ? 0 : handle(fuzz.memory, fuzz.memories);
    (void)checked(attnd_plan_set(fuzz.session, handle(fuzz.plan, fuzz.plans), &batch, &op));
}

static void advance_plan(void)
{
    const uint32_t entries = below(8), with_pages = below(2);
    int32_t *indptr = starts(entries, 2, ENTRIES_MAX);
    const uint32_t pages = indptr[entries] > 0 ? (uint32_t)indptr[entries] : 0;
    const struct attnd_advance args = {.size = sizeof(args),
                                       .entries = entries,
                                       .kv_len = values(entries, 16),
                                       .page_indptr = with_pages ? indptr : NULL,
                                       .page_indices = with_pages ? values(pages, 16) : NULL};
    const struct attnd_op op = any_op();

    (void)checked(attnd_plan_advance(fuzz.session, handle(fuzz.plan, fuzz.plans), &args, &op));
}

static void submit_run(void)
{
    const struct attnd_op op = any_op();
    const uint32_t plan = handle(fuzz.plan, fuzz.plans);
    const struct attnd_run_args run = {.size = sizeof(run),
                                       .layer = mostly(below(2)),
                                       .q = any_place(0),
                                       .o = any_place(16384),
                                       .lse = any_place(32768)};
    const struct attnd_append_args append = {
        .size = sizeof(append), .layer = run.layer, .k = run.q, .v = run.o};
    const struct attnd_merge_args merge = {.size = sizeof(merge),
                                           .o_a = run.q,
                                           .lse_a = run.lse,
                                           .o_b = any_place(8192),
                                           .lse_b = any_place(49152),
                                           .o = run.o,
                                           .lse = run.lse};
    int rc;

    switch (below(4)) {
    case 0:
        rc = attnd_append(fuzz.session, plan, &append, below(8) ? &op : NULL);
        break;
    case 1:
        rc = attnd_merge_state(fuzz.session, plan, &merge, below(8) ? &op : NULL);
        break;
    default:
        rc = attnd_run(fuzz.session, plan, &run, below(8) ? &op : NULL);
    }
    (void)checked(rc);
}

static void launch(void)
{
    const struct attnd_prepare_args args = {.size = sizeof(args),
                                            .layer = mostly(0),
                                            .lane = mostly(below(2)),
                                            .q = any_place(0),
                                            .o = any_place(16384)};
    uint32_t prepared = any32();

    (void)checked(attnd_prepare(fuzz.session, handle(fuzz.plan, fuzz.plans), &args, &prepared));
    if (checked(attnd_launch(fuzz.session, args.lane, prepared)) == 0)
        fuzz_require(checked(attnd_launch_wait(fuzz.session, args.lane, WAIT_MS * 1000000ull)) !=
                         -ATTND_E_TIMEOUT,
                     "a launch is answered");
    (void)checked(attnd_lane_error(fuzz.session, args.lane));
    (void)checked(attnd_unprepare(fuzz.session, prepared));
}

static void lease_pages(void)
{
    const uint32_t pool = handle(fuzz.pool, fuzz.pools), count = below(20);
    int32_t *pages = values(count, 16);
    uint32_t found = 0;

    switch (below(5)) {
    case 0:
        (void)checked(attnd_pages_alloc(fuzz.session, pool, count, pages));
        break;
    case 1:
        (void)checked(attnd_pages_share(fuzz.session, pool, count, pages));
        break;
    case 2:
        (void)checked(attnd_pages_free(fuzz.session, pool, count, pages));
        break;
    case 3:
        (void)checked(
            attnd_pages_offer(fuzz.session, pool, count, pages, mostly(60000), &fuzz.token));
        break;
    default:
        (void)checked(attnd_pages_claim(fuzz.session, &fuzz.token, &found, pages, count));
    }
}

static void opened(uint32_t prefix, uint32_t block_pages)
{
    keep(fuzz.prefix, &fuzz.prefixes, prefix);
    fuzz.block_pages = block_pages;
}

static void use_prefixes(void)
{
    const uint32_t blocks = below(6);
    const struct attnd_prefix_desc desc = {
        .size = sizeof(desc), .block_pages = mostly(1), .pages_max = mostly(0)};
    struct attnd_prefix_key *keys = exactly(blocks * sizeof(*keys));
    const struct attnd_op op = any_op();
    uint32_t prefix = 0;
    int rc;

    if (fuzz.prefixes == 0 && checked(attnd_prefix_open(fuzz.session, handle(fuzz.pool, fuzz.pools),
                                                        &desc, &prefix)) == 0)
        opened(prefix, desc.block_pages);
    for (uint32_t i = 0; i < blocks; i++)
        keys[i] = (struct attnd_prefix_key){{below(3), i}};
    const struct attnd_prefix_args args = {.size = sizeof(args),
                                           .prefix = handle(fuzz.prefix, fuzz.prefixes),
                                           .blocks = blocks,
                                           .keys = keys,
                                           .parent = below(2) && blocks ? keys : NULL};
    switch (below(5)) {
    case 0:
        rc = attnd_prefix_match(fuzz.session, &args, &op);
        break;
    case 1:
        rc = attnd_prefix_claim(fuzz.session, &args, &op);
        break;
    case 2: /* its array has a page of each block */
        if (fuzz.block_pages != 1)
            return;
        rc = attnd_prefix_publish(fuzz.session, &args, values(blocks, 16), &op);
        break;
    case 3:
        rc = attnd_prefix_pin(fuzz.session, &args, &op);
        break;
    default:
        rc = attnd_prefix_abandon(fuzz.session, &args, &op);
    }
    (void)checked(rc);
}

static void ask(void)
{
    struct attnd_info info = {.size = sizeof(info)};
    struct attnd_memory_info about = {.size = sizeof(about)};
    struct attnd_pool_info pool = {.size = sizeof(pool)};

    (void)checked(attnd_info(fuzz.session, &info));
    (void)checked(attnd_memory_info(fuzz.session, handle(fuzz.memory, fuzz.memories), &about));
    (void)checked(attnd_pool_info(fuzz.session, handle(fuzz.pool, fuzz.pools), &pool));
    (void)checked(attnd_cancel(fuzz.session, below(4)));
    (void)checked(attnd_arm(fuzz.session));
}

static void release(void)
{
    switch (below(4)) {
    case 0:
        (void)checked(attnd_memory_release(fuzz.session, handle(fuzz.memory, fuzz.memories)));
        break;
    case 1:
        (void)checked(attnd_pool_release(fuzz.session, handle(fuzz.pool, fuzz.pools)));
        break;
    case 2:
        (void)checked(attnd_plan_destroy(fuzz.session, handle(fuzz.plan, fuzz.plans)));
        break;
    default:
        (void)checked(attnd_prefix_release(fuzz.session, handle(fuzz.prefix, fuzz.prefixes)));
    }
}

static void collect(void)
{
    struct attnd_completion completions[4];
    struct attnd_prefix_result result = {.size = sizeof(result)};
    const int got = checked(attnd_wait(fuzz.session, completions, 1 + below(4), below(2)));

    for (int i = 0; i < got; i++) {
        fuzz_require(completions[i].fault.code <= 0, "a completion has a code");
        (void)checked(attnd_prefix_result(fuzz.session, &completions[i], &result));
    }
}

/* ---- one input ---- */

static uint32_t descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    uint32_t count = 0;

    fuzz_require(folder != NULL, "/proc is there");
    while (readdir(folder))
        count++;
    (void)closedir(folder);
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static void (*const calls[])(void) = {
        make_memory, make_pool,  make_plan,   set_plan, set_plan, advance_plan, launch,
        submit_run,  submit_run, lease_pages, ask,      release,  use_prefixes, collect};
    const uint32_t before = descriptors();
    const struct attnd_open_args args = {.size = sizeof(args), .socket_path = path};

    memset(&fuzz, 0, sizeof(fuzz));
    fuzz.source = (struct case_source){.bytes = data, .bytes_left = bytes};
    fuzz_require(checked(attnd_open(&args, &fuzz.session)) == 0, "the service is there");
    make_memory();
    make_pool();
    make_plan();
    for (uint32_t i = 0; i < CALLS_MAX && fuzz.source.bytes_left; i++)
        calls[below(sizeof(calls) / sizeof(calls[0]))]();
    attnd_close(fuzz.session);
    for (uint32_t i = 0; i < fuzz.arrays; i++)
        free(fuzz.array[i]);
    fuzz_require(descriptors() == before, "no descriptor is left");
    return 0;
}

/* ---- the service ---- */

static int answers(void)
{
    const struct attnd_open_args args = {.size = sizeof(args), .socket_path = path};
    struct attnd_session *session = NULL;

    if (attnd_open(&args, &session) < 0)
        return 0;
    attnd_close(session);
    return 1;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *program = getenv("ATTND_FUZZ_SERVICE");
    const struct timespec nap = {.tv_nsec = 10000000};

    (void)argc;
    (void)argv;
    (void)snprintf(path, sizeof(path), "/tmp/attnd-fuzz-%d", (int)getpid());
    if (fork() == 0) {
        const int log = open("/dev/null", O_WRONLY | O_CLOEXEC);
        (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
        (void)dup2(log, 1);
        (void)dup2(log, 2);
        (void)execl(program ? program : "build/attnd", "attnd", "--socket", path, "--backend",
                    "cpu", "--threads=1", (char *)NULL);
        _exit(127);
    }
    for (uint32_t i = 0; i < WAIT_MS / 10 && !answers(); i++)
        (void)nanosleep(&nap, NULL);
    fuzz_require(answers(), "the service has started");
    return 0;
}
