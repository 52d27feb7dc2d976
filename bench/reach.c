/* reach.c - what it costs to have pages that another service has.
 *
 * Of this host:
 *
 * reach.page_us: from the claim of a ticket of one small page to its completion. It has the way
 * between two daemons and back, the mapping of the other pool, the copy, and the answer.
 *
 * reach.over_memcpy: a ticket of many large pages from claim to completion, over one memcpy() of
 * as many bytes here. Both are done in turns, from and to memory that has been touched, so that the
 * machine's moods meet both. It has the faults of a mapping that is made for the ticket.
 *
 * Of another one, which is another network namespace of this machine (as root; --far):
 *
 * reach.tcp_over_socket_<K>k: rate of a ticket whose pieces are K KiB and lie scattered on both
 * sides, from claim to completion, over the rate of a plain socket that brings as many such pieces
 * by writev() and readv(). In turns; the median of the rounds' ratios.
 *
 * reach.exposed_over_transfer: of a ticket of 32 layers that become whole one after the other, a
 * little more slowly than they can be brought: from the last one's word to the claim's completion,
 * over the whole transfer of layers that are all there.
 *
 * reach.idle_cpu_percent: processor time of two daemons and their movers, linked, with nothing to
 * do.
 *
 * reach.kill_matrix: trials of --matrix PROGRAM, each a death or a standstill at one step, in which
 * a lease was lost, a byte wrong, or a wait unanswered. */
#include "bench/support/private_service.h"
#include "bench/support/reach_net.h"
#include "bench/support/suite.h"
#include "schemas/clock.h"

#include <argp.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#define LAYERS 16u
#define LARGE_PAGES 256u
#define HEADS 8u
#define FAR_BYTES ((uint64_t)64 << 20) /* of a ticket */
#define FAR_LAYERS 8u
#define FAR_ROUNDS 25u
#define EXPOSED_LAYERS 32u
#define EXPOSED_ROUNDS 15u
#define IDLE_S 20
#define EXPIRE_MS 60000u

static struct {
    const char *matrix; /* NULL: none */
    bool far;
} own;

static error_t parse_own(int key, char *text, struct argp_state *state)
{
    (void)state;
    switch (key) {
    case 'f':
        own.far = true;
        return 0;
    case 'm':
        own.matrix = text;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option own_list[] = {
    {"far", 'f', NULL, 0, "Figures of services of two hosts too, in two network namespaces (root)",
     3},
    {"matrix", 'm', "PROGRAM", 0, "test_e2e_far_death of a build with CRASH_POINTS=1: kill_matrix",
     3},
    {0}};
static const struct argp own_options = {own_list, parse_own, NULL, NULL, NULL, NULL, NULL};

/* The giver has its pages back before it says so: there is room for the next ticket. */
static void measure_page(struct bench_suite *suite, const char *claimer)
{
    const struct reach_shape shape = {.layers = 1, .pages = LARGE_PAGES, .heads = HEADS};
    const size_t samples = (size_t)suite->rounds;
    uint64_t *ns = calloc(samples, sizeof(*ns));
    static struct reach_pair pair;
    char notes[96];

    if (!ns)
        bench_suite_fail(suite, "out of memory");
    else if (reach_open(suite, &pair, suite->socket_path, claimer, &shape)) {
        for (size_t i = 0; i < samples && !suite->failed; i++)
            reach_claim(suite, &pair, 1, &ns[i]);
        snprintf(notes, sizeof(notes), "p50 of %zu tickets of one page of %u KiB", samples,
                 (uint32_t)(reach_page_bytes(&shape) / 1024));
        if (!suite->failed)
            bench_suite_figure(suite, "page_us", (double)bench_p50(ns, samples) * 1e-3, "us",
                               "lower", NAN, notes);
        reach_close(&pair);
    }
    free(ns);
}

static bool copy_here(struct bench_suite *suite, const uint8_t *from, uint8_t *to, uint64_t bytes,
                      uint64_t *ns)
{
    const uint64_t begin_ns = attnd_clock_ns();

    memcpy(to, from, bytes);
    *ns = attnd_clock_ns() - begin_ns;
    if (to[bytes - 1] == from[bytes - 1])
        return true;
    bench_suite_fail(suite, "memory does not keep what it is given");
    return false;
}

static void measure_rate(struct bench_suite *suite, const char *claimer)
{
    const struct reach_shape shape = {.layers = LAYERS, .pages = LARGE_PAGES, .heads = HEADS};
    const size_t samples = 8;
    const uint64_t bytes = LARGE_PAGES * reach_page_bytes(&shape);
    uint64_t brought_ns[8], copied_ns[8];
    uint8_t *from = malloc(bytes), *to = malloc(bytes);
    static struct reach_pair pair;
    char notes[96];

    if (!from || !to)
        bench_suite_fail(suite, "out of memory");
    else if (reach_open(suite, &pair, suite->socket_path, claimer, &shape)) {
        memset(from, 2, bytes);
        memset(to, 3, bytes);
        for (size_t i = 0; i < samples && !suite->failed; i++)
            if (reach_claim(suite, &pair, LARGE_PAGES, &brought_ns[i]))
                copy_here(suite, from, to, bytes, &copied_ns[i]);
        if (!suite->failed) {
            const double brought = (double)bench_p50(brought_ns, samples);
            const double copied = (double)bench_p50(copied_ns, samples);

            snprintf(notes, sizeof(notes), "%.2f GB/s and %.2f GB/s, %u MiB, p50 of %zu",
                     (double)bytes / brought, (double)bytes / copied, (uint32_t)(bytes >> 20),
                     samples);
            bench_suite_figure(suite, "over_memcpy", brought / copied, "ratio", "lower", NAN,
                               notes);
        }
        reach_close(&pair);
    }
    free(from);
    free(to);
}

/* ---- another host ---- */

/* Numbers of pieces of the plain socket's memory, each once, in no order. */
static void scatter(uint32_t *pieces, uint32_t count, uint32_t seed)
{
    uint64_t state = seed;

    for (uint32_t i = 0; i < count; i++)
        pieces[i] = i;
    for (uint32_t i = count; i > 1; i--) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
        const uint32_t other = (uint32_t)((state >> 33) % i), piece = pieces[i - 1];
        pieces[i - 1] = pieces[other];
        pieces[other] = piece;
    }
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, size_t count)
{
    qsort(values, count, sizeof(*values), compare);
    return values[count / 2];
}

static void measure_tcp(struct bench_suite *suite, struct reach_net *net, uint32_t heads,
                        double reach)
{
    const uint32_t piece_bytes = heads * 4096u;
    const uint32_t pieces = (uint32_t)(FAR_BYTES / piece_bytes);
    const struct reach_shape shape = {
        .layers = FAR_LAYERS, .pages = pieces / FAR_LAYERS, .heads = heads};
    const uint32_t count = shape.pages / 2;
    static struct reach_pair pair;
    static uint32_t from[FAR_BYTES / 4096], to[FAR_BYTES / 4096];
    double ratios[FAR_ROUNDS], rates[FAR_ROUNDS], plain[FAR_ROUNDS];
    uint64_t far_ns, plain_ns;
    char name[64], notes[128];

    scatter(from, pieces, 1);
    scatter(to, pieces, 2);
    if (!reach_open(suite, &pair, net->giver, net->claimer, &shape) ||
        !reach_scatter(suite, &pair.giver, shape.pages) ||
        !reach_scatter(suite, &pair.claimer, shape.pages))
        return;
    for (uint32_t i = 0; i < FAR_ROUNDS + 2 && !suite->failed; i++) {
        if (!reach_claim(suite, &pair, count, &far_ns) ||
            !reach_net_pull(suite, net, from, to, pieces, piece_bytes, &plain_ns))
            break;
        const uint32_t at = i < 2 ? 0 : i - 2; /* the first two warm up */
        rates[at] = (double)(count * reach_page_bytes(&shape)) / (double)far_ns;
        plain[at] = (double)FAR_BYTES / (double)plain_ns;
        ratios[at] = rates[at] / plain[at];
    }
    if (!suite->failed) {
        snprintf(name, sizeof(name), "tcp_over_socket_%uk", heads * 4);
        snprintf(notes, sizeof(notes), "%.2f GB/s and %.2f GB/s, %u MiB, median of %u rounds",
                 median(rates, FAR_ROUNDS), median(plain, FAR_ROUNDS), (uint32_t)(FAR_BYTES >> 20),
                 FAR_ROUNDS);
        bench_suite_figure(suite, name, median(ratios, FAR_ROUNDS), "ratio", "higher", reach,
                           notes);
    }
    reach_close(&pair);
}

static void sleep_until(uint64_t when_ns)
{
    const struct timespec when = {.tv_sec = (time_t)(when_ns / 1000000000u),
                                  .tv_nsec = (long)(when_ns % 1000000000u)};

    (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &when, NULL);
}

/* Layers become whole every @layer_ns. @ns: behind the last one's word. */
static bool claim_layers(struct bench_suite *suite, struct reach_pair *pair, uint32_t count,
                         uint64_t layer_ns, uint64_t *ns)
{
    struct reach_end *from = &pair->giver;
    const struct attnd_op quiet = {.flags = ATTND_SKIP_SUCCESS};
    uint64_t last_ns = 0;

    if (!reach_alloc(suite, pair, count) ||
        !bench_suite_call(suite, "attnd_pages_offer_layers",
                          attnd_pages_offer_layers(from->session, from->pool, count, from->pages,
                                                   EXPIRE_MS, &pair->ticket)) ||
        !reach_begin(suite, pair, count))
        return false;
    const uint64_t begin_ns = attnd_clock_ns();
    for (uint32_t layer = 1; layer <= EXPOSED_LAYERS; layer++) {
        sleep_until(begin_ns + layer * layer_ns);
        last_ns = attnd_clock_ns();
        if (!bench_suite_call(
                suite, "attnd_pages_ready",
                attnd_pages_ready(from->session, from->pool, &pair->ticket, layer, &quiet)))
            return false;
    }
    if (!reach_end(suite, pair, count, ns))
        return false;
    *ns -= last_ns;
    return bench_suite_call(suite, "attnd_pages_free",
                            attnd_pages_free(from->session, from->pool, count, from->pages));
}

static void measure_exposed(struct bench_suite *suite, struct reach_net *net)
{
    const struct reach_shape shape = {.layers = EXPOSED_LAYERS, .pages = 128, .heads = 8};
    const uint32_t count = shape.pages / 2;
    static struct reach_pair pair;
    double exposed[EXPOSED_ROUNDS], whole[EXPOSED_ROUNDS], ratios[EXPOSED_ROUNDS];
    uint64_t whole_ns, exposed_ns;
    char notes[128];

    if (!reach_open(suite, &pair, net->giver, net->claimer, &shape))
        return;
    for (uint32_t i = 0; i < EXPOSED_ROUNDS + 2 && !suite->failed; i++) {
        if (!reach_claim(suite, &pair, count, &whole_ns) ||
            !claim_layers(suite, &pair, count, whole_ns * 5 / 4 / EXPOSED_LAYERS, &exposed_ns))
            break;
        const uint32_t at = i < 2 ? 0 : i - 2;
        exposed[at] = (double)exposed_ns * 1e-6;
        whole[at] = (double)whole_ns * 1e-6;
        ratios[at] = exposed[at] / whole[at];
    }
    if (!suite->failed) {
        snprintf(notes, sizeof(notes), "%.2f ms of %.2f ms, %u MiB, median of %u rounds",
                 median(exposed, EXPOSED_ROUNDS), median(whole, EXPOSED_ROUNDS),
                 (uint32_t)(count * reach_page_bytes(&shape) >> 20), EXPOSED_ROUNDS);
        bench_suite_figure(suite, "exposed_over_transfer", median(ratios, EXPOSED_ROUNDS), "ratio",
                           "lower", 0.1, notes);
    }
    reach_close(&pair);
}

/* On a processor, of all threads of a process. */
static uint64_t spent_by_ns(pid_t pid)
{
    uint64_t total_ns = 0, ns;
    char path[320];
    const struct dirent *entry;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    while (tasks && (entry = readdir(tasks))) {
        snprintf(path, sizeof(path), "/proc/%d/task/%.16s/schedstat", (int)pid, entry->d_name);
        FILE *file = entry->d_name[0] != '.' ? fopen(path, "re") : NULL;
        if (file && fscanf(file, "%lu", &ns) == 1)
            total_ns += ns;
        if (file)
            (void)fclose(file);
    }
    if (tasks)
        closedir(tasks);
    return total_ns;
}

/* Return: the process's parent if it is a mover of a private daemon; else 0. */
static pid_t daemon_of_mover(pid_t pid)
{
    char path[64], name[32] = "";
    int parent = 0;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (file && fscanf(file, "%*d (%31[^)]) %*c %d", name, &parent) != 2)
        parent = 0;
    if (file)
        (void)fclose(file);
    return strcmp(name, "attnd-mover") == 0 && bench_private_is_daemon(parent) ? parent : 0;
}

/* Of the movers and their daemons. */
static uint64_t spent_ns(uint32_t *processes)
{
    uint64_t total_ns = 0;
    const struct dirent *entry;
    DIR *proc = opendir("/proc");

    *processes = 0;
    while (proc && (entry = readdir(proc))) {
        const pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        const pid_t daemon = pid > 0 ? daemon_of_mover(pid) : 0;
        if (!daemon)
            continue;
        total_ns += spent_by_ns(pid) + spent_by_ns(daemon);
        *processes += 2;
    }
    if (proc)
        closedir(proc);
    return total_ns;
}

static void measure_idle(struct bench_suite *suite)
{
    const struct timespec quiet = {.tv_sec = IDLE_S}, settle = {.tv_sec = 3};
    uint32_t processes;
    char notes[96];

    nanosleep(&settle, NULL);
    const uint64_t before_ns = spent_ns(&processes), begin_ns = attnd_clock_ns();
    nanosleep(&quiet, NULL);
    const uint64_t spent = spent_ns(&processes) - before_ns;
    const double percent = 100.0 * (double)spent / (double)(attnd_clock_ns() - begin_ns);
    snprintf(notes, sizeof(notes), "%.2f ms in %d s, of %u processes", (double)spent * 1e-6, IDLE_S,
             processes);
    bench_suite_figure(suite, "idle_cpu_percent", percent, "percent", "lower", 0.1, notes);
}

static void measure_far(struct bench_suite *suite)
{
    static struct reach_net net;

    if (!reach_net_open(suite, &net) || !reach_net_plain(suite, &net, FAR_BYTES))
        return;
    measure_tcp(suite, &net, 1, 0.6);
    if (!suite->failed)
        measure_tcp(suite, &net, 4, 0.85);
    if (!suite->failed)
        measure_tcp(suite, &net, 16, 0.85);
    if (!suite->failed)
        measure_exposed(suite, &net);
    reach_net_plain_end(&net);
    if (!suite->failed)
        measure_idle(suite);
}

/* ---- deaths ---- */

/* Its last line is "matrix: N trials, L lost". */
static void measure_matrix(struct bench_suite *suite, const char *program)
{
    unsigned trials = 0, lost = 0;
    char line[256], notes[96];
    FILE *out = popen(program, "re");
    int found = 0;

    while (out && fgets(line, sizeof(line), out))
        found |= sscanf(line, "matrix: %u trials, %u lost", &trials, &lost) == 2;
    const int status = out ? pclose(out) : -1;
    if (!found || (status != 0) != (lost > 0)) {
        bench_suite_fail(suite, "--matrix %s: it ended with %d, and says nothing of trials",
                         program, status);
        return;
    }
    snprintf(notes, sizeof(notes), "%u trials", trials);
    bench_suite_figure(suite, "kill_matrix", lost, "trials", "lower", 0, notes);
}

int main(int argc, char **argv)
{
    static struct bench_suite suite = {
        .name = "reach",
        .doc = "reach - pages of another service: a small ticket, and a large one",
        .rounds = 2000,
        .own_options = &own_options};
    char why[512];

    bench_suite_begin(&suite, argc, argv);
    if (!suite.spawn) {
        bench_suite_fail(&suite, "wants services of its own: --spawn");
        return bench_suite_end(&suite);
    }
    const char *claimer = bench_private_peer(suite.attnd_path, suite.socket_path, why, sizeof(why));
    if (!claimer)
        bench_suite_fail(&suite, "%s", why);
    if (!suite.failed)
        measure_page(&suite, claimer);
    if (!suite.failed)
        measure_rate(&suite, claimer);
    if (!suite.failed && own.matrix)
        measure_matrix(&suite, own.matrix);
    if (!suite.failed && own.far)
        measure_far(&suite);
    return bench_suite_end(&suite);
}
