/*
 * options.c - what an option means, wherever it stands: on the command line or in the file.
 *
 * An option of the file goes through the same function as one of the command line, under a struct
 * argp_state of our own that neither prints nor exits. Each remembers where it came from.
 *
 * The parser lives in a library that other programs link, so argp's global variables stay untouched
 * (each program would set them differently) and --version is an option like any other.
 */
#include "service/daemon/options.h"

#include "ipc/socket_path.h"
#include "schemas/version.h"
#include "service/args/args.h"
#include "service/daemon/machine.h"
#include "service/daemon/scrape.h"

#include <inttypes.h>
#include <pwd.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum option_key {
    KEY_SOCKET = 's',
    KEY_BACKEND = 'b',
    KEY_THREADS = 't',
    KEY_VERBOSE = 'v',
    KEY_QUIET = 'q',
    KEY_VERSION = 'V',
    KEY_WORKER = 256,
    KEY_ISA,
    KEY_LOOP,
    KEY_HEAP,
    KEY_SCRATCH,
    KEY_MEMORY_MAX,
    KEY_HOST_MEMORY_MAX,
    KEY_DAEMON_MEMORY_MAX,
    KEY_DEVICE_MEMORY_MAX,
    KEY_PREFIX_BLOCKS,
    KEY_HOST_CACHE,
    KEY_ALLOW_UID,
    KEY_DEVICE,
    KEY_RESIDENCY,
    KEY_SMS,
    KEY_CASCADE,
    KEY_FUSION,
    KEY_WATCHDOG,
    KEY_INJECT,
    KEY_TRUST,
    KEY_METRICS,
    KEY_CONFIG,
    KEY_CHECK_CONFIG,
    KEY_LOG_LEVEL
};

static const struct argp_option option_list[] = {
    {"socket", KEY_SOCKET, "PATH", 0,
     "Listen here (default: " ATTND_SOCKET_RULE ", whose directory is made if it is missing)", 1},
    {"allow-uid", KEY_ALLOW_UID, "USER", 0,
     "Serve this user, a number or a name; repeat for more (default: the daemon's own). The "
     "socket's "
     "mode is 0600, and 0666 when another user is named: the peer's credentials decide",
     1},
    {"backend", KEY_BACKEND, "NAME", 0, "auto, cpu or cuda (default: auto)", 2},
    {"worker", KEY_WORKER, "PATH", 0,
     "The worker program (default: attnd-worker beside attnd, else on PATH)", 2},
    {"isa", KEY_ISA, "NAME", 0, "Instruction set of the worker: avx512, avx2, portable", 2},
    {"threads", KEY_THREADS, "N", 0, "Threads of the CPU worker (default: all processors)", 2},
    {"device", KEY_DEVICE, "N", 0,
     "GPU of the CUDA worker, as CUDA numbers them under this CUDA_VISIBLE_DEVICES (default: 0)",
     2},
    {"residency", KEY_RESIDENCY, "MODE", 0,
     "How the CUDA worker lives beside other kernels of its GPU: elastic (on all SMs, but only "
     "while something is queued), shared (resident on --sms of them), exclusive (on all), or auto: "
     "elastic (default: auto)",
     2},
    {"sms", KEY_SMS, "N", 0, "SMs of a shared worker (default: half of the GPU's)", 2},
    {"cascade", KEY_CASCADE, "MODE", 0,
     "Leading pages that requests side by side in a batch have in common are read once: off, hint "
     "(only in batches that say so), or auto: wherever it is expected to save time (default: auto)",
     2},
    {"fusion", KEY_FUSION, "MODE", 0,
     "Compute-bound and memory-bound work of one batch: off (one after the other), sm-split (at "
     "once, on different workers), or auto: at once where that is expected to end earlier "
     "(default: "
     "auto)",
     2},
    {"watchdog", KEY_WATCHDOG, "SECONDS", 0,
     "A worker process that does not move for so long is killed and started again; 0: never "
     "(default: 3)",
     2},
    {"inject", KEY_INJECT, "FAULT", OPTION_HIDDEN, "Tests: a fault that the first worker makes", 2},
    {"loop", KEY_LOOP, "KIND", 0, "auto, io_uring or epoll (default: auto)", 3},
    {"heap", KEY_HEAP, "SIZE", 0, "Memory for plans and pools' descriptions (default: 256M)", 3},
    {"scratch", KEY_SCRATCH, "SIZE", 0,
     "Memory for partial results (default: of a GPU a sixty-fourth, else 256M). Half of it is for "
     "prepared runs, and of that half for one session",
     3},
    {"memory-max", KEY_MEMORY_MAX, "SIZE", 0,
     "Host memory of one session at most: what the service makes for it, and what it registers "
     "(default: half of the machine's memory, or of the control group's)",
     3},
    {"host-memory-max", KEY_HOST_MEMORY_MAX, "SIZE", 0,
     "Host memory of all sessions together, made and registered: a CUDA worker pins all of it "
     "(default: three quarters of the machine's memory, or of the control group's, less what "
     "--host-cache may have)",
     3},
    {"daemon-memory-max", KEY_DAEMON_MEMORY_MAX, "SIZE", 0,
     "The daemon's own memory for all sessions together: leases, plans, batches that wait, tickets "
     "(default: an eighth of the machine's memory, or of the control group's). Of this, of the "
     "heap, of pools, tickets and registered memories one session may have half; where several "
     "users are admitted one user may have half, and a session half of that",
     3},
    {"prefix-blocks", KEY_PREFIX_BLOCKS, "N", 0,
     "Blocks of all prefix trees together, at up to 128 bytes of the daemon's memory each; the "
     "pools of one process may have half (default: 4194304)",
     3},
    {"host-cache", KEY_HOST_CACHE, "SIZE", 0,
     "Host memory below the prefix trees: what is evicted from a pool goes there, and comes back "
     "when it is asked for. A CUDA worker pins it as it is needed. Where several users are "
     "admitted "
     "the pools of one user may have half (default: none)",
     3},
    {"device-memory-max", KEY_DEVICE_MEMORY_MAX, "SIZE", 0,
     "Memory of the GPU that the service makes for one session at most (default: what the GPU has)",
     3},
    {"trust", KEY_TRUST, NULL, 0,
     "Take GPU memory of engines also by legacy IPC handle and by pool pointer: what they send "
     "goes to the driver unseen, and they must not free it before the service has let go",
     2},
    {"metrics", KEY_METRICS, "PATH|127.0.0.1:PORT", 0,
     "Serve metrics for Prometheus by HTTP: on a unix socket (a path with a slash in it) for the "
     "users that are served, or on loopback for every user of the machine",
     4},
    {"config", KEY_CONFIG, "PATH", 0,
     "Read options from this file, as `name = value` without dashes, `yes` for those without a "
     "value. The command line goes before it. SIGHUP reads it again",
     5},
    {"check-config", KEY_CHECK_CONFIG, NULL, 0,
     "Print every value that would be in force, and where it comes from; exit 1 if the file or the "
     "command line is wrong",
     5},
    {"log-level", KEY_LOG_LEVEL, "LEVEL", 0, "error, warning, info or debug (default: info)", 4},
    {"verbose", KEY_VERBOSE, NULL, 0, "Log more: --log-level debug", 4},
    {"quiet", KEY_QUIET, NULL, 0, "Log warnings and errors only: --log-level warning", 4},
    {"version", KEY_VERSION, NULL, 0, "Print the version", -1},
    {0}};

static const char doc[] =
    "attnd - the attention service\v"
    "SIZE is a number of bytes with an optional suffix K, M, G or T (powers of 1024).\n"
    "SIGTERM and SIGINT end the service: it stops accepting, finishes what runs, parks the worker "
    "and leaves. A second one ends it at once. SIGHUP reads the file again: budgets, users and the "
    "log level take effect at once, and the log names what waits for a restart.\n\n"
    "Exit codes:\n"
    "  0  ended cleanly\n"
    "  1  bad option or usage\n"
    "  2  the socket cannot be made, or another service listens on it\n"
    "  3  the worker does not start, or there is no such backend\n"
    "  4  an internal failure";

static enum attnd_loop_kind parse_loop(struct argp_state *state, const char *text)
{
    static const char *const words[] = {"auto", "io_uring", "epoll", NULL};
    static const enum attnd_loop_kind kinds[] = {ATTND_LOOP_AUTO, ATTND_LOOP_IO_URING,
                                                 ATTND_LOOP_EPOLL};
    return kinds[attnd_args_word(state, "loop", text, words)];
}

static const char *const levels[] = {"error", "warning", "info", "debug", NULL};
static const enum attnd_log_level level_numbers[] = {ATTND_LOG_ERROR, ATTND_LOG_WARNING,
                                                     ATTND_LOG_INFO, ATTND_LOG_DEBUG};

/* A user by number or by name. */
static uid_t user_of(struct argp_state *state, const char *text)
{
    const struct passwd *user;
    uint64_t number;

    if (attnd_number_parse(text, 0, UINT32_MAX - 1, &number) == 0)
        return (uid_t)number;
    user = getpwnam(text);
    if (!user) {
        argp_error(state, "--allow-uid: there is no user '%s'", text);
        return getuid();
    }
    return user->pw_uid;
}

/* Each user once: shares go by how many there are. */
static void allow_uid(struct argp_state *state, struct attnd_options *options, const char *text)
{
    uid_t uid = user_of(state, text);

    for (uint32_t i = 0; i < options->allow_uids_count; i++)
        if (options->allow_uids[i] == uid)
            return;
    if (options->allow_uids_count == ATTND_ALLOW_UIDS_MAX)
        argp_error(state, "--allow-uid: at most %u users", ATTND_ALLOW_UIDS_MAX);
    else
        options->allow_uids[options->allow_uids_count++] = uid;
}

static void print_version(struct argp_state *state)
{
    fprintf(state->out_stream, "attnd %s\n", ATTND_VERSION);
    if (!(state->flags & ARGP_NO_EXIT))
        exit(ATTND_EXIT_OK);
}

/* ---- options that only set a member, by the type of their value ---- */

static const char *const backends[] = {"auto", "cpu", "cuda", NULL};
static const char *const isas[] = {"avx512", "avx2", "portable", NULL};
static const char *const residencies[] = {"auto", "elastic", "shared", "exclusive", NULL};
static const char *const cascades[] = {"off", "hint", "auto", NULL};
static const char *const fusions[] = {"off", "sm-split", "auto", NULL};
static const char *const faults[] = {"stop", "pin", "pins", "stall", "stuck", "fault", NULL};

#define AT(member) offsetof(struct attnd_options, member)

/* One of @words, into a const char *. */
static const struct {
    int key;
    const char *name;
    const char *const *words;
    size_t at;
} words[] = {{KEY_BACKEND, "backend", backends, AT(backend)},
             {KEY_ISA, "isa", isas, AT(isa)},
             {KEY_RESIDENCY, "residency", residencies, AT(residency)},
             {KEY_CASCADE, "cascade", cascades, AT(cascade)},
             {KEY_FUSION, "fusion", fusions, AT(fusion)},
             {KEY_INJECT, "inject", faults, AT(inject)}};

/* 0..@most, into a uint32_t. */
static const struct {
    int key;
    uint32_t most;
    const char *name;
    size_t at;
} numbers[] = {{KEY_THREADS, 1024, "threads", AT(threads)},
               {KEY_DEVICE, ATTND_DEVICES_MAX - 1, "device", AT(device)},
               {KEY_SMS, 1024, "sms", AT(sms)},
               {KEY_WATCHDOG, 3600, "watchdog", AT(watchdog_s)},
               {KEY_PREFIX_BLOCKS, 1u << 28, "prefix-blocks", AT(prefix_blocks)}};

/* Bytes, into a uint64_t. */
static const struct {
    int key;
    const char *name;
    size_t at;
} sizes[] = {{KEY_HEAP, "heap", AT(heap_bytes)},
             {KEY_SCRATCH, "scratch", AT(scratch_bytes)},
             {KEY_MEMORY_MAX, "memory-max", AT(memory_max_bytes)},
             {KEY_HOST_MEMORY_MAX, "host-memory-max", AT(host_memory_max_bytes)},
             {KEY_HOST_CACHE, "host-cache", AT(host_cache_bytes)},
             {KEY_DAEMON_MEMORY_MAX, "daemon-memory-max", AT(daemon_memory_max_bytes)},
             {KEY_DEVICE_MEMORY_MAX, "device-memory-max", AT(device_memory_max_bytes)}};

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

/* Return: 1 the option is one of the tables, and has been taken; 0 it is not. */
static int take_value(struct argp_state *state, int key, const char *text)
{
    char *options = state->input;

    for (size_t i = 0; i < COUNT(words); i++)
        if (words[i].key == key) {
            uint32_t which = attnd_args_word(state, words[i].name, text, words[i].words);
            const char *word = words[i].words[which];
            memcpy(options + words[i].at, &word, sizeof(word));
            return 1;
        }
    for (size_t i = 0; i < COUNT(numbers); i++)
        if (numbers[i].key == key) {
            uint32_t number = attnd_args_number32(state, numbers[i].name, text, 0, numbers[i].most);
            memcpy(options + numbers[i].at, &number, sizeof(number));
            return 1;
        }
    for (size_t i = 0; i < COUNT(sizes); i++)
        if (sizes[i].key == key) {
            uint64_t bytes = attnd_args_size(state, sizes[i].name, text);
            memcpy(options + sizes[i].at, &bytes, sizeof(bytes));
            return 1;
        }
    return 0;
}

/* Return: 1 the option has no value, and has been taken; 0 it is none of these. */
static int take_flag(struct argp_state *state, int key)
{
    struct attnd_options *options = state->input;

    switch (key) {
    case KEY_TRUST:
        options->trust = 1;
        return 1;
    case KEY_VERBOSE:
        options->log_level = ATTND_LOG_DEBUG;
        return 1;
    case KEY_QUIET:
        options->log_level = ATTND_LOG_WARNING;
        return 1;
    case KEY_CHECK_CONFIG:
        options->check_config = 1;
        return 1;
    case KEY_VERSION:
        print_version(state);
        return 1;
    default:
        return 0;
    }
}

static void take_socket(struct argp_state *state, const char *text)
{
    struct attnd_options *options = state->input;

    if (text[0] == '\0' || strlen(text) >= sizeof(options->socket_path))
        argp_error(state, "--socket: a path of 1 to %zu bytes is needed",
                   sizeof(options->socket_path) - 1);
    else
        memcpy(options->socket_path, text, strlen(text) + 1);
}

static void take_metrics(struct argp_state *state, const char *text)
{
    struct attnd_options *options = state->input;

    if (strlen(text) >= sizeof(options->metrics) || attnd_scrape_where(text, NULL) < 0)
        argp_error(state, "--metrics: '%s' is neither a path with a slash in it nor 127.0.0.1:PORT",
                   text);
    else
        memcpy(options->metrics, text, strlen(text) + 1);
}

static void take_config(struct argp_state *state, const char *text)
{
    struct attnd_options *options = state->input;

    if (text[0] == '\0' || strlen(text) >= sizeof(options->config))
        argp_error(state, "--config: a path of 1 to %zu bytes is needed",
                   sizeof(options->config) - 1);
    else
        memcpy(options->config, text, strlen(text) + 1);
}

/* Return: 1 the option is one of these, and has been taken; 0 it is not. */
static int take_own(struct argp_state *state, int key, char *text)
{
    struct attnd_options *options = state->input;

    switch (key) {
    case KEY_SOCKET:
        take_socket(state, text);
        return 1;
    case KEY_ALLOW_UID:
        allow_uid(state, options, text);
        return 1;
    case KEY_METRICS:
        take_metrics(state, text);
        return 1;
    case KEY_WORKER:
        options->worker_path = text;
        return 1;
    case KEY_LOOP:
        options->loop = parse_loop(state, text);
        return 1;
    case KEY_CONFIG:
        take_config(state, text);
        return 1;
    case KEY_LOG_LEVEL:
        options->log_level = level_numbers[attnd_args_word(state, "log-level", text, levels)];
        return 1;
    default:
        return 0;
    }
}

/* ---- where each value comes from ---- */

/* No values in force, but wishes for once. */
static int is_setting(int key)
{
    return key && key != KEY_VERBOSE && key != KEY_QUIET && key != KEY_VERSION &&
           key != KEY_CHECK_CONFIG && key != KEY_INJECT;
}

/* Return: NULL if the option is none that is in force. */
static struct attnd_setting *setting_of(struct attnd_options *options, int key)
{
    uint32_t index = 0;

    if (key == KEY_VERBOSE || key == KEY_QUIET)
        key = KEY_LOG_LEVEL;
    for (const struct argp_option *option = option_list; option->name; option++) {
        if (!is_setting(option->key))
            continue;
        if (option->key == key)
            return &options->settings[index];
        index++;
    }
    return NULL;
}

static void take_origin(struct attnd_options *options, int key, const char *origin)
{
    struct attnd_setting *setting = setting_of(options, key);

    if (!setting)
        return;
    /* The users of the command line stand for those of the file, not beside them. */
    if (key == KEY_ALLOW_UID && setting->origin != origin)
        options->allow_uids_count = 0;
    setting->origin = origin;
}

static const char origin_default[] = "default", origin_file[] = "file",
                  origin_command[] = "command line";

static int take(struct argp_state *state, int key, char *text, const char *origin)
{
    struct attnd_options *options = state->input;

    take_origin(options, key, origin);
    if (!take_own(state, key, text) && !take_flag(state, key) && !take_value(state, key, text))
        return 0;
    if (key == KEY_SMS && options->sms == 1)
        argp_error(state, "--sms: the dispatcher takes one, so 2 is the least");
    if (key == KEY_HOST_CACHE && options->host_cache_bytes > attnd_machine_memory_bytes())
        argp_error(state, "--host-cache: %" PRIu64 " bytes are more than the machine's %" PRIu64,
                   options->host_cache_bytes, attnd_machine_memory_bytes());
    return 1;
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    switch (key) {
    case ARGP_KEY_ARG:
        argp_error(state, "'%s' is not an option", text);
        return 0;
    case ARGP_KEY_INIT: {
        const struct attnd_options *options = state->input;
        if (options->errors)
            state->err_stream = options->errors;
        return 0;
    }
    default:
        return take(state, key, text, origin_command) ? 0 : ARGP_ERR_UNKNOWN;
    }
}

static const struct argp parser = {
    .options = option_list, .parser = parse_option, .doc = doc, .children = attnd_args_help};

/* ---- the parts of struct options.h ---- */

void attnd_options_default(struct attnd_options *options)
{
    const uint64_t machine_bytes = attnd_machine_memory_bytes();

    *options = (struct attnd_options){.backend = "auto",
                                      .residency = "auto",
                                      .cascade = "auto",
                                      .fusion = "auto",
                                      .watchdog_s = 3,
                                      .prefix_blocks = 4u << 20,
                                      .loop = ATTND_LOOP_AUTO,
                                      .heap_bytes = 256u << 20,
                                      .log_level = ATTND_LOG_INFO};
    options->memory_max_bytes = machine_bytes / 2;
    options->host_memory_max_bytes = machine_bytes / 4 * 3;
    options->daemon_memory_max_bytes = machine_bytes / 8;
    for (const struct argp_option *option = option_list; option->name; option++)
        if (is_setting(option->key))
            options->settings[options->settings_count++] =
                (struct attnd_setting){.name = option->name, .origin = origin_default};
}

int attnd_options_command(int argc, char **argv, struct attnd_options *options)
{
    argp_err_exit_status = ATTND_EXIT_USAGE;
    return argp_parse(&parser, argc, argv, options->errors ? ARGP_NO_EXIT : 0, NULL, options) == 0
               ? 0
               : -ATTND_E_INVALID;
}

int attnd_options_take(struct attnd_options *options, const char *name, const char *value)
{
    struct argp_state state = {.root_argp = &parser,
                               .input = options,
                               .flags = ARGP_NO_EXIT,
                               .name = (char *)(uintptr_t) "attnd",
                               .err_stream = options->errors,
                               .out_stream = options->errors};
    const struct argp_option *option = option_list;

    while (option->name && (strcmp(option->name, name) != 0 || !is_setting(option->key)))
        option++;
    if (!option->name || option->key == KEY_CONFIG)
        return -ATTND_E_UNKNOWN;
    if (!option->arg) {
        if (strcmp(value, "yes") == 0)
            return take(&state, option->key, (char *)(uintptr_t) "", origin_file)
                       ? 0
                       : -ATTND_E_UNKNOWN;
        return strcmp(value, "no") == 0 ? 0 : -ATTND_E_INVALID;
    }
    if (option->key == KEY_WORKER) {
        if (strlen(value) >= sizeof(options->worker_text))
            return -ATTND_E_INVALID;
        memcpy(options->worker_text, value, strlen(value) + 1);
        value = options->worker_text;
    }
    return take(&state, option->key, (char *)(uintptr_t)value, origin_file) ? 0 : -ATTND_E_UNKNOWN;
}

/* What prefix trees may have is not there for sessions, unless somebody says so. */
static void leave_host_cache(struct attnd_options *options)
{
    const struct attnd_setting *setting = setting_of(options, KEY_HOST_MEMORY_MAX);

    if (setting->origin == origin_default)
        options->host_memory_max_bytes =
            (attnd_machine_memory_bytes() - options->host_cache_bytes) / 4 * 3;
}

int attnd_options_finish(struct attnd_options *options)
{
    const char *given = getenv("ATTND_SOCKET");

    leave_host_cache(options);
    if (options->allow_uids_count == 0)
        options->allow_uids[options->allow_uids_count++] = getuid();
    if (options->socket_path[0])
        return 0;
    options->socket_default = !given || !given[0];
    return attnd_socket_path(ATTND_SOCKET_LISTEN, options->socket_path,
                             sizeof(options->socket_path)) < sizeof(options->socket_path)
               ? 0
               : -ATTND_E_RANGE;
}

/* ---- as text ---- */

static void users_text(const struct attnd_options *options, char *text, size_t bytes)
{
    size_t used = 0;

    text[0] = 0;
    for (uint32_t i = 0; i < options->allow_uids_count && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%" PRIu32, i ? " " : "",
                                 (uint32_t)options->allow_uids[i]);
}

/* Return: NULL if the option is none of these. */
static const char *word_text(const struct attnd_options *options, int key)
{
    static const char *const loops[] = {"auto", "io_uring", "epoll"};

    switch (key) {
    case KEY_SOCKET:
        return options->socket_path;
    case KEY_METRICS:
        return options->metrics;
    case KEY_CONFIG:
        return options->config;
    case KEY_WORKER:
        return options->worker_path ? options->worker_path : "";
    case KEY_LOOP:
        return loops[options->loop];
    case KEY_TRUST:
        return options->trust ? "yes" : "no";
    case KEY_LOG_LEVEL:
        for (size_t i = 0; i < COUNT(level_numbers); i++)
            if (level_numbers[i] == options->log_level)
                return levels[i];
        return "";
    default:
        return NULL;
    }
}

static void setting_text(const struct attnd_options *options, int key, char *text, size_t bytes)
{
    const char *members = (const char *)options, *word = word_text(options, key);

    if (key == KEY_ALLOW_UID) {
        users_text(options, text, bytes);
        return;
    }
    for (size_t i = 0; i < COUNT(words); i++)
        if (words[i].key == key) {
            memcpy(&word, members + words[i].at, sizeof(word));
            word = word ? word : "";
        }
    snprintf(text, bytes, "%.*s", (int)bytes - 1, word ? word : "");
    for (size_t i = 0; i < COUNT(numbers); i++)
        if (numbers[i].key == key) {
            uint32_t number;
            memcpy(&number, members + numbers[i].at, sizeof(number));
            snprintf(text, bytes, "%" PRIu32, number);
        }
    for (size_t i = 0; i < COUNT(sizes); i++)
        if (sizes[i].key == key) {
            uint64_t number;
            memcpy(&number, members + sizes[i].at, sizeof(number));
            snprintf(text, bytes, "%" PRIu64, number);
        }
}

void attnd_options_describe(struct attnd_options *options)
{
    for (const struct argp_option *option = option_list; option->name; option++) {
        struct attnd_setting *setting =
            is_setting(option->key) ? setting_of(options, option->key) : NULL;
        if (setting)
            setting_text(options, option->key, setting->value, sizeof(setting->value));
    }
}
