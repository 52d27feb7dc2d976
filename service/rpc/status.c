/*
 * status.c - everything attnctl shows, in one message.
 *
 * Bounded by the limits on sessions and pools, so that it always fits a datagram.
 */
#include "schemas/version.h"
#include "service/objects/lease.h"
#include "service/objects/quota.h"
#include "service/peers/peers.h"
#include "service/prefix/prefix.h"
#include "service/rpc/calls.h"
#include "service/rpc/data_status.h"
#include "service/sched/sched.h"
#include "service/supervise/queue.h"

#include <string.h>

/* protobuf-c's strings are not const, and packing does not write them. */
static char *text(const char *string)
{
    return (char *)(uintptr_t)string;
}

static uint32_t count_handles(void *const *table)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < ATTND_HANDLES_MAX; i++)
        count += table[i] != NULL;
    return count;
}

static void fill_prepared(Attnd__SessionStatus *status, const struct attnd_client *client)
{
    struct attnd_prepared_status prepared;

    if (!attnd_prepared_status(client, &prepared))
        return;
    status->executor = text(prepared.by_engine ? "engine" : "service");
    status->executor_why = text(prepared.why);
    status->prepared = prepared.prepared;
    status->launches = prepared.launches;
    status->launch_busy_ns = prepared.busy_ns;
    status->launch_errors = prepared.errors;
    status->has_prepared = status->has_launches = status->has_launch_busy_ns = 1;
    status->has_launch_errors = 1;
    if (!prepared.errors)
        return;
    status->launch_error = prepared.error_code;
    status->launch_error_lane = prepared.error_lane;
    status->has_launch_error = status->has_launch_error_lane = 1;
}

static int fill_histogram(struct attnd_call *call, Attnd__Histogram **out,
                          const struct attnd_histogram *histogram)
{
    Attnd__Histogram *message = attnd_call_alloc(call, sizeof(*message));
    size_t buckets = ATTND_HISTOGRAM_BUCKETS;

    if (!message)
        return -ATTND_E_NO_MEMORY;
    attnd__histogram__init(message);
    while (buckets && !histogram->counts[buckets - 1])
        buckets--;
    /* Packing does not write them, and nothing runs before this is packed. */
    message->counts = (uint64_t *)(uintptr_t)histogram->counts;
    message->n_counts = buckets;
    message->sum_ns = histogram->sum_ns;
    message->has_sum_ns = 1;
    *out = message;
    return 0;
}

static uint64_t count_leases(const struct attnd_client *client)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < ATTND_HANDLES_MAX; i++)
        count += client->attachments[i] ? client->attachments[i]->held_count : 0;
    return count;
}

/* Numbers that an operator looks for: waits, errors, pages. */
static void fill_state(Attnd__SessionStatus *status, const struct attnd_client *client)
{
    const uint64_t oldest_ns = attnd_sched_oldest_ns(client), now_ns = attnd_clock_ns();

    status->uid = client->uid;
    status->pages_leased = count_leases(client);
    for (uint32_t code = 1; code < ATTND_ERRORS_END; code++)
        status->faults += client->stats.faults[code];
    status->has_uid = status->has_pages_leased = status->has_faults = 1;
    status->oldest_us = oldest_ns < now_ns ? (now_ns - oldest_ns) / 1000u : 0;
    status->has_oldest_us = oldest_ns != 0;
}

static void fill_session(Attnd__SessionStatus *status, struct attnd_client *client)
{
    uint64_t busy_ns = client->service->totals.busy_ns;

    attnd__session_status__init(status);
    status->session = client->id;
    status->name = client->name;
    status->pid = (uint32_t)client->pid;
    status->in_flight = client->in_flight;
    status->runs = client->stats.runs;
    status->appends = client->stats.appends;
    status->busy_ns = client->stats.busy_ns;
    status->share = busy_ns ? (double)client->stats.busy_ns / (double)busy_ns : 0.0;
    status->memory_bytes = client->used[ATTND_QUOTA_HOST] + client->device_memory_bytes;
    status->device_memory_bytes = client->device_memory_bytes;
    status->plans = count_handles((void *const *)client->plans);
    status->dying = client->state == ATTND_CLIENT_DYING;
    status->weight = client->weight ? client->weight : 1;
    status->has_weight = 1;
    status->has_pid = status->has_in_flight = status->has_runs = status->has_appends = 1;
    status->has_busy_ns = status->has_share = status->has_memory_bytes = 1;
    status->has_device_memory_bytes = status->has_plans = status->has_dying = 1;
    status->shared_bytes = client->stats.shared_bytes;
    status->has_shared_bytes = 1;
    status->quota_used = client->used; /* nothing runs before this is packed */
    status->n_quota_used = ATTND_QUOTA_KINDS;
    status->loop_ns = client->account.spent_ns;
    status->loop_over = client->account.over;
    status->has_loop_ns = status->has_loop_over = 1;
    fill_state(status, client);
    fill_prepared(status, client);
}

static void fill_pool(Attnd__PoolStatus *status, const struct attnd_pool *pool)
{
    attnd__pool_status__init(status);
    status->pool = pool->id;
    status->layers = pool->shape.layers;
    status->pages = pool->shape.pages;
    status->pages_leased = attnd_lease_count(pool);
    status->page_size = pool->shape.page_size;
    status->attached = pool->refs;
    status->memory_bytes = pool->memory_bytes;
    status->has_layers = status->has_pages = status->has_pages_leased = 1;
    status->pages_cached = attnd_pool_cached(pool);
    status->has_pages_cached = 1;
    status->has_page_size = status->has_attached = status->has_memory_bytes = 1;
}

static int add_sessions(struct attnd_call *call, Attnd__Status *status)
{
    status->sessions = attnd_call_alloc(call, ATTND_SESSIONS_MAX * sizeof(Attnd__SessionStatus *));
    if (!status->sessions)
        return -ATTND_E_NO_MEMORY;
    for (uint32_t i = 0; i < ATTND_SESSIONS_MAX; i++) {
        struct attnd_client *client = call->service->clients[i];
        if (!client)
            continue;
        Attnd__SessionStatus *session = attnd_call_alloc(call, sizeof(*session));
        if (!session)
            return -ATTND_E_NO_MEMORY;
        fill_session(session, client);
        if (fill_histogram(call, &session->latency, &client->stats.latency) < 0)
            return -ATTND_E_NO_MEMORY;
        status->plans += session->plans;
        status->sessions[status->n_sessions++] = session;
    }
    return 0;
}

static int add_pools(struct attnd_call *call, Attnd__Status *status)
{
    status->pools =
        attnd_call_alloc(call, call->service->pools_count * sizeof(Attnd__PoolStatus *));
    if (!status->pools)
        return -ATTND_E_NO_MEMORY;
    for (const struct attnd_pool *pool = call->service->pools; pool; pool = pool->next) {
        Attnd__PoolStatus *entry = attnd_call_alloc(call, sizeof(*entry));
        if (!entry)
            return -ATTND_E_NO_MEMORY;
        fill_pool(entry, pool);
        status->pools[status->n_pools++] = entry;
    }
    return 0;
}

static int add_totals(struct attnd_call *call, Attnd__Status *status)
{
    const struct attnd_work_stats *totals = &call->service->totals;

    status->faults = attnd_call_alloc(call, ATTND_ERRORS_END * sizeof(Attnd__FaultCount *));
    if (!status->faults || fill_histogram(call, &status->latency, &totals->latency) < 0 ||
        fill_histogram(call, &status->duration, &totals->duration) < 0)
        return -ATTND_E_NO_MEMORY;
    for (uint32_t code = 1; code < ATTND_ERRORS_END; code++) {
        if (!totals->faults[code])
            continue;
        Attnd__FaultCount *entry = attnd_call_alloc(call, sizeof(*entry));
        if (!entry)
            return -ATTND_E_NO_MEMORY;
        attnd__fault_count__init(entry);
        entry->code = code;
        entry->count = totals->faults[code];
        status->faults[status->n_faults++] = entry;
    }
    return 0;
}

static int add_settings(struct attnd_call *call, Attnd__Status *status)
{
    const struct attnd_options *options = &call->service->options;

    status->settings = attnd_call_alloc(call, ATTND_SETTINGS_MAX * sizeof(Attnd__Setting *));
    if (!status->settings)
        return -ATTND_E_NO_MEMORY;
    for (uint32_t i = 0; i < options->settings_count; i++) {
        Attnd__Setting *setting = attnd_call_alloc(call, sizeof(*setting));
        if (!setting)
            return -ATTND_E_NO_MEMORY;
        attnd__setting__init(setting);
        setting->name = text(options->settings[i].name);
        setting->value = text(options->settings[i].value);
        setting->origin = text(options->settings[i].origin);
        status->settings[status->n_settings++] = setting;
    }
    return 0;
}

/* Protobuf wants each in memory of its own, which stays until the reply is sent. */
static int add_peer(struct attnd_call *call, Attnd__Status *status,
                    const struct attnd_peer_info *info)
{
    Attnd__PeerStatus *peer = attnd_call_alloc(call, sizeof(*peer));
    char *name = attnd_call_alloc(call, sizeof(info->name));
    char *service = attnd_call_alloc(call, 2 * ATTND_IDENTITY_BYTES + 1);

    if (!peer || !name || !service)
        return -ATTND_E_NO_MEMORY;
    for (size_t i = 0; info->identity && i < ATTND_IDENTITY_BYTES; i++)
        snprintf(service + 2 * i, 3, "%02x", info->identity[i]);
    attnd__peer_status__init(peer);
    memcpy(name, info->name, sizeof(info->name));
    peer->name = name;
    peer->claims = !info->address;
    peer->state = text(info->state);
    peer->address = text(info->address);
    peer->service = info->identity ? service : NULL;
    peer->last_end = info->last_end[0] ? text(info->last_end) : NULL;
    peer->up_ms = info->up_ns / 1000000u;
    peer->links = info->links;
    peer->under_way = info->under_way;
    peer->waiting = info->waiting;
    peer->done = info->done;
    peer->failed = info->failed;
    peer->pages = info->pages;
    peer->bytes = info->bytes;
    peer->bytes_per_s = info->bytes_per_s;
    peer->has_up_ms = peer->has_links = peer->has_under_way = peer->has_waiting = 1;
    peer->has_done = peer->has_failed = peer->has_pages = peer->has_bytes = 1;
    peer->has_bytes_per_s = 1;
    status->peers[status->n_peers++] = peer;
    return 0;
}

static int add_peers(struct attnd_call *call, Attnd__Status *status)
{
    struct attnd_peer_info infos[ATTND_PEER_INFOS_MAX];
    const uint32_t count = attnd_peers_info(call->service, infos);

    status->peers = attnd_call_alloc(call, (count + 1) * sizeof(Attnd__PeerStatus *));
    if (!status->peers)
        return -ATTND_E_NO_MEMORY;
    for (uint32_t i = 0; i < count; i++)
        if (add_peer(call, status, &infos[i]) < 0)
            return -ATTND_E_NO_MEMORY;
    return 0;
}

static int fill_quotas(struct attnd_call *call, Attnd__QuotaStatus **out,
                       enum attnd_quota_kind kind)
{
    const struct attnd_service *service = call->service;
    Attnd__QuotaStatus *quota = attnd_call_alloc(call, sizeof(*quota));

    if (!quota)
        return -ATTND_E_NO_MEMORY;
    attnd__quota_status__init(quota);
    quota->name = text(attnd_quota_name(kind));
    quota->bytes = attnd_quota_is_bytes(kind);
    quota->used = service->used[kind];
    quota->limit = attnd_quota_limit_of_all(service, kind);
    quota->user_limit = attnd_quota_user_limit(service, kind);
    quota->process_limit = attnd_quota_process_limit(service, kind);
    quota->session_limit = attnd_quota_limit(service, kind);
    *out = quota;
    return 0;
}

static int add_user(struct attnd_call *call, Attnd__Status *status, uint32_t place)
{
    Attnd__UserStatus *user = attnd_call_alloc(call, sizeof(*user));

    if (!user)
        return -ATTND_E_NO_MEMORY;
    attnd__user_status__init(user);
    user->uid = call->service->quota_uids[place];
    user->quota_used = call->service->user_used[place];
    user->n_quota_used = ATTND_QUOTA_KINDS;
    user->loop_ns = attnd_work_user_spent_ns(&call->service->works, (uid_t)user->uid);
    user->has_loop_ns = 1;
    status->users[status->n_users++] = user;
    return 0;
}

static int add_quotas(struct attnd_call *call, Attnd__Status *status)
{
    status->quotas = attnd_call_alloc(call, ATTND_QUOTA_KINDS * sizeof(Attnd__QuotaStatus *));
    status->users = attnd_call_alloc(call, ATTND_QUOTA_USERS_MAX * sizeof(Attnd__UserStatus *));
    if (!status->quotas || !status->users)
        return -ATTND_E_NO_MEMORY;
    for (; status->n_quotas < ATTND_QUOTA_KINDS; status->n_quotas++)
        if (fill_quotas(call, &status->quotas[status->n_quotas],
                        (enum attnd_quota_kind)status->n_quotas) < 0)
            return -ATTND_E_NO_MEMORY;
    for (uint32_t place = 0; place < ATTND_QUOTA_USERS_MAX; place++)
        if (attnd_quota_user_has_any(call->service, place) && add_user(call, status, place) < 0)
            return -ATTND_E_NO_MEMORY;
    return 0;
}

/* What only a worker on a GPU has, and how fast workers are. */
static void fill_worker(const struct attnd_data_status *data, const struct attnd_service *service,
                        Attnd__Status *status)
{
    if (data->residency) {
        status->residency = text(data->residency);
        status->sms = data->sms;
        status->sms_resident = data->sms_resident;
        status->launches = data->launches;
        status->has_launches = 1;
        status->plan_bytes = data->plan_bytes;
        status->has_plan_bytes = 1;
        status->twin_runs = data->twin_runs;
        status->has_twin_runs = 1;
        status->mps = data->mps;
        status->device = service->options.device;
        status->has_device = 1;
        status->has_sms = status->has_sms_resident = status->has_mps = 1;
        status->switch_cost_us = data->switch_cost_us;
        status->has_switch_cost_us = data->switch_cost_us != 0;
    }
    if (data->rates_source) {
        status->rates = text(data->rates_source);
        status->worker_gflops = data->rates.worker_gflops;
        status->worker_gbps = data->rates.worker_gbps;
        status->worker_l2_gbps = data->rates.worker_l2_gbps;
        status->memory_gbps = data->rates.memory_gbps;
        status->has_worker_gflops = status->has_worker_gbps = 1;
        status->has_worker_l2_gbps = status->has_memory_gbps = 1;
    }
}

static void fill_loop(const struct attnd_service *service, Attnd__Status *status)
{
    const struct attnd_closer_held held = attnd_closer_held();

    status->loop_pieces = service->works.pieces;
    status->loop_pieces_over = service->works.over;
    status->loop_longest_ns = service->works.longest_ns;
    status->closing = held.count;
    status->closing_bytes = held.bytes;
    status->has_loop_pieces = status->has_loop_pieces_over = status->has_loop_longest_ns = 1;
    status->has_closing = status->has_closing_bytes = 1;
}

static void fill_service(const struct attnd_service *service, Attnd__Status *status)
{
    struct attnd_data_status data;

    attnd_data_status(service, &data);
    status->version = text(ATTND_VERSION);
    status->backend = text(data.backend);
    status->isa = text(data.isa);
    status->loop = text(attnd_loop_name(service->loop));
    status->loop_reason = text(attnd_loop_reason(service->loop));
    status->uptime_ms = (attnd_clock_ns() - service->start_ns) / 1000000u;
    status->worker_pid = (uint32_t)data.worker_pid;
    status->worker_state = text(data.worker_state);
    status->worker_restarts = data.worker_restarts;
    status->tile_workers = data.tile_workers;
    status->worker_heartbeat = data.worker_heartbeat;
    status->time_ns = attnd_clock_ns();
    status->has_worker_heartbeat = status->has_time_ns = 1;
    status->worker_last_end = text(data.worker_last_end);
    fill_worker(&data, service, status);
    fill_loop(service, status);
    status->queue_runs = data.queue_runs;
    status->queue_waiting = data.queue_waiting;
    attnd_heap_usage(service->queue, &status->heap_bytes, &status->heap_used_bytes);
    status->host_memory_bytes = service->used[ATTND_QUOTA_HOST];
    status->host_memory_max_bytes = service->options.host_memory_max_bytes;
    status->memory_max_bytes = service->options.memory_max_bytes;
    status->has_host_memory_bytes = status->has_host_memory_max_bytes = 1;
    status->has_memory_max_bytes = 1;
    status->device_memory_max_bytes = service->options.device_memory_max_bytes;
    status->has_device_memory_max_bytes = status->device_memory_max_bytes != 0;
    status->runs = service->totals.runs;
    status->tiles = service->totals.tiles;
    status->kv_bytes = service->totals.kv_bytes;
    status->shared_bytes = service->totals.shared_bytes;
    status->fused_runs = service->totals.fused_runs;
    status->has_shared_bytes = status->has_fused_runs = 1;
    status->busy_ns = service->totals.busy_ns;
    status->has_uptime_ms = status->has_worker_pid = status->has_worker_restarts = 1;
    status->has_tile_workers = status->has_queue_runs = status->has_queue_waiting = 1;
    status->has_plans = status->has_heap_bytes = status->has_heap_used_bytes = 1;
    status->has_runs = status->has_tiles = status->has_kv_bytes = status->has_busy_ns = 1;
}

int attnd_call_status(struct attnd_call *call)
{
    Attnd__Status *status = attnd_call_result(call, ATTND__REPLY__RESULT_STATUS);

    if (!status)
        return -ATTND_E_NO_MEMORY;
    fill_service(call->service, status);
    if (add_totals(call, status) < 0 || add_settings(call, status) < 0 ||
        add_quotas(call, status) < 0 || add_sessions(call, status) < 0 ||
        add_pools(call, status) < 0 || add_peers(call, status) < 0 ||
        attnd_host_cache_fill(call, &status->host_cache) < 0)
        return attnd_call_no_memory(call);
    return 0;
}
