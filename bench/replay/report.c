/* report.c - the table. One column, or two and the difference when replays are compared; all
 * figures are sums over engines, quantiles are of all engines' samples together. */
#include "bench/replay/replay.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CELL_BYTES 40

enum unit { COUNT, RATE, BYTES, TIME_P50, TIME_P99, PERCENT };

/* What a row shows of a replay. */
struct row {
    const char *label;
    double (*value)(const struct replay_result *result);
    enum unit unit;
    bool optional; /* left out where it is 0 */
};

static double us(const struct bench_histogram *histogram, double q)
{
    return (double)bench_histogram_quantile(histogram, q) * 1e-3;
}

static double wall_s(const struct replay_result *r)
{
    return (double)(r->wall_ns ? r->wall_ns : 1) * 1e-9;
}

static double engines_ns(const struct replay_result *r)
{
    double sum = 0;

    for (size_t i = 0; i < REPLAY_ENGINES_MAX; i++)
        sum += (double)(r->engine[i].end_ns - r->engine[i].begin_ns);
    return sum > 0 ? sum : 1;
}

#define FIELD(name, expression)                                                                    \
    static double name(const struct replay_result *r)                                              \
    {                                                                                              \
        return (double)(expression);                                                               \
    }

FIELD(requests, r->total.requests)
FIELD(prompt_tokens, r->total.prompt_tokens)
FIELD(prompt_computed, r->total.prompt_computed)
FIELD(prompt_found, r->total.prompt_tokens - r->total.prompt_computed)
FIELD(prompt_foreign, r->total.pages_foreign * r->page_tokens)
FIELD(hit_rate, 100 * prompt_found(r) / (prompt_tokens(r) + !r->total.prompt_tokens))
FIELD(hit_rate_foreign, 100 * prompt_foreign(r) / (prompt_tokens(r) + !r->total.prompt_tokens))
FIELD(output_tokens, r->total.output_tokens)
FIELD(tokens_per_s, (double)(r->total.prompt_tokens + r->total.output_tokens) / wall_s(r))
FIELD(output_per_s, (double)r->total.output_tokens / wall_s(r))
FIELD(seconds, wall_s(r))
FIELD(steps, r->total.steps)
FIELD(step_p50, us(&r->total.step_ns, 0.5))
FIELD(step_p99, us(&r->total.step_ns, 0.99))
FIELD(first_p50, us(&r->total.first_token_ns, 0.5))
FIELD(first_p99, us(&r->total.first_token_ns, 0.99))
FIELD(next_p50, us(&r->total.next_token_ns, 0.5))
FIELD(next_p99, us(&r->total.next_token_ns, 0.99))
FIELD(set_p50, us(&r->total.plan_set_ns, 0.5))
FIELD(set_p99, us(&r->total.plan_set_ns, 0.99))
FIELD(advance_p50, us(&r->total.plan_advance_ns, 0.5))
FIELD(advance_p99, us(&r->total.plan_advance_ns, 0.99))
FIELD(advances, r->total.plan_advances)
FIELD(kv_read, r->total.kv_bytes_read)
FIELD(saved_reading, r->total.kv_bytes_flat - r->total.kv_bytes_read)
FIELD(saved_storage, r->total.pages_hit * r->page_bytes)
FIELD(pages_evicted, r->total.pages_evicted)
FIELD(handed_over, r->total.pages_claimed * r->page_bytes)
FIELD(brought, r->total.pages_brought * r->page_bytes)
FIELD(handover_p50, us(&r->total.handover_ns, 0.5))
FIELD(handover_p99, us(&r->total.handover_ns, 0.99))
FIELD(share_service, 100 * (double)r->total.attention_ns / engines_ns(r))
FIELD(share_pages, 100 * (double)r->total.pages_ns / engines_ns(r))
FIELD(share_fill, 100 * (double)r->total.fill_ns / engines_ns(r))
FIELD(share_check, 100 * (double)r->total.check_ns / engines_ns(r))
FIELD(repeated, r->total.repeated)

static const struct row rows[] = {
    {"requests", requests, COUNT, false},
    {"prompt tokens", prompt_tokens, COUNT, false},
    {"  computed", prompt_computed, COUNT, false},
    {"  found computed (shared prefixes)", prompt_found, COUNT, false},
    {"    of them by another engine", prompt_foreign, COUNT, true},
    {"  hit rate", hit_rate, PERCENT, false},
    {"    across engines", hit_rate_foreign, PERCENT, true},
    {"output tokens", output_tokens, COUNT, false},
    {"seconds", seconds, RATE, false},
    {"tokens/s, prompt and output", tokens_per_s, COUNT, false},
    {"tokens/s, output", output_per_s, COUNT, false},
    {"steps", steps, COUNT, false},
    {"step time p50", step_p50, TIME_P50, false},
    {"step time p99", step_p99, TIME_P99, false},
    {"attention to first token p50", first_p50, TIME_P50, true},
    {"attention to first token p99", first_p99, TIME_P99, true},
    {"attention between tokens p50", next_p50, TIME_P50, true},
    {"attention between tokens p99", next_p99, TIME_P99, true},
    {"plan set p50", set_p50, TIME_P50, false},
    {"plan set p99", set_p99, TIME_P99, false},
    {"plan advances", advances, COUNT, false},
    {"plan advance p50", advance_p50, TIME_P50, true},
    {"plan advance p99", advance_p99, TIME_P99, true},
    {"KV bytes read", kv_read, BYTES, false},
    {"prefix bytes saved, reading", saved_reading, BYTES, false},
    {"prefix bytes saved, storage", saved_storage, BYTES, false},
    {"cached pages evicted", pages_evicted, COUNT, true},
    {"KV handed over without a copy", handed_over, BYTES, true},
    {"KV brought from service to service", brought, BYTES, true},
    {"hand-over p50", handover_p50, TIME_P50, true},
    {"hand-over p99", handover_p99, TIME_P99, true},
    {"engines' time: in the service", share_service, PERCENT, false},
    {"engines' time: pages and prefixes", share_pages, PERCENT, false},
    {"engines' time: making q, k, v", share_fill, PERCENT, false},
    {"engines' time: checking results", share_check, PERCENT, false},
    {"runs repeated (worker restarted)", repeated, COUNT, true},
};

/* 1234567 -> 1,234,567 */
static void group_digits(uint64_t number, char *text)
{
    char digits[24];
    int length = snprintf(digits, sizeof(digits), "%" PRIu64, number);

    for (int i = 0; i < length; i++) {
        *text++ = digits[i];
        if (i + 1 < length && (length - i - 1) % 3 == 0)
            *text++ = ',';
    }
    *text = 0;
}

static void scaled(double value, const char *const *units, double step, char *text)
{
    int unit = 0;

    for (; value >= step && units[unit + 1]; unit++)
        value /= step;
    snprintf(text, CELL_BYTES, value < 10 ? "%.2f %s" : "%.1f %s", value, units[unit]);
}

static void format_cell(enum unit unit, double value, char *text)
{
    static const char *const bytes[] = {"B", "KiB", "MiB", "GiB", "TiB", NULL};
    static const char *const times[] = {"us", "ms", "s", NULL};

    if (unit == COUNT)
        group_digits((uint64_t)(value + 0.5), text);
    else if (unit == BYTES)
        scaled(value, bytes, 1024, text);
    else if (unit == TIME_P50 || unit == TIME_P99)
        scaled(value, times, 1000, text);
    else
        snprintf(text, CELL_BYTES, unit == PERCENT ? "%.1f %%" : "%.2f", value);
}

static void print_row(FILE *out, const struct row *row, const struct replay_result *result,
                      const struct replay_result *other)
{
    double value = row->value(result), against = other ? row->value(other) : 0;
    char text[CELL_BYTES], other_text[CELL_BYTES];

    if (row->optional && value <= 0 && against <= 0)
        return;
    format_cell(row->unit, value, text);
    if (!other) {
        fprintf(out, "%-36s %16s\n", row->label, text);
        return;
    }
    format_cell(row->unit, against, other_text);
    fprintf(out, "%-36s %16s %16s", row->label, text, other_text);
    if (against > 0 && row->unit != PERCENT)
        fprintf(out, " %+8.1f %%", 100 * (value / against - 1));
    fputc('\n', out);
}

static const char *role(const struct replay_options *options, uint32_t engine)
{
    if (options->mode == REPLAY_SHARED)
        return "prefill + decode";
    return engine < options->prefill_engines ? "prefill" : "decode";
}

static void print_engines(FILE *out, const struct replay_options *options,
                          const struct replay_result *result)
{
    uint64_t service_ns = result->total.service_ns ? result->total.service_ns : 1;

    fprintf(out, "\n%-8s %-18s %10s %12s %12s %8s %14s\n", "engine", "role", "requests",
            "prefilled", "generated", "steps", "service share");
    for (uint32_t i = 0; i < options->engines; i++) {
        const struct replay_stats *s = &result->engine[i];
        fprintf(out,
                "%-8u %-18s %10" PRIu64 " %12" PRIu64 " %12" PRIu64 " %8" PRIu64 " %12.1f %%\n", i,
                role(options, i), s->requests, s->prompt_computed, s->output_tokens, s->steps,
                100 * (double)s->service_ns / (double)service_ns);
    }
}

static const char *arrangement(const struct replay_options *options)
{
    if (options->mode == REPLAY_SHARED)
        return "sharing a pool";
    return options->services == 1 ? "disaggregated" : "disaggregated over two services";
}

static void print_heading(FILE *out, const struct replay_options *options,
                          const struct replay_trace *trace, const struct replay_result *result)
{
    char pool[CELL_BYTES];

    format_cell(BYTES, (double)result->pool_pages * (double)result->page_bytes, pool);
    fprintf(out, "%s: %u requests", options->trace_path, trace->requests);
    if (trace->clipped)
        fprintf(out, ", %u clipped to %u tokens", trace->clipped, options->context_max);
    if (trace->bad_lines)
        fprintf(out, ", %u bad lines skipped", trace->bad_lines);
    fprintf(out, "\n%u engines %s, %u layers, %u/%u heads of %u, %s, pool %u pages of %u (%s)\n",
            options->engines, arrangement(options), options->layers, options->heads_q,
            options->heads_kv, options->head_dim,
            options->dtype == ATTND_DTYPE_BF16 ? "bf16" : "fp16", result->pool_pages,
            options->page_size, pool);
    fprintf(out, "service: attnd %s, %s, %s\n\n", result->service.daemon_version,
            result->service.backend, result->service.isa);
}

void replay_report_table(FILE *out, const struct replay_options *options,
                         const struct replay_trace *trace, const struct replay_result *result,
                         const struct replay_result *other)
{
    print_heading(out, options, trace, result);
    if (other)
        fprintf(out, "%-36s %16s %16s %10s\n", "", replay_cache_title(result->cache),
                replay_cache_title(other->cache), "change");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        print_row(out, &rows[i], result, other);
    print_engines(out, options, result);
    fprintf(
        out,
        "\nAttention time counts from a submission to its completion: neither making q, k and v "
        "nor\nchecking results is in it. Worst error found: %.2f of the tolerance.\n",
        other && other->total.worst_error > result->total.worst_error ? other->total.worst_error
                                                                      : result->total.worst_error);
}

/* What one tree saves that caches apart would not. */
static void print_across(FILE *out, const struct replay_result *result,
                         const struct replay_result *other)
{
    const double computed = (double)result->total.prompt_computed;
    const double against = (double)other->total.prompt_computed;
    char text[CELL_BYTES];

    format_cell(BYTES, (double)result->total.pages_foreign * (double)result->page_bytes, text);
    fprintf(out,
            "One tree for all engines computed %.1f %% of the prompt tokens that %s did, and %s\n"
            "of KV were read that another engine had computed.\n",
            100 * computed / against, replay_cache_title(other->cache), text);
}

static double change(double value, double against)
{
    return against > 0 ? 100 * (value / against - 1) : 0;
}

void replay_report_conclusion(FILE *out, const struct replay_result *result,
                              const struct replay_result *other)
{
    const struct replay_stats *s = &result->total;
    const double spent_s = (double)s->attention_ns * 1e-9;
    const double other_s = (double)other->total.attention_ns * 1e-9;
    const double read_bytes = kv_read(result), flat_bytes = (double)s->kv_bytes_flat;
    char found[CELL_BYTES], all[CELL_BYTES], stored[CELL_BYTES], read[CELL_BYTES], flat[CELL_BYTES];

    format_cell(COUNT, prompt_found(result), found);
    format_cell(COUNT, prompt_tokens(result), all);
    format_cell(BYTES, saved_storage(result), stored);
    format_cell(BYTES, read_bytes, read);
    format_cell(BYTES, flat_bytes, flat);
    fprintf(out, "\nSharing saved computing %s of %s prompt tokens, and %s of KV memory.\n", found,
            all, stored);
    fprintf(out, "Cascade read %s of KV instead of %s (%+.0f %%).\n", read, flat,
            change(read_bytes, flat_bytes));
    fprintf(out, "Attention took the engines %.2f s, and %.2f s with %s (%+.0f %%).\n", spent_s,
            other_s, replay_cache_title(other->cache), change(spent_s, other_s));
    if (result->cache == REPLAY_CACHE_SERVICE && other->total.prompt_computed > 0)
        print_across(out, result, other);
}
