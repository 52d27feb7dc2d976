/* report_json.c - the same figures for programs: plain keys, times in microseconds with their unit
 * in the name, bytes and tokens as whole numbers. */
#include "bench/replay/replay.h"
#include "bench/support/json_out.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static void write_times(struct bench_json_out *out, const char *name,
                        const struct bench_histogram *histogram)
{
    bench_json_out_object(out, name);
    bench_json_out_uint(out, "count", histogram->count);
    bench_json_out_double(out, "p50_us", (double)bench_histogram_quantile(histogram, 0.5) * 1e-3);
    bench_json_out_double(out, "p99_us", (double)bench_histogram_quantile(histogram, 0.99) * 1e-3);
    bench_json_out_double(out, "max_us", (double)histogram->max * 1e-3);
    bench_json_out_close(out);
}

static void write_stats(struct bench_json_out *out, const struct replay_stats *s,
                        uint64_t page_bytes)
{
    bench_json_out_uint(out, "requests", s->requests);
    bench_json_out_uint(out, "prompt_tokens", s->prompt_tokens);
    bench_json_out_uint(out, "prompt_tokens_computed", s->prompt_computed);
    bench_json_out_uint(out, "output_tokens", s->output_tokens);
    bench_json_out_uint(out, "steps", s->steps);
    bench_json_out_uint(out, "plan_sets", s->plan_sets);
    bench_json_out_uint(out, "plan_advances", s->plan_advances);
    bench_json_out_uint(out, "runs", s->runs);
    bench_json_out_uint(out, "runs_repeated", s->repeated);
    bench_json_out_uint(out, "kv_bytes_read", s->kv_bytes_read);
    bench_json_out_uint(out, "prefix_bytes_saved_reading", s->kv_bytes_flat - s->kv_bytes_read);
    bench_json_out_uint(out, "prefix_bytes_saved_storage", s->pages_hit * page_bytes);
    bench_json_out_uint(out, "prefix_bytes_of_other_engines", s->pages_foreign * page_bytes);
    bench_json_out_uint(out, "cached_pages_evicted", s->pages_evicted);
    bench_json_out_uint(out, "publishes_refused", s->publishes_refused);
    bench_json_out_uint(out, "handover_bytes", s->pages_claimed * page_bytes);
    bench_json_out_double(out, "attention_s", (double)s->attention_ns * 1e-9);
    bench_json_out_double(out, "pages_s", (double)s->pages_ns * 1e-9);
    bench_json_out_double(out, "service_s", (double)s->service_ns * 1e-9);
    bench_json_out_double(out, "fill_s", (double)s->fill_ns * 1e-9);
    bench_json_out_double(out, "check_s", (double)s->check_ns * 1e-9);
    write_times(out, "step", &s->step_ns);
    write_times(out, "attention_to_first_token", &s->first_token_ns);
    write_times(out, "attention_between_tokens", &s->next_token_ns);
    write_times(out, "plan_set", &s->plan_set_ns);
    write_times(out, "plan_advance", &s->plan_advance_ns);
    write_times(out, "handover", &s->handover_ns);
    bench_json_out_uint(out, "rows_verified", s->rows_verified);
    bench_json_out_uint(out, "mismatches", s->mismatches);
    bench_json_out_double(out, "worst_error", s->worst_error);
}

static void write_result(struct bench_json_out *out, const char *name,
                         const struct replay_options *options, const struct replay_result *r)
{
    double wall_s = (double)r->wall_ns * 1e-9;

    bench_json_out_object(out, name);
    bench_json_out_double(out, "wall_s", wall_s);
    bench_json_out_double(
        out, "tokens_per_s",
        wall_s > 0 ? (double)(r->total.prompt_tokens + r->total.output_tokens) / wall_s : 0);
    bench_json_out_uint(out, "pool_pages", r->pool_pages);
    bench_json_out_uint(out, "page_bytes", r->page_bytes);
    bench_json_out_object(out, "total");
    write_stats(out, &r->total, r->page_bytes);
    bench_json_out_close(out);
    bench_json_out_array(out, "engines");
    for (uint32_t i = 0; i < options->engines; i++) {
        bench_json_out_object(out, NULL);
        write_stats(out, &r->engine[i], r->page_bytes);
        bench_json_out_close(out);
    }
    bench_json_out_close(out);
    bench_json_out_close(out);
}

static void write_options(struct bench_json_out *out, const struct replay_options *options,
                          const struct replay_trace *trace)
{
    bench_json_out_object(out, "options");
    bench_json_out_string(out, "trace", options->trace_path);
    bench_json_out_uint(out, "trace_requests", trace->requests);
    bench_json_out_uint(out, "trace_requests_clipped", trace->clipped);
    bench_json_out_uint(out, "trace_bad_lines", trace->bad_lines);
    bench_json_out_string(out, "mode", options->mode == REPLAY_SHARED ? "shared" : "disaggregated");
    bench_json_out_uint(out, "engines", options->engines);
    bench_json_out_uint(out, "prefill_engines", options->prefill_engines);
    bench_json_out_uint(out, "layers", options->layers);
    bench_json_out_uint(out, "heads_q", options->heads_q);
    bench_json_out_uint(out, "heads_kv", options->heads_kv);
    bench_json_out_uint(out, "head_dim", options->head_dim);
    bench_json_out_string(out, "dtype", options->dtype == ATTND_DTYPE_BF16 ? "bf16" : "fp16");
    bench_json_out_uint(out, "page_size", options->page_size);
    bench_json_out_uint(out, "chunk", options->chunk);
    bench_json_out_uint(out, "batch", options->batch);
    bench_json_out_uint(out, "max_context", options->context_max);
    bench_json_out_uint(out, "seed", options->seed);
    bench_json_out_double(out, "time_scale", options->time_scale);
    bench_json_out_close(out);
}

int replay_report_json(const char *path, const struct replay_options *options,
                       const struct replay_trace *trace, const struct replay_result *result,
                       const struct replay_result *other)
{
    bool to_stdout = !strcmp(path, "-");
    FILE *file = to_stdout ? stdout : fopen(path, "we");
    struct bench_json_out out;
    static const char *const names[] = {"cache_service", "cache_engine", "cache_none"};
    int failed;

    if (!file)
        return -1;
    bench_json_out_begin(&out, file);
    write_options(&out, options, trace);
    bench_json_out_object(&out, "service");
    bench_json_out_string(&out, "version", result->service.daemon_version);
    bench_json_out_string(&out, "backend", result->service.backend);
    bench_json_out_string(&out, "isa", result->service.isa);
    bench_json_out_close(&out);
    write_result(&out, names[result->cache], options, result);
    if (other)
        write_result(&out, names[other->cache], options, other);
    bench_json_out_end(&out);
    failed = ferror(file) || fflush(file);
    if (!to_stdout)
        failed |= fclose(file);
    return failed ? -1 : 0;
}
