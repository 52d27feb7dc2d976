/*
 * moves.c - blocks on their way between the pool and host memory.
 *
 *   queued    the block waits; one that leaves can still be cancelled, and its pages are free
 *   batched   with others, up to ATTND_TIER_BATCH_PAGES pages; its pages and places stay
 *   pieces    the batch is copied in one, or some layers at a time if it is large; at most two
 *             pieces are in flight in each direction
 *   ended     out: the bytes are there, the pages free. In: published, and matches that wait
 *             are woken
 *
 * When a worker dies its pieces are sent again to the next one, from the first layer on. Pages and
 * places have stayed where they were, and what is copied does not change, so it may be copied
 * twice. While a piece is in flight the pool cannot go.
 */
#include "persistent/copy.h"
#include "service/objects/lease.h"
#include "service/prefix/prefix.h"
#include "service/prefix/tier_internal.h"
#include "service/supervise/supervise.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* So much is copied in one piece: a millisecond of a GPU's link. */
#define PIECE_BYTES (32u << 20)

/* ---- queues ---- */

int attnd_tier_move(struct attnd_tier *tier, enum attnd_tier_way way, uint32_t block,
                    const int32_t *pages, uint32_t count)
{
    struct attnd_tier_queue *queue = &tier->queue[way];
    struct attnd_tier_move *move = calloc(1, sizeof(*move) + count * sizeof(*pages));

    if (!move)
        return -ATTND_E_NO_MEMORY;
    move->block = block;
    move->way = way;
    move->count = count;
    move->has_pages = pages != NULL;
    if (pages)
        memcpy(move->pages, pages, count * sizeof(*pages));
    attnd_host_at(tier->host, block)->mover = move;
    *(queue->first ? queue->end : &queue->first) = move;
    queue->end = &move->next;
    queue->pages += count;
    return 0;
}

struct attnd_tier_move *attnd_tier_find(const struct attnd_tier *tier, uint32_t block)
{
    return attnd_host_at(tier->host, block)->mover;
}

static struct attnd_tier_move *pop(struct attnd_tier_queue *queue)
{
    struct attnd_tier_move *move = queue->first;

    queue->first = move->next;
    queue->pages -= move->count;
    move->next = NULL;
    return move;
}

/* Its pages and its places are let go. */
static void end_move(struct attnd_tier *tier, struct attnd_tier_move *move)
{
    attnd_host_at(tier->host, move->block)->mover = NULL;
    attnd_host_drop(tier->host, move->block);
    if (move->has_pages)
        attnd_lease_drop(tier->pool, move->pages, move->count);
    tier->dirty = 1;
    free(move);
}

void attnd_tier_cancel_move(struct attnd_tier *tier, struct attnd_tier_move *move)
{
    struct attnd_tier_queue *queue = &tier->queue[move->way];
    struct attnd_tier_move **link = &queue->first;

    assert(!move->batch && move->way == ATTND_TIER_OUT);
    while (*link != move)
        link = &(*link)->next;
    *link = move->next;
    if (queue->end == &move->next)
        queue->end = link;
    queue->pages -= move->count;
    end_move(tier, move);
}

/* ---- batches ---- */

static struct attnd_copy_page place_of(const struct attnd_tier *tier, int32_t page, uint32_t place)
{
    const struct attnd_memory *memory = tier->chunks[place / tier->chunk_places];
    return (struct attnd_copy_page){.page = (uint32_t)page,
                                    .memory = memory->index,
                                    .offset_bytes = place % tier->chunk_places * tier->page_bytes};
}

static uint32_t layers_of_piece(const struct attnd_tier *tier, uint32_t pages)
{
    assert(pages > 0);
    uint64_t layer_bytes = 2 * attnd_copy_extent(&tier->pool->shape) * pages;
    uint64_t layers = PIECE_BYTES / layer_bytes;
    return layers
               ? (uint32_t)(layers < tier->pool->shape.layers ? layers : tier->pool->shape.layers)
               : 1;
}

static void add_to_batch(struct attnd_tier_batch *batch, struct attnd_tier_move *move)
{
    uint32_t places[ATTND_PREFIX_BLOCK_PAGES_MAX];

    attnd_host_places(batch->tier->host, move->block, places);
    for (uint32_t i = 0; i < move->count; i++)
        batch->page[batch->pages++] = place_of(batch->tier, move->pages[i], places[i]);
    move->batch = batch;
}

/* Pages for a block that comes: free ones, else such as others leave for it on their way to the
 * host. Return: 1; 0 it waits for those; -ATTND_E_NO_SPACE there are none. */
static int find_pages(struct attnd_tier *tier, struct attnd_tier_move *move)
{
    uint32_t there = attnd_lease_free_count(tier->pool);

    if (move->has_pages)
        return 1;
    if (there < move->count && !tier->queue[ATTND_TIER_OUT].first)
        (void)attnd_tree_sink(tier->tree, move->count - there);
    if (attnd_lease_free_count(tier->pool) < move->count &&
        tier->queue[ATTND_TIER_OUT].pages + tier->batched_pages[ATTND_TIER_OUT] > 0)
        return 0;
    if (attnd_lease_take_free(tier->pool, move->count, move->pages) < 0)
        return -ATTND_E_NO_SPACE;
    move->has_pages = 1;
    return 1;
}

static struct attnd_tier_batch *add_batch(struct attnd_tier *tier, enum attnd_tier_way way)
{
    struct attnd_tier_batch **link = &tier->batches[way];
    struct attnd_tier_batch *batch = calloc(1, sizeof(*batch));

    if (!batch)
        return NULL;
    while (*link)
        link = &(*link)->next;
    *link = batch;
    batch->tier = tier;
    batch->way = way;
    return batch;
}

/* Whole pages go in one piece where they can: the layers of a page are one copy then, and small
 * copies do not fill a link. */
static uint32_t batch_pages(const struct attnd_tier *tier)
{
    uint64_t pages = PIECE_BYTES / tier->page_bytes;
    return pages < ATTND_TIER_BATCH_PAGES ? (uint32_t)pages : ATTND_TIER_BATCH_PAGES;
}

/* The block that waits longest, of one direction. Return: NULL: nothing can go, or there is no
 * memory. */
static struct attnd_tier_batch *form_batch(struct attnd_tier *tier, enum attnd_tier_way way)
{
    struct attnd_tier_queue *queue = &tier->queue[way];
    int rc = queue->first ? find_pages(tier, queue->first) : 0;
    struct attnd_tier_batch *batch = rc ? add_batch(tier, way) : NULL;

    if (!batch)
        return NULL;
    struct attnd_tier_move **end = &batch->moves;
    batch->code = rc < 0 ? rc : 0;
    do {
        *end = pop(queue);
        if (rc > 0)
            add_to_batch(batch, *end);
        end = &(*end)->next;
    } while (queue->first && (rc < 0 || (batch->pages + queue->first->count <= batch_pages(tier) &&
                                         find_pages(tier, queue->first) > 0)));
    tier->batched_pages[way] += batch->pages;
    batch->piece_layers = rc > 0 ? layers_of_piece(tier, batch->pages) : 1;
    return batch;
}

/* Blocks that leave wait again, and can be cancelled: nothing of the batch is in flight. */
static void dissolve(struct attnd_tier *tier, struct attnd_tier_batch *batch)
{
    struct attnd_tier_queue *queue = &tier->queue[batch->way];
    struct attnd_tier_batch **link = &tier->batches[batch->way];
    struct attnd_tier_move **end = &batch->moves;

    while (*link != batch)
        link = &(*link)->next;
    *link = batch->next;
    for (; *end; end = &(*end)->next)
        (*end)->batch = NULL;
    *end = queue->first;
    if (!queue->first)
        queue->end = end;
    queue->first = batch->moves;
    queue->pages += batch->pages;
    tier->batched_pages[batch->way] -= batch->pages;
    free(batch);
}

/* ---- pieces ---- */

/* Return: 1 the worker has all that the batch names; 0 not yet; < 0 it cannot map it. */
static int is_ready(const struct attnd_tier_batch *batch)
{
    const struct attnd_tier *tier = batch->tier;
    const struct attnd_maps *maps = &tier->service->supervisor->maps;
    int ready = 1;

    if (maps->not_mapped == 0)
        return 1;
    for (uint32_t i = 0; i < tier->pool->memories_count && ready == 1; i++)
        ready = attnd_maps_ready(maps, tier->pool->memories[i]->index);
    for (uint32_t i = 0; i < batch->pages && ready == 1; i++)
        ready = attnd_maps_ready(maps, batch->page[i].memory);
    return ready;
}

/* Return: 1 a piece is on its way; 0 nothing can be sent now; < 0 the batch fails. */
static int send_piece(struct attnd_tier_batch *batch)
{
    struct attnd_tier *tier = batch->tier;
    const struct attnd_heap_pool *shape = &tier->pool->shape;
    uint32_t left = shape->layers - batch->layer;
    uint32_t layers = left < batch->piece_layers ? left : batch->piece_layers;
    const struct attnd_copy what = {.pool_offset_bytes = tier->pool->heap_offset_bytes,
                                    .to_host = batch->way == ATTND_TIER_OUT,
                                    .layer_begin = batch->layer,
                                    .layer_end = batch->layer + layers,
                                    .count = batch->pages};
    int rc = is_ready(batch);

    if (rc < 0)
        tier->broken = 1;
    if (rc != 1)
        return rc;
    rc = attnd_copies_send(tier->service->supervisor, &what, batch->page, batch);
    if (rc < 0)
        return rc == -ATTND_E_FULL ? 0 : rc;
    batch->layer += layers;
    batch->pieces++;
    batch->sent_ns = attnd_clock_ns();
    attnd_pool_ref(tier->pool);
    tier->in_flight++;
    return 1;
}

/* ---- ends ---- */

static void left(struct attnd_tier *tier, struct attnd_tier_move *move, int code)
{
    if (code == 0)
        attnd_host_at(tier->host, move->block)->filled = 1;
    *(code == 0 ? &tier->stats.out_blocks : &tier->stats.lost_blocks) += 1;
    end_move(tier, move);
}

/* A block is back, or it is lost. Its pages are let go later. */
static void came(struct attnd_tier *tier, const struct attnd_tier_move *move, int code)
{
    const struct attnd_host_block at = *attnd_host_at(tier->host, move->block);
    const struct attnd_tree_chain chain = {.space = at.space,
                                           .count = 1,
                                           .keys = &at.key,
                                           .parent = at.has_parent ? &at.parent : NULL};
    struct attnd_tree_owner publisher = {.session = at.publisher};
    struct attnd_tree_result result = {0};

    if (code == 0)
        code = attnd_tree_publish(tier->tree, &publisher, &chain, move->pages, &result);
    (void)attnd_tree_abandon(tier->tree, &tier->owner, &chain); /* unless it has ended by that */
    tier->stats.in_blocks += code == 0 && result.taken;
}

/* The batch is out of the list. */
static void end_batch(struct attnd_tier *tier, struct attnd_tier_batch *batch)
{
    struct attnd_tier_move *move, *next;

    tier->batched_pages[batch->way] -= batch->pages;
    if (batch->way == ATTND_TIER_IN) {
        for (move = batch->moves; move; move = move->next)
            came(tier, move, batch->code);
        tier->service->tier_events->arrived(tier->tree); /* they lease what they waited for */
    }
    for (move = batch->moves; move; move = next) {
        next = move->next;
        if (batch->way == ATTND_TIER_OUT) {
            left(tier, move, batch->code);
            continue;
        }
        if (batch->code < 0 && batch->code != -ATTND_E_NO_SPACE) {
            attnd_host_forget(tier->host, move->block);
            tier->stats.lost_blocks++;
        }
        end_move(tier, move);
    }
    free(batch);
}

static int is_over(const struct attnd_tier_batch *batch)
{
    return batch->pieces == 0 &&
           (batch->code < 0 || batch->layer == batch->tier->pool->shape.layers);
}

/* Return: 1 some have. */
static int end_batches(struct attnd_tier *tier, enum attnd_tier_way way)
{
    struct attnd_tier_batch **link = &tier->batches[way];
    int ended = 0;

    while (*link) {
        struct attnd_tier_batch *batch = *link;
        if (!is_over(batch)) {
            link = &batch->next;
            continue;
        }
        *link = batch->next;
        end_batch(tier, batch);
        ended = 1;
        link = &tier->batches[way]; /* others may have come */
    }
    return ended;
}

/* ---- sending ---- */

static void fail(struct attnd_tier_batch *batch, int code)
{
    char text[160];
    const struct attnd_fault fault = {.code = code, .field = ATTND_F_MEMORY};

    attnd_log(ATTND_LOG_WARNING, "%" PRIu32 " pages %s host memory are given up: %s", batch->pages,
              batch->way == ATTND_TIER_OUT ? "to" : "from",
              attnd_fault_string(&fault, text, sizeof(text)));
    batch->code = code;
}

/* Return: 1 something was sent or has failed. */
static int pump_way(struct attnd_tier *tier, enum attnd_tier_way way)
{
    struct attnd_tier_batch *batch = tier->batches[way];

    if (tier->pool->refs <= tier->in_flight) /* nobody else has it any more */
        return 0;
    if (!attnd_copies_fit(tier->service->supervisor,
                          way == ATTND_TIER_OUT ? ATTND_COPY_OUT : ATTND_COPY_IN))
        return 0;
    while (batch && (batch->code < 0 || batch->layer == tier->pool->shape.layers))
        batch = batch->next;
    if (!batch)
        batch = form_batch(tier, way);
    if (batch && batch->code < 0)
        return 1; /* it has no pages */
    int rc = batch ? send_piece(batch) : 0;
    if (rc < 0)
        fail(batch, rc);
    else if (rc == 0 && batch && way == ATTND_TIER_OUT && batch->pieces + batch->layer == 0)
        dissolve(tier, batch);
    return rc != 0;
}

void attnd_tier_pump(struct attnd_tier *tier)
{
    int ended = 1;

    while (ended) { /* what has failed leaves pages to others */
        ended = 0;
        for (int way = ATTND_TIER_IN; way < ATTND_TIER_WAYS; way++) {
            while (pump_way(tier, (enum attnd_tier_way)way))
                ;
            ended |= end_batches(tier, (enum attnd_tier_way)way);
        }
    }
    attnd_tier_report(tier);
}

void attnd_tier_pump_all(struct attnd_service *service)
{
    for (struct attnd_pool *pool = service->pools, *next; pool; pool = next) {
        next = pool->next;
        if (pool->prefix && pool->prefix->tier)
            attnd_tier_pump(pool->prefix->tier);
    }
}

/* ---- what the worker says ---- */

/* How fast pieces come in, of late. One that stood behind another counts from that one's end. */
static void note_rate(struct attnd_tier *tier, const struct attnd_tier_batch *batch)
{
    uint64_t now_ns = attnd_clock_ns();
    uint64_t begin_ns = batch->sent_ns > tier->landed_ns ? batch->sent_ns : tier->landed_ns;
    uint64_t bytes = 2 * attnd_copy_extent(&tier->pool->shape) * batch->pages * batch->piece_layers;

    if (batch->way != ATTND_TIER_IN)
        return;
    tier->landed_ns = now_ns;
    if (now_ns <= begin_ns)
        return;
    double rate = (double)bytes * 1e9 / (double)(now_ns - begin_ns);
    tier->in_rate = tier->in_rate > 0 ? tier->in_rate * 0.75 + rate * 0.25 : rate;
}

/* The batch is sent again from its beginning on. */
static void lost_worker(struct attnd_tier *tier, struct attnd_tier_batch *batch)
{
    batch->layer = 0;
    if (batch->way == ATTND_TIER_OUT && batch->pieces == 0 && batch->code == 0)
        dissolve(tier, batch);
}

void attnd_tier_copied(struct attnd_service *service, void *context, int code)
{
    struct attnd_tier_batch *batch = context;
    struct attnd_tier *tier = batch->tier;
    struct attnd_pool *pool = tier->pool;
    enum attnd_tier_way way = batch->way;

    batch->pieces--;
    if (code == -ATTND_E_WORKER_RESTARTED)
        lost_worker(tier, batch);
    else if (code < 0)
        fail(batch, code);
    else
        note_rate(tier, batch);
    (void)end_batches(tier, way);
    attnd_tier_refill(tier);
    if (way == ATTND_TIER_OUT)
        service->tier_events->freed(service, pool);
    tier->in_flight--;
    attnd_pool_unref(service, pool);
}

void attnd_tier_moves_free(struct attnd_tier *tier)
{
    for (int way = 0; way < ATTND_TIER_WAYS; way++) {
        while (tier->queue[way].first)
            free(pop(&tier->queue[way]));
        for (struct attnd_tier_batch *batch = tier->batches[way], *next; batch; batch = next) {
            next = batch->next;
            assert(batch->pieces == 0);
            for (struct attnd_tier_move *move = batch->moves, *after; move; move = after) {
                after = move->next;
                free(move);
            }
            free(batch);
        }
    }
}
