/* check.c - figures of the long checks: random batches that agreed with the reference, what was
 * wrong or left over after a soak, and allocations of the daemon that failed.
 *
 *   check --record bench/results -- build/tests/long/long_random...
 *   check --record bench/results --contract -- build/tests/long/long_random --contract
 *   check --record bench/results -- build/asan/tests/long/long_hostile...
 *   check --record bench/results -- build/tests/long/long_allocations
 *
 * Runs the program, lets its output through, and takes the numbers from its last line of the form
 * "verified N batches, M mismatches", "soak: N rows, M wrong, L leaks" or "allocations: N failed,
 * M lost". A mismatch, a failing program or a missing line records nothing. */
#include "bench/support/record.h"

#include <argp.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define REACH 1000000u
#define REACH_CONTRACT 100000u
#define REACH_CONTRACT_GPU 20000u

struct options {
    const char *directory, *device;
    bool allow_dirty;
    bool contract;  /* the batches have variants */
    char **command; /* NULL-terminated */
};

static const struct argp_option option_list[] = {
    {"record", 'r', "DIR", 0, "Write the figure to DIR/check-<device>.json", 1},
    {"device", 'd', "NAME", 0, "What the batches ran on (default: cpu)", 1},
    {"contract", 'c', NULL, 0, "The batches have variants: contract-<device>.json instead", 1},
    {"allow-dirty", 'a', NULL, 0, "Record uncommitted changes too, marked so", 1},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct options *options = state->input;

    switch (key) {
    case 'r':
        options->directory = text;
        return 0;
    case 'd':
        options->device = text;
        return 0;
    case 'a':
        options->allow_dirty = true;
        return 0;
    case 'c':
        options->contract = true;
        return 0;
    case ARGP_KEY_ARGS:
        options->command = &state->argv[state->next];
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "no program to run");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static FILE *start(char **command, pid_t *pid)
{
    pid_t parent = getpid();
    int ends[2];

    if (pipe(ends))
        return NULL;
    *pid = fork();
    if (*pid < 0)
        return NULL;
    if (!*pid) {
        close(ends[0]);
        if (!prctl(PR_SET_PDEATHSIG, SIGTERM) && getppid() == parent &&
            dup2(ends[1], STDOUT_FILENO) >= 0)
            execvp(command[0], command);
        _exit(127);
    }
    close(ends[1]);
    return fdopen(ends[0], "r");
}

/* What a program says of itself. */
struct verdict {
    enum { NOTHING, BATCHES, SOAK, ALLOCATIONS } of;
    uint64_t count, wrong, leaks; /* of batches; of a soak: of rows; of allocations */
};

static void read_line(const char *line, struct verdict *verdict)
{
    uint64_t n, m, l = 0;
    const bool batches =
        sscanf(line, "verified %" SCNu64 " batches, %" SCNu64 " mismatches", &n, &m) == 2;
    const bool soak = sscanf(line, "soak: %" SCNu64 " rows, %" SCNu64 " wrong, %" SCNu64 " leaks",
                             &n, &m, &l) == 3;

    const bool allocations =
        sscanf(line, "allocations: %" SCNu64 " failed, %" SCNu64 " lost", &n, &m) == 2;

    if (batches || soak || allocations)
        *verdict = (struct verdict){batches ? BATCHES : soak ? SOAK : ALLOCATIONS, n, m, l};
}

/* Return: 0; -1. */
static int run(char **command, struct verdict *verdict)
{
    char line[4096];
    int status = 0;
    pid_t pid = 0;
    FILE *output = start(command, &pid);

    if (!output)
        return -1;
    while (fgets(line, sizeof(line), output)) {
        fputs(line, stdout);
        read_line(line, verdict);
    }
    fclose(output);
    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status)) {
        fprintf(stderr, "check: %s failed\n", command[0]);
        return -1;
    }
    if (!verdict->of || verdict->wrong || verdict->leaks) {
        fprintf(stderr, "check: %s\n",
                verdict->of ? "there are mismatches"
                            : "no line of the form 'verified N batches, M mismatches', 'soak: N "
                              "rows, M wrong, L leaks' or 'allocations: N failed, M lost'");
        return -1;
    }
    return 0;
}

/* Return: how many records. */
static size_t make_records(const struct bench_stamp *stamp, const struct options *options,
                           const struct verdict *verdict, struct bench_record *records)
{
    const bool on_cpu = strcmp(options->device, "cpu") == 0;
    const char *name = !options->contract ? "check.random_batches"
                       : on_cpu           ? "check.contract_cases_cpu"
                                          : "check.contract_cases_gpu";
    const unsigned reach = !options->contract ? REACH
                           : on_cpu           ? REACH_CONTRACT
                                              : REACH_CONTRACT_GPU;
    char notes[160];

    if (verdict->of == ALLOCATIONS) {
        records[0] = bench_record_make(
            stamp, "safety.failed_allocations", (double)verdict->count, "allocations", "higher",
            "each of a start, a session, large plans, scrapes, a worker's death; 0 lost");
        return 1;
    }
    if (verdict->of == BATCHES) {
        printf("%s %" PRIu64 ", to reach: >= %u%s\n", name, verdict->count, reach,
               verdict->count < reach ? "  NOT REACHED" : "");
        records[0] = bench_record_make(stamp, name, (double)verdict->count, "batches", "higher",
                                       "through libattnd against the fp64 reference, no mismatch");
        return 1;
    }
    snprintf(notes, sizeof(notes), "of %" PRIu64 " rows of honest clients beside eight attackers",
             verdict->count);
    records[0] = bench_record_make(stamp, "safety.soak_wrong_rows", (double)verdict->wrong, "rows",
                                   "lower", notes);
    records[1] =
        bench_record_make(stamp, "safety.soak_leaks", (double)verdict->leaks, "objects", "lower",
                          "sessions, descriptors, and all that is counted, afterwards");
    return 2;
}

int main(int argc, char **argv)
{
    static const struct argp argp = {option_list,
                                     parse_option,
                                     "PROGRAM [ARGUMENT...]",
                                     "check - run a long check and record what it found",
                                     NULL,
                                     NULL,
                                     NULL};
    struct options options = {.device = "cpu"};
    struct bench_stamp stamp = {.allow_dirty = false};
    struct bench_record records[2];
    struct verdict verdict = {.of = NOTHING};
    char why[512];

    argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &options);
    if (options.directory && bench_stamp_take(&stamp, options.device, options.allow_dirty, argc,
                                              argv, why, sizeof(why))) {
        fprintf(stderr, "check: %s\n", why);
        return EXIT_FAILURE;
    }
    if (run(options.command, &verdict))
        return EXIT_FAILURE;
    const size_t count = make_records(&stamp, &options, &verdict, records);
    if (options.directory && bench_records_write(&stamp, options.directory,
                                                 verdict.of == SOAK          ? "soak"
                                                 : verdict.of == ALLOCATIONS ? "allocations"
                                                 : options.contract          ? "contract"
                                                                             : "check",
                                                 records, count, why, sizeof(why))) {
        fprintf(stderr, "check: %s\n", why);
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}
