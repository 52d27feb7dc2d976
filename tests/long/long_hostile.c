/*
 * long_hostile.c - hostile clients beside two honest ones, whose every result is checked.
 *
 *   long_hostile [--seconds N] [--seed S]
 *
 * Each attacker is a process of its own that does one thing over and over, as fast as it can, and
 * takes refusals for an answer. From time to time one is killed, and another of its kind comes. The
 * daemon and its worker must be the same processes at the end, with nothing of the attackers left:
 * no session, nothing that is counted, and no descriptor more than after the first attacks.
 * Run by `make check-long` with the address sanitizer in daemon and worker. Its last line is what
 * bench/check records.
 */
#include "client/internal.h"
#include "schemas/atomics.h"
#include "service/args/args.h"
#include "tests/support/harness/check.h"
#include "tests/support/harness/e2e.h"
#include "tests/support/harness/harness.h"
#include "tests/support/harness/one_page.h"
#include "tests/support/random/prng.h"
#include "tests/support/trial/prefixes.h"
#include "tests/support/trial/trial.h"

#include <argp.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define HONEST 2
#define SILENT 64     /* connections at once */
#define FLOOD_FDS 100 /* a datagram */
#define ENDLESS_PAGES 2048
#define ENDLESS_TOKENS (1u << 20) /* a page */
#define WIDE_REQUESTS (1u << 18)
#define HEAP_PAGES (1u << 16)
#define WARM_UP_S 5 /* after that everything is there that is made once */
#define REST_MS 20000

static struct harness harness;

struct soak {
    uint64_t seed;
    uint32_t stop;
    uint64_t rows[HONEST], wrong[HONEST], batches[HONEST];
};

struct part {
    struct soak *soak;
    uint32_t number;
    void (*attack)(const struct part *part, struct attnd_session *session);
};

/* ---- honest clients ---- */

/* Every row against the reference. */
static void compute(struct soak *soak, uint32_t number, struct engine *engine,
                    const struct random_batch *batch)
{
    struct trial trial;

    trial_begin(&trial, engine, batch, 0);
    const int wrong = trial_submit(&trial) || trial_judge(&trial);
    if (trial.lost)
        trial_must(&trial, 1);
    soak->rows[number] += (uint64_t)trial.rows * batch->shape.layers;
    soak->wrong[number] += wrong ? trial.rows : 0;
    if (wrong)
        fprintf(stderr, "batch with seed %" PRIu64 ": %s\n", batch->seed, trial.why);
    trial_end(&trial);
}

static int honest(void *context)
{
    const struct part *part = context;
    struct soak *soak = part->soak;
    struct random_batch batch = e2e_batch();
    struct engine engine;

    engine_open(&engine, harness.socket, "honest");
    while (!attnd_peek32(&soak->stop)) {
        batch.seed = soak->seed + part->number + HONEST * soak->batches[part->number]++;
        compute(soak, part->number, &engine, &batch);
    }
    engine_close(&engine);
    return 0;
}

/* ---- attackers ---- */

static int connect_raw(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    memcpy(address.sun_path, harness.socket, strlen(harness.socket) + 1);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* Connections that never say a word. */
static void stay_silent(const struct part *part, struct attnd_session *session)
{
    static int fds[SILENT];
    (void)part;
    (void)session;
    for (int i = 0; i < SILENT; i++)
        fds[i] = connect_raw();
    harness_sleep_ms(20);
    for (int i = 0; i < SILENT; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* Datagrams that are no request, with as many descriptors as they like. */
static void flood_descriptors(const struct part *part, struct attnd_session *session)
{
    uint8_t byte = 0xff;
    struct iovec bytes = {&byte, 1};
    union {
        char room[CMSG_SPACE(FLOOD_FDS * sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct msghdr message = {.msg_iov = &bytes,
                             .msg_iovlen = 1,
                             .msg_control = control.room,
                             .msg_controllen = sizeof(control.room)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    int fds[FLOOD_FDS], to = connect_raw();
    (void)part;
    (void)session;

    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(fds));
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    for (int i = 0; i < FLOOD_FDS; i++)
        fds[i] = null;
    memcpy(CMSG_DATA(header), fds, sizeof(fds));
    for (int i = 0; to >= 0 && i < 8; i++)
        if (sendmsg(to, &message, MSG_NOSIGNAL) < 0)
            break;
    close(null);
    if (to >= 0)
        close(to);
}

/* Pools without end, of as many pages as may be, and plans until the heap says no. */
static void hoard(const struct part *part, struct attnd_session *session)
{
    struct attnd_plan_args args = {.size = sizeof(args),
                                   .requests = 64,
                                   .rows = 64,
                                   .pages = 1u << 20,
                                   .levels = 1,
                                   .heads_q = 1};
    uint32_t plan, pool;
    (void)part;
    if (attnd_pool_create_leased(session, 1, HEAP_PAGES, 1, 1, 64, ATTND_DTYPE_FP16, &args.pool) <
        0)
        return;
    while (attnd_plan_create(session, &args, &plan) == 0)
        ;
    while (attnd_pool_create_leased(session, 1, HEAP_PAGES, 1, 1, 64, ATTND_DTYPE_FP16, &pool) == 0)
        ;
}

/* Entries of tables: memories and tickets of no pages. */
static void fill_tables(const struct part *part, struct attnd_session *session)
{
    const struct attnd_pool_desc desc = {.size = sizeof(desc),
                                         .layers = 1,
                                         .pages = 4,
                                         .page_size = 16,
                                         .heads_kv = 1,
                                         .dim_qk = 64,
                                         .dim_vo = 64,
                                         .dtype = ATTND_DTYPE_FP16,
                                         .page_owner = ATTND_PAGES_OF_SERVICE};
    struct attnd_token ticket;
    uint32_t memory, pool;
    int32_t none = 0;
    (void)part;
    if (attnd_pool_create(session, &desc, &pool) < 0)
        return;
    while (attnd_pages_offer(session, pool, 0, &none, 2000, &ticket) == 0)
        ;
    while (attnd_memory_create(session, 4096, &memory, NULL) == 0)
        ;
}

/* Rows of an attacker's runs, and a plan over one page behind them. */
static int lair_make(struct attnd_session *session, uint32_t page_size, uint32_t requests,
                     uint32_t pages, struct one_page *lair)
{
    return one_page_make(session, page_size, requests, pages, 256ull * requests + 8192, lair) == 0;
}

/* Takes what answers there are, without waiting long. */
static void drain(struct attnd_session *session, uint64_t timeout_ns)
{
    struct attnd_completion done[16];
    while (attnd_wait(session, done, 16, timeout_ns) > 0)
        timeout_ns = 0;
}

static void flood_lanes(struct attnd_session *session, const struct one_page *lair,
                        uint64_t o_bytes)
{
    const struct attnd_run_args run = {
        .size = sizeof(run), .q = {lair->memory, 0}, .o = {lair->memory, o_bytes}};
    for (uint16_t lane = 0; lane < ATTND_LANES_MAX; lane++) {
        const struct attnd_op op = {.user_data = lane + 1u, .lane = lane};
        (void)attnd_run(session, lair->plan, &run, &op);
    }
}

/* Runs of 2^31 keys on every lane, cancelled and submitted again. */
static void run_endlessly(const struct part *part, struct attnd_session *session)
{
    static int32_t pages[ENDLESS_PAGES];
    const int32_t rows[] = {0, 1}, indptr[] = {0, ENDLESS_PAGES}, last = ENDLESS_TOKENS - 1;
    const struct attnd_level level = {1, rows, indptr, pages, &last};
    const struct attnd_batch batch = {.size = sizeof(batch), .levels = 1, .level = &level};
    const struct attnd_op set = {.user_data = 0};
    struct one_page lair;

    if (!lair_make(session, ENDLESS_TOKENS, 1, ENDLESS_PAGES, &lair) ||
        attnd_plan_set(session, lair.plan, &batch, &set) < 0)
        return;
    while (!attnd_peek32(&part->soak->stop)) {
        flood_lanes(session, &lair, 4096);
        drain(session, 20000000u);
        for (uint64_t data = 1; data <= ATTND_LANES_MAX; data++)
            (void)attnd_cancel(session, data);
        drain(session, 20000000u);
    }
}

/* Sets of 2^18 requests, one behind the other. */
static void plan_endlessly(const struct part *part, struct attnd_session *session)
{
    static int32_t rows[WIDE_REQUESTS + 1], indptr[WIDE_REQUESTS + 1], pages[WIDE_REQUESTS];
    static int32_t last[WIDE_REQUESTS];
    const struct attnd_level level = {WIDE_REQUESTS, rows, indptr, pages, last};
    const struct attnd_batch batch = {.size = sizeof(batch), .levels = 1, .level = &level};
    const struct attnd_op op = {.user_data = 1};
    struct one_page lair;

    for (int32_t i = 0; i < (int32_t)WIDE_REQUESTS; i++) {
        rows[i + 1] = indptr[i + 1] = i + 1;
        last[i] = 1;
    }
    if (!lair_make(session, 16, WIDE_REQUESTS, WIDE_REQUESTS, &lair))
        return;
    while (!attnd_peek32(&part->soak->stop)) {
        while (attnd_plan_set(session, lair.plan, &batch, &op) == 0)
            ;
        drain(session, 20000000u);
    }
}

/* Noise where submissions lie, and then indices that cannot be. */
static void submit_noise(const struct part *part, struct attnd_session *session)
{
    struct prng prng = prng_fork(part->soak->seed + (uint64_t)time(NULL), part->number);
    uint8_t *slots = session->submission.address;

    for (int i = 0; i < 2000; i++) {
        const size_t at = ATTND_PAGE_BYTES + prng_below(&prng, 64 * ATTND_SLOT_BYTES);
        slots[at] = (uint8_t)prng_below(&prng, 256);
        const struct attnd_run_args run = {.size = sizeof(run)};
        const struct attnd_op op = {.user_data = 1};
        (void)attnd_run(session, prng_below(&prng, 4), &run, &op);
        drain(session, 0);
    }
    attnd_poke32(session->sq.tail, (uint32_t)prng_below(&prng, UINT32_MAX));
    attnd_poke32((uint32_t *)session->submission.address, 0);
}

/* Claims without end, waits for its own claims, and pages published under keys of other prompts. */
static void claim_endlessly(const struct part *part, struct attnd_session *session)
{
    enum { BLOCKS = 64, SPACES = 3, PAGES = 256 };
    const struct attnd_prefix_desc desc = {.size = sizeof(desc), .block_pages = 1};
    struct prng prng = prng_fork(part->soak->seed + (uint64_t)time(NULL), part->number);
    struct attnd_prefix_key keys[BLOCKS];
    static int32_t pages[BLOCKS];
    uint32_t pool, space[SPACES];

    if (attnd_pool_create_leased(session, 1, PAGES, 16, 1, 64, ATTND_DTYPE_FP16, &pool) < 0)
        return;
    for (uint32_t i = 0; i < SPACES; i++)
        if (attnd_prefix_open(session, pool, &desc, &space[i]) < 0)
            return;
    while (!attnd_peek32(&part->soak->stop)) {
        const uint32_t end = 1 + prng_below(&prng, BLOCKS);
        const struct attnd_op op = {.user_data = 1,
                                    .lane = (uint16_t)prng_below(&prng, ATTND_LANES_MAX)};
        for (uint32_t i = 0; i < end; i++)
            keys[i] = (struct attnd_prefix_key){{prng_below(&prng, 4), i}};
        struct attnd_prefix_args args =
            prefix_args(space[prng_below(&prng, SPACES)], keys, prng_below(&prng, end), end);
        (void)attnd_prefix_claim(session, &args, &op);
        if (attnd_pages_alloc(session, pool, 1, &pages[prng_below(&prng, BLOCKS)]) == 0)
            (void)attnd_prefix_publish(session, &args, pages, &op);
        args.flags = ATTND_PREFIX_MATCH_WAITS;
        if (attnd_prefix_match(session, &args, &op) < 0)
            drain(session, 1000000u);
        if (prng_percent(&prng, 20))
            (void)attnd_cancel(session, 1);
    }
}

static const struct {
    const char *name;
    void (*attack)(const struct part *part, struct attnd_session *session);
    int raw; /* without a session */
} attacks[] = {{"silent", stay_silent, 1},    {"descriptors", flood_descriptors, 1},
               {"hoard", hoard, 0},           {"tables", fill_tables, 0},
               {"endless", run_endlessly, 0}, {"planner", plan_endlessly, 0},
               {"noise", submit_noise, 0},    {"claims", claim_endlessly, 0}};

#define ATTACKS (sizeof(attacks) / sizeof(attacks[0]))

static int attacker(void *context)
{
    const struct part *part = context;
    const struct attnd_open_args args = {.size = sizeof(args),
                                         .ring_entries = 64,
                                         .socket_path = harness.socket,
                                         .name = attacks[part->number].name};

    while (!attnd_peek32(&part->soak->stop)) {
        struct attnd_session *session = NULL;
        if (!attacks[part->number].raw && attnd_open(&args, &session) < 0) {
            harness_sleep_ms(5); /* a refusal is an answer */
            continue;
        }
        attacks[part->number].attack(part, session);
        if (session)
            attnd_close(session);
    }
    return 0;
}

/* ---- the whole ---- */

struct settings {
    uint64_t seconds, seed;
};

static const struct argp_option option_list[] = {
    {"seconds", 'n', "N", 0, "How long it goes on (default: 600)", 0},
    {"seed", 's', "S", 0, "Of batches and noise (default: the clock)", 0},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct settings *settings = state->input;

    switch (key) {
    case 'n':
        settings->seconds = attnd_args_number(state, "seconds", text, 1, UINT32_MAX);
        return 0;
    case 's':
        settings->seed = attnd_args_number(state, "seed", text, 0, UINT64_MAX);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* What is there that should not be: sessions, pools, and all that is counted. */
static uint64_t left_over(void)
{
    Attnd__Status *status = harness_status(&harness);
    uint64_t left = status->n_sessions + status->n_pools + status->queue_runs;

    for (size_t i = 0; i < status->n_quotas; i++)
        left += status->quotas[i]->used;
    attnd__status__free_unpacked(status, NULL);
    return left;
}

struct footprint {
    pid_t worker;
    uint32_t daemon_fds, worker_fds;
};

/* Tickets of those that died expire after 2 s, and what is closed is closed by a thread. */
static struct footprint footprint_at_rest(void)
{
    const struct footprint none = {0};
    struct footprint before, now = none;

    for (int ms = 0; left_over() && ms < REST_MS; ms += 50)
        harness_sleep_ms(50);
    do {
        before = now;
        harness_sleep_ms(200);
        now.worker = harness_worker(&harness);
        now.daemon_fds = harness_descriptors(harness.daemon);
        now.worker_fds = harness_descriptors(now.worker);
    } while (memcmp(&before, &now, sizeof(now)) != 0);
    return now;
}

static uint64_t leaks_since(const struct footprint *before)
{
    const struct footprint now = footprint_at_rest();
    uint64_t leaks = left_over();

    leaks += now.daemon_fds > before->daemon_fds ? now.daemon_fds - before->daemon_fds : 0;
    leaks += now.worker_fds > before->worker_fds ? now.worker_fds - before->worker_fds : 0;
    CHECK_EQUAL(now.worker, before->worker);
    return leaks;
}

/* Attackers come and go while the honest compute. */
static void rage(struct soak *soak, struct part *parts, uint64_t seconds)
{
    const uint64_t end_ns = harness_now_ns() + seconds * 1000000000u;
    struct prng prng = prng_fork(soak->seed, 1);
    pid_t pids[ATTACKS];

    for (uint32_t i = 0; i < ATTACKS; i++)
        pids[i] = harness_fork(attacker, &parts[i]);
    while (harness_now_ns() < end_ns) {
        harness_sleep_ms(500);
        const uint32_t one = (uint32_t)prng_below(&prng, ATTACKS);
        harness_kill(pids[one]);
        pids[one] = harness_fork(attacker, &parts[one]);
    }
    for (uint32_t i = 0; i < ATTACKS; i++)
        harness_kill(pids[i]);
}

int main(int argc, char **argv)
{
    static const struct argp parser = {.options = option_list, .parser = parse_option};
    static const char *const daemon_options[] = {
        "--quiet", "--memory-max", "256M", "--daemon-memory-max", "64M", "--heap", "64M", NULL};
    struct settings settings = {.seconds = 600, .seed = (uint64_t)time(NULL)};
    struct soak *soak = harness_shared(sizeof(*soak));
    struct part honests[HONEST], hostiles[ATTACKS];
    pid_t pids[HONEST];

    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* no child prints it again */
    argp_parse(&parser, argc, argv, 0, NULL, &settings);
    printf("seed %" PRIu64 ", %" PRIu64 " s\n", settings.seed, settings.seconds);
    soak->seed = settings.seed;
    harness_start(&harness, daemon_options);
    for (uint32_t i = 0; i < ATTACKS; i++)
        hostiles[i] = (struct part){.soak = soak, .number = i};
    rage(soak, hostiles, WARM_UP_S);
    const struct footprint before = footprint_at_rest();
    for (uint32_t i = 0; i < HONEST; i++) {
        honests[i] = (struct part){.soak = soak, .number = i};
        pids[i] = harness_fork(honest, &honests[i]);
    }
    rage(soak, hostiles, settings.seconds);
    attnd_poke32(&soak->stop, 1);
    for (uint32_t i = 0; i < HONEST; i++)
        CHECK_EQUAL(harness_join(pids[i], 60000), 0);
    CHECK(soak->batches[0] > 0 && soak->batches[1] > 0);
    const uint64_t wrong = soak->wrong[0] + soak->wrong[1], leaks = leaks_since(&before);
    harness_stop(&harness);
    printf("soak: %" PRIu64 " rows, %" PRIu64 " wrong, %" PRIu64 " leaks\n",
           soak->rows[0] + soak->rows[1], wrong, leaks);
    return wrong || leaks;
}
