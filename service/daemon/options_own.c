/*
 * options_own.c - paths, users, peers, rates: each is parsed by a function of its own.
 */
#include "service/daemon/options_own.h"

#include "persistent/modules.h"
#include "service/args/address.h"
#include "service/args/args.h"
#include "service/daemon/options.h"
#include "service/daemon/options_list.h"
#include "service/daemon/scrape.h"

#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *const attnd_level_words[] = {"error", "warning", "info", "debug", NULL};
const enum attnd_log_level attnd_level_numbers[] = {ATTND_LOG_ERROR, ATTND_LOG_WARNING,
                                                    ATTND_LOG_INFO, ATTND_LOG_DEBUG};

static enum attnd_loop_kind parse_loop(struct argp_state *state, const char *text)
{
    static const char *const words[] = {"auto", "io_uring", "epoll", NULL};
    static const enum attnd_loop_kind kinds[] = {ATTND_LOOP_AUTO, ATTND_LOOP_IO_URING,
                                                 ATTND_LOOP_EPOLL};
    return kinds[attnd_args_word(state, "loop", text, words)];
}

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

/* "auto", or four numbers. */
static void take_rates(struct argp_state *state, const char *text)
{
    struct attnd_options *options = state->input;
    uint64_t rates[4];
    const char *from = text;
    char part[16];

    options->rates = (struct attnd_rates){.source = ATTND_RATES_NONE};
    if (strcmp(text, "auto") == 0)
        return;
    for (int i = 0; i < 4; i++) {
        const size_t length = strcspn(from, ",");
        snprintf(part, sizeof(part), "%.*s", (int)length, from);
        if (length >= sizeof(part) || (from[length] == ',') != (i < 3) ||
            attnd_number_parse(part, 1, i ? UINT16_MAX : UINT32_MAX, &rates[i]) < 0) {
            argp_error(state, "--rates: '%s' is neither auto nor four numbers like 5200,60,60,4400",
                       text);
            return;
        }
        from += length + 1;
    }
    options->rates = (struct attnd_rates){.worker_gflops = (uint32_t)rates[0],
                                          .worker_gbps = (uint16_t)rates[1],
                                          .worker_l2_gbps = (uint16_t)rates[2],
                                          .memory_gbps = (uint16_t)rates[3],
                                          .source = ATTND_RATES_GIVEN};
}

static int is_address(const char *text)
{
    struct sockaddr_storage address;
    socklen_t bytes;

    return attnd_address_parse(text, &address, &bytes) == 0;
}

static void take_peer_listen(struct argp_state *state, const char *text)
{
    struct attnd_options *options = state->input;

    if (!is_address(text) || strlen(text) >= sizeof(options->peer_listen))
        argp_error(state,
                   "--peer-listen: '%s' is no address in numbers and a port, like 10.0.0.1:7200 or "
                   "[fe80::1]:7200",
                   text);
    else
        memcpy(options->peer_listen, text, strlen(text) + 1);
}

static void take_text(struct argp_state *state, const char *name, const char *text, char *to,
                      size_t bytes)
{
    if (text[0] == 0 || strlen(text) >= bytes)
        argp_error(state, "--%s: 1 to %zu bytes are needed", name, bytes - 1);
    else
        memcpy(to, text, strlen(text) + 1);
}

/* NAME=PATH or NAME=HOST:PORT; a name is not given twice. */
static void take_peer(struct argp_state *state, const char *text)
{
    struct attnd_options *options = state->input;
    const char *equals = strchr(text, '=');
    const size_t length = equals ? (size_t)(equals - text) : 0;
    struct attnd_peer_option *peer = &options->peers[options->peers_count];

    if (length == 0 || length >= sizeof(peer->name) || strcspn(text, " \t\"\\") < length ||
        (equals[1] != '/' && !is_address(equals + 1)) ||
        strlen(equals + 1) >= sizeof(peer->address)) {
        argp_error(
            state,
            "--peer: '%s' is no name of at most %zu bytes, '=' and a path of at most %zu that "
            "begins with a slash, or an address in numbers and a port, like 10.0.0.1:7200",
            text, sizeof(peer->name) - 1, sizeof(peer->address) - 1);
        return;
    }
    for (uint32_t i = 0; i < options->peers_count; i++)
        if (strlen(options->peers[i].name) == length &&
            memcmp(options->peers[i].name, text, length) == 0) {
            argp_error(state, "--peer: '%s' is there twice", options->peers[i].name);
            return;
        }
    if (options->peers_count == ATTND_PEERS_MAX) {
        argp_error(state, "--peer: at most %u services", ATTND_PEERS_MAX);
        return;
    }
    *peer = (struct attnd_peer_option){0};
    memcpy(peer->name, text, length);
    memcpy(peer->address, equals + 1, strlen(equals + 1));
    options->peers_count++;
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

/* Said before anything begins: the worker that would find out is begun again and again. */
static void take_modules(struct argp_state *state, const char *text)
{
    struct attnd_options *options = state->input;
    char why[300];
    int directory = attnd_modules_open(text, why, sizeof(why));

    if (directory < 0)
        argp_error(state, "--modules: %s", why);
    else
        close(directory);
    options->modules = text;
}

int attnd_options_own(struct argp_state *state, int key, char *text)
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
    case KEY_PEER:
        take_peer(state, text);
        return 1;
    case KEY_PEER_LISTEN:
        take_peer_listen(state, text);
        return 1;
    case KEY_PEER_KEY:
        take_text(state, "peer-key", text, options->peer_key, sizeof(options->peer_key));
        return 1;
    case KEY_PEER_INTERFACE:
        take_text(state, "peer-interface", text, options->peer_interface,
                  sizeof(options->peer_interface));
        return 1;
    case KEY_RATES:
        take_rates(state, text);
        return 1;
    case KEY_WORKER:
        options->worker_path = text;
        return 1;
    case KEY_MODULES:
        take_modules(state, text);
        return 1;
    case KEY_LOOP:
        options->loop = parse_loop(state, text);
        return 1;
    case KEY_CONFIG:
        take_config(state, text);
        return 1;
    case KEY_LOG_LEVEL:
        options->log_level =
            attnd_level_numbers[attnd_args_word(state, "log-level", text, attnd_level_words)];
        return 1;
    default:
        return 0;
    }
}
