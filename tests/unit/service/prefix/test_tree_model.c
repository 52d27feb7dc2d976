/*
 * test_tree_model.c - the prefix tree against a plain dictionary, at random.
 *
 * The dictionary has one entry for each (namespace, node of a fixed family tree): nothing, claimed
 * by somebody, or published with its pages. It does not decide what is evicted; it judges it: what
 * the tree drops must be published, idle, unpinned and without a published child, and the tree may
 * say that nothing can go only if the dictionary finds nothing either.
 *
 * A round is a list of operations drawn beforehand. Each makes sense whatever came before, so that
 * a list that fails can be shortened: what is left when no operation can be taken out is printed.
 */
#include "tests/support/harness/check.h"
#include "tests/support/random/prng.h"
#include "tests/support/random/seed.h"
#include "tests/support/rigs/tree_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define ROUNDS 1500u
#define OPS 300u
#define NODES 40u
#define SPACES 3u
#define PAGES 48u
#define BLOCK_PAGES_MAX 2u
#define ROOT UINT32_MAX

enum kind { MATCH, PUBLISH, CLAIM, ABANDON, FREE, DIE, EVICT, PIN, UNPIN, WAIT, WRONG, KINDS };
static const char *const names[KINDS] = {"match", "publish", "claim", "abandon", "free", "die",
                                         "evict", "pin",     "unpin", "wait",    "wrong"};

struct operation {
    uint32_t kind, session, space, node, number;
};

struct entry {
    int published, pinned, claimer; /* claimer: session, -1: none */
    uint32_t publisher;
    int32_t page[BLOCK_PAGES_MAX];
};

static struct {
    uint32_t parent[NODES];
    struct entry entry[SPACES][NODES];
    uint32_t space[SPACES], block_pages[SPACES];
    struct attnd_tree_owner owner[TREE_RIG_SESSIONS][SPACES];
    struct attnd_tree_waiter waiter;
    int waits; /* 1: `waiter` waits for the claim on this: */
    uint32_t wait_space, wait_node;
    int forgetful; /* a fault planted in the model: an unpin is not noted */
} model;

static struct attnd_block_key key_of(uint32_t node)
{
    return tree_rig_key(1000 + node);
}

/* ---- the judge of evictions ---- */

static int has_child(uint32_t space, uint32_t node)
{
    for (uint32_t i = 0; i < NODES; i++)
        if (model.parent[i] == node && model.entry[space][i].published)
            return 1;
    return 0;
}

static int can_go(uint32_t space, uint32_t node)
{
    const struct entry *entry = &model.entry[space][node];
    if (!entry->published || entry->pinned || has_child(space, node))
        return 0;
    for (uint32_t i = 0; i < model.block_pages[space]; i++)
        if (tree_rig.leases[entry->page[i]] != 1)
            return 0;
    return 1;
}

static uint32_t can_go_count(uint32_t space, uint32_t but)
{
    uint32_t count = 0;
    for (uint32_t node = 0; node < NODES; node++)
        count += node != but && can_go(space, node);
    return count;
}

static void judge_drop(const int32_t *pages, uint32_t count)
{
    for (uint32_t space = 0; space < SPACES; space++)
        for (uint32_t node = 0; node < NODES; node++) {
            struct entry *entry = &model.entry[space][node];
            if (!entry->published || entry->page[0] != pages[0])
                continue;
            CHECK_EQUAL(count, model.block_pages[space]);
            CHECK(memcmp(entry->page, pages, count * sizeof(*pages)) == 0);
            CHECK(can_go(space, node));
            *entry = (struct entry){.claimer = -1};
            return;
        }
    CHECK_FAIL("a page that is nobody's is dropped");
}

/* ---- operations ---- */

/* The path to @node, its last `number % depth + 1` nodes. Return: how many. */
static uint32_t path(const struct operation *op, uint32_t *nodes, struct attnd_block_key *keys,
                     struct attnd_block_key *parent, struct attnd_tree_chain *chain)
{
    uint32_t depth = 0, all[NODES] = {0};
    for (uint32_t at = op->node; at != ROOT; at = model.parent[at])
        all[depth++] = at;
    uint32_t count = op->number % 4 ? depth : op->number / 4 % depth + 1;
    for (uint32_t i = 0; i < count; i++) {
        nodes[i] = all[count - 1 - i];
        keys[i] = key_of(nodes[i]);
    }
    if (count < depth)
        *parent = key_of(all[count]);
    *chain = (struct attnd_tree_chain){model.space[op->space],        count, keys,
                                       count < depth ? parent : NULL, 0,     0};
    return count;
}

static int parent_there(const struct operation *op, uint32_t first)
{
    uint32_t parent = model.parent[first];
    return parent == ROOT || model.entry[op->space][parent].published;
}

static void do_match(const struct operation *op)
{
    uint32_t nodes[NODES], count, want = 0, foreign = 0;
    struct attnd_block_key keys[NODES], parent;
    struct attnd_tree_chain chain;
    int32_t pages[NODES * BLOCK_PAGES_MAX];
    uint32_t block_pages = model.block_pages[op->space];
    enum attnd_prefix_stop stop = ATTND_PREFIX_STOP_END;

    count = path(op, nodes, keys, &parent, &chain);
    struct attnd_tree_result got =
        attnd_tree_match(tree_rig.tree, &model.owner[op->session][op->space], &chain, pages);
    if (!parent_there(op, nodes[0]))
        stop = ATTND_PREFIX_STOP_MISSING;
    while (stop == ATTND_PREFIX_STOP_END && want < count) {
        const struct entry *entry = &model.entry[op->space][nodes[want]];
        if (!entry->published) {
            stop = entry->claimer >= 0 ? ATTND_PREFIX_STOP_CLAIMED : ATTND_PREFIX_STOP_MISSING;
            break;
        }
        CHECK(memcmp(entry->page, pages + want * block_pages, block_pages * sizeof(*pages)) == 0);
        foreign += entry->publisher != op->session;
        want++;
    }
    CHECK_EQUAL(got.blocks, want);
    CHECK_EQUAL(got.foreign, foreign);
    CHECK_EQUAL(got.stop, stop);
    tree_rig_lease(op->session, pages, got.blocks * block_pages);
}

/* What the tree says of a publish, into the dictionary. */
static void note_published(const struct operation *op, const uint32_t *nodes, const int32_t *pages,
                           const struct attnd_tree_result *result)
{
    uint32_t taken = 0, block_pages = model.block_pages[op->space];
    for (uint32_t i = 0; i < result->blocks; i++) {
        struct entry *entry = &model.entry[op->space][nodes[i]];
        if (entry->published)
            continue;
        *entry = (struct entry){.published = 1, .claimer = -1, .publisher = op->session};
        memcpy(entry->page, pages + i * block_pages, block_pages * sizeof(*pages));
        taken++;
    }
    CHECK_EQUAL(result->taken, taken);
}

static void do_publish(const struct operation *op)
{
    uint32_t nodes[NODES], count, block_pages = model.block_pages[op->space];
    struct attnd_block_key keys[NODES], parent;
    struct attnd_tree_chain chain;
    struct attnd_tree_result result;
    int32_t pages[NODES * BLOCK_PAGES_MAX];

    count = path(op, nodes, keys, &parent, &chain);
    uint32_t got = tree_rig_alloc(op->session, count * block_pages, pages);
    chain.count = count = got / block_pages;
    int there = parent_there(op, nodes[0]);
    int rc = attnd_tree_publish(tree_rig.tree, &model.owner[op->session][op->space], &chain, pages,
                                &result);
    CHECK_EQUAL(rc, there ? 0 : -ATTND_E_UNKNOWN);
    note_published(op, nodes, pages, &result);
    CHECK_EQUAL(result.stop,
                rc == 0 && result.blocks < count ? ATTND_PREFIX_STOP_FULL : ATTND_PREFIX_STOP_END);
    if (result.stop ==
        ATTND_PREFIX_STOP_FULL) /* then its own namespace had nothing that could go */
        CHECK_EQUAL(can_go_count(op->space, model.parent[nodes[result.blocks]]), 0);
    if (op->number & 64) /* others keep what they computed, for a while */
        tree_rig_free(op->session, pages, got);
}

static void do_claim(const struct operation *op)
{
    uint32_t nodes[NODES], want = 0;
    struct attnd_block_key keys[NODES], parent;
    struct attnd_tree_chain chain;
    uint32_t count = path(op, nodes, keys, &parent, &chain);
    struct attnd_tree_result got =
        attnd_tree_claim(tree_rig.tree, &model.owner[op->session][op->space], &chain);

    for (; want < count; want++) {
        struct entry *entry = &model.entry[op->space][nodes[want]];
        if (entry->published || entry->claimer >= 0)
            break;
        if (want == got.blocks && got.stop == ATTND_PREFIX_STOP_FULL)
            return; /* it may say so at any claim that is new */
        entry->claimer = (int)op->session;
    }
    CHECK_EQUAL(got.blocks, want);
    CHECK_EQUAL(got.stop, want == count ? ATTND_PREFIX_STOP_END
                          : model.entry[op->space][nodes[want]].published
                              ? ATTND_PREFIX_STOP_PUBLISHED
                              : ATTND_PREFIX_STOP_CLAIMED);
}

static void do_abandon(const struct operation *op)
{
    uint32_t nodes[NODES], want = 0;
    struct attnd_block_key keys[NODES], parent;
    struct attnd_tree_chain chain;
    uint32_t count = path(op, nodes, keys, &parent, &chain);
    for (uint32_t i = 0; i < count; i++) {
        struct entry *entry = &model.entry[op->space][nodes[i]];
        if (entry->claimer != (int)op->session)
            continue;
        entry->claimer = -1;
        want++;
    }
    CHECK_EQUAL(attnd_tree_abandon(tree_rig.tree, &model.owner[op->session][op->space], &chain),
                want);
}

static void do_free(const struct operation *op)
{
    uint32_t left = op->number % 16 + 1;
    for (uint32_t i = 0; i < PAGES && left; i++) {
        int32_t page = (int32_t)((i + op->node) % PAGES);
        if (tree_rig.held[op->session][page]) {
            tree_rig_free(op->session, &page, 1);
            left--;
        }
    }
}

static void do_die(const struct operation *op)
{
    for (uint32_t space = 0; space < SPACES; space++) {
        (void)attnd_tree_owner_end(tree_rig.tree, &model.owner[op->session][space], UINT32_MAX);
        for (uint32_t node = 0; node < NODES; node++)
            if (model.entry[space][node].claimer == (int)op->session)
                model.entry[space][node].claimer = -1;
    }
    tree_rig_free_all(op->session);
}

static void do_evict(const struct operation *op)
{
    uint32_t want = op->number % 8 + 1, could = 0, freed;
    for (uint32_t space = 0; space < SPACES; space++)
        could += can_go_count(space, ROOT);
    uint32_t bound = attnd_tree_evictable(tree_rig.tree);
    freed = attnd_tree_evict(tree_rig.tree, want);
    CHECK(freed <= bound);
    CHECK(freed <= want + BLOCK_PAGES_MAX - 1);
    CHECK(freed > 0 || could == 0);
    for (uint32_t space = 0; space < SPACES && freed < want; space++)
        CHECK_EQUAL(can_go_count(space, ROOT), 0);
}

static void do_pin(const struct operation *op)
{
    uint32_t nodes[NODES], want = 0;
    struct attnd_block_key keys[NODES], parent;
    struct attnd_tree_chain chain;
    uint32_t count = path(op, nodes, keys, &parent, &chain);
    struct attnd_tree_result got = op->kind == PIN ? attnd_tree_pin(tree_rig.tree, &chain)
                                                   : attnd_tree_unpin(tree_rig.tree, &chain);
    if (parent_there(op, nodes[0]))
        while (want < count && model.entry[op->space][nodes[want]].published)
            want++;
    CHECK(got.blocks == want || (op->kind == PIN && got.stop == ATTND_PREFIX_STOP_FULL));
    for (uint32_t i = 0; i < got.blocks; i++)
        if (op->kind == PIN || !model.forgetful)
            model.entry[op->space][nodes[i]].pinned = op->kind == PIN;
}

static void do_wait(const struct operation *op)
{
    const struct attnd_block_key key = key_of(op->node);
    int claimer = model.entry[op->space][op->node].claimer;

    if (model.waits) {
        attnd_tree_unwait(&model.waiter);
        model.waits = 0;
    }
    int waits = attnd_tree_wait(tree_rig.tree, model.space[op->space], &key, &model.waiter);
    CHECK_EQUAL(waits, claimer >= 0);
    model.waits = waits;
    model.wait_space = op->space;
    model.wait_node = op->node;
}

/* Keys out of order, pages that are taken: refused, and nothing has changed but what is whole. */
static void do_wrong(const struct operation *op)
{
    const struct attnd_block_key key = key_of(op->node), other = key_of(op->number % NODES);
    struct entry *entry = &model.entry[op->space][op->node];
    struct attnd_tree_chain chain = {model.space[op->space], 1, &key, &other, 0, 0};
    struct attnd_tree_result result;
    int32_t pages[BLOCK_PAGES_MAX];

    if (model.parent[op->node] == op->number % NODES)
        return;
    CHECK_EQUAL(
        attnd_tree_match(tree_rig.tree, &model.owner[op->session][op->space], &chain, pages).blocks,
        0);
    if (!entry->published || !model.entry[op->space][op->number % NODES].published)
        return;
    if (tree_rig_alloc(op->session, model.block_pages[op->space], pages) <
        model.block_pages[op->space])
        return;
    CHECK_EQUAL(attnd_tree_publish(tree_rig.tree, &model.owner[op->session][op->space], &chain,
                                   pages, &result),
                -ATTND_E_INVALID);
    CHECK_EQUAL(result.blocks, 0);
}

/* ---- a round ---- */

static void check_all(void)
{
    uint32_t pages = 0, in_tree[PAGES] = {0};
    for (uint32_t space = 0; space < SPACES; space++) {
        uint32_t blocks = 0, claims = 0, pinned = 0;
        for (uint32_t node = 0; node < NODES; node++) {
            const struct entry *entry = &model.entry[space][node];
            claims += entry->claimer >= 0;
            blocks += (uint32_t)entry->published;
            pinned += (uint32_t)entry->pinned;
            for (uint32_t i = 0; entry->published && i < model.block_pages[space]; i++)
                in_tree[entry->page[i]]++;
        }
        const struct attnd_tree_space_info *info =
            attnd_tree_space_info(tree_rig.tree, model.space[space]);
        CHECK_EQUAL(info->blocks, blocks);
        CHECK_EQUAL(info->claims, claims);
        CHECK_EQUAL(info->pinned, pinned);
        CHECK(blocks * model.block_pages[space] <= info->args.pages_max);
        pages += blocks * model.block_pages[space];
    }
    CHECK_EQUAL(attnd_tree_pages(tree_rig.tree), pages);
    for (int32_t page = 0; page < (int32_t)PAGES; page++) {
        uint32_t leases = in_tree[page];
        for (uint32_t session = 0; session < TREE_RIG_SESSIONS; session++)
            leases += tree_rig.held[session][page];
        CHECK_EQUAL(tree_rig.leases[page], leases);
    }
}

static void check_woken(void)
{
    struct attnd_tree_waiter *woken = attnd_tree_woken(tree_rig.tree);
    if (!model.waits) {
        CHECK(woken == NULL);
        return;
    }
    const struct entry *entry = &model.entry[model.wait_space][model.wait_node];
    CHECK_EQUAL(woken != NULL, entry->claimer < 0);
    if (!woken)
        return;
    CHECK(woken == &model.waiter);
    model.waits = 0;
    CHECK(attnd_tree_woken(tree_rig.tree) == NULL);
}

static void round_begin(uint64_t seed, int forgetful)
{
    struct prng prng = prng_fork(seed, 1);
    tree_rig_begin(PAGES, 3 * NODES, prng_percent(&prng, 30) ? 30 : 1000);
    tree_rig.dropped = judge_drop;
    memset(&model, 0, sizeof(model));
    model.forgetful = forgetful;
    for (uint32_t space = 0; space < SPACES; space++) {
        model.block_pages[space] = space == 1 ? 2 : 1;
        model.space[space] = tree_rig_space(
            model.block_pages[space], prng_percent(&prng, 50) ? PAGES : 8, space == 2 ? 6 : 0);
        for (uint32_t node = 0; node < NODES; node++)
            model.entry[space][node].claimer = -1;
        for (uint32_t session = 0; session < TREE_RIG_SESSIONS; session++)
            model.owner[session][space].session = session;
    }
    for (uint32_t node = 0; node < NODES; node++)
        model.parent[node] = node == 0 || prng_percent(&prng, 10)
                                 ? ROOT
                                 : (uint32_t)prng_between(&prng, (int32_t)(node < 4 ? 0 : node - 4),
                                                          (int32_t)node - 1);
}

static void run(uint64_t seed, const struct operation *ops, uint32_t count, int forgetful)
{
    static void (*const does[KINDS])(const struct operation *) = {
        do_match, do_publish, do_claim, do_abandon, do_free, do_die,
        do_evict, do_pin,     do_pin,   do_wait,    do_wrong};
    round_begin(seed, forgetful);
    for (uint32_t i = 0; i < count; i++) {
        does[ops[i].kind](&ops[i]);
        check_woken();
        check_all();
    }
    tree_rig_end();
}

static void draw(uint64_t seed, struct operation *ops, uint32_t count)
{
    static const uint32_t often[] = {MATCH, MATCH, PUBLISH, PUBLISH, CLAIM, FREE, FREE, EVICT};
    struct prng prng = prng_fork(seed, 2);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t kind =
            prng_percent(&prng, 70) ? often[prng_below(&prng, 8)] : prng_below(&prng, KINDS);
        ops[i] = (struct operation){kind, prng_below(&prng, TREE_RIG_SESSIONS),
                                    prng_below(&prng, SPACES), prng_below(&prng, NODES),
                                    (uint32_t)prng_next(&prng)};
    }
}

/* ---- the shrinker ---- */

static void quit(const char *file, int line)
{
    (void)file;
    (void)line;
    _exit(1);
}

/* In a child, because what fails may be an assertion of the tree. */
static int fails(uint64_t seed, const struct operation *ops, uint32_t count, int forgetful)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr))
            _exit(2);
        check_failed = quit;
        run(seed, ops, count, forgetful);
        _exit(0);
    }
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status != 0;
}

/* Takes out what the failure does not need, halves first. Return: how many are left. */
static uint32_t shrink(uint64_t seed, struct operation *ops, uint32_t count, int forgetful)
{
    struct operation shorter[OPS];
    for (uint32_t part = count / 2; part > 0; part /= 2)
        for (uint32_t begin = 0; begin + part <= count;) {
            uint32_t left = count - part;
            memcpy(shorter, ops, begin * sizeof(*ops));
            memcpy(shorter + begin, ops + begin + part, (left - begin) * sizeof(*ops));
            if (fails(seed, shorter, left, forgetful)) {
                memcpy(ops, shorter, left * sizeof(*ops));
                count = left;
            } else {
                begin += part;
            }
        }
    return count;
}

static void show(const struct operation *ops, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        print_message("  %s: session %u, namespace %u, node %u, number %u\n", names[ops[i].kind],
                      ops[i].session, ops[i].space, ops[i].node, ops[i].number);
}

static void the_tree_is_a_dictionary_whatever_is_asked_of_it(void **state)
{
    (void)state;
    static struct operation ops[OPS];
    uint64_t seed = test_seed();
    uint32_t rounds = (uint32_t)test_number("ATTND_ROUNDS", ROUNDS), batch = 50;

    for (uint32_t first = 0; first < rounds; first += batch) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            check_failed = quit;
            for (uint32_t i = first; i < first + batch && i < rounds; i++) {
                draw(seed + i, ops, OPS);
                run(seed + i, ops, OPS, 0);
            }
            _exit(0);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        for (uint32_t i = first; status != 0 && i < first + batch; i++) {
            draw(seed + i, ops, OPS);
            if (!fails(seed + i, ops, OPS, 0))
                continue;
            uint32_t left = shrink(seed + i, ops, OPS, 0);
            print_message("ATTND_SEED=%llu fails in %u operations:\n", (unsigned long long)seed + i,
                          left);
            show(ops, left);
            fail();
        }
        assert_int_equal(status, 0);
    }
}

/* With a fault in the dictionary: what is left is an operation that pins and one that unpins, and
 * one block for them. */
static void the_shrinker_leaves_what_matters(void **state)
{
    (void)state;
    static struct operation ops[OPS];
    for (uint64_t seed = 1; seed < 50; seed++) {
        draw(seed, ops, OPS);
        if (!fails(seed, ops, OPS, 1))
            continue;
        uint32_t left = shrink(seed, ops, OPS, 1);
        uint32_t kinds = 0;
        for (uint32_t i = 0; i < left; i++)
            kinds |= 1u << ops[i].kind;
        assert_int_equal(left, 3);
        assert_int_equal(kinds, 1u << PUBLISH | 1u << PIN | 1u << UNPIN);
        return;
    }
    fail_msg("no seed shows the fault");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_tree_is_a_dictionary_whatever_is_asked_of_it),
        cmocka_unit_test(the_shrinker_leaves_what_matters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
