/*
 * hand_over.c - see hand_over.h.
 *
 * Elements are found by the formula of struct attnd_plane, in each pool by its own strides, and not
 * by any code that is under test.
 */
#include "tests/support/harness/hand_over.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define ELEMENT_BYTES 2u
#define LAYERS_MAX 8u
#define SIDE_PAGES_MAX 4096u
#define TICKETS_MAX 64u

/* ---- pools ---- */

/* Planes of the engine's own memory, one behind the other. */
static void lay_out(const struct side_shape *shape, enum side_layout layout, uint32_t memory,
                    struct attnd_plane *planes, uint64_t *bytes)
{
    const int64_t gap = layout == SIDE_WITH_GAPS ? 3 : 0, dim = shape->dim + gap;
    const int64_t page = (int64_t)shape->page_size * shape->heads_kv * dim + gap;

    for (uint32_t i = 0; i < 2 * shape->layers; i++)
        planes[i] = (struct attnd_plane){
            .memory = memory,
            .offset_bytes = i * (uint64_t)page * shape->pages * ELEMENT_BYTES,
            .stride_page = page,
            .stride_token = layout == SIDE_BY_HEAD ? dim : shape->heads_kv * dim,
            .stride_head = layout == SIDE_BY_HEAD ? shape->page_size * dim : dim};
    *bytes = 2 * shape->layers * (uint64_t)page * shape->pages * ELEMENT_BYTES;
}

void side_open(struct side *side, const struct harness *service, const struct side_shape *shape,
               enum side_layout layout)
{
    const struct attnd_open_args args = {
        .size = sizeof(args), .socket_path = service->socket, .name = "side"};
    struct attnd_plane planes[2 * LAYERS_MAX];
    struct attnd_pool_desc desc = {.size = sizeof(desc),
                                   .layers = shape->layers,
                                   .pages = shape->pages,
                                   .page_size = shape->page_size,
                                   .heads_kv = shape->heads_kv,
                                   .dim_qk = shape->dim,
                                   .dim_vo = shape->dim,
                                   .dtype = ATTND_DTYPE_FP16,
                                   .page_owner = ATTND_PAGES_OF_SERVICE};
    uint64_t bytes;
    uint32_t memory;
    void *address = NULL;

    *side = (struct side){.service = service};
    CHECK(shape->layers <= LAYERS_MAX);
    CHECK_OK(attnd_open(&args, &side->session));
    if (layout != SIDE_OF_SERVICE) {
        lay_out(shape, layout, 0, planes, &bytes);
        CHECK_OK(attnd_memory_create(side->session, bytes, &memory, &address));
        lay_out(shape, layout, memory, planes, &bytes);
        desc.k = planes;
        desc.v = planes + shape->layers;
    }
    CHECK_OK(attnd_pool_create(side->session, &desc, &side->pool));
    side->info.size = sizeof(side->info);
    CHECK_OK(attnd_pool_info(side->session, side->pool, &side->info));
    side->address = address ? address : side->info.address;
    CHECK(side->address != NULL);
}

void side_close(struct side *side)
{
    attnd_close(side->session);
    side->session = NULL;
}

/* ---- elements ---- */

static uint16_t element(uint64_t seed, uint64_t number)
{
    uint64_t x = seed + number * UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint16_t)(x >> 48);
}

/* Calls for every element of the pages: writes it, or counts it if it is another. */
static uint64_t visit(const struct side *side, const int32_t *pages, uint32_t count, uint64_t seed,
                      int writes)
{
    const struct attnd_pool_desc *desc = &side->info.desc;
    uint64_t number = 0, wrong = 0;

    for (uint32_t i = 0; i < count; i++)
        for (uint32_t plane = 0; plane < 2 * desc->layers; plane++) {
            const struct attnd_plane *at =
                plane < desc->layers ? &desc->k[plane] : &desc->v[plane - desc->layers];
            uint16_t *base = (uint16_t *)(void *)(side->address + at->offset_bytes);
            for (int64_t token = 0; token < desc->page_size; token++)
                for (int64_t head = 0; head < desc->heads_kv; head++)
                    for (int64_t d = 0; d < desc->dim_qk; d++) {
                        uint16_t *place = base + pages[i] * at->stride_page +
                                          token * at->stride_token + head * at->stride_head + d;
                        const uint16_t value = element(seed, number++);
                        wrong += *place != value;
                        if (writes)
                            *place = value;
                    }
        }
    return writes ? 0 : wrong;
}

void side_fill(const struct side *side, const int32_t *pages, uint32_t count, uint64_t seed)
{
    (void)visit(side, pages, count, seed, 1);
}

uint64_t side_wrong(const struct side *side, const int32_t *pages, uint32_t count, uint64_t seed)
{
    return visit(side, pages, count, seed, 0);
}

/* ---- tickets ---- */

void side_offer(const struct side *side, uint32_t count, uint64_t seed, uint32_t expire_ms,
                struct attnd_token *ticket)
{
    int32_t pages[SIDE_PAGES_MAX];

    CHECK(count <= SIDE_PAGES_MAX);
    CHECK_OK(attnd_pages_alloc(side->session, side->pool, count, pages));
    side_fill(side, pages, count, seed);
    CHECK_OK(attnd_pages_offer(side->session, side->pool, count, pages, expire_ms, ticket));
}

void side_claim(const struct side *side, const struct attnd_token *ticket, uint32_t pages_max,
                const struct attnd_op *op)
{
    const struct attnd_claim_args args = {
        .size = sizeof(args), .pool = side->pool, .pages_max = pages_max, .ticket = ticket};

    CHECK_OK(attnd_pages_claim_async(side->session, &args, op));
}

struct attnd_completion side_wait(const struct side *side, uint32_t timeout_ms)
{
    struct attnd_completion completion = {0};

    CHECK_EQUAL(attnd_wait(side->session, &completion, 1, timeout_ms * UINT64_C(1000000)), 1);
    CHECK_EQUAL(completion.operation, ATTND_PAGES_CLAIM);
    return completion;
}

void side_take(const struct side *side, const struct attnd_completion *completion, uint32_t count,
               int32_t *pages)
{
    struct attnd_claim_result result = {.size = sizeof(result)};
    char text[160];

    if (completion->fault.code != 0)
        check_say(__FILE__, __LINE__, "%s",
                  attnd_fault_string(&completion->fault, text, sizeof(text)));
    CHECK_EQUAL(completion->fault.code, 0);
    CHECK_OK(attnd_claim_result(side->session, completion, &result));
    CHECK_EQUAL(result.pages_count, count);
    if (count)
        memcpy(pages, result.pages, count * sizeof(*pages));
}

void side_hand_over_many(const struct side *giver, const struct side *claimer, uint32_t count,
                         uint32_t timeout_ms)
{
    struct attnd_token tickets[TICKETS_MAX];
    int seen[TICKETS_MAX] = {0};
    int32_t page;

    CHECK(count <= TICKETS_MAX);
    for (uint32_t i = 0; i < count; i++)
        side_offer(giver, 1, i, 60000, &tickets[i]);
    for (uint32_t i = 0; i < count; i++)
        side_claim(claimer, &tickets[i], 1, &(struct attnd_op){.user_data = i});
    for (uint32_t i = 0; i < count; i++) {
        const struct attnd_completion completion = side_wait(claimer, timeout_ms);
        CHECK(completion.user_data < count && !seen[completion.user_data]);
        seen[completion.user_data] = 1;
        side_take(claimer, &completion, 1, &page);
        CHECK_EQUAL(side_wrong(claimer, &page, 1, completion.user_data), 0);
    }
}

/* ---- services ---- */

uint32_t side_leased(const struct harness *service)
{
    Attnd__Status *status = harness_status(service);
    uint32_t leased = 0;

    for (size_t i = 0; i < status->n_pools; i++)
        leased += status->pools[i]->pages_leased;
    attnd__status__free_unpacked(status, NULL);
    return leased;
}

int side_linked(const struct harness *service)
{
    Attnd__Status *status = harness_status(service);
    int linked = 0;

    for (size_t i = 0; i < status->n_peers; i++)
        linked |= !status->peers[i]->claims && strcmp(status->peers[i]->state, "up") == 0;
    attnd__status__free_unpacked(status, NULL);
    return linked;
}

static int nothing_is_leased(void *context)
{
    return side_leased(context) == 0;
}

static int is_linked(void *context)
{
    return side_linked(context);
}

static int is_lent(void *context)
{
    Attnd__Status *status = harness_status(context);
    int lent = 0;

    for (size_t i = 0; i < status->n_peers; i++)
        lent |= status->peers[i]->claims && status->peers[i]->under_way == 1;
    attnd__status__free_unpacked(status, NULL);
    return lent;
}

static int is_lent_no_more(void *context)
{
    return !is_lent(context);
}

void side_await_free(struct harness *service, const char *what)
{
    harness_eventually(nothing_is_leased, service, SIDE_LONG_MS, what);
}

void side_await_linked(struct harness *service)
{
    harness_eventually(is_linked, service, SIDE_LONG_MS, "there is a link");
}

void side_await_lent(struct harness *giver)
{
    harness_eventually(is_lent, giver, SIDE_LONG_MS, "the ticket is lent");
}

void side_await_returned(struct harness *giver, uint32_t limit_ms)
{
    harness_eventually(is_lent_no_more, giver, limit_ms, "the ticket is lent no more");
}

void hand_over_start(struct harness *giver, struct harness *claimer, const char *const *options)
{
    char peer[160];
    const char *arguments[16] = {"--peer", peer};
    uint32_t count = 2;

    harness_start(giver, NULL);
    snprintf(peer, sizeof(peer), "giver=%s", giver->socket);
    while (options && *options && count < 15)
        arguments[count++] = *options++;
    harness_start(claimer, arguments);
    harness_eventually(is_linked, claimer, 10000, "the claimer is linked");
}
