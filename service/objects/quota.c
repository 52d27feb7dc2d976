/*
 * quota.c - what a session, its user, and all together use of what the daemon has once.
 *
 * A process is no wall: it forks. A user cannot make another user, so what is shared by all has
 * shares of users. Within a user, the share of a session keeps a mistake of one engine from
 * stopping the user's others, and so does that of all sessions of one process, which have three
 * quarters of what their user may have. (Of host memory each has --memory-max.) The counts are
 * plain numbers in the client and in the service. A session that is gone has none any more, and its
 * objects are still its user's.
 */
#include "service/objects/quota.h"

#include "service/supervise/queue.h"

#include <assert.h>

static const enum attnd_field fields[ATTND_QUOTA_KINDS] = {
    [ATTND_QUOTA_SESSIONS] = ATTND_F_SESSIONS, [ATTND_QUOTA_MEMORIES] = ATTND_F_MEMORY,
    [ATTND_QUOTA_POOLS] = ATTND_F_POOL,        [ATTND_QUOTA_TICKETS] = ATTND_F_TICKET,
    [ATTND_QUOTA_HOST] = ATTND_F_SIZE,         [ATTND_QUOTA_HEAP] = ATTND_F_HEAP,
    [ATTND_QUOTA_BLOCKS] = ATTND_F_PREFIX,     [ATTND_QUOTA_DAEMON] = ATTND_F_DAEMON_MEMORY,
    [ATTND_QUOTA_HOST_CACHE] = ATTND_F_SIZE};

static const char *const names[ATTND_QUOTA_KINDS] = {
    [ATTND_QUOTA_SESSIONS] = "sessions",    [ATTND_QUOTA_MEMORIES] = "memories",
    [ATTND_QUOTA_POOLS] = "pools",          [ATTND_QUOTA_TICKETS] = "tickets",
    [ATTND_QUOTA_HOST] = "host memory",     [ATTND_QUOTA_HEAP] = "heap",
    [ATTND_QUOTA_BLOCKS] = "prefix blocks", [ATTND_QUOTA_DAEMON] = "daemon memory",
    [ATTND_QUOTA_HOST_CACHE] = "host cache"};

const char *attnd_quota_name(enum attnd_quota_kind kind)
{
    return names[kind];
}

int attnd_quota_user_has_any(const struct attnd_service *service, uint32_t user)
{
    for (uint32_t kind = 0; kind < ATTND_QUOTA_KINDS; kind++)
        if (service->user_used[user][kind])
            return 1;
    return 0;
}

/* The place of a user that has something; else one that is free. Users are not counted by their
 * place among those that are admitted, because that changes when the configuration is read again,
 * and what a user left behind stays counted. If all places are taken the last is shared. */
static uint32_t user_of(const struct attnd_service *service, uid_t uid)
{
    for (uint32_t i = 0; i < ATTND_QUOTA_USERS_MAX; i++)
        if (service->quota_uids[i] == uid && attnd_quota_user_has_any(service, i))
            return i;
    for (uint32_t i = 0; i < ATTND_QUOTA_USERS_MAX; i++)
        if (!attnd_quota_user_has_any(service, i))
            return i;
    return ATTND_QUOTA_USERS_MAX - 1;
}

struct attnd_payer attnd_quota_payer(const struct attnd_client *client)
{
    return (struct attnd_payer){.session = client->id,
                                .user = user_of(client->service, client->uid)};
}

uint64_t attnd_quota_limit_of_all(const struct attnd_service *service, enum attnd_quota_kind kind)
{
    switch (kind) {
    case ATTND_QUOTA_SESSIONS:
        return ATTND_SESSIONS_MAX;
    case ATTND_QUOTA_MEMORIES:
        return ATTND_MEMORIES_MAX;
    case ATTND_QUOTA_POOLS:
        return ATTND_POOLS_MAX;
    case ATTND_QUOTA_TICKETS:
        return ATTND_TICKETS_MAX;
    case ATTND_QUOTA_HOST:
        return service->options.host_memory_max_bytes;
    case ATTND_QUOTA_HEAP:
        return service->queue->heap.bytes;
    case ATTND_QUOTA_BLOCKS:
        return service->options.prefix_blocks;
    case ATTND_QUOTA_HOST_CACHE:
        return service->options.host_cache_bytes;
    default:
        return service->options.daemon_memory_max_bytes;
    }
}

uint64_t attnd_quota_user_limit(const struct attnd_service *service, enum attnd_quota_kind kind)
{
    uint64_t all = attnd_quota_limit_of_all(service, kind);
    return service->options.allow_uids_count > 1 ? all / 2 : all;
}

uint64_t attnd_quota_limit(const struct attnd_service *service, enum attnd_quota_kind kind)
{
    uint64_t user = attnd_quota_user_limit(service, kind);
    uint64_t own = service->options.memory_max_bytes;

    if (kind == ATTND_QUOTA_SESSIONS)
        return user;
    if (kind == ATTND_QUOTA_HOST)
        return own < user ? own : user;
    return user / 2;
}

uint64_t attnd_quota_process_limit(const struct attnd_service *service, enum attnd_quota_kind kind)
{
    uint64_t user = attnd_quota_user_limit(service, kind);

    if (kind == ATTND_QUOTA_SESSIONS)
        return ATTND_SESSIONS_PROCESS_MAX;
    return kind == ATTND_QUOTA_HOST ? user : user - user / 4;
}

/* By all sessions of the process of @client. In another pid namespace processes have no number. */
static uint64_t used_by_process(const struct attnd_client *client, enum attnd_quota_kind kind)
{
    const struct attnd_service *service = client->service;
    uint64_t used = 0;

    if (!client->pid)
        return client->used[kind];
    for (uint32_t i = 0; i < ATTND_SESSIONS_MAX; i++)
        if (service->clients[i] && service->clients[i]->pid == client->pid)
            used += service->clients[i]->used[kind];
    return used;
}

static uint64_t used_by_user(const struct attnd_service *service, uid_t uid,
                             enum attnd_quota_kind kind)
{
    for (uint32_t i = 0; i < ATTND_QUOTA_USERS_MAX; i++)
        if (service->quota_uids[i] == uid && service->user_used[i][kind])
            return service->user_used[i][kind];
    return 0;
}

/* Half for one user is everything for two. So each of several that are admitted has a part that
 * nobody else can use: half of an equal share. What is still free of those of others is kept. */
static uint64_t kept_for_others(const struct attnd_service *service, uid_t uid,
                                enum attnd_quota_kind kind)
{
    const struct attnd_options *options = &service->options;
    uint64_t kept = 0;

    if (options->allow_uids_count <= 2)
        return 0;
    const uint64_t part = attnd_quota_limit_of_all(service, kind) / options->allow_uids_count / 2;
    for (uint32_t i = 0; i < options->allow_uids_count; i++) {
        const uid_t other = options->allow_uids[i];
        const uint64_t used = other == uid ? part : used_by_user(service, other, kind);
        kept += used < part ? part - used : 0;
    }
    return kept;
}

/* Four counts and the limit of each: of the session, of its process, of its user, of all. */
#define LEVELS 4
struct ledger {
    uint64_t used[LEVELS], limit[LEVELS];
};

static struct ledger ledger_of(const struct attnd_client *client, enum attnd_quota_kind kind)
{
    const struct attnd_service *service = client->service;
    uint32_t user = user_of(service, client->uid);
    struct ledger ledger = {.used = {client->used[kind], used_by_process(client, kind),
                                     service->user_used[user][kind], service->used[kind]},
                            .limit = {attnd_quota_limit(service, kind),
                                      attnd_quota_process_limit(service, kind),
                                      attnd_quota_user_limit(service, kind),
                                      attnd_quota_limit_of_all(service, kind) -
                                          kept_for_others(service, client->uid, kind)}};

    if (kind == ATTND_QUOTA_SESSIONS)
        ledger.limit[1] = UINT64_MAX; /* counted where they enroll, DYING ones too */
    /* Blocks are promised, and few are touched: what all touch is bounded by the trees. */
    if (kind == ATTND_QUOTA_BLOCKS) {
        ledger.limit[3] = UINT64_MAX;
        if (service->options.allow_uids_count <= 1)
            ledger.limit[2] = UINT64_MAX;
    }
    return ledger;
}

uint64_t attnd_quota_left(const struct attnd_client *client, enum attnd_quota_kind kind)
{
    const struct ledger ledger = ledger_of(client, kind);
    uint64_t left = UINT64_MAX;

    for (int i = 0; i < LEVELS; i++) {
        uint64_t used = ledger.used[i], limit = ledger.limit[i];
        uint64_t here = used < limit ? limit - used : 0;
        left = here < left ? here : left;
    }
    return left;
}

int attnd_quota_take(struct attnd_client *client, enum attnd_quota_kind kind, uint64_t amount,
                     struct attnd_fault *fault)
{
    struct attnd_service *service = client->service;
    const struct ledger ledger = ledger_of(client, kind);

    for (int i = 0; i < LEVELS; i++) {
        uint64_t used = ledger.used[i], limit = ledger.limit[i];
        if (used <= limit && amount <= limit - used)
            continue;
        uint64_t would = amount > INT64_MAX - used ? INT64_MAX : used + amount;
        return attnd_fault_set(fault, -ATTND_E_NO_MEMORY, fields[kind], 0, (int64_t)would,
                               (int64_t)limit);
    }
    const uint32_t user = user_of(service, client->uid);
    client->used[kind] += amount;
    service->quota_uids[user] = client->uid;
    service->user_used[user][kind] += amount;
    service->used[kind] += amount;
    return 0;
}

uint64_t attnd_quota_user_left(const struct attnd_service *service, struct attnd_payer payer,
                               enum attnd_quota_kind kind)
{
    uint64_t user = attnd_quota_user_limit(service, kind),
             all = attnd_quota_limit_of_all(service, kind);
    uint64_t used = service->user_used[payer.user][kind], all_used = service->used[kind];
    uint64_t left = used < user ? user - used : 0, all_left = all_used < all ? all - all_used : 0;

    return left < all_left ? left : all_left;
}

void attnd_quota_count(struct attnd_service *service, struct attnd_payer payer,
                       enum attnd_quota_kind kind, uint64_t amount)
{
    service->used[kind] += amount;
    service->user_used[payer.user][kind] += amount;
    for (uint32_t i = 0; i < ATTND_SESSIONS_MAX; i++)
        if (service->clients[i] && service->clients[i]->id == payer.session) {
            service->clients[i]->used[kind] += amount;
            return;
        }
}

void attnd_quota_give_unlisted(struct attnd_client *client, enum attnd_quota_kind kind,
                               uint64_t amount)
{
    attnd_quota_give(client->service,
                     (struct attnd_payer){.user = user_of(client->service, client->uid)}, kind,
                     amount);
    client->used[kind] -= amount;
}

void attnd_quota_give(struct attnd_service *service, struct attnd_payer payer,
                      enum attnd_quota_kind kind, uint64_t amount)
{
    assert(service->used[kind] >= amount && service->user_used[payer.user][kind] >= amount);
    service->used[kind] -= amount;
    service->user_used[payer.user][kind] -= amount;
    for (uint32_t i = 0; i < ATTND_SESSIONS_MAX; i++) {
        struct attnd_client *client = service->clients[i];
        if (!client || client->id != payer.session)
            continue;
        assert(client->used[kind] >= amount);
        client->used[kind] -= amount;
        return;
    }
}
