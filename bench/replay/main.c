/* main.c - attnd-replay: read the trace, have services, replay it once or twice, say what came of
 * it. */
#include "bench/replay/options.h"
#include "bench/support/private_service.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_VERIFIED = 0, EXIT_MISMATCH = 1, EXIT_FAILED = 2 };

#define SKIPPED_SHOWN_MAX 10

static void show_skipped(const struct replay_trace_error *error)
{
    static unsigned shown;

    if (shown++ < SKIPPED_SHOWN_MAX)
        fprintf(stderr, "attnd-replay: line %" PRIu64 " skipped: %s\n", error->line, error->text);
}

static int load(const struct replay_options *options, struct replay_trace *trace)
{
    struct replay_trace_options how = {
        .limit = options->limit, .skip_bad = options->skip_bad, .skipped = show_skipped};
    struct replay_trace_error error;

    if (!replay_trace_load(options->trace_path, &how, trace, &error)) {
        replay_trace_clip(trace, options->context_max);
        return 0;
    }
    if (error.line)
        fprintf(stderr, "attnd-replay: %s:%" PRIu64 ": %s (--skip-bad leaves such lines out)\n",
                options->trace_path, error.line, error.text);
    else
        fprintf(stderr, "attnd-replay: %s: %s\n", options->trace_path, error.text);
    return -1;
}

static int replay(const struct replay_options *options, const struct replay_trace *trace,
                  struct replay_result results[2])
{
    char why[512] = "";
    const char *paths[REPLAY_SERVICES_MAX] = {NULL};
    int failed = replay_services_start(options, paths, why, sizeof(why));

    if (!failed)
        failed = replay_run(options, trace, paths, options->cache, &results[0], why, sizeof(why));
    if (!failed && options->compare)
        failed = replay_run(options, trace, paths, options->compare_cache, &results[1], why,
                            sizeof(why));
    bench_private_stop();
    if (failed)
        fprintf(stderr, "attnd-replay: %s\n", why);
    return failed;
}

static int report(const struct replay_options *options, const struct replay_trace *trace,
                  const struct replay_result results[2])
{
    const struct replay_result *other = options->compare ? &results[1] : NULL;
    uint64_t verified = results[0].total.rows_verified + results[1].total.rows_verified;
    uint64_t mismatches = results[0].total.mismatches + results[1].total.mismatches;
    int status = mismatches || !verified ? EXIT_MISMATCH : EXIT_VERIFIED;
    bool json_only = options->json_path && strcmp(options->json_path, "-") == 0;
    FILE *out = json_only ? stderr : stdout; /* a pipe gets JSON and nothing else */

    if (options->json_path &&
        replay_report_json(options->json_path, options, trace, &results[0], other)) {
        fprintf(stderr, "attnd-replay: %s: %s\n", options->json_path, strerror(errno));
        status = EXIT_FAILED;
    }
    replay_report_table(out, options, trace, &results[0], other);
    if (other)
        replay_report_conclusion(out, &results[0], other);
    fprintf(out, "verified %" PRIu64 " rows, %" PRIu64 " mismatches\n", verified, mismatches);
    return fflush(out) ? EXIT_FAILED : status;
}

int main(int argc, char **argv)
{
    struct replay_options options;
    struct replay_trace trace;
    struct replay_result *results;
    int status = EXIT_FAILED;

    replay_options_parse(argc, argv, &options);
    if (load(&options, &trace))
        return EXIT_FAILED;
    results = calloc(2, sizeof(*results));
    if (!results)
        fprintf(stderr, "attnd-replay: out of memory\n");
    else if (!replay(&options, &trace, results))
        status = report(&options, &trace, results);
    free(results);
    replay_trace_free(&trace);
    return status;
}
