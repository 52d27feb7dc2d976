/* stats.c - engines count for themselves; the parent adds up. */
#include "bench/replay/replay.h"

void replay_stats_merge(struct replay_stats *to, const struct replay_stats *from)
{
    to->requests += from->requests;
    to->tokens_done += from->tokens_done;
    to->prompt_tokens += from->prompt_tokens;
    to->prompt_computed += from->prompt_computed;
    to->output_tokens += from->output_tokens;
    to->steps += from->steps;
    to->plan_sets += from->plan_sets;
    to->plan_advances += from->plan_advances;
    to->runs += from->runs;
    to->repeated += from->repeated;
    to->pages_allocated += from->pages_allocated;
    to->pages_hit += from->pages_hit;
    to->pages_evicted += from->pages_evicted;
    to->pages_foreign += from->pages_foreign;
    to->publishes_refused += from->publishes_refused;
    to->pages_offered += from->pages_offered;
    to->pages_claimed += from->pages_claimed;
    to->pages_brought += from->pages_brought;
    to->kv_bytes_read += from->kv_bytes_read;
    to->kv_bytes_flat += from->kv_bytes_flat;
    to->attention_ns += from->attention_ns;
    to->service_ns += from->service_ns;
    to->fill_ns += from->fill_ns;
    to->check_ns += from->check_ns;
    to->pages_ns += from->pages_ns;
    if (!to->begin_ns || (from->begin_ns && from->begin_ns < to->begin_ns))
        to->begin_ns = from->begin_ns;
    if (from->end_ns > to->end_ns)
        to->end_ns = from->end_ns;
    to->rows_verified += from->rows_verified;
    to->mismatches += from->mismatches;
    if (from->worst_error > to->worst_error)
        to->worst_error = from->worst_error;
    bench_histogram_merge(&to->step_ns, &from->step_ns);
    bench_histogram_merge(&to->first_token_ns, &from->first_token_ns);
    bench_histogram_merge(&to->next_token_ns, &from->next_token_ns);
    bench_histogram_merge(&to->plan_set_ns, &from->plan_set_ns);
    bench_histogram_merge(&to->plan_advance_ns, &from->plan_advance_ns);
    bench_histogram_merge(&to->handover_ns, &from->handover_ns);
}
