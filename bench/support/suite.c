/* suite.c - the frame around a suite of figures. The stamp is taken, and the records' directory
 * made, before anything is measured: what is wrong with them shows in the first second and not
 * after the last. */
#include "bench/support/suite.h"
#include "bench/support/private_service.h"
#include "schemas/atomics.h"
#include "service/args/args.h"
#include "service/ctl/attnctl.h"

#include <argp.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { EXIT_FAILED = 2 };
enum {
    KEY_ROUNDS = 'n',
    KEY_SECONDS = 't',
    KEY_SOCKET = 's',
    KEY_SPAWN = 256,
    KEY_ATTND,
    KEY_RECORD,
    KEY_ALLOW_DIRTY,
    KEY_REPLAY
};

static const struct argp_option option_list[] = {
    {"rounds", KEY_ROUNDS, "N", 0, "Repetitions of what is measured", 1},
    {"seconds", KEY_SECONDS, "S", 0, "Length of what is measured over time", 1},
    {"socket", KEY_SOCKET, "PATH", 0, "The service to measure (default: as libattnd finds it)", 2},
    {"spawn", KEY_SPAWN, NULL, 0, "Start a private attnd, and stop it at the end", 2},
    {"attnd", KEY_ATTND, "PATH", 0, "The attnd to start (default: near this program)", 2},
    {"record", KEY_RECORD, "DIR", 0,
     "Write the figures to DIR/<suite>-<device>.json; uncommitted changes are refused", 3},
    {"allow-dirty", KEY_ALLOW_DIRTY, NULL, 0,
     "Record uncommitted changes too, marked so, but not in bench/results", 3},
    {"replay", KEY_REPLAY, "FILE", 0,
     "Figures of a comparison that attnd-replay wrote (--json), where a suite has such", 1},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct bench_suite *suite = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        if (suite->own_options)
            state->child_inputs[1] = suite->own_input;
        return 0;
    case KEY_ROUNDS:
        suite->rounds = attnd_args_number(state, "rounds", text, 1, 100000000);
        return 0;
    case KEY_SECONDS:
        suite->seconds = attnd_args_decimal(state, "seconds", text, 1e-3, 3600);
        return 0;
    case KEY_SOCKET:
        suite->socket_path = text;
        return 0;
    case KEY_SPAWN:
        suite->spawn = true;
        return 0;
    case KEY_ATTND:
        suite->attnd_path = text;
        return 0;
    case KEY_RECORD:
        suite->record_directory = text;
        return 0;
    case KEY_ALLOW_DIRTY:
        suite->allow_dirty = true;
        return 0;
    case KEY_REPLAY:
        if (suite->replays == suite->replays_max)
            argp_error(state, "--replay: this suite takes %u", suite->replays_max);
        else
            suite->replay_path[suite->replays++] = text;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

void bench_suite_fail(struct bench_suite *suite, const char *format, ...)
{
    va_list args;

    fprintf(stderr, "%s: ", suite->name);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    suite->failed = true;
}

void bench_suite_go_on(struct bench_suite *suite)
{
    suite->incomplete |= suite->failed;
    suite->failed = false;
}

bool bench_suite_call(struct bench_suite *suite, const char *call, int code)
{
    struct attnd_fault fault;
    char text[160];

    if (code >= 0)
        return true;
    attnd_last_fault(&fault);
    if (fault.code != code)
        fault = (struct attnd_fault){.code = code};
    bench_suite_fail(suite, "%s: %s", call, attnd_fault_string(&fault, text, sizeof(text)));
    return false;
}

/* What the figures are of, asked of the service itself. */
static bool find_device(struct bench_suite *suite, char *device, size_t device_bytes)
{
    struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = suite->socket_path, .name = suite->name};
    struct attnd_info info = {.size = sizeof(info)};
    struct attnd_session *session;

    if (!bench_suite_call(suite, "attnd_open", attnd_open(&args, &session)))
        return false;
    if (bench_suite_call(suite, "attnd_info", attnd_info(session, &info))) {
        snprintf(device, device_bytes, "%s", info.backend);
        snprintf(suite->isa, sizeof(suite->isa), "%s", info.isa);
        printf("%s: attnd %s, %s, %s\n", suite->name, info.daemon_version, info.backend, info.isa);
    }
    attnd_close(session);
    return !suite->failed;
}

/* Return: 0, or -1 with @why. */
static int begin_records(struct bench_suite *suite, const char *device, int argc, char **argv,
                         char *why, size_t why_bytes)
{
    const char *directory = suite->record_directory;

    if (!directory)
        return 0;
    if (mkdir(directory, 0777) < 0 && errno != EEXIST) {
        snprintf(why, why_bytes, "--record %s: %s", directory, strerror(errno));
        return -1;
    }
    return bench_stamp_take(&suite->stamp, device, suite->allow_dirty, argc, argv, why, why_bytes);
}

void bench_suite_begin(struct bench_suite *suite, int argc, char **argv)
{
    static const char *const quiet[] = {"--quiet", NULL};
    const struct argp_child children[] = {
        attnd_args_help[0], {suite->own_options, 0, NULL, 0}, {0}};
    struct argp argp = {option_list, parse_option, NULL, suite->doc, children, NULL, NULL};
    char why[512], device[32] = "cpu";

    argp_parse(&argp, argc, argv, 0, NULL, suite);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (begin_records(suite, device, argc, argv, why, sizeof(why)) < 0)
        bench_suite_fail(suite, "%s", why);
    if (!suite->failed && suite->spawn) {
        suite->socket_path = bench_private_start(suite->attnd_path, quiet, why, sizeof(why));
        if (!suite->socket_path)
            bench_suite_fail(suite, "%s", why);
    }
    if (!suite->failed && find_device(suite, device, sizeof(device))) {
        snprintf(suite->stamp.common.device, sizeof(suite->stamp.common.device), "%s", device);
        return;
    }
    bench_private_stop();
    exit(EXIT_FAILED);
}

bool bench_suite_restart(struct bench_suite *suite, const char *const *service)
{
    char why[512];

    if (!suite->spawn) {
        bench_suite_fail(suite, "wants a service of its own: --spawn");
        return false;
    }
    bench_private_stop();
    suite->socket_path = bench_private_start(suite->attnd_path, service, why, sizeof(why));
    if (!suite->socket_path)
        bench_suite_fail(suite, "%s", why);
    return !suite->failed;
}

void bench_suite_figure(struct bench_suite *suite, const char *figure, double value,
                        const char *unit, const char *better, double reach, const char *notes)
{
    bool lower = !strcmp(better, "lower");
    bool reached = isnan(reach) || (lower ? value <= reach : value >= reach);
    char name[64], goal[48] = "";

    snprintf(name, sizeof(name), "%s.%s", suite->name, figure);
    if (!isnan(reach))
        snprintf(goal, sizeof(goal), "to reach: %s %g%s", lower ? "<=" : ">=", reach,
                 reached ? "" : "  NOT REACHED");
    printf("%-28s %12.4g %-6s %s%s%s\n", name, value, unit, goal, notes ? "  " : "",
           notes ? notes : "");
    suite->missed |= !reached;
    if (suite->records < BENCH_RECORDS_MAX)
        suite->record[suite->records++] =
            bench_record_make(&suite->stamp, name, value, unit, better, notes);
}

Attnd__Reply *bench_suite_status(struct bench_suite *suite)
{
    Attnd__Request request = ATTND__REQUEST__INIT;
    Attnd__StatusQuery query = ATTND__STATUS_QUERY__INIT;
    Attnd__Reply *reply;

    request.call_case = ATTND__REQUEST__CALL_STATUS;
    request.status = &query;
    if (!bench_suite_call(suite, "status", attnctl_ask(suite->socket_path, &request, &reply)))
        return NULL;
    if (!reply->code && reply->result_case == ATTND__REPLY__RESULT_STATUS)
        return reply;
    bench_suite_fail(suite, "the service does not tell its status");
    attnd__reply__free_unpacked(reply, NULL);
    return NULL;
}

bool bench_suite_worker(struct bench_suite *suite, pid_t *pid, uint32_t *threads)
{
    Attnd__Reply *reply = bench_suite_status(suite);

    if (!reply)
        return false;
    *pid = (pid_t)reply->status->worker_pid;
    *threads = reply->status->tile_workers;
    attnd__reply__free_unpacked(reply, NULL);
    return true;
}

void bench_suite_gpu(struct bench_suite *suite, const char *name)
{
    static const char maker[] = "NVIDIA ";
    char word[sizeof(suite->stamp.common.device)] = "cuda";

    if (strncmp(name, maker, sizeof(maker) - 1) == 0) {
        name += sizeof(maker) - 1;
        snprintf(word, sizeof(word), "%.*s", (int)strcspn(name, " "), name);
    }
    for (char *at = word; *at; at++)
        *at = (char)tolower((unsigned char)*at);
    memcpy(suite->stamp.common.device, word, sizeof(word));
}

int bench_suite_end(struct bench_suite *suite)
{
    char name[64], why[512];

    bench_private_stop();
    snprintf(name, sizeof(name), "%s%s", suite->name, suite->incomplete ? "-incomplete" : "");
    if (!suite->failed && suite->record_directory) {
        if (bench_records_write(&suite->stamp, suite->record_directory, name, suite->record,
                                suite->records, why, sizeof(why)))
            bench_suite_fail(suite, "%s", why);
        else
            printf("recorded in %s/%s-%s.json\n", suite->record_directory, name,
                   suite->stamp.common.device);
    }
    return suite->failed || suite->incomplete ? EXIT_FAILED : EXIT_SUCCESS;
}

bool bench_wait_all(struct bench_suite *suite, struct attnd_session *session, uint32_t count,
                    struct attnd_completion *last)
{
    while (count) {
        struct attnd_completion completions[16];
        int got = attnd_wait(session, completions, count < 16 ? count : 16, 60000000000u);

        if (!bench_suite_call(suite, "attnd_wait", got))
            return false;
        if (!got) {
            bench_suite_fail(suite, "the service has not answered for a minute");
            return false;
        }
        for (int i = 0; i < got; i++) {
            char text[160];

            if (!completions[i].fault.code)
                continue;
            bench_suite_fail(suite, "an operation failed: %s",
                             attnd_fault_string(&completions[i].fault, text, sizeof(text)));
            return false;
        }
        count -= (uint32_t)got;
        if (last)
            *last = completions[got - 1];
    }
    return true;
}

bool bench_wait_hot(struct bench_suite *suite, struct attnd_session *session,
                    struct attnd_completion *completion)
{
    char text[160];
    int got;

    while (!(got = attnd_wait(session, completion, 1, 0)))
        attnd_relax();
    if (!bench_suite_call(suite, "attnd_wait", got))
        return false;
    if (completion->fault.code)
        bench_suite_fail(suite, "an operation failed: %s",
                         attnd_fault_string(&completion->fault, text, sizeof(text)));
    return !completion->fault.code;
}

static int by_value(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;

    return *x < *y ? -1 : *x > *y;
}

uint64_t bench_p50(uint64_t *samples, size_t count)
{
    qsort(samples, count, sizeof(samples[0]), by_value);
    return count ? samples[count / 2] : 0;
}
