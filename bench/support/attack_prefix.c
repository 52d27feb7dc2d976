/* attack_prefix.c - sessions that want the daemon's thread by way of caches and tickets. */
#include "bench/support/attack_prefix.h"
#include "bench/support/attack_parts.h"

#define KEYS 4096u
#define CLAIMERS 16u
#define CALL_PAGES 16384u
#define WAITING 15u      /* sessions */
#define MATCHES_WAIT 64u /* of each */
#define READ_PAGES 64u
#define TICKETS 2000u
#define EXPIRE_MS 500u

void bench_attack_claims(struct bench_suite *suite, int fd)
{
    static struct attnd_prefix_key keys[KEYS];
    struct attnd_session *session[CLAIMERS];
    uint32_t pool, prefix[CLAIMERS];
    uint64_t next = 0;
    const struct attnd_op op = {.flags = ATTND_SKIP_SUCCESS};

    attack_keys(keys, KEYS, &next);
    for (uint32_t i = 0; i < CLAIMERS; i++)
        if (!attack_open(suite, 64, 8u << 20, &session[i]) ||
            !attack_cache(suite, session[i], 65536, &pool, &prefix[i]))
            return;
    for (uint32_t i = 0;; i = (i + 1) % CLAIMERS) {
        const struct attnd_prefix_args args = {
            .size = sizeof(args), .prefix = prefix[i], .blocks = KEYS, .keys = keys};
        int more = 1;
        while (more > 0) {
            more = attack_submitted(suite, "attnd_prefix_claim",
                                    attnd_prefix_claim(session[i], &args, &op));
            if (more > 0)
                more = attack_submitted(suite, "attnd_prefix_abandon",
                                        attnd_prefix_abandon(session[i], &args, &op));
        }
        if (more < 0)
            return;
        attack_begun(&fd);
    }
}

void bench_attack_evictions(struct bench_suite *suite, int fd)
{
    static struct attnd_prefix_key keys[KEYS];
    static int32_t pages[CALL_PAGES];
    struct attnd_session *session;
    uint32_t pool, prefix;
    uint64_t next = 0;
    const struct attnd_op op = {0};

    if (!attack_open(suite, 64, 8u << 20, &session) ||
        !attack_cache(suite, session, 2 * CALL_PAGES, &pool, &prefix))
        return;
    while (!suite->failed) {
        if (!bench_suite_call(suite, "attnd_pages_alloc",
                              attnd_pages_alloc(session, pool, CALL_PAGES, pages)))
            return;
        for (uint32_t i = 0; i < CALL_PAGES && !suite->failed; i += KEYS) {
            const struct attnd_prefix_args args = {
                .size = sizeof(args), .prefix = prefix, .blocks = KEYS, .keys = keys};
            attack_keys(keys, KEYS, &next);
            if (bench_suite_call(suite, "attnd_prefix_publish",
                                 attnd_prefix_publish(session, &args, pages + i, &op)))
                bench_wait_all(suite, session, 1, NULL);
        }
        bench_suite_call(suite, "attnd_pages_free",
                         attnd_pages_free(session, pool, CALL_PAGES, pages));
        attack_begun(&fd);
    }
}

/* ---- matches that wait for one publish ---- */

struct chain {
    struct attnd_session *owner, *others[WAITING];
    uint32_t pool, prefix, pools[WAITING], prefixes[WAITING];
};

static bool share_chain(struct bench_suite *suite, struct chain *chain)
{
    struct attnd_token pool, space;

    if (!attack_open(suite, 256, 8u << 20, &chain->owner) ||
        !attack_cache(suite, chain->owner, 2 * KEYS, &chain->pool, &chain->prefix) ||
        !bench_suite_call(suite, "attnd_pool_share",
                          attnd_pool_share(chain->owner, chain->pool, 1, &pool)) ||
        !bench_suite_call(suite, "attnd_prefix_share",
                          attnd_prefix_share(chain->owner, chain->prefix, 1, &space)))
        return false;
    for (uint32_t i = 0; i < WAITING; i++)
        if (!attack_open(suite, 256, 8u << 20, &chain->others[i]) ||
            !bench_suite_call(suite, "attnd_pool_attach",
                              attnd_pool_attach(chain->others[i], &pool, &chain->pools[i])) ||
            !bench_suite_call(suite, "attnd_prefix_attach",
                              attnd_prefix_attach(chain->others[i], &space, &chain->prefixes[i])))
            return false;
    return true;
}

static bool wait_for_chain(struct bench_suite *suite, const struct chain *chain,
                           const struct attnd_prefix_key *keys)
{
    const struct attnd_op op = {0};

    for (uint32_t i = 0; i < WAITING * MATCHES_WAIT; i++) {
        const struct attnd_prefix_args args = {.size = sizeof(args),
                                               .prefix = chain->prefixes[i % WAITING],
                                               .blocks = KEYS,
                                               .flags = ATTND_PREFIX_MATCH_WAITS,
                                               .keys = keys};
        int more = 0;
        while (more == 0)
            more = attack_submitted(suite, "attnd_prefix_match",
                                    attnd_prefix_match(chain->others[i % WAITING], &args, &op));
        if (more < 0)
            return false;
    }
    return true;
}

/* What each has found is given back. */
static bool take_chain(struct bench_suite *suite, const struct chain *chain, uint32_t which)
{
    struct attnd_session *session = chain->others[which];

    for (uint32_t left = MATCHES_WAIT; left > 0; left--) {
        struct attnd_prefix_result found = {.size = sizeof(found)};
        struct attnd_completion done;
        if (!bench_wait_all(suite, session, 1, &done) ||
            !bench_suite_call(suite, "attnd_prefix_result",
                              attnd_prefix_result(session, &done, &found)))
            return false;
        if (found.pages_count &&
            !bench_suite_call(
                suite, "attnd_pages_free",
                attnd_pages_free(session, chain->pools[which], found.pages_count, found.pages)))
            return false;
    }
    return true;
}

void bench_attack_parked(struct bench_suite *suite, int fd)
{
    static struct attnd_prefix_key keys[KEYS];
    static int32_t pages[KEYS];
    struct chain chain;
    uint64_t next = 0;
    const struct attnd_op op = {0};

    if (!share_chain(suite, &chain))
        return;
    while (!suite->failed) {
        const struct attnd_prefix_args args = {
            .size = sizeof(args), .prefix = chain.prefix, .blocks = KEYS, .keys = keys};
        attack_keys(keys, KEYS, &next);
        if (!bench_suite_call(suite, "attnd_prefix_claim",
                              attnd_prefix_claim(chain.owner, &args, &op)) ||
            !bench_wait_all(suite, chain.owner, 1, NULL) || !wait_for_chain(suite, &chain, keys) ||
            !bench_suite_call(suite, "attnd_pages_alloc",
                              attnd_pages_alloc(chain.owner, chain.pool, KEYS, pages)) ||
            !bench_suite_call(suite, "attnd_prefix_publish",
                              attnd_prefix_publish(chain.owner, &args, pages, &op)) ||
            !bench_wait_all(suite, chain.owner, 1, NULL))
            return;
        attack_begun(&fd);
        for (uint32_t i = 0; i < WAITING && !suite->failed; i++)
            (void)take_chain(suite, &chain, i);
        bench_suite_call(suite, "attnd_pages_free",
                         attnd_pages_free(chain.owner, chain.pool, KEYS, pages));
    }
}

/* ---- one that attached for reading ---- */

static bool publish_all(struct bench_suite *suite, struct attnd_session *session, uint32_t pool,
                        const struct attnd_prefix_args *args)
{
    static int32_t pages[READ_PAGES];
    const struct attnd_op op = {0};

    return bench_suite_call(suite, "attnd_pages_alloc",
                            attnd_pages_alloc(session, pool, READ_PAGES, pages)) &&
           bench_suite_call(suite, "attnd_prefix_publish",
                            attnd_prefix_publish(session, args, pages, &op)) &&
           bench_wait_all(suite, session, 1, NULL) &&
           bench_suite_call(suite, "attnd_pages_free",
                            attnd_pages_free(session, pool, READ_PAGES, pages));
}

void bench_attack_readers(struct bench_suite *suite, int fd)
{
    static struct attnd_prefix_key keys[READ_PAGES];
    struct attnd_session *owner, *reader;
    struct attnd_token shared, space;
    struct attnd_prefix_args args = {.size = sizeof(args), .blocks = READ_PAGES, .keys = keys};
    uint32_t pool, read_pool;
    uint64_t next = 0;
    const struct attnd_op op = {0};

    attack_keys(keys, READ_PAGES, &next);
    if (!attack_open(suite, 64, 1u << 20, &owner) || !attack_open(suite, 4096, 8u << 20, &reader) ||
        !attack_cache(suite, owner, READ_PAGES, &pool, &args.prefix) ||
        !publish_all(suite, owner, pool, &args) ||
        !bench_suite_call(suite, "attnd_pool_share", attnd_pool_share(owner, pool, 0, &shared)) ||
        !bench_suite_call(suite, "attnd_prefix_share",
                          attnd_prefix_share(owner, args.prefix, 0, &space)) ||
        !bench_suite_call(suite, "attnd_pool_attach",
                          attnd_pool_attach(reader, &shared, &read_pool)) ||
        !bench_suite_call(suite, "attnd_prefix_attach",
                          attnd_prefix_attach(reader, &space, &args.prefix)))
        return;
    for (;;) { /* it never gives anything back */
        const int more =
            attack_submitted(suite, "attnd_prefix_match", attnd_prefix_match(reader, &args, &op));
        if (more < 0 || (more == 0 && attack_collected(suite, reader) < 0))
            return;
        attack_begun(&fd);
    }
}

/* ---- tickets that expire together ---- */

void bench_attack_tickets(struct bench_suite *suite, int fd)
{
    const struct attnd_pool_desc desc = attack_pool(4, ATTND_PAGES_OF_SERVICE);
    struct attnd_session *session;
    struct attnd_token ticket;
    uint32_t pool;

    if (!attack_open(suite, 8, 65536, &session) ||
        !bench_suite_call(suite, "attnd_pool_create", attnd_pool_create(session, &desc, &pool)))
        return;
    while (!suite->failed) { /* one after the other, as soon as there is room */
        const int rc = attnd_pages_offer(session, pool, 0, NULL, EXPIRE_MS, &ticket);
        if (rc != -ATTND_E_NO_MEMORY && rc != -ATTND_E_NO_SPACE)
            bench_suite_call(suite, "attnd_pages_offer", rc);
        attack_begun(&fd);
    }
}
