/* report_json.c - the same figures for programs: plain keys, times in microseconds with their unit
 * in the name, bytes and tokens as whole numbers. */
#include "bench/replay/replay.h"
#include "service/ctl/json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void set(json_t *object, const char *key, uint64_t count)
{
    json_object_set_new(object, key, attnd_json_count(count));
}

static void set_real(json_t *object, const char *key, double value)
{
    json_object_set_new(object, key, attnd_json_real(value));
}

static json_t *times_json(const struct bench_histogram *histogram)
{
    json_t *times = json_object();

    set(times, "count", histogram->count);
    set_real(times, "p50_us", (double)bench_histogram_quantile(histogram, 0.5) * 1e-3);
    set_real(times, "p99_us", (double)bench_histogram_quantile(histogram, 0.99) * 1e-3);
    set_real(times, "max_us", (double)histogram->max * 1e-3);
    return times;
}

static json_t *stats_json(const struct replay_stats *s, uint64_t page_bytes)
{
    json_t *stats = json_object();

    set(stats, "requests", s->requests);
    set(stats, "prompt_tokens", s->prompt_tokens);
    set(stats, "prompt_tokens_computed", s->prompt_computed);
    set(stats, "output_tokens", s->output_tokens);
    set(stats, "steps", s->steps);
    set(stats, "plan_sets", s->plan_sets);
    set(stats, "plan_advances", s->plan_advances);
    set(stats, "runs", s->runs);
    set(stats, "runs_repeated", s->repeated);
    set(stats, "kv_bytes_read", s->kv_bytes_read);
    set(stats, "prefix_bytes_saved_reading", s->kv_bytes_flat - s->kv_bytes_read);
    set(stats, "prefix_bytes_saved_storage", s->pages_hit * page_bytes);
    set(stats, "prefix_bytes_of_other_engines", s->pages_foreign * page_bytes);
    set(stats, "cached_pages_evicted", s->pages_evicted);
    set(stats, "publishes_refused", s->publishes_refused);
    set(stats, "handover_bytes", (s->pages_claimed + s->pages_brought) * page_bytes);
    set(stats, "handover_bytes_brought", s->pages_brought * page_bytes);
    set_real(stats, "attention_s", (double)s->attention_ns * 1e-9);
    set_real(stats, "pages_s", (double)s->pages_ns * 1e-9);
    set_real(stats, "service_s", (double)s->service_ns * 1e-9);
    set_real(stats, "fill_s", (double)s->fill_ns * 1e-9);
    set_real(stats, "check_s", (double)s->check_ns * 1e-9);
    json_object_set_new(stats, "step", times_json(&s->step_ns));
    json_object_set_new(stats, "attention_to_first_token", times_json(&s->first_token_ns));
    json_object_set_new(stats, "attention_between_tokens", times_json(&s->next_token_ns));
    json_object_set_new(stats, "plan_set", times_json(&s->plan_set_ns));
    json_object_set_new(stats, "plan_advance", times_json(&s->plan_advance_ns));
    json_object_set_new(stats, "handover", times_json(&s->handover_ns));
    set(stats, "rows_verified", s->rows_verified);
    set(stats, "mismatches", s->mismatches);
    set_real(stats, "worst_error", s->worst_error);
    return stats;
}

static json_t *result_json(const struct replay_options *options, const struct replay_result *r)
{
    double wall_s = (double)r->wall_ns * 1e-9;
    uint64_t tokens = r->total.prompt_tokens + r->total.output_tokens;
    json_t *result = json_object(), *engines = json_array();

    set_real(result, "wall_s", wall_s);
    set_real(result, "tokens_per_s", wall_s > 0 ? (double)tokens / wall_s : 0);
    set(result, "pool_pages", r->pool_pages);
    set(result, "page_bytes", r->page_bytes);
    json_object_set_new(result, "total", stats_json(&r->total, r->page_bytes));
    for (uint32_t i = 0; i < options->engines; i++)
        json_array_append_new(engines, stats_json(&r->engine[i], r->page_bytes));
    json_object_set_new(result, "engines", engines);
    return result;
}

static json_t *options_json(const struct replay_options *options, const struct replay_trace *trace)
{
    json_t *json = json_object();

    json_object_set_new(json, "trace", attnd_json_text(options->trace_path));
    set(json, "trace_requests", trace->requests);
    set(json, "trace_requests_clipped", trace->clipped);
    set(json, "trace_bad_lines", trace->bad_lines);
    json_object_set_new(json, "mode",
                        json_string(options->mode == REPLAY_SHARED ? "shared" : "disaggregated"));
    set(json, "engines", options->engines);
    set(json, "prefill_engines", options->prefill_engines);
    set(json, "services", options->services);
    set(json, "layers", options->layers);
    set(json, "heads_q", options->heads_q);
    set(json, "heads_kv", options->heads_kv);
    set(json, "head_dim", options->head_dim);
    json_object_set_new(json, "dtype",
                        json_string(options->dtype == ATTND_DTYPE_BF16 ? "bf16" : "fp16"));
    set(json, "page_size", options->page_size);
    set(json, "chunk", options->chunk);
    set(json, "batch", options->batch);
    set(json, "max_context", options->context_max);
    set(json, "seed", options->seed);
    set_real(json, "time_scale", options->time_scale);
    return json;
}

static json_t *report_json(const struct replay_options *options, const struct replay_trace *trace,
                           const struct replay_result *result, const struct replay_result *other)
{
    static const char *const names[] = {"cache_service", "cache_engine", "cache_none"};
    const struct attnd_info *service = &result->service;
    json_t *report = json_object();

    json_object_set_new(report, "options", options_json(options, trace));
    json_object_set_new(
        report, "service",
        json_pack("{s:o, s:o, s:o}", "version", attnd_json_text(service->daemon_version), "backend",
                  attnd_json_text(service->backend), "isa", attnd_json_text(service->isa)));
    json_object_set_new(report, names[result->cache], result_json(options, result));
    if (other)
        json_object_set_new(report, names[other->cache], result_json(options, other));
    return report;
}

int replay_report_json(const char *path, const struct replay_options *options,
                       const struct replay_trace *trace, const struct replay_result *result,
                       const struct replay_result *other)
{
    FILE *file = strcmp(path, "-") == 0 ? stdout : fopen(path, "we");
    int failed;

    if (!file)
        return -1;
    failed = attnd_json_print(file, report_json(options, trace, result, other),
                              JSON_INDENT(2) | JSON_REAL_PRECISION(9)) < 0;
    failed |= (file == stdout ? fflush(file) : fclose(file)) != 0;
    return failed ? -1 : 0;
}
