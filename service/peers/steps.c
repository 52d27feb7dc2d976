/*
 * steps.c - the steps of a transfer that take long, in pieces of the loop's thread (base/work.h).
 *
 * Each state's step says whether there is more to do at once. One that waits is asked again when
 * what it waits for may have come: attnd_peers_pump(), the end of a piece, or the timer of answers
 * that do not fit yet.
 */
#include "persistent/bring.h"
#include "schemas/clock.h"
#include "schemas/crash.h"
#include "service/peers/peers.h"
#include "service/peers/peers_internal.h"
#include "service/prefix/prefix.h"
#include "service/supervise/supervise.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>

/* So much is copied in one piece, or the pages of one layer. */
#define PIECE_BYTES (32u << 20)
#define FITS_AGAIN_NS UINT64_C(1000000)

enum { WAITS, GOES_ON, MORE_LATER };

static int fail(struct attnd_transfer *transfer, int code, enum attnd_field field, int64_t value,
                int64_t limit)
{
    struct attnd_fault fault = {0};

    attnd_fault_set(&fault, code, field, 0, value, limit);
    attnd_transfer_fail(transfer, &fault);
    return WAITS;
}

/* ---- pages ---- */

static int lease_pages(struct attnd_transfer *transfer)
{
    struct attnd_pool *pool = transfer->pool;

    while (attnd_lease_make_room(pool, transfer->count, ATTND_LEASE_ROOM_STEP))
        if (attnd_work_spent(&transfer->service->works))
            return MORE_LATER;
    if (attnd_lease_take_free(pool, transfer->count, transfer->pages) < 0) {
        const uint32_t there = attnd_lease_free_count(pool) + attnd_pool_leaving(pool);
        return there >= transfer->count /* without anybody's doing */
                   ? WAITS
                   : fail(transfer, -ATTND_E_NO_SPACE, ATTND_F_PAGES, transfer->count,
                          attnd_lease_free_count(pool));
    }
    transfer->leased = transfer->count;
    if (pool->keeper)
        pool->keeper->changed(pool);
    transfer->state = ATTND_TRANSFER_MAPPING;
    return GOES_ON;
}

/* ---- answers ---- */

/* Return: 1; 0 there is no room for an answer: it is tried again. */
static int fits(struct attnd_transfer *transfer)
{
    struct attnd_peers *peers = transfer->service->peers;

    if (peers->events->fits(transfer->context, transfer->count))
        return 1;
    attnd_loop_timer_set(transfer->service->loop, peers->timer, attnd_clock_ns() + FITS_AGAIN_NS);
    return 0;
}

static int finish(struct attnd_transfer *transfer)
{
    if (!transfer->context || fits(transfer))
        attnd_transfer_done(transfer);
    return WAITS;
}

/* ---- mappings ---- */

static int all_ready(const struct attnd_maps *maps, struct attnd_memory *const *memories,
                     uint32_t count)
{
    int ready = 1;

    for (uint32_t i = 0; i < count && ready == 1; i++)
        ready = attnd_maps_ready(maps, memories[i]->index);
    return ready;
}

/* Return: 1 the worker has both pools; 0 not yet; < 0 it cannot have them. */
static int is_mapped(const struct attnd_transfer *transfer)
{
    const struct attnd_maps *maps = &transfer->service->supervisor->maps;
    int ready = all_ready(maps, transfer->lent->memories, transfer->lent->memories_count);

    return ready == 1 ? all_ready(maps, transfer->pool->memories, transfer->pool->memories_count)
                      : ready;
}

/* The mover of another host's pages is told where they go. Return: 1; < 0 it has failed. */
static int place(struct attnd_transfer *transfer)
{
    const struct attnd_grant_of what = {.pool = transfer->pool,
                                        .pages = transfer->pages,
                                        .count = transfer->count,
                                        .transfer = transfer->number,
                                        .host_only = 1};
    struct attnd_fault fault = {0};
    int rc = 0;

    if (transfer->placed)
        return 1;
    if (transfer->pool->memories_count > ATTND_PEER_MEMORIES_MAX)
        rc = attnd_fault_set(&fault, -ATTND_E_UNSUPPORTED, ATTND_F_MEMORY, 0,
                             transfer->pool->memories_count, ATTND_PEER_MEMORIES_MAX);
    else
        rc = attnd_grant_send(&transfer->peer->link, &what, &fault);
    if (rc < 0)
        attnd_transfer_fail(transfer, &fault);
    transfer->placed = 1;
    return transfer->state == ATTND_TRANSFER_OVER ? -ATTND_E_PEER_LOST : 1;
}

static int await_mappings(struct attnd_transfer *transfer)
{
    const int far = transfer->peer->far, ready = far ? place(transfer) : is_mapped(transfer);

    if (ready < 0)
        return far ? WAITS : fail(transfer, ready, ATTND_F_MEMORY, 0, 0);
    if (ready == 0)
        return WAITS;
    if (transfer->early && transfer->context) {
        if (!fits(transfer))
            return WAITS;
        attnd_transfer_answer_early(transfer);
        if (transfer->state == ATTND_TRANSFER_OVER)
            return WAITS;
    }
    transfer->state = ATTND_TRANSFER_BRINGING;
    attnd_crash(ATTND_CRASH_DAEMON_PEER_MAPPED);
    return GOES_ON;
}

/* ---- pieces ---- */

static uint32_t piece_layers(const struct attnd_transfer *transfer)
{
    const struct attnd_heap_pool *shape = &transfer->pool->shape;
    const uint64_t layer_bytes = transfer->count * attnd_bring_bytes(shape, 1);
    const uint64_t layers = layer_bytes ? PIECE_BYTES / layer_bytes : shape->layers;
    const uint32_t left = transfer->layers_whole - transfer->layers_sent;

    return layers < 1 ? 1 : layers < left ? (uint32_t)layers : left;
}

static struct attnd_bring_page *describe_pages(const struct attnd_transfer *transfer)
{
    struct attnd_bring_page *pages = malloc(transfer->count * sizeof(*pages) + 1);

    for (uint32_t i = 0; pages && i < transfer->count; i++)
        pages[i] = (struct attnd_bring_page){.page = (uint32_t)transfer->pages[i],
                                             .from = transfer->from[i]};
    return pages;
}

/* Return: 0 a piece is on its way; < 0. */
static int send_piece(struct attnd_transfer *transfer)
{
    const struct attnd_bring what = {.pool_offset_bytes = transfer->pool->heap_offset_bytes,
                                     .from_offset_bytes = transfer->lent->heap_offset_bytes,
                                     .layer_begin = transfer->layers_sent,
                                     .layer_end = transfer->layers_sent + piece_layers(transfer),
                                     .count = transfer->count};
    struct attnd_bring_page *pages = describe_pages(transfer);
    const int rc = pages ? attnd_copies_bring(transfer->service->supervisor, &what, pages, transfer)
                         : -ATTND_E_NO_MEMORY;

    free(pages);
    if (rc < 0)
        return rc;
    transfer->piece_layers[transfer->pieces++] = what.layer_end - what.layer_begin;
    transfer->layers_sent = what.layer_end;
    attnd_crash(ATTND_CRASH_DAEMON_PEER_PIECE_SENT);
    return 0;
}

/* By the mover. Return: WAITS; it may have failed with its link, and be gone. */
static int pull(struct attnd_transfer *transfer)
{
    while (transfer->layers_sent < transfer->layers_whole &&
           transfer->pieces < ATTND_TRANSFER_PIECES) {
        const uint32_t begin = transfer->layers_sent, layers = piece_layers(transfer);
        transfer->piece_layers[transfer->pieces++] = layers;
        transfer->layers_sent += layers;
        if (attnd_transfer_pull(transfer, begin, begin + layers) < 0)
            return WAITS;
        attnd_crash(ATTND_CRASH_DAEMON_PEER_PIECE_SENT);
        attnd_transfer_last(transfer);
    }
    return WAITS;
}

static int bring(struct attnd_transfer *transfer)
{
    const uint32_t layers = transfer->pool->shape.layers;

    if (transfer->layers_landed == layers ||
        (transfer->count == 0 && transfer->layers_whole == layers)) {
        transfer->state = ATTND_TRANSFER_BROUGHT;
        attnd_crash(ATTND_CRASH_DAEMON_PEER_BROUGHT);
        return GOES_ON;
    }
    if (transfer->peer->far)
        return pull(transfer);
    while (transfer->layers_sent < transfer->layers_whole &&
           transfer->pieces < ATTND_TRANSFER_PIECES &&
           attnd_copies_fit(transfer->service->supervisor, ATTND_COPY_BRING)) {
        const int ready = is_mapped(transfer); /* by this worker, too */
        if (ready < 0)
            return fail(transfer, ready, ATTND_F_MEMORY, 0, 0);
        const int rc = ready ? send_piece(transfer) : -ATTND_E_FULL;
        if (rc == -ATTND_E_FULL)
            break;
        if (rc < 0)
            return fail(transfer, rc, ATTND_F_NONE, 0, 0);
        attnd_transfer_last(transfer);
    }
    return WAITS;
}

/* ---- it gives back what it has ---- */

/* May bytes still come to its pages? */
static int is_written(const struct attnd_transfer *transfer)
{
    const struct attnd_supervisor *supervisor = transfer->service->supervisor;

    return transfer->pieces > 0 || (transfer->lost && supervisor->state != ATTND_WORKER_UP &&
                                    supervisor->state != ATTND_WORKER_STOPPED);
}

/* Return: WAITS also when it is gone. */
static int give_back(struct attnd_transfer *transfer)
{
    if (is_written(transfer))
        return WAITS;
    if (transfer->lent)
        attnd_lent_let_go(transfer->peer, transfer->lent);
    transfer->lent = NULL;
    while (transfer->dropped < transfer->leased) {
        const uint32_t left = transfer->leased - transfer->dropped;
        const uint32_t part = left < ATTND_LEASE_DROP_STEP ? left : ATTND_LEASE_DROP_STEP;
        if (transfer->quiet)
            attnd_lease_quiet_end(transfer->pool, transfer->pages + transfer->dropped, part);
        attnd_lease_drop(transfer->pool, transfer->pages + transfer->dropped, part);
        transfer->dropped += part;
        if (attnd_work_spent(&transfer->service->works))
            return MORE_LATER;
    }
    attnd_transfer_free(transfer);
    return WAITS;
}

/* ---- the item ---- */

static int step(struct attnd_transfer *transfer)
{
    switch (transfer->state) {
    case ATTND_TRANSFER_WAITING:
        attnd_transfer_ask(transfer->peer);
        return WAITS;
    case ATTND_TRANSFER_GRANTED:
        return lease_pages(transfer);
    case ATTND_TRANSFER_MAPPING:
        return await_mappings(transfer);
    case ATTND_TRANSFER_BRINGING:
        return bring(transfer);
    case ATTND_TRANSFER_BROUGHT:
        return finish(transfer);
    case ATTND_TRANSFER_OVER:
        return give_back(transfer);
    default: /* the giver's turn */
        return WAITS;
    }
}

int attnd_transfer_steps(struct attnd_work *work)
{
    struct attnd_transfer *transfer =
        (struct attnd_transfer *)(void *)((char *)work - offsetof(struct attnd_transfer, work));
    int then;

    do
        then = step(transfer); /* WAITS: it may be gone */
    while (then == GOES_ON);
    return then == MORE_LATER;
}

/* ---- what the worker says ---- */

void attnd_transfer_land(struct attnd_transfer *transfer, int code)
{
    const uint32_t layers = transfer->piece_layers[0];
    struct attnd_fault fault = {.code = code, .field = ATTND_F_PEER};

    transfer->piece_layers[0] = transfer->piece_layers[1];
    transfer->pieces--;
    attnd_crash(ATTND_CRASH_DAEMON_PEER_PIECE_LANDED);
    if (code == 0) {
        transfer->layers_landed += layers;
        transfer->peer->bytes +=
            transfer->count * attnd_bring_bytes(&transfer->pool->shape, layers);
        if (transfer->arrival)
            attnd_transfer_check(transfer);
    } else if (code == -ATTND_E_WORKER_RESTARTED) {
        transfer->lost = 1;
        transfer->layers_sent = transfer->layers_landed; /* again, by the next one */
    } else {
        if (code == -ATTND_E_RANGE || code == -ATTND_E_UNKNOWN) /* it is not where the peer said */
            fault.code = -ATTND_E_PROTOCOL;
        attnd_transfer_fail(transfer, &fault);
    }
}

void attnd_transfer_brought(struct attnd_service *service, void *context, int code)
{
    attnd_transfer_land(context, code);
    attnd_peers_pump(service);
}
