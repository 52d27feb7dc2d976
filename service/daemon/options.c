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
#include "persistent/backend.h"
#include "schemas/version.h"
#include "service/args/args.h"
#include "service/daemon/machine.h"
#include "service/daemon/options_list.h"
#include "service/daemon/options_own.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void print_version(struct argp_state *state)
{
    fprintf(state->out_stream, "attnd %s\n", ATTND_VERSION);
    if (!(state->flags & ARGP_NO_EXIT))
        exit(ATTND_EXIT_OK);
}

/* ---- options that only set a member, by the type of their value ---- */

static const char *const backends[] = {"auto", "cpu", "cuda", NULL};
static const char *const isas[] = {"avx512", "avx2", "portable", "sm_90a", "sm_80", NULL};
static const char *const residencies[] = {"auto", "elastic", "shared", "exclusive", NULL};
static const char *const cascades[] = {"off", "hint", "auto", NULL};
static const char *const fusions[] = {"off", "sm-split", "auto", NULL};
static const char *const executors[] = {"auto", "engine", "service", NULL};
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
             {KEY_EXECUTE, "execute", executors, AT(execute)},
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
               {KEY_RESERVE, 1024, "reserve", AT(reserve)},
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
    for (const struct argp_option *option = attnd_option_list; option->name; option++) {
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
    /* Those of the command line stand for those of the file, not beside them. */
    if (key == KEY_ALLOW_UID && setting->origin != origin)
        options->allow_uids_count = 0;
    if (key == KEY_PEER && setting->origin != origin)
        options->peers_count = 0;
    setting->origin = origin;
}

static const char origin_default[] = "default", origin_file[] = "file",
                  origin_command[] = "command line";

static int take(struct argp_state *state, int key, char *text, const char *origin)
{
    struct attnd_options *options = state->input;

    take_origin(options, key, origin);
    if (!attnd_options_own(state, key, text) && !take_flag(state, key) &&
        !take_value(state, key, text))
        return 0;
    if (key == KEY_SMS && options->sms == 1)
        argp_error(state, "--sms: the dispatcher takes one, so 2 is the least");
    if (key == KEY_RESERVE && options->reserve == 1)
        argp_error(state, "--reserve: the dispatcher takes one, so 2 is the least");
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

static const struct argp parser = {.options = attnd_option_list,
                                   .parser = parse_option,
                                   .doc = attnd_options_doc,
                                   .children = attnd_args_help};

/* ---- the parts of struct options.h ---- */

void attnd_options_default(struct attnd_options *options)
{
    *options = (struct attnd_options){.backend = "auto",
                                      .residency = "auto",
                                      .cascade = "auto",
                                      .fusion = "auto",
                                      .execute = "auto",
                                      .watchdog_s = 3,
                                      .prefix_blocks = 4u << 20,
                                      .loop = ATTND_LOOP_AUTO,
                                      .heap_bytes = 256u << 20,
                                      .log_level = ATTND_LOG_INFO};
    for (const struct argp_option *option = attnd_option_list; option->name; option++)
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
    const struct argp_option *option = attnd_option_list;

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
    if (strlen(value) >= ATTND_OPTION_TEXT_BYTES)
        return -ATTND_E_INVALID;
    char *kept = setting_of(options, option->key)->text; /* some options point to their text */
    memcpy(kept, value, strlen(value) + 1);
    return take(&state, option->key, kept, origin_file) ? 0 : -ATTND_E_UNKNOWN;
}

static int is_default(struct attnd_options *options, int key)
{
    return setting_of(options, key)->origin == origin_default;
}

/* Of what heap, scratch and the share of prefix trees leave, unless somebody says so. */
static void fit_budgets(struct attnd_options *options)
{
    const uint64_t scratch_bytes =
        options->scratch_bytes ? options->scratch_bytes : ATTND_SCRATCH_BYTES;
    const struct attnd_budgets budgets =
        attnd_machine_budgets(attnd_machine_memory_bytes(), options->heap_bytes + scratch_bytes,
                              options->host_cache_bytes);

    if (is_default(options, KEY_HOST_MEMORY_MAX))
        options->host_memory_max_bytes = budgets.host_bytes;
    if (is_default(options, KEY_MEMORY_MAX))
        options->memory_max_bytes = budgets.session_bytes;
    if (is_default(options, KEY_DAEMON_MEMORY_MAX))
        options->daemon_memory_max_bytes = budgets.daemon_bytes;
}

/* Whoever can reach the port could take pages. */
static int lacks_key(const struct attnd_options *options)
{
    int wanted = options->peer_listen[0] != 0;

    for (uint32_t i = 0; i < options->peers_count; i++)
        wanted |= options->peers[i].address[0] != '/';
    return wanted && !options->peer_key[0];
}

int attnd_options_finish(struct attnd_options *options)
{
    const char *given = getenv("ATTND_SOCKET");

    fit_budgets(options);
    if (options->allow_uids_count == 0)
        options->allow_uids[options->allow_uids_count++] = getuid();
    if (lacks_key(options))
        return -ATTND_E_INVALID;
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

static void peers_text(const struct attnd_options *options, char *text, size_t bytes)
{
    size_t used = 0;

    text[0] = 0;
    for (uint32_t i = 0; i < options->peers_count && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s=%s", i ? " " : "",
                                 options->peers[i].name, options->peers[i].address);
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
    case KEY_MODULES:
        return options->modules ? options->modules : "";
    case KEY_PEER_LISTEN:
        return options->peer_listen;
    case KEY_PEER_KEY:
        return options->peer_key;
    case KEY_PEER_INTERFACE:
        return options->peer_interface;
    case KEY_LOOP:
        return loops[options->loop];
    case KEY_TRUST:
        return options->trust ? "yes" : "no";
    case KEY_LOG_LEVEL:
        for (size_t i = 0; i < ATTND_LEVELS; i++)
            if (attnd_level_numbers[i] == options->log_level)
                return attnd_level_words[i];
        return "";
    default:
        return NULL;
    }
}

static void rates_text(const struct attnd_rates *rates, char *text, size_t bytes)
{
    if (rates->source == ATTND_RATES_NONE)
        snprintf(text, bytes, "auto");
    else
        snprintf(text, bytes, "%" PRIu32 ",%u,%u,%u", rates->worker_gflops, rates->worker_gbps,
                 rates->worker_l2_gbps, rates->memory_gbps);
}

static void setting_text(const struct attnd_options *options, int key, char *text, size_t bytes)
{
    const char *members = (const char *)options, *word = word_text(options, key);

    if (key == KEY_ALLOW_UID) {
        users_text(options, text, bytes);
        return;
    }
    if (key == KEY_PEER) {
        peers_text(options, text, bytes);
        return;
    }
    if (key == KEY_RATES) {
        rates_text(&options->rates, text, bytes);
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
    for (const struct argp_option *option = attnd_option_list; option->name; option++) {
        struct attnd_setting *setting =
            is_setting(option->key) ? setting_of(options, option->key) : NULL;
        if (setting)
            setting_text(options, option->key, setting->value, sizeof(setting->value));
    }
}
