/* options.c - argp. Every number is read strictly and within limits that keep all products of them
 * in range, so nothing later has to ask again. */
#include "bench/replay/options.h"

#include "bench/support/heads.h"
#include "schemas/version.h"
#include "service/args/args.h"

#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum key {
    KEY_TRACE = 't',
    KEY_ENGINES = 'e',
    KEY_LAYERS = 'l',
    KEY_LIMIT = 'n',
    KEY_MODE = 'm',
    KEY_SOCKET = 's',
    KEY_VERSION = 'V',
    KEY_PREFILL_ENGINES = 256,
    KEY_SERVICES,
    KEY_HEADS,
    KEY_HEAD_DIM,
    KEY_DTYPE,
    KEY_PAGE_SIZE,
    KEY_TIME_SCALE,
    KEY_MAX_CONTEXT,
    KEY_CHUNK,
    KEY_BATCH,
    KEY_POOL,
    KEY_SEED,
    KEY_COMPARE,
    KEY_CACHE,
    KEY_ROUTE,
    KEY_SAMPLES,
    KEY_JSON,
    KEY_SPAWN,
    KEY_ATTND,
    KEY_SKIP_BAD
};

static const struct argp_option option_list[] = {
    {"trace", KEY_TRACE, "FILE", 0,
     "Requests to replay: Mooncake JSON lines or Azure CSV, told apart by the first line", 1},
    {"limit", KEY_LIMIT, "N", 0, "Only the first N requests", 1},
    {"max-context", KEY_MAX_CONTEXT, "TOKENS", 0,
     "Clip requests to this many tokens, prompt and answer together (default: 4096)", 1},
    {"time-scale", KEY_TIME_SCALE, "X", 0,
     "Stretch the trace's time by X; 0: as fast as possible (default: 0)", 1},
    {"skip-bad", KEY_SKIP_BAD, NULL, 0, "Leave out lines that cannot be read instead of refusing",
     1},

    {"engines", KEY_ENGINES, "N", 0, "Engine processes (default: 2)", 2},
    {"mode", KEY_MODE, "NAME", 0,
     "shared: every engine prefills and decodes. disaggregated: prefill engines hand their pages "
     "over to decode engines (default: shared)",
     2},
    {"prefill-engines", KEY_PREFILL_ENGINES, "N", 0,
     "Of the engines, when disaggregated (default: half of them)", 2},
    {"services", KEY_SERVICES, "N", 0,
     "2: prefill engines use one private service and decode engines another, which brings the "
     "pages "
     "(default: 1)",
     2},
    {"batch", KEY_BATCH, "N", 0, "Requests that run at once in an engine (default: 32)", 2},
    {"chunk", KEY_CHUNK, "TOKENS", 0, "Prompt tokens an engine computes a step (default: 256)", 2},
    {"cache", KEY_CACHE, "NAME", 0,
     "Where prompts find what was computed before. service: in the service's prefix tree, which "
     "all engines share. engine: in a cache of each engine's own. none (default: service)",
     2},
    {"route", KEY_ROUTE, "NAME", 0,
     "Which engine gets a request. prefix: the one that knows most of it, by load. turns: each in "
     "turn (default: prefix)",
     2},
    {"compare", KEY_COMPARE, "CACHE", 0,
     "Replay twice, the second time with this cache, and print both with the difference", 2},

    {"layers", KEY_LAYERS, "N", 0, "Layers a step runs through (default: 4)", 3},
    {"heads", KEY_HEADS, "Q/KV", 0, "Query and KV heads (default: 8/2)", 3},
    {"head-dim", KEY_HEAD_DIM, "D", 0, "64, 128 or 256 (default: 64)", 3},
    {"dtype", KEY_DTYPE, "NAME", 0, "fp16 or bf16 (default: bf16)", 3},
    {"page-size", KEY_PAGE_SIZE, "TOKENS", 0, "Tokens a page holds (default: 16)", 3},
    {"pool-mib", KEY_POOL, "MIB", 0, "Size of the KV pool (default: from the trace, to 1024)", 3},
    {"seed", KEY_SEED, "N", 0, "Of q, k, v and of what is sampled (default: 1)", 3},

    {"samples", KEY_SAMPLES, "N", 0,
     "Rows of every step that are checked against the fp64 reference (default: 4)", 4},
    {"json", KEY_JSON, "FILE", 0,
     "Write the figures as JSON as well; -: to standard output, and the rest to standard error", 4},

    {"socket", KEY_SOCKET, "PATH", 0, "The service to use (default: as libattnd finds it)", 5},
    {"spawn", KEY_SPAWN, NULL, 0,
     "Start a private attnd on a private socket and stop it at the end, also on Ctrl-C", 5},
    {"attnd", KEY_ATTND, "PATH", 0, "The attnd to start (default: near this program, else on PATH)",
     5},
    {"version", KEY_VERSION, NULL, 0, "Print the version", -1},
    {0}};

static const char doc[] =
    "attnd-replay - replay a request trace through engine processes and verify the answers\v"
    "Engines batch continuously: decoding requests and chunks of prompts run in one batch, planned "
    "once and run for every layer. Prompts that begin alike share pages, and a shared beginning is "
    "read once a step. q, k and v are functions of token, position, layer and head, so every step "
    "is checked on sampled rows without reading the pool. A row is one token's query of one head "
    "in "
    "one layer: o and log-sum-exp.\n\n"
    "The last line is `verified N rows, M mismatches'.\n\n"
    "Exit status: 0 all verified rows are right; 1 mismatches, or nothing was verified; 2 an "
    "engine, the service or the trace failed; 64 wrong usage.";

/* Before the replay, which may take hours, and not behind it. */
static void find_json_place(struct argp_state *state, const char *path)
{
    FILE *file;

    if (!path || !strcmp(path, "-"))
        return;
    file = fopen(path, "ae");
    if (!file || fclose(file))
        argp_error(state, "--json: %s: %s", path, strerror(errno));
}

static void finish(struct argp_state *state, struct replay_options *options)
{
    uint64_t pages = options->context_max / options->page_size + 1;

    if (!options->trace_path)
        argp_error(state, "--trace FILE is needed");
    if (options->mode == REPLAY_DISAGGREGATED) {
        if (options->engines < 2)
            argp_error(state, "--mode disaggregated needs two engines at least");
        if (!options->prefill_engines)
            options->prefill_engines = options->engines / 2;
        if (options->prefill_engines >= options->engines)
            argp_error(state, "--prefill-engines: no decode engine is left");
    } else if (options->prefill_engines) {
        argp_error(state, "--prefill-engines goes with --mode disaggregated");
    }
    if (options->services > 1 && (options->mode != REPLAY_DISAGGREGATED || !options->spawn))
        argp_error(state, "--services 2 goes with --mode disaggregated and --spawn");
    if (options->batch * pages > 1u << 26)
        argp_error(state,
                   "--batch, --max-context and --page-size: more pages than a plan can have");
    if (options->spawn && options->socket_path)
        argp_error(state, "--spawn makes its own socket; --socket names another");
    if (options->compare && options->compare_cache == options->cache)
        argp_error(state, "--compare: that is what --cache says already");
    find_json_place(state, options->json_path);
}

static error_t parse_trace(int key, char *text, struct argp_state *state,
                           struct replay_options *options)
{
    switch (key) {
    case KEY_TRACE:
        options->trace_path = text;
        return 0;
    case KEY_LIMIT:
        options->limit = attnd_args_number32(state, "limit", text, 1, REPLAY_REQUESTS_MAX);
        return 0;
    case KEY_MAX_CONTEXT:
        options->context_max = attnd_args_number32(state, "max-context", text, 2, 1u << 20);
        return 0;
    case KEY_TIME_SCALE:
        options->time_scale = attnd_args_decimal(state, "time-scale", text, 0, 1e6);
        return 0;
    case KEY_SKIP_BAD:
        options->skip_bad = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_engines(int key, char *text, struct argp_state *state,
                             struct replay_options *options)
{
    static const char *const modes[] = {"shared", "disaggregated", NULL};
    static const char *const caches[] = {"service", "engine", "none", NULL}; /* enum's order */
    static const char *const routes[] = {"prefix", "turns", NULL};

    switch (key) {
    case KEY_ENGINES:
        options->engines = attnd_args_number32(state, "engines", text, 1, REPLAY_ENGINES_MAX - 1);
        return 0;
    case KEY_MODE:
        options->mode =
            attnd_args_word(state, "mode", text, modes) ? REPLAY_DISAGGREGATED : REPLAY_SHARED;
        return 0;
    case KEY_PREFILL_ENGINES:
        options->prefill_engines =
            attnd_args_number32(state, "prefill-engines", text, 1, REPLAY_ENGINES_MAX - 1);
        return 0;
    case KEY_SERVICES:
        options->services = attnd_args_number32(state, "services", text, 1, REPLAY_SERVICES_MAX);
        return 0;
    case KEY_BATCH:
        options->batch = attnd_args_number32(state, "batch", text, 1, REPLAY_BATCH_MAX);
        return 0;
    case KEY_CHUNK:
        options->chunk = attnd_args_number32(state, "chunk", text, 1, 1u << 16);
        return 0;
    case KEY_CACHE:
        options->cache = (enum replay_cache)attnd_args_word(state, "cache", text, caches);
        return 0;
    case KEY_ROUTE:
        options->routing = (enum replay_routing)attnd_args_word(state, "route", text, routes);
        return 0;
    case KEY_COMPARE:
        options->compare = true;
        options->compare_cache = (enum replay_cache)attnd_args_word(state, "compare", text, caches);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_model(int key, char *text, struct argp_state *state,
                           struct replay_options *options)
{
    static const char *const dtypes[] = {"fp16", "bf16", NULL};

    switch (key) {
    case KEY_LAYERS:
        options->layers = attnd_args_number32(state, "layers", text, 1, 1024);
        return 0;
    case KEY_HEADS:
        bench_args_heads(state, text, &options->heads_q, &options->heads_kv);
        return 0;
    case KEY_HEAD_DIM:
        options->head_dim = attnd_args_number32(state, "head-dim", text, 64, 256);
        if (options->head_dim & (options->head_dim - 1))
            argp_error(state, "--head-dim: 64, 128 or 256");
        return 0;
    case KEY_DTYPE:
        options->dtype =
            attnd_args_word(state, "dtype", text, dtypes) ? ATTND_DTYPE_BF16 : ATTND_DTYPE_FP16;
        return 0;
    case KEY_PAGE_SIZE:
        options->page_size = attnd_args_number32(state, "page-size", text, 1, 65536);
        return 0;
    case KEY_POOL:
        options->pool_bytes = attnd_args_number(state, "pool-mib", text, 1, 1u << 24) << 20;
        return 0;
    case KEY_SEED:
        options->seed = attnd_args_number(state, "seed", text, 0, UINT64_MAX);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct replay_options *options = state->input;

    switch (key) {
    case KEY_SAMPLES:
        options->samples = attnd_args_number32(state, "samples", text, 1, 4096);
        return 0;
    case KEY_JSON:
        options->json_path = text;
        return 0;
    case KEY_SOCKET:
        options->socket_path = text;
        return 0;
    case KEY_SPAWN:
        options->spawn = true;
        return 0;
    case KEY_ATTND:
        options->attnd_path = text;
        return 0;
    case KEY_VERSION:
        printf("attnd-replay %s\n", ATTND_VERSION);
        exit(EXIT_SUCCESS);
    case ARGP_KEY_END:
        finish(state, options);
        return 0;
    default:
        if (parse_trace(key, text, state, options) != ARGP_ERR_UNKNOWN ||
            parse_engines(key, text, state, options) != ARGP_ERR_UNKNOWN)
            return 0;
        return parse_model(key, text, state, options);
    }
}

void replay_options_parse(int argc, char **argv, struct replay_options *options)
{
    static const struct argp argp = {option_list,     parse_option, NULL, doc,
                                     attnd_args_help, NULL,         NULL};

    *options = (struct replay_options){.engines = 2,
                                       .services = 1,
                                       .layers = 4,
                                       .heads_q = 8,
                                       .heads_kv = 2,
                                       .head_dim = 64,
                                       .dtype = ATTND_DTYPE_BF16,
                                       .page_size = 16,
                                       .context_max = 4096,
                                       .chunk = 256,
                                       .batch = 32,
                                       .samples = 4,
                                       .seed = 1};
    argp_parse(&argp, argc, argv, 0, NULL, options);
}
